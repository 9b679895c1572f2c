"""Calls whose blocks are all of one length: what goes in, what comes out.

what a rank puts in     takes out            collectives
a buffer                a buffer             allreduce, scan, exscan;  reduce and broadcast: one rank's
a block                 a block of each      allgather;  gather: at the root
a block for each        a block              reduce_scatter;  scatter: from the root
a block for each        a block of each      alltoall
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from mpi4py import MPI

from tests.support.oracle.elements import INT64, Array, combined, data, operator, untouched

METHODS = {
    "allreduce": "Allreduce",
    "reduce": "Reduce",
    "broadcast": "Bcast",
    "allgather": "Allgather",
    "reduce_scatter": "Reduce_scatter_block",
    "gather": "Gather",
    "scatter": "Scatter",
    "alltoall": "Alltoall",
    "scan": "Scan",
    "exscan": "Exscan",
}
COLLECTIVES = tuple(METHODS)
REDUCTIONS = ("allreduce", "reduce", "reduce_scatter", "scan", "exscan")
ROOTED = ("reduce", "broadcast", "gather", "scatter")
# The send buffer, or the receive buffer, holds a block for each rank.
GIVES_TO_EACH = ("reduce_scatter", "scatter", "alltoall")
TAKES_OF_EACH = ("allgather", "gather", "alltoall")
BLOCKED = tuple(name for name in COLLECTIVES if name in GIVES_TO_EACH + TAKES_OF_EACH)


@dataclass(frozen=True)
class Job:
    """One collective call: `count` elements of the buffer, or of each rank's block."""

    collective: str
    count: int
    dtype: np.dtype[Any] = INT64
    op: str = "SUM"
    root: int = 0
    in_place: bool = False
    salt: int = 0

    @property
    def plans(self) -> str:
        """The collective whose plans carry it out."""
        return self.collective

    @property
    def method(self) -> str:
        """The name of the blocking method."""
        return METHODS[self.collective]

    @property
    def reduces(self) -> bool:
        """Whether elements are combined, so that zeros may lose their signs."""
        return self.collective in REDUCTIONS

    def given(self, size: int) -> list[Array]:
        """What each rank puts in; beside the root of a scatter what it must not."""
        count = self.count * (size if self.collective in GIVES_TO_EACH else 1)
        return [data(self.dtype, count, rank, self.op, self.salt) for rank in range(size)]

    def passes_in_place(self, rank: int) -> bool:
        """Whether this rank passes MPI.IN_PLACE: of a call with a root only that one does."""
        return self.in_place and (self.collective not in ROOTED or rank == self.root)

    def before(self, given: Sequence[Array], rank: int) -> Array:
        """What the receive buffer of a rank holds before the call."""
        own, size = given[rank], len(given)
        if self.collective == "broadcast":
            return own if rank == self.root else untouched(self.dtype, self.count)
        if self.collective in ("allgather", "gather"):
            buffer = untouched(self.dtype, size * self.count)
            if self.passes_in_place(rank):
                buffer[self._block(rank)] = own
            return buffer
        if self.passes_in_place(rank) and self.collective != "scatter":
            return own.copy()
        return untouched(self.dtype, self.count * (size if self.collective == "alltoall" else 1))

    def after(self, given: Sequence[Array], rank: int) -> Array:
        """What it must hold after the call."""
        before = self.before(given, rank)
        if self.collective == "broadcast":
            return given[self.root]
        if self.collective == "scatter":
            return before if self.passes_in_place(rank) else given[self.root][self._block(rank)]
        if (self.collective in ("reduce", "gather") and rank != self.root) or (
            self.collective == "exscan" and rank == 0
        ):
            return before
        if self.collective in ("allgather", "gather"):
            return np.concatenate(given).astype(self.dtype)
        if self.collective == "alltoall":
            return np.concatenate([one[self._block(rank)] for one in given]).astype(self.dtype)
        terms = {"scan": rank + 1, "exscan": rank}.get(self.collective, len(given))
        result = combined(self.op, given[:terms]).astype(self.dtype)
        if self.collective != "reduce_scatter":
            return result
        # In place the result takes the first block, and the others keep what they hold.
        before[: self.count] = result[self._block(rank)]
        return before

    def arguments(self, rank: int, send: Any, receive: Any) -> tuple[Any, ...]:
        """What `method` is called with."""
        if self.passes_in_place(rank):
            send, receive = (send, MPI.IN_PLACE) if self.collective == "scatter" else (MPI.IN_PLACE, receive)
        buffers = (receive,) if self.collective == "broadcast" else (send, receive)
        op = (operator(self.op),) if self.reduces else ()
        root = (self.root,) if self.collective in ROOTED else ()
        return (*buffers, *op, *root)

    def _block(self, rank: int) -> slice:
        return slice(rank * self.count, (rank + 1) * self.count)

    def __str__(self) -> str:
        op = f" {self.op}" if self.reduces else ""
        root = f" root {self.root}" if self.collective in ROOTED else ""
        return f"{self.collective}{op}{root} of {self.count} {self.dtype}{' in place' * self.in_place}"
