"""Device arrays: on the CPU stand-in (tests/emulation) in CI, unchanged on a real GPU.

`make test-gpu` runs them; see __main__.py.
"""
