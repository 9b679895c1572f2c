"""What the ranks of `test_nccl.py` do on the stand-in, a function each; see `__main__`."""
