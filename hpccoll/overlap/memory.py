"""Where the elements of a bucket lie: in the callers' arrays, or in a buffer that these are copied to.

Inside a bucket all elements lie in C order, one array after the other.  Where a rank's arrays lie in memory
so already, that memory is the bucket; each rank sees to that for itself.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Sequence
from typing import Any

import numpy as np
from mpi4py import MPI

from hpccoll.arrays.device import DeviceArray, device_array, home_of, placed
from hpccoll.arrays.foreign import host_array, on_device
from hpccoll.arrays.reading import check_writable
from hpccoll.dtypes import native, row_of
from hpccoll.errors import ResourceError, UsageError, UsageTypeError
from hpccoll.memory import device
from hpccoll.ops import gradients
from hpccoll.overlap.grouping import Group, Member
from hpccoll.overlap.streams import Streams
from hpccoll.transports.base import Array

_BLOCK = 1 << 16  # elements of which squares are made at a time


def read(thing: Any, what: str) -> Array:
    """A caller's array as one of NumPy over the same memory, or a `DeviceArray`.

    Raises: UsageTypeError for what is no array of numbers, UsageError for one that cannot be written.
    """
    if isinstance(thing, np.ndarray):
        array: Array = thing
    elif on_device(thing):
        array = device_array(thing, what)
    else:
        array = host_array(thing, what)
    if row_of(array.dtype) is None or native(array.dtype) != array.dtype:
        raise UsageTypeError(f"{what} has dtype {array.dtype}: must be numbers in the machine's byte order")
    check_writable(array, what)
    return array


def is_one_run(arrays: Sequence[Array]) -> bool:
    """Whether the elements of arrays lie in memory one after the other, in C order."""
    end = None
    for array in arrays:
        if not array.size:
            continue
        begin = array.ctypes.data
        if not (array.flags.c_contiguous and array.flags.aligned) or end not in (None, begin):
            return False
        end = begin + array.nbytes
    return True


class Memory(ABC):
    """The elements of one bucket, as this rank has them.

    `things`: the callers' arrays; `buffer`: what a collective is called with.
    """

    buffer: Any

    def __init__(self, grouped: Group, things: Sequence[Any], names: Sequence[str], *, direct: bool) -> None:
        self.group = grouped
        self.things = list(things)
        self.direct = direct
        self._names = names

    @abstractmethod
    def put(self, place: int, value: Any = None) -> None:
        """Take the elements of the array at `place` in the group, or those of `value` in its stead."""

    @abstractmethod
    def clear(self, place: int) -> None:
        """Zeros in place of an array's elements."""

    @abstractmethod
    def deliver(self) -> None:
        """Bring the results to the callers' arrays."""

    @abstractmethod
    def gather(self) -> int:
        """The current stream, from now on behind all that arrays were computed on; 0 on the host."""

    @abstractmethod
    def close(self) -> None:
        """Let go of what orders streams."""

    @abstractmethod
    def scale(self, factor: float) -> None:
        """The results, before they are delivered, times a factor."""

    @abstractmethod
    def sum_of_squares(self) -> float:
        """Of the results, in float64: the same bits on all ranks."""

    def _check(self, array: Array, place: int, like: Array) -> Array:
        if array.shape != like.shape or array.dtype != like.dtype:
            raise UsageError(
                f"the value for array {self._names[place]} is {array.dtype} of shape {array.shape}: "
                f"must be {like.dtype} of shape {like.shape}"
            )
        return array


class HostMemory(Memory):
    """In memory of the host."""

    def __init__(
        self,
        grouped: Group,
        things: Sequence[Any],
        names: Sequence[str],
        arrays: Sequence[Array],
        flat: Array | None,
    ) -> None:
        super().__init__(grouped, things, names, direct=flat is None)
        self.arrays = list(arrays)
        self.flat = _spanning(arrays, grouped) if flat is None else flat
        self.buffer = self.flat
        self.views = [
            self.flat[start : start + array.size].reshape(array.shape)
            for start, array in zip(grouped.starts, arrays, strict=True)
        ]

    def put(self, place: int, value: Any = None) -> None:
        if value is not None:
            array = value if isinstance(value, np.ndarray) else host_array(value, self._names[place])
            np.copyto(self.views[place], self._check(array, place, self.views[place]))
        elif not self.direct:
            np.copyto(self.views[place], self.arrays[place])

    def clear(self, place: int) -> None:
        self.views[place][...] = 0

    def deliver(self) -> None:
        if not self.direct:
            for array, view in zip(self.arrays, self.views, strict=True):
                np.copyto(array, view)

    def gather(self) -> int:
        return 0

    def close(self) -> None:
        """Nothing."""

    def scale(self, factor: float) -> None:
        np.multiply(self.flat, factor, out=self.flat, casting="unsafe")

    def sum_of_squares(self) -> float:
        """In blocks of one length whatever the machine."""
        total = 0.0
        for start in range(0, self.flat.size, _BLOCK):
            block = self.flat[start : start + _BLOCK]
            if block.dtype.kind == "c":
                block = block.view(block.real.dtype)
            wide = block.astype(np.float64)
            total += float(np.add.reduce(wide * wide))
        return total


def _spanning(arrays: Sequence[Array], grouped: Group) -> Array:
    first = next((array for array in arrays if array.size), None)
    if first is None:
        return np.empty(0, grouped.dtype)
    return np.lib.stride_tricks.as_strided(first.reshape(-1), shape=(grouped.count,))


class DeviceMemory(Memory):
    """In memory of a CUDA device; copies are in the order of the stream that is current for the arrays.

    `elements`: all of the bucket, one after the other.
    """

    elements: Array

    def __init__(
        self,
        grouped: Group,
        things: Sequence[Any],
        names: Sequence[str],
        arrays: Sequence[Array],
        flat: Any = None,
    ) -> None:
        direct = flat is None and is_one_run(arrays)
        super().__init__(grouped, things, names, direct=direct)
        home = home_of(arrays[0])
        self.home = home
        if flat is not None:
            self.elements = device_array(flat, "the bucket")
        elif direct:
            address = next((array.ctypes.data for array in arrays if array.size), 0)
            home = home._replace(owner=tuple(things))
            self.elements = placed(address, grouped.count, grouped.dtype, home=home)
        else:
            self.elements = device.empty(grouped.count, grouped.dtype, home)
        self.buffer: Span = Span(self.elements, things[0])
        self.views = device.parts_of(self.elements, arrays)
        self._streams = Streams(self.home)

    @property
    def stream(self) -> int:
        """The stream that is current for the arrays."""
        return self.buffer.stream

    def put(self, place: int, value: Any = None) -> None:
        source = self._seen(place, value)
        self._check(source, place, self.views[place])
        self._streams.enter(source.home.stream)
        if value is not None or not self.direct:
            device.copy(self.views[place], source, source.home.stream)

    def clear(self, place: int) -> None:
        stream = self.stream
        self._streams.enter(stream)
        device.clear(self.views[place], stream)

    def gather(self) -> int:
        stream = self.stream
        self.order(stream)
        return stream

    def order(self, stream: int) -> None:
        """What comes on a stream from now on is behind all that was put."""
        self._streams.gather(stream)

    def lend(self, stream: int) -> None:
        """The same, and the call is behind what comes on that stream until it is started."""
        self._streams.gather(stream)
        self._streams.enter(stream)

    def deliver(self) -> None:
        """From the current stream, to the one that is current for each array."""
        targets = [self._seen(place, None) for place in range(len(self.views))]
        self._streams.scatter(self.stream, {target.home.stream for target in targets})
        if not self.direct:
            for target, view in zip(targets, self.views, strict=True):
                device.copy(target, view, target.home.stream)

    def scale(self, factor: float) -> None:
        gradients.scale(self.elements, factor, self.stream)

    def sum_of_squares(self) -> float:
        """Waits for the current stream."""
        return gradients.sum_of_squares(self.elements, self.gather())

    def close(self) -> None:
        self._streams.close()

    def _seen(self, place: int, value: Any) -> DeviceArray:
        return device_array(self.things[place] if value is None else value, self._names[place])


class Span:
    """Elements on a device as libraries show theirs, in order on the stream that is current for `like`.

    Without `like`: on that of their home.
    """

    def __init__(self, elements: Array, like: Any = None) -> None:
        self._elements = elements
        self._like = like
        self.dtype = elements.dtype

    @property
    def stream(self) -> int:
        home = home_of(self._elements if self._like is None else device_array(self._like, "the array"))
        return home.stream

    @property
    def __cuda_array_interface__(self) -> dict[str, Any]:
        return {
            "version": 3,
            "shape": self._elements.shape,
            "typestr": self.dtype.str,
            "data": (self._elements.ctypes.data, False),
            "strides": None,
            "stream": self.stream,
        }


def host_buffers(comm: Any, groups: Sequence[Group], wanted: Sequence[bool]) -> list[Array | None]:
    """A buffer for each bucket where this rank wants one, in memory that its node shares.  Collective.

    Collectives do not copy elements from there.  Where there is too little of it on any rank, private memory.
    """
    needed = np.array(wanted, np.uint8)
    comm.Allreduce(MPI.IN_PLACE, needed, op=MPI.MAX)
    shared = True
    buffers: list[Array | None] = []
    for one, anybody, here in zip(groups, needed, wanted, strict=True):
        made = None
        if anybody and shared:
            try:
                made = comm.empty(one.count if here else 0, one.dtype)
            except ResourceError:  # on all ranks
                shared = False
        if here and made is None:
            made = np.zeros(one.count, one.dtype)
        buffers.append(made if here else None)
    return buffers


def member_of(array: Array) -> Member:
    """What all ranks know of an array."""
    return Member(array.shape, array.dtype)
