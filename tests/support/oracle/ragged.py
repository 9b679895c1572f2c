"""Calls with counts and displacements: blocks of different lengths, with gaps between, in any order."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import accumulate
from typing import Any

import numpy as np
from mpi4py import MPI
from mpi4py.util import dtlib

from tests.support.oracle.elements import INT64, Array, combined, data, operator, untouched

METHODS = {
    "gather": "Gatherv",
    "scatter": "Scatterv",
    "allgather": "Allgatherv",
    "alltoall": "Alltoallv",
    "alltoallw": "Alltoallw",
    "reduce_scatter": "Reduce_scatter",
}
RAGGED = tuple(METHODS)
ROOTED = ("gather", "scatter")
# In rank order without gaps; in rank order with gaps; from the last to the first; in no order.
ORDERS = ("packed", "gaps", "backwards", "mixed")


@dataclass(frozen=True)
class Ragged:
    """One call with counts.

    `counts`: the elements of each rank's block; of an all-to-all those from i to j at i * size + j.
    `order`: how blocks lie in the buffers that have several.
    `spec`: how mpi4py is told: "pair" [buf, (counts, displs)], "type" [buf, counts, displs, type],
    "counts" (buf, counts) for packed blocks.
    """

    collective: str
    counts: tuple[int, ...]
    dtype: np.dtype[Any] = INT64
    op: str = "SUM"
    root: int = 0
    in_place: bool = False
    salt: int = 0
    order: str = "packed"
    spec: str = "pair"

    @property
    def plans(self) -> str:
        """The collective whose plans carry it out."""
        return "alltoall" if self.collective == "alltoallw" else self.collective

    @property
    def method(self) -> str:
        """The name of the blocking method."""
        return METHODS[self.collective]

    @property
    def reduces(self) -> bool:
        """Whether elements are combined, so that zeros may lose their signs."""
        return self.collective == "reduce_scatter"

    def passes_in_place(self, rank: int) -> bool:
        """Whether this rank passes MPI.IN_PLACE: of a call with a root only that one does."""
        return self.in_place and (self.collective not in ROOTED or rank == self.root)

    # --- how much, and where --------------------------------------------------------------------

    def sends(self, size: int, rank: int) -> tuple[int, ...]:
        """The elements for each rank in the send buffer of `rank`; one number where it has one block."""
        if self.collective in ("gather", "allgather"):
            return (self.counts[rank],)
        if self.collective.startswith("alltoall"):
            return self.counts[rank * size : (rank + 1) * size]
        return self.counts

    def takes(self, size: int, rank: int) -> tuple[int, ...]:
        """The elements from each rank in its receive buffer; one number where that has one block."""
        if self.collective in ("gather", "allgather"):
            return self.counts
        if self.collective.startswith("alltoall"):
            return self.counts[rank::size]
        return (self.counts[rank],)

    def places(self, lengths: Sequence[int]) -> tuple[list[int], int]:
        """The displacement of each block, and the elements of the whole buffer."""
        gaps = [0] * (len(lengths) + 1)
        if self.order != "packed" and len(lengths) > 1:
            gaps = [1 + (k + self.salt) % 3 for k in range(len(lengths) + 1)]
        turns = list(range(len(lengths)))
        if self.order == "backwards":
            turns.reverse()
        elif self.order == "mixed":
            np.random.default_rng([self.salt, len(lengths)]).shuffle(turns)
        ends = list(accumulate((lengths[turn] + gaps[k] for k, turn in enumerate(turns)), initial=0))
        begins = {turn: ends[k] + gaps[k] for k, turn in enumerate(turns)}
        return [begins[turn] for turn in range(len(lengths))], ends[-1] + gaps[-1]

    # --- what is in the buffers -----------------------------------------------------------------

    def block(self, size: int, source: int, target: int) -> Array:
        """What rank `source` sends to rank `target`."""
        if self.collective == "reduce_scatter":
            begin = sum(self.counts[:target])
            return self._whole(source)[begin : begin + self.counts[target]]
        to = 0 if self.collective == "allgather" else target
        lengths = self.sends(size, source)
        count = lengths[0] if len(lengths) == 1 else lengths[target]
        return data(self.dtype, count, source * size + to, self.op, self.salt)

    def given(self, size: int) -> list[Array]:
        """The send buffer of each rank."""
        if self.collective == "reduce_scatter":
            return [self._whole(rank) for rank in range(size)]
        if self.collective in ("gather", "allgather"):
            return [self.block(size, rank, self.root) for rank in range(size)]
        return [
            self._laid([self.block(size, rank, target) for target in range(size)]) for rank in range(size)
        ]

    def before(self, given: Sequence[Array], rank: int) -> Array:
        """What the receive buffer of a rank holds before the call."""
        size = len(given)
        lengths = self.takes(size, rank)
        if self.passes_in_place(rank):
            if self.collective == "reduce_scatter" or self.collective.startswith("alltoall"):
                return given[rank].copy()
            if self.collective in ("gather", "allgather"):
                nothing = untouched(self.dtype, 0)
                return self._laid(
                    [given[rank] if source == rank else nothing for source in range(size)], lengths
                )
        return untouched(self.dtype, self.places(lengths)[1])

    def after(self, given: Sequence[Array], rank: int) -> Array:
        """What it must hold after the call."""
        size, buffer = len(given), self.before(given, rank)
        if self.collective == "reduce_scatter":
            blocks = [self.block(size, source, rank) for source in range(size)]
            buffer[: self.counts[rank]] = combined(self.op, blocks).astype(self.dtype)
            return buffer
        if self.collective == "scatter":
            return buffer if self.passes_in_place(rank) else self.block(size, self.root, rank)
        if self.collective == "gather" and rank != self.root:
            return buffer
        begins, _ = self.places(self.takes(size, rank))
        for source, begin in enumerate(begins):
            block = self.block(size, source, rank)
            buffer[begin : begin + block.size] = block
        return buffer

    def arguments(self, rank: int, send: Any, receive: Any) -> tuple[Any, ...]:
        """What `method` is called with: the buffers that hold several blocks as mpi4py's lists."""
        size = round(len(self.counts) ** 0.5) if self.collective.startswith("alltoall") else len(self.counts)
        if self.collective in ("scatter", "alltoall", "alltoallw"):
            send = self._listed(send, self.sends(size, rank))
        if self.collective in ("gather", "allgather", "alltoall", "alltoallw"):
            receive = self._listed(receive, self.takes(size, rank))
        if self.passes_in_place(rank):
            send, receive = (send, MPI.IN_PLACE) if self.collective == "scatter" else (MPI.IN_PLACE, receive)
        if self.collective == "reduce_scatter":
            return send, receive, list(self.counts), operator(self.op)
        return (send, receive, self.root) if self.collective in ROOTED else (send, receive)

    def _listed(self, buffer: Any, lengths: Sequence[int]) -> Any:
        begins, _ = self.places(lengths)
        counts = list(lengths)
        if self.collective == "alltoallw":
            kind = dtlib.from_numpy_dtype(self.dtype)
            return [buffer, counts, [begin * self.dtype.itemsize for begin in begins], [kind] * len(counts)]
        if self.spec == "type":
            return [buffer, counts, begins, dtlib.from_numpy_dtype(self.dtype)]
        return (buffer, counts) if self.spec == "counts" else [buffer, (counts, begins)]

    def _whole(self, rank: int) -> Array:
        return data(self.dtype, sum(self.counts), rank, self.op, self.salt)

    def _laid(self, blocks: Sequence[Array], lengths: Sequence[int] | None = None) -> Array:
        begins, total = self.places([block.size for block in blocks] if lengths is None else lengths)
        buffer = untouched(self.dtype, total)
        for begin, block in zip(begins, blocks, strict=True):
            buffer[begin : begin + block.size] = block
        return buffer

    def __str__(self) -> str:
        op = f" {self.op}" if self.reduces else ""
        root = f" root {self.root}" if self.collective in ROOTED else ""
        return (
            f"{self.method}{op}{root} of {self.counts} {self.dtype}, {self.order}, "
            f"told as {self.spec}{' in place' * self.in_place}"
        )
