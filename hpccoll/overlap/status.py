"""What ranks tell one another of a step besides its elements: who takes part, what was used, what is
finite.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import numpy as np
from mpi4py import MPI

from hpccoll.memory import device
from hpccoll.ops import gradients
from hpccoll.overlap.memory import DeviceMemory, HostMemory, Span

if TYPE_CHECKING:
    from hpccoll.transports.base import Array


class Attendance:
    """How many ranks take part in a step.  The first call of each step."""

    def __init__(self, comm: Any) -> None:
        self._count = np.zeros(1, np.int64)
        self._request = comm.Allreduce_init(MPI.IN_PLACE, self._count, op=MPI.SUM)

    def start(self, *, takes_part: bool) -> None:
        self._count[0] = takes_part
        self._request.Start()

    def finish(self) -> int:
        """The number of ranks that take part."""
        self._request.Wait()
        return int(self._count[0])

    def close(self) -> None:
        self._request.Free()


class Report:
    """Of each array: whether any rank had it ready, and the highest rank with a value that is not finite.

    The last call of each step, where one of them is wanted.
    """

    calls = 1  # collective ones of a step

    def __init__(self, comm: Any, arrays: int) -> None:
        self._rank = comm.rank
        self._words: Array = np.zeros((2, arrays), np.int32)
        self._request = comm.Allreduce_init(MPI.IN_PLACE, self._words, op=MPI.MAX)
        self._started = False

    def used(self, number: int) -> None:
        """An array is ready on this rank."""
        self._words[0, number] = 1

    def look(self, memory: Any) -> None:
        """Note which arrays of a bucket have a NaN or an infinity in them.  Floating-point ones."""
        assert isinstance(memory, HostMemory)
        for number, view in zip(memory.group.members, memory.views, strict=True):
            if not np.isfinite(view).all():
                self._words[1, number] = self._rank + 1

    def start(self) -> None:
        self._request.Start()
        self._started = True

    def finish(self) -> tuple[Sequence[int], Sequence[tuple[int, int]]]:
        """The arrays that no rank had, and of those that are not finite (number, rank)."""
        try:
            self._request.Wait()
            unused = np.flatnonzero(self._words[0] == 0).tolist()
            bad = [(number, int(self._words[1, number]) - 1) for number in np.flatnonzero(self._words[1])]
        finally:
            self._forget()
        return unused, [(int(number), rank) for number, rank in bad]

    def reset(self) -> None:
        """Nothing is known of the next step."""
        self._forget()

    def close(self) -> None:
        self._request.Free()

    def _forget(self) -> None:
        self._words[...] = 0
        self._started = False


class DeviceReport(Report):
    """The same of arrays on a device, where their values are looked at: all on one stream."""

    calls = 2

    def __init__(self, comm: Any, arrays: int, memory: DeviceMemory) -> None:
        """`memory`: of any bucket."""
        super().__init__(comm, arrays)
        self._comm = comm
        self._stream = memory.home.stream
        self._marks = device.empty(arrays, np.dtype(np.int32), memory.home)
        self._started_there: Any = None
        self._clear()

    def look(self, memory: Any) -> None:
        """Enqueue that; behind all that the bucket's arrays are computed on."""
        assert isinstance(memory, DeviceMemory)
        memory.lend(self._stream)
        self._is_clear = False
        begin, itemsize = self._marks.ctypes.data, self._marks.itemsize
        for number, view in zip(memory.group.members, memory.views, strict=True):
            gradients.find_not_finite(view, begin + number * itemsize, self._rank + 1, self._stream)

    def start(self) -> None:
        super().start()
        self._started_there = self._comm.Iallreduce(MPI.IN_PLACE, Span(self._marks), op=MPI.MAX)

    def finish(self) -> tuple[Sequence[int], Sequence[tuple[int, int]]]:
        """The host waits for the device here."""
        unused, _ = super().finish()
        self._started_there.Wait()
        marks = device.to_host(self._marks, self._stream)
        self._clear()
        return unused, [(int(number), int(marks[number]) - 1) for number in np.flatnonzero(marks)]

    def reset(self) -> None:
        super().reset()
        if not self._is_clear:
            self._clear()

    def _clear(self) -> None:
        device.clear(self._marks, self._stream)
        self._is_clear = True
