"""What the programs share: arrays on a device, communicators, errors, waiting."""

from __future__ import annotations

import contextlib
import time
from collections.abc import Callable, Iterator
from typing import Any

import ml_dtypes
import numpy as np
from cuda.bindings import driver
from cuda.core import Device
from mpi4py import MPI
from nccl import core
from nccl.bindings import nccl as low
from nccl.core import Communicator, NCCLConfig

WORLD = MPI.COMM_WORLD
RANK, SIZE = WORLD.rank, WORLD.size
SUM, PROD, MAX, MIN, AVG = range(5)
SUCCESS, CUDA_ERROR, SYSTEM_ERROR, INTERNAL, ARGUMENT, USAGE, REMOTE, PROGRESS = range(8)
TYPES = {
    np.dtype(name): code for code, name in enumerate(("i1", "u1", "i4", "u4", "i8", "u8", "f2", "f4", "f8"))
} | {
    np.dtype(ml_dtypes.bfloat16): 9,
    np.dtype(ml_dtypes.float8_e4m3fn): 10,
    np.dtype(ml_dtypes.float8_e5m2): 11,
}
PROGRAMS: dict[str, Callable[[], None]] = {}


def program(function: Callable[[], None]) -> Callable[[], None]:
    PROGRAMS[function.__name__] = function
    return function


def checked(result: Any) -> Any:
    error, *values = result
    assert error == driver.CUresult.CUDA_SUCCESS, error
    return values[0] if values else None


class Array:
    """Elements on the current device, copied there and back while the host waits."""

    def __init__(self, values: Any, dtype: Any = None) -> None:
        self.host = np.ascontiguousarray(values, dtype)
        self.dtype = self.host.dtype
        self.address = int(checked(driver.cuMemAlloc(max(self.host.nbytes, 1))))
        self.put(self.host)

    def put(self, values: Any) -> None:
        host = np.ascontiguousarray(values, self.dtype)
        checked(driver.cuMemcpyHtoD(self.address, host.ctypes.data, host.nbytes))
        checked(
            driver.cuStreamSynchronize(0)
        )  # pageable memory: the call may return before the device has it

    def get(self) -> np.ndarray:
        host = np.empty_like(self.host)
        checked(driver.cuMemcpyDtoH(host.ctypes.data, self.address, host.nbytes))
        return host

    def at(self, element: int) -> int:
        return self.address + element * self.dtype.itemsize

    @property
    def type(self) -> int:
        return TYPES[self.dtype]

    @property
    def __cuda_array_interface__(self) -> dict[str, Any]:
        return {
            "shape": self.host.shape,
            "typestr": self.dtype.str,
            "data": (self.address, False),
            "version": 3,
            "strides": None,
            "stream": None,
        }


def open_device(number: int = RANK) -> Any:
    device = Device(number)
    device.set_current()
    return device.create_stream()


def agreed_id() -> core.UniqueId:
    mine = bytes(core.get_unique_id()) if RANK == 0 else None
    return core.UniqueId.from_bytes(WORLD.bcast(mine))


def communicator(**config: Any) -> Communicator:
    return Communicator.init(SIZE, RANK, agreed_id(), NCCLConfig(**config) if config else None)


def status(call: Callable[[], Any]) -> tuple[int, str]:
    """The error code of a call, and what it says."""
    try:
        call()
    except low.NCCLError as error:
        return int(error.status), low.get_last_error(low.Comm())
    return SUCCESS, ""


def wait(what: Callable[[], bool], seconds: float = 10.0) -> bool:
    end = time.monotonic() + seconds
    while not what():
        if time.monotonic() > end:
            return False
        time.sleep(0.002)
    return True


def state(comm: Communicator) -> int:
    return int(comm.get_async_error())


def settled(comm: Communicator) -> int:
    """The state of a non-blocking communicator when it is no longer in progress."""
    assert wait(lambda: state(comm) != PROGRESS), "still in progress"
    return state(comm)


def pending(stream: Any, seconds: float = 0.3) -> bool:
    """Whether the stream still has something to do after a time: its operation waits for somebody."""
    time.sleep(seconds)
    return not stream_done(stream)


def stream_done(stream: Any) -> bool:
    (result,) = driver.cuStreamQuery(int(stream.handle))
    assert result in (driver.CUresult.CUDA_SUCCESS, driver.CUresult.CUDA_ERROR_NOT_READY), result
    return bool(result == driver.CUresult.CUDA_SUCCESS)


@contextlib.contextmanager
def opened(**config: Any) -> Iterator[tuple[Communicator, Any]]:
    stream = open_device()
    comm = communicator(**config)
    yield comm, stream
    stream.sync()
    comm.destroy()


def same(found: Any, wanted: Any, what: str = "") -> None:
    np.testing.assert_array_equal(np.asarray(found), np.asarray(wanted), err_msg=f"rank {RANK}: {what}")


def ramp(count: int, rank: int) -> np.ndarray:
    return (np.arange(count) % 251 + 7 * rank).astype(np.float64)


def total(count: int) -> np.ndarray:
    return np.sum([ramp(count, rank) for rank in range(SIZE)], axis=0)


def first_operation(comm: Communicator, stream: Any, value: Array) -> None:
    comm.allreduce(value, value, core.MAX, stream=stream)
    stream.sync()
