"""Calls of NCCL and the CUDA driver in a row, with all that they need: written once, played on any stream.

Playing costs one call from Python where the C extension is there, else one for each entry.  NCCL's
communicators may enqueue a call after it has returned; what comes next waits until it is on the stream.
"""

from __future__ import annotations

import ctypes
from collections.abc import Callable, Iterable
from enum import IntEnum
from functools import cache
from typing import Any

from cuda.bindings import driver
from nccl.bindings import nccl

from hpccoll import _native
from hpccoll.runtime.streams import Device, checked
from hpccoll.transports.nccl import NcclGroup


class Code(IntEnum):
    """What an entry is; its numbers are the arguments of NCCL's or CUDA's function."""

    ALL_REDUCE = 0  # source, target, count, type, operator
    REDUCE = 1  # source, target, count, type, operator, root
    BROADCAST = 2  # source, target, count, type, root
    ALL_GATHER = 3  # source, target, count of each member, type
    REDUCE_SCATTER = 4  # source, target, count for each member, type, operator
    SEND = 5  # source, count, type, member
    RECEIVE = 6  # target, count, type, member
    BEGIN = 7  # what follows starts together
    END = 8
    COPY = 9  # target, source, bytes
    MARK = 10  # event
    FOLLOW = 11  # event
    KERNEL = 13  # number of what Python enqueues


GIVEN, SECOND = 0, 1  # the stream of an entry: that of the play, or the tape's own
Entry = tuple[int, ...]  # code, stream, communicator, numbers
# Index and status of an entry that did not end well, or not yet, or is a kernel.
Stopped = tuple[int, int] | None
Parts = Iterable[tuple[int, int, int]]  # member, address, elements
Kernel = Callable[[int], object]  # enqueues something on a stream


class Tape:
    """Entries, and who makes them.  `second`: the stream of entries that are not on the one given."""

    def __init__(self, device: Device, second: int) -> None:
        self._device = device
        self._second = second
        self._entries: list[Entry] = []
        self._groups: dict[int, NcclGroup] = {}
        self._events: list[Any] = []
        self._kernels: list[Kernel] = []
        self._play: Callable[[int, int], Stopped] | None = None
        self._on_cuda = False

    # --- writing --------------------------------------------------------------------------------

    def call(self, code: Code, level: int, group: NcclGroup, *numbers: int) -> None:
        """A call on NCCL's communicator of a group."""
        self._groups[group.handle] = group
        self._entries.append((code, level, group.handle, *numbers))

    def exchange(
        self, level: int, group: NcclGroup, kind: int, size: int, gives: Parts, takes: Parts
    ) -> None:
        """What is given to members and taken from members, all at once; the own part is copied.

        `size`: bytes of an element of NCCL's type `kind`.  Empty parts are no messages, on either side.
        """
        me = group.index
        given = {member: (address, count) for member, address, count in gives if count}
        taken = {member: (address, count) for member, address, count in takes if count}
        if me in given and me in taken and given[me][0] != taken[me][0]:
            self.copy(level, taken[me][0], given[me][0], taken[me][1] * size)
        self.call(Code.BEGIN, level, group)
        for code, parts in ((Code.SEND, given), (Code.RECEIVE, taken)):
            for member, (address, count) in parts.items():
                if member != me:
                    self.call(code, level, group, address, count, kind, member)
        self.call(Code.END, level, group)

    def copy(self, level: int, target: int, source: int, nbytes: int) -> None:
        """A copy inside the device."""
        self._entries.append((Code.COPY, level, 0, target, source, nbytes))

    def kernel(self, level: int, kernel: Kernel) -> None:
        """What Python enqueues, such as a kernel of CuPy."""
        self._entries.append((Code.KERNEL, level, 0, len(self._kernels)))
        self._kernels.append(kernel)

    def event(self) -> int:
        """The number of a new event of this tape."""
        self._events.append(self._device.event())
        return len(self._events) - 1

    def mark(self, level: int) -> int:
        """The number of an event, recorded at every play when a stream comes here."""
        number = self.event()
        self._entries.append((Code.MARK, level, 0, int(self._events[number])))
        return number

    def follow(self, level: int, event: int) -> None:
        """What comes next on a stream waits for an event of this tape."""
        self._entries.append((Code.FOLLOW, level, 0, int(self._events[event])))

    # --- playing --------------------------------------------------------------------------------

    def seal(self) -> None:
        """No entry is added any more."""
        entries = tuple(self._entries)
        self._on_cuda = any(entry[0] >= Code.COPY for entry in entries)  # which wants a current device
        if _native.available():
            from hpccoll._native._core import Tape as Native

            self._play = Native(_functions(), entries, self._second).play
        else:
            self._play = _InPython(entries, self._second).play

    def play(self, stream: int) -> None:
        """Enqueue all of it.

        Raises: NCCLError of NCCL's bindings, ResourceError for errors of CUDA, and as
        `NcclGroup.settle_call`.
        """
        if self._play is None:
            self.seal()
        if self._on_cuda:
            with self._device:
                self._go_on(stream, self._play(stream, 0))  # type: ignore[misc]
        elif (stopped := self._play(stream, 0)) is not None:  # type: ignore[misc]
            self._go_on(stream, stopped)

    def _go_on(self, stream: int, stopped: Stopped) -> None:
        """What a play stopped at, and all that comes after it."""
        while stopped is not None:
            index, status = stopped
            code, level, _, *numbers = entry = self._entries[index]
            if code == Code.KERNEL:
                self._kernels[numbers[0]](self._second if level else stream)
            else:
                self._settle(entry, status)
            stopped = self._play(stream, index + 1)  # type: ignore[misc]

    def _settle(self, entry: Entry, status: int) -> None:
        """Raise what an entry ended with, or wait until it is on its stream."""
        code = Code(entry[0])
        if code >= Code.COPY:
            checked((driver.CUresult(status), None), f"a {code.name.lower()} on the device")
        elif status != nccl.Result.InProgress:
            group = self._groups.get(entry[2])
            if group is not None:
                group.state()  # which has words for it
            nccl.check_status(status)
        else:
            self._groups[entry[2]].settle_call()

    def drop(self) -> None:
        """It is not played again: its events may be used by others."""
        while self._events:
            self._device.give_back(self._events.pop())


class _InPython:
    """Makes the calls one by one, by the bindings of NCCL and CUDA."""

    def __init__(self, entries: tuple[Entry, ...], second: int) -> None:
        self._entries = entries
        self._second = second

    def play(self, stream: int, begin: int) -> Stopped:
        collecting = False
        for index, (code, level, comm, *numbers) in enumerate(self._entries[begin:], begin):
            where = self._second if level else stream
            if code == Code.KERNEL:
                return index, 0
            if code >= Code.COPY:
                status = int(_on_cuda(code, numbers, where))
                if status:
                    return index, status
                continue
            try:
                _on_nccl(code, numbers, comm, where)
            except BaseException:
                if collecting:
                    nccl.group_end()
                raise
            collecting = code == Code.BEGIN or (collecting and code != Code.END)
            if not collecting and (status := int(nccl.comm_get_async_error(comm))):
                return index, status
        return None


def _on_cuda(code: int, numbers: list[int], stream: int) -> int:
    if code == Code.COPY:
        return int(driver.cuMemcpyDtoDAsync(*numbers, stream)[0])
    if code == Code.MARK:
        return int(driver.cuEventRecord(*numbers, stream)[0])
    return int(driver.cuStreamWaitEvent(stream, *numbers, 0)[0])


def _on_nccl(code: int, numbers: list[int], comm: int, stream: int) -> None:
    if code == Code.BEGIN:
        nccl.group_start()
    elif code == Code.END:
        nccl.group_end()
    else:
        _CALLS[code](*numbers, comm, stream)


_CALLS: dict[int, Callable[..., object]] = {
    Code.ALL_REDUCE: nccl.all_reduce,
    Code.REDUCE: nccl.reduce,
    Code.BROADCAST: nccl.broadcast,
    Code.ALL_GATHER: nccl.all_gather,
    Code.REDUCE_SCATTER: nccl.reduce_scatter,
    Code.SEND: nccl.send,
    Code.RECEIVE: nccl.recv,
}

_NCCL_NAMES = (
    "ncclAllReduce", "ncclReduce", "ncclBroadcast", "ncclAllGather", "ncclReduceScatter", "ncclSend",
    "ncclRecv", "ncclGroupStart", "ncclGroupEnd",
)  # fmt: skip
_CUDA_NAMES = ("cuMemcpyDtoDAsync_v2", "cuEventRecord", "cuStreamWaitEvent")


@cache
def _functions() -> tuple[int, ...]:
    """The addresses of the functions by code, and of the one that tells a communicator's state.

    Both libraries are loaded already, by the bindings, and are found by their names.
    """
    from_nccl, from_cuda = ctypes.CDLL("libnccl.so.2"), ctypes.CDLL("libcuda.so.1")
    found = [getattr(from_nccl, name) for name in _NCCL_NAMES]
    found += [getattr(from_cuda, name) for name in _CUDA_NAMES]
    found.append(from_nccl.ncclCommGetAsyncError)
    return tuple(ctypes.cast(function, ctypes.c_void_p).value or 0 for function in found)
