"""Communicators, and a stream of this rank's device, for the tests on device arrays."""

from __future__ import annotations

import ctypes
import os

import pytest

from tests.collectives.conftest import (  # noqa: F401  fixtures and a hook
    Make,
    _opened,
    communicator,
    pytest_runtest_makereport,
)

# Elsewhere there is neither a device nor a stand-in: see __main__.py.
collect_ignore_glob = [] if "HPCCOLL_TEST_GPU" in os.environ else ["test_*.py"]


def why_not() -> str:
    """Empty, or why nothing can run here; a rank of the suite has devices or stand-ins for them."""
    try:
        import nccl.bindings  # noqa: F401
        from cuda.bindings import driver

        if driver.cuInit(0)[0] != driver.CUresult.CUDA_SUCCESS:
            return "CUDA does not start"
        ctypes.CDLL("libcuda.so.1")
    except (ImportError, OSError, RuntimeError) as error:
        return f"{type(error).__name__}: {error}"
    return ""


@pytest.fixture(scope="session")
def device() -> int:
    """This rank's device, made current: by rank, as all tests run on one host."""
    from mpi4py import MPI

    from tests.gpu.memory import device_count, use_device

    if reason := why_not():
        pytest.fail(f"no device and no stand-in (run `make test-gpu`): {reason}")
    ordinal = MPI.COMM_WORLD.rank % device_count()
    use_device(ordinal)
    return ordinal


@pytest.fixture(scope="session")
def stream(device: int) -> int:
    """A stream of the device."""
    from tests.gpu.memory import make_stream

    return make_stream()


@pytest.fixture(scope="module")
def streams(device: int) -> list[int]:
    """Two of their own, and the default one, which does not wait for these."""
    from tests.gpu.memory import make_stream

    return [make_stream(), make_stream(), 1]


@pytest.fixture
def own_devices(device: int) -> None:
    """Skip where ranks share devices, which only real hardware makes them do."""
    from mpi4py import MPI

    from tests.gpu.memory import device_count

    if "STANDIN_FOLDER" not in os.environ and device_count() < MPI.COMM_WORLD.size:
        pytest.skip("real hardware with fewer devices than ranks")
