"""Memory on CUDA devices for what the library must copy: strided arrays, results that are to go elsewhere.

It comes from the device's own pool in the order of the stream that uses it, so that it may be let go at once.
CuPy's kernels do strided copies and divisions.  All is ordered by `Home.stream`; nothing here waits.
"""

from __future__ import annotations

import sys
import threading
from collections.abc import Generator, Sequence
from contextlib import AbstractContextManager, contextmanager
from functools import partial
from typing import Any

import numpy as np
import numpy.typing as npt

from hpccoll.arrays.device import LEGACY_STREAM, Home, current_streams, home_of, placed
from hpccoll.errors import ResourceError, UsageTypeError
from hpccoll.memory.finalizers import let_go_rest, when_possible
from hpccoll.transports.base import Array

Places = npt.NDArray[np.int64]
# CuPy has no other types of these sizes to copy, and needs none.
_BY_SIZE = {1: "u1", 2: "u2", 4: "u4", 8: "u8", 16: "c16"}


class _Allocation:
    """Memory that goes back in the order of its stream; where that was captured, it is the graph's."""

    def __init__(self, nbytes: int, home: Home) -> None:
        from cuda.bindings import driver

        with current(home.device):
            of_graph = is_captured(home.stream)
            _note_capture(of_graph)
            let_go_rest()
            status, self.address = driver.cuMemAllocAsync(nbytes, home.stream)
            if status != driver.CUresult.CUDA_SUCCESS:
                raise ResourceError(f"CUDA: no memory for {nbytes} bytes on the device ({status.name})")
        self._free = partial(_free_in_order, int(self.address), home.device, home.stream, of_graph)

    def __del__(self) -> None:
        if hasattr(self, "_free") and not sys.is_finalizing():
            when_possible(self._free)


def _free_in_order(address: int, device: int, stream: int, of_graph: bool) -> bool:
    """Free memory in the order of a stream; False where a capture of it takes no memory but its own."""
    from cuda.bindings import driver

    with current(device):
        possible = of_graph or not is_captured(stream)
        if possible:
            driver.cuMemFreeAsync(address, stream)
    return possible


def is_captured(stream: int) -> bool:
    """Whether what is enqueued on a stream becomes part of a graph; its device is current.

    Of the legacy stream: whether any stream is captured that it waits for.
    """
    from cuda.bindings import driver

    status, found = driver.cuStreamIsCapturing(stream)
    return bool(
        status == driver.CUresult.CUDA_ERROR_STREAM_CAPTURE_IMPLICIT
        or (
            status == driver.CUresult.CUDA_SUCCESS
            and found != driver.CUstreamCaptureStatus.CU_STREAM_CAPTURE_STATUS_NONE
        )
    )


_capturing: set[int] = set()  # threads whose last allocation became memory of a graph


def _note_capture(seen: bool) -> None:
    """Remember that this thread is in a capture, of whatever stream, or no more."""
    (_capturing.add if seen else _capturing.discard)(threading.get_ident())


def may_wait() -> bool:
    """Whether no capture is seen that a wait for the current device would ruin.

    Nobody can ask the driver for all captures.  Known are those of the current streams, and those that a call
    of ours has had memory from, until its thread asks for some outside of a capture.
    """
    if _capturing:
        _capturing.intersection_update(sys._current_frames())  # the threads that there are
    return not _capturing and not any(is_captured(stream) for stream in {LEGACY_STREAM, *current_streams()})


@contextmanager
def current(ordinal: int) -> Generator[None, None, None]:
    """Inside, a device is current in this thread."""
    from cuda.bindings import driver

    status, now = driver.cuCtxGetDevice()
    if status == driver.CUresult.CUDA_SUCCESS and int(now) == ordinal:
        yield
        return
    handle = driver.cuDeviceGet(ordinal)[1]
    status, context = driver.cuDevicePrimaryCtxRetain(handle)
    if status != driver.CUresult.CUDA_SUCCESS:
        raise ResourceError(f"CUDA: device {ordinal} cannot be used ({status.name})")
    driver.cuCtxPushCurrent(context)
    try:
        yield
    finally:
        driver.cuCtxPopCurrent()
        driver.cuDevicePrimaryCtxRelease(handle)


def empty(count: int, dtype: np.dtype[Any], home: Home) -> Array:
    """So many elements, not set, on a device.

    The memory goes with the last array in it.  Raises: ResourceError.
    """
    memory = _Allocation(max(1, count * dtype.itemsize), home)
    return placed(int(memory.address), count, dtype, home=home._replace(owner=memory))


def copy(target: Array, source: Array, stream: int | None = None) -> None:
    """target[...] = source, for arrays of one shape and dtype in any strides.

    `stream`: by default the target's own.
    """
    if not target.size:
        return
    home = home_of(target)
    stream = home.stream if stream is None else stream
    if target.flags.c_contiguous and source.flags.c_contiguous:
        from cuda.bindings import driver

        with current(home.device):
            status = driver.cuMemcpyDtoDAsync(target.ctypes.data, source.ctypes.data, target.nbytes, stream)[
                0
            ]
        if status != driver.CUresult.CUDA_SUCCESS:
            raise ResourceError(f"CUDA: a copy on the device failed with {status.name}")
        return
    with working_in_cupy(home.device, stream):
        seen_by_cupy(target)[...] = seen_by_cupy(source)


def clear(array: Array, stream: int) -> None:
    """Zeros in a contiguous array, on a stream."""
    if not array.size:
        return
    from cuda.bindings import driver

    with current(home_of(array).device):
        status = driver.cuMemsetD8Async(array.ctypes.data, 0, array.nbytes, stream)[0]
    if status != driver.CUresult.CUDA_SUCCESS:
        raise ResourceError(f"CUDA: setting memory on the device failed with {status.name}")


def to_host(array: Array, stream: int) -> Array:
    """A contiguous array's elements, copied in the order of a stream, for which this waits."""
    from cuda.bindings import driver

    made = np.empty(array.shape, array.dtype)
    with current(home_of(array).device):
        status = driver.cuMemcpyDtoHAsync(made.ctypes.data, array.ctypes.data, made.nbytes, stream)[0]
        if status == driver.CUresult.CUDA_SUCCESS:
            status = driver.cuStreamSynchronize(stream)[0]
    if status != driver.CUresult.CUDA_SUCCESS:
        raise ResourceError(f"CUDA: a copy to the host failed with {status.name}")
    return made


def divide(values: Array, divisor: int, stream: int) -> None:
    """Values /= divisor, each element with one rounding, on a stream."""
    import cupy

    with working_in_cupy(home_of(values).device, stream):
        seen = seen_by_cupy(values, values.dtype)
        cupy.true_divide(seen, divisor, out=seen)


class _Handle:
    """A stream as CuPy takes it from others."""

    def __init__(self, stream: int) -> None:
        self._stream = stream

    def __cuda_stream__(self) -> tuple[int, int]:
        return 0, self._stream


@contextmanager
def working_in_cupy(device: int, stream: int) -> Generator[None, None, None]:
    """Inside, CuPy works on a device and a stream."""
    import cupy

    if hasattr(cupy.cuda.Stream, "from_external"):
        current = cupy.cuda.Stream.from_external(_Handle(stream))
    else:  # before CuPy 14
        current = cupy.cuda.ExternalStream(stream)
    with cupy.cuda.Device(device), current:
        yield


def seen_by_cupy(array: Array, dtype: np.dtype[Any] | None = None) -> Any:
    """The same memory as an array of CuPy, of `dtype` or of any type of the elements' size."""
    import cupy

    shape, strides = array.shape, array.strides
    if dtype is None:
        size = array.dtype.itemsize
        if size not in _BY_SIZE:
            shape, strides, size = (*shape, size), (*strides, 1), 1
        dtype = np.dtype(_BY_SIZE[size])
    low, high = np.lib.array_utils.byte_bounds(array.view(np.ndarray))
    home = home_of(array)
    memory = cupy.cuda.UnownedMemory(low, high - low, home.owner, home.device)
    begin = cupy.cuda.MemoryPointer(memory, array.ctypes.data - low)
    return cupy.ndarray(shape, dtype, begin, strides)


def check_dtype(dtype: np.dtype[Any]) -> None:
    """Raises: UsageTypeError where CuPy has no arrays of a dtype."""
    import cupy

    try:
        cupy.ndarray(0, dtype)
    except (TypeError, ValueError) as error:
        raise UsageTypeError(f"CuPy has no arrays of dtype {dtype}") from error


def array_of(
    address: int, nbytes: int, shape: tuple[int, ...], dtype: np.dtype[Any], ordinal: int, owner: object
) -> Any:
    """An array of CuPy in memory that goes with its owner."""
    import cupy

    memory = cupy.cuda.UnownedMemory(address, nbytes, owner, ordinal)
    return cupy.ndarray(shape, dtype, cupy.cuda.MemoryPointer(memory, 0))


def fill(array: Any, value: Array) -> None:
    """Set all elements of an array of CuPy, whose device need not be current."""
    import cupy

    with array.device:
        array[...] = cupy.asarray(value)


class Scattered:
    """Bytes here and there in some memory, to be gathered in a run of elements, and scattered again.

    `places`: where in `memory` each of them is; `in_run`: where in the run, by default one after the other.
    """

    def __init__(self, memory: Array, places: Places, in_run: Places | None = None) -> None:
        import cupy

        self._memory = memory
        self._size = next(size for size in sorted(_BY_SIZE, reverse=True) if _together(memory, places, size))
        if in_run is not None:
            self._size = 1
        with self._working(None):
            self._places = cupy.asarray(places[:: self._size] // self._size)
            self._in_run = slice(None) if in_run is None else cupy.asarray(in_run)

    def gather(self, elements: Array) -> None:
        """Bring them to the run, on the memory's stream."""
        with self._working(None):
            self._units(elements)[self._in_run] = self._units(self._memory)[self._places]

    def scatter(self, elements: Array, stream: int | None = None) -> None:
        """Bring those of the run to where they belong, on a stream, by default the memory's."""
        with self._working(stream):
            self._units(self._memory)[self._places] = self._units(elements)[self._in_run]

    def _working(self, stream: int | None) -> AbstractContextManager[None]:
        home = home_of(self._memory)
        return working_in_cupy(home.device, home.stream if stream is None else stream)

    def _units(self, array: Array) -> Any:
        return seen_by_cupy(array.view(np.uint8).view(f"V{self._size}"))


def _together(memory: Array, places: Places, size: int) -> bool:
    """Whether so many bytes always lie together, in step with their addresses."""
    if places.size % size or memory.nbytes % size or memory.ctypes.data % size:
        return False
    first = places[::size]
    return not (first % size).any() and bool((places.reshape(-1, size) == first[:, None] + range(size)).all())


def parts_of(flat: Array, parts: Sequence[Array]) -> list[Array]:
    """Where in `flat` the elements of each part are, in its shape."""
    found, start = [], 0
    for part in parts:
        found.append(flat[start : start + part.size].reshape(part.shape))
        start += part.size
    return found
