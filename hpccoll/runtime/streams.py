"""CUDA streams and events by the driver's API: order between streams, and waits that leave MPI its turns.

Streams, events and addresses are plain integers.  Nothing here waits for a device.
"""

from __future__ import annotations

import ctypes
import threading
from collections import deque
from collections.abc import Callable, Iterable
from typing import Any

import numpy as np
import numpy.typing as npt
from cuda.bindings import driver

from hpccoll.errors import ResourceError

_SUCCESS = driver.CUresult.CUDA_SUCCESS
_NOT_READY = driver.CUresult.CUDA_ERROR_NOT_READY
_EVENT_FLAGS = driver.CUevent_flags.CU_EVENT_DISABLE_TIMING


def checked(answer: tuple[Any, ...], what: str) -> Any:
    """What a call of the driver returned.  Raises ResourceError when it failed."""
    if answer[0] != _SUCCESS:
        raise ResourceError(f"CUDA: {what} failed with {answer[0].name}")
    return answer[1] if len(answer) == 2 else answer[1:]


class Device:
    """One device as this rank uses it: its primary context, events, and streams of its own."""

    def __init__(self, ordinal: int) -> None:
        checked(driver.cuInit(0), "cuInit")
        self.ordinal = ordinal
        self._handle = checked(driver.cuDeviceGet(ordinal), f"cuDeviceGet({ordinal})")
        self.context = checked(driver.cuDevicePrimaryCtxRetain(self._handle), "cuDevicePrimaryCtxRetain")
        self._events: list[Any] = []

    def __enter__(self) -> Device:
        """Make the device current in this thread."""
        checked(driver.cuCtxPushCurrent(self.context), "cuCtxPushCurrent")
        return self

    def __exit__(self, *error: object) -> None:
        checked(driver.cuCtxPopCurrent(), "cuCtxPopCurrent")

    def stream(self) -> int:
        """A stream of its own, which the legacy default stream does not wait for."""
        flags = driver.CUstream_flags.CU_STREAM_NON_BLOCKING
        return int(checked(driver.cuStreamCreate(flags), "cuStreamCreate"))

    def event(self) -> Any:
        """An event that nobody uses any more, or a fresh one."""
        try:  # not `if`: the worker takes events too
            return self._events.pop()
        except IndexError:
            return checked(driver.cuEventCreate(_EVENT_FLAGS), "cuEventCreate")

    def mark(self, stream: int) -> Any:
        """An event that is complete once all that is on a stream by now is."""
        event = self.event()
        checked(driver.cuEventRecord(event, stream), "cuEventRecord")
        return event

    def timer(self) -> Any:
        """A fresh event that knows its time; slower than others, which `event` keeps apart."""
        return checked(driver.cuEventCreate(driver.CUevent_flags.CU_EVENT_DEFAULT), "cuEventCreate")

    def record(self, event: Any, stream: int) -> None:
        """The event is complete once all that is on a stream by now is; the device is current."""
        checked(driver.cuEventRecord(event, stream), "cuEventRecord")

    def elapsed_ns(self, first: Any, last: Any) -> int:
        """From one timer, which is complete, to another."""
        with self:
            milliseconds = float(checked(driver.cuEventElapsedTime(first, last), "cuEventElapsedTime"))
        return round(1e6 * milliseconds)

    def follow(self, stream: int, event: Any) -> None:
        """What comes on a stream from now on waits for an event."""
        checked(driver.cuStreamWaitEvent(stream, event, 0), "cuStreamWaitEvent")

    def behind(self, stream: int, before: int) -> None:
        """What comes on a stream waits for all that is on another by now; the device is current."""
        if stream != before:
            event = self.mark(before)
            self.follow(stream, event)
            self.give_back(event)

    def reached(self, event: Any) -> bool:
        """Whether an event is complete.  Raises ResourceError when something before it failed."""
        with self:  # the worker's thread has no device
            status = driver.cuEventQuery(event)[0]
        if status == _NOT_READY:
            return False
        if status != _SUCCESS:
            raise ResourceError(f"CUDA: an operation before an event failed with {status.name}")
        return True

    def give_back(self, event: Any) -> None:
        """The event may be used again; streams that follow it already are not disturbed."""
        self._events.append(event)

    def close(self, streams: Iterable[int] = ()) -> None:
        """Let go of streams, events and the context."""
        with self:
            for stream in streams:
                driver.cuStreamDestroy(stream)
            while self._events:
                driver.cuEventDestroy(self._events.pop())
        driver.cuDevicePrimaryCtxRelease(self._handle)


class Pinned:
    """Memory of the host that a device copies to and from without the host's help."""

    def __init__(self, nbytes: int) -> None:
        self.nbytes = nbytes
        self.address = int(checked(driver.cuMemHostAlloc(nbytes, 0), f"cuMemHostAlloc of {nbytes} bytes"))

    def bytes(self) -> npt.NDArray[np.uint8]:
        """The memory as an array, which must not be used after `close`."""
        return np.ctypeslib.as_array((ctypes.c_uint8 * self.nbytes).from_address(self.address))

    def close(self) -> None:
        driver.cuMemFreeHost(self.address)


class PinnedPool:
    """Pinned memory, kept between calls: making it takes a system call and more."""

    def __init__(self) -> None:
        self._free: dict[int, list[Pinned]] = {}

    def take(self, nbytes: int) -> Pinned:
        room = max(4096, 1 << (max(nbytes, 1) - 1).bit_length())
        try:  # not `if`: the worker takes memory too
            return self._free.setdefault(room, []).pop()
        except IndexError:
            return Pinned(room)

    def give_back(self, pinned: Pinned) -> None:
        self._free[pinned.nbytes].append(pinned)

    def close(self) -> None:
        for free in self._free.values():
            while free:
                free.pop().close()


def to_host(address: int, source: int, nbytes: int, stream: int) -> None:
    """Enqueue a copy from the device to the host."""
    checked(driver.cuMemcpyDtoHAsync(address, source, nbytes, stream), "cuMemcpyDtoHAsync")


def to_device(target: int, address: int, nbytes: int, stream: int) -> None:
    """Enqueue a copy from the host to the device."""
    checked(driver.cuMemcpyHtoDAsync(target, address, nbytes, stream), "cuMemcpyHtoDAsync")


def on_device(target: int, source: int, nbytes: int, stream: int) -> None:
    """Enqueue a copy inside the device."""
    checked(driver.cuMemcpyDtoDAsync(target, source, nbytes, stream), "cuMemcpyDtoDAsync")


class Kept:
    """What streams still use, let go of once they are through."""

    def __init__(self, device: Device) -> None:
        self._device = device
        self._kept: deque[tuple[Any, Any, Callable[[Any], object]]] = deque()
        self._looking = threading.Lock()

    def until_now(self, stream: int, thing: Any, then: Callable[[Any], object] = id) -> None:
        """Keep a thing until all that is on a stream by now is done; `then` is called with it."""
        with self._device:
            self._kept.append((self._device.mark(stream), thing, then))
        self.look()

    def look(self) -> None:
        """Let go of what is not used any more."""
        if not self._looking.acquire(blocking=False):
            return  # another thread does, or this one, in whose midst something is let go of
        try:
            while self._kept and self._device.reached(self._kept[0][0]):
                event, thing, then = self._kept.popleft()
                self._device.give_back(event)
                then(thing)
        finally:
            self._looking.release()
