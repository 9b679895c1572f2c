"""Packages of others; without a network their tests skip, in continuous integration they fail."""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from tests.conformance.fetch import UnavailableError, mpipartition, pylops_mpi, required

# mpipartition imports numba for what these tests do not use.
NUMBA = "def jit(**words):\n    return lambda function: function\n"


def fetched(fetch: Callable[[], Any]) -> Any:
    try:
        return fetch()
    except UnavailableError as error:
        if required():
            raise
        pytest.skip(str(error))


@pytest.fixture(scope="session")
def with_mpipartition(tmp_path_factory: pytest.TempPathFactory) -> str:
    """PYTHONPATH for it."""
    folders = [fetched(mpipartition)]
    try:
        import numba  # noqa: F401
    except ImportError:
        folder = tmp_path_factory.mktemp("numba")
        (folder / "numba.py").write_text(NUMBA)
        folders.append(folder)
    return os.pathsep.join(map(str, folders))


@pytest.fixture(scope="session")
def with_pylops_mpi() -> dict[str, str]:
    """Variables for it: on host arrays, whatever is installed for devices."""
    folders: tuple[Path, ...] = fetched(pylops_mpi)[1]
    host = dict.fromkeys(("CUPY_PYLOPS", "CUPY_PYLOPS_MPI", "NCCL_PYLOPS_MPI"), "0")
    return {"PYTHONPATH": os.pathsep.join(map(str, folders)), **host}
