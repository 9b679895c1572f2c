"""What each rank of a collective gives and gets, in one index space shared by all ranks.

The index space of a reduction or a broadcast is the buffer itself.  Where every rank has a block of its own
(all-gather, reduce-scatter, gather, scatter) it is the blocks one after the other in rank order.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property
from itertools import accumulate

from hpccoll.plans.spans import Region, Span, region

REDUCTIONS = frozenset({"allreduce", "reduce", "reduce_scatter"})
ROOTED = frozenset({"reduce", "broadcast", "gather", "scatter"})
BLOCKED = frozenset({"allgather", "reduce_scatter", "gather", "scatter"})
NAMES = ("allreduce", "reduce", "broadcast", "allgather", "reduce_scatter", "gather", "scatter", "barrier")


@dataclass(frozen=True)
class Collective:
    """One collective: its name, how many ranks, elements of the buffer (or of each rank's block), root.

    `counts` gives unequal blocks; without it every block has `count` elements.
    """

    name: str
    size: int
    count: int
    root: int = 0
    counts: tuple[int, ...] | None = None

    @property
    def reduces(self) -> bool:
        return self.name in REDUCTIONS

    @cached_property
    def blocks(self) -> tuple[Span, ...]:
        """The block of every rank, for collectives that have blocks."""
        counts = self.counts if self.counts is not None else (self.count,) * self.size
        ends = list(accumulate(counts))
        return tuple(Span(end - count, end) for end, count in zip(ends, counts, strict=True))

    @cached_property
    def elements(self) -> int:
        """Length of the index space."""
        if self.name in BLOCKED:
            return self.blocks[-1].stop
        return self.count

    @cached_property
    def everything(self) -> Region:
        return region(Span(0, self.elements))

    def block(self, rank: int) -> Region:
        return region(self.blocks[rank])

    def input(self, rank: int) -> Region:
        """The elements that the send buffer of a rank holds, in the order of its memory."""
        if self.name in ("allgather", "gather"):
            return self.block(rank)
        if self.name in ("broadcast", "scatter") and rank != self.root:
            return ()
        return self.everything

    def output(self, rank: int) -> Region:
        """The elements that the receive buffer of a rank holds afterwards, in the order of its memory."""
        if self.name in ("reduce_scatter", "scatter"):
            return self.block(rank)
        if self.name in ("reduce", "gather") and rank != self.root:
            return ()
        return self.everything
