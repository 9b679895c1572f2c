"""Arrays on devices for tests, by the driver alone: mirrors of arrays on the host, strides and all."""

from __future__ import annotations

from collections.abc import Generator, Sequence
from contextlib import contextmanager
from functools import cache
from typing import Any

import numpy as np
from cuda.bindings import driver
from mpi4py import MPI

from tests.support.oracle import Array, Attempt, Job, Place, in_line
from tests.support.oracle.ragged import Ragged

COMM = MPI.COMM_WORLD
NON_BLOCKING = 1


def checked(answer: tuple[Any, ...]) -> Any:
    """What a call of the driver returned."""
    assert answer[0] == driver.CUresult.CUDA_SUCCESS, answer
    return answer[1] if len(answer) == 2 else answer[1:]


def device_count() -> int:
    checked(driver.cuInit(0))
    return int(checked(driver.cuDeviceGetCount()))


def use_device(ordinal: int) -> None:
    """Make a device current in this thread."""
    checked(driver.cuCtxSetCurrent(_kept_context(ordinal)))


@cache
def _kept_context(ordinal: int) -> Any:
    """A device's context, until the process ends: as libraries of arrays have it."""
    checked(driver.cuInit(0))
    return checked(driver.cuDevicePrimaryCtxRetain(checked(driver.cuDeviceGet(ordinal))))


def current_device() -> int:
    """The device that is current in this thread."""
    return int(checked(driver.cuCtxGetDevice()))


@contextmanager
def using(ordinal: int) -> Generator[None, None, None]:
    """Inside, a device is current in this thread."""
    checked(driver.cuCtxPushCurrent(_kept_context(ordinal)))
    try:
        yield
    finally:
        checked(driver.cuCtxPopCurrent())


def make_stream() -> int:
    """A stream that the legacy default stream does not wait for."""
    return int(checked(driver.cuStreamCreate(NON_BLOCKING)))


class Graph:
    """What `captured` found; ready after its block."""

    def __init__(self) -> None:
        self._ready: Any = None

    def launch(self, stream: int) -> None:
        checked(driver.cuGraphLaunch(self._ready, stream))

    def __del__(self) -> None:
        if self._ready is not None:
            driver.cuGraphExecDestroy(self._ready)


@contextmanager
def captured(stream: int) -> Generator[Graph, None, None]:
    """What the block enqueues on a stream becomes a graph."""
    graph = Graph()
    checked(driver.cuStreamBeginCapture(stream, driver.CUstreamCaptureMode.CU_STREAM_CAPTURE_MODE_RELAXED))
    try:
        yield graph
    finally:
        found = checked(driver.cuStreamEndCapture(stream))
        graph._ready = checked(driver.cuGraphInstantiate(found, 0))
        checked(driver.cuGraphDestroy(found))


def synchronize(stream: int) -> None:
    checked(driver.cuStreamSynchronize(stream))


class Mirror:
    """The memory of a host array on the device; an array in it with the same strides, for the library.

    `stream`: on which the library finds the elements in order, as an array of CuPy on its current stream.
    """

    def __init__(self, view: Array, stream: int, *, filled: bool = True) -> None:
        """`filled`: with the host's elements, for which this waits."""
        self.view = view
        self.stream = stream
        self.dtype = view.dtype
        self._root = _root(view)
        self._address = 0  # until there is memory
        self._address = int(checked(driver.cuMemAlloc(max(1, self._root.nbytes))))
        if filled:
            self.upload()

    @property
    def ndim(self) -> int:
        return self.view.ndim

    @property
    def flags(self) -> Any:
        return self.view.flags

    @property
    def address(self) -> int:
        return self._address + self.view.ctypes.data - self._root.ctypes.data

    @property
    def __cuda_array_interface__(self) -> dict[str, Any]:
        return {
            "version": 3,
            "shape": self.view.shape,
            "typestr": self.dtype.str,
            "data": (self.address, not self.view.flags.writeable),
            "strides": None if self.view.flags.c_contiguous else self.view.strides,
            "stream": self.stream,
        }

    def upload(self) -> None:
        """The host's elements to the device; complete on return."""
        if self._root.nbytes:
            checked(
                driver.cuMemcpyHtoDAsync(
                    self._address, self._root.ctypes.data, self._root.nbytes, self.stream
                )
            )
        synchronize(self.stream)

    def upload_later(self) -> None:
        """The host's elements to the device, in the order of the stream."""
        checked(
            driver.cuMemcpyHtoDAsync(self._address, self._root.ctypes.data, self._root.nbytes, self.stream)
        )

    def download(self, stream: int | None = None) -> Array:
        """The device's elements to the host, once a stream is through."""
        where = self.stream if stream is None else stream
        if self._root.nbytes:
            checked(driver.cuMemcpyDtoHAsync(self._root.ctypes.data, self._address, self._root.nbytes, where))
        synchronize(where)
        return self.view

    def __del__(self) -> None:
        if self._address:
            driver.cuMemFree(self._address)


def _root(array: Array) -> Array:
    while isinstance(array.base, np.ndarray):
        array = array.base
    return array


def mirror(values: Any, stream: int, dtype: Any = None) -> Mirror:
    """Elements on the device."""
    return Mirror(np.array(values, dtype), stream)


class DeviceAttempt(Attempt):
    """As `Attempt`, with both buffers on the device."""

    def __init__(self, comm: Any, job: Job | Ragged, place: Place, stream: int) -> None:
        super().__init__(comm, job, place)
        self._mirrors = Mirror(self._send, stream), Mirror(self._receive, stream)

    @property
    def arguments(self) -> tuple[Any, ...]:
        return self.job.arguments(self.comm.rank, *self._mirrors)

    def renew(self, salt: int) -> None:
        super().renew(salt)
        for one in self._mirrors:
            one.upload()

    def check(self) -> None:
        for one in self._mirrors:
            one.download()
        super().check()


def perform(comm: Any, job: Job | Ragged, stream: int, place: Place = in_line) -> None:
    """Make a call on device arrays and compare."""
    attempt = DeviceAttempt(comm, job, place, stream)
    attempt.call()
    attempt.check()


def perform_all(
    comm: Any, jobs: Sequence[Job] | Sequence[Ragged], stream: int, place: Place = in_line
) -> None:
    """`perform` every job with every plan of its collective that device arrays have."""
    for job in jobs:
        for name in device_plans(comm, job.plans):
            try:
                with comm.forced(name):
                    perform(comm, job, stream, place)
            except AssertionError as error:
                raise AssertionError(f"{name} on {comm.machine.layout}: {error}") from None


def device_plans(comm: Any, collective: str) -> tuple[str, ...]:
    """The plans of a collective that consist of NCCL's own calls."""
    hosts_only = {
        "ring",
        "tree",
        "recursive_doubling",
        "fold",
        "one_shot",
        "chain",
        "binomial",
        "direct",
        "linear",
    }
    return tuple(name for name in comm.algorithms(collective) if name not in hosts_only)
