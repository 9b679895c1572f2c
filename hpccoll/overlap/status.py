"""What ranks tell one another of a step besides its elements: who takes part, what was used, what is
finite.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import numpy as np
from mpi4py import MPI

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

    def __init__(self, comm: Any, arrays: int) -> None:
        self._rank = comm.rank
        self._words: Array = np.zeros((2, arrays), np.int32)
        self._request = comm.Allreduce_init(MPI.IN_PLACE, self._words, op=MPI.MAX)
        self._started = False

    def used(self, number: int) -> None:
        """An array is ready on this rank."""
        self._words[0, number] = 1

    def not_finite(self, number: int) -> None:
        """An array of this rank has a NaN or an infinity in it."""
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
            self.reset()
        return unused, [(int(number), rank) for number, rank in bad]

    def reset(self) -> None:
        """Nothing is known of the next step."""
        self._words[...] = 0
        self._started = False

    def close(self) -> None:
        self._request.Free()
