"""`hpccoll --version`: this package, and what it would work with here."""

from __future__ import annotations

import contextlib
import platform
from collections.abc import Iterator
from importlib import metadata

from hpccoll._version import __version__

_PACKAGES = ("mpi4py", "nccl4py", "cuda-bindings", "cupy-cuda12x", "cupy-cuda13x", "torch")


def text() -> str:
    """A line for each; MPI is asked without being initialised."""
    return "\n".join(_lines())


def nccl_text() -> str | None:
    """NCCL's version, such as "2.30.3"; None without it, or without its bindings."""
    with contextlib.suppress(Exception):  # no package, or one that finds no library
        from hpccoll.transports.nccl import version

        number = version()
        return f"{number // 10000}.{number // 100 % 100}.{number % 100}"
    return None


def nccl_cuda() -> str | None:
    """The CUDA that the installed package of NCCL is for, such as "12"; None where that does not say it."""
    found = [
        name.removeprefix("nvidia-nccl-cu")
        for name in ("nvidia-nccl-cu12", "nvidia-nccl-cu13")
        if _is_installed(name)
    ]
    return found[0] if len(found) == 1 else None


def _is_installed(name: str) -> bool:
    with contextlib.suppress(metadata.PackageNotFoundError):
        return bool(metadata.version(name))
    return False


def _lines() -> Iterator[str]:
    import mpi4py
    import numpy as np

    mpi4py.rc.initialize = False
    mpi4py.rc.finalize = False
    from mpi4py import MPI

    from hpccoll._native import reason
    from hpccoll.topology.gpus import driver_text

    yield f"hpccoll {__version__}, C extension: {reason() or 'in use'}"
    yield f"Python {platform.python_version()}, NumPy {np.__version__}"
    yield "MPI: " + " ".join(MPI.Get_library_version().splitlines()[0].strip(chr(0)).split())
    yield f"NCCL: {nccl_text() or 'not installed'}"
    yield f"CUDA: {driver_text() or 'no driver'}"
    found = {}
    for name in _PACKAGES:
        with contextlib.suppress(metadata.PackageNotFoundError):
            found[name] = metadata.version(name)
    yield "packages: " + ", ".join(f"{name} {version}" for name, version in found.items())
