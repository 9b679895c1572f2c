"""What each rank of a collective gives and gets, in one index space shared by all ranks.

    allreduce, reduce, broadcast      the buffer itself: elements 0 to count - 1
    allgather, reduce_scatter,        the ranks' blocks, one after the other in rank order
      gather, scatter
    alltoall                          a block for every pair of ranks: source after source, and of one source
                                      target after target
    scan, exscan                      three runs of count elements: GIVEN, what a rank gives (and, on the way,
                                      combinations that end with it); RESULT; BEFORE, what ranks of the nodes
                                      before this one give

Blocks of unequal length (ragged calls) start STRIDE apart where a rank may not know all of them: what the
others do is then nothing to it, and their blocks count as empty.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import cached_property
from itertools import accumulate

from hpccoll.plans.spans import Region, Span, region

REDUCTIONS = frozenset({"allreduce", "reduce", "reduce_scatter", "scan", "exscan"})
SCANS = frozenset({"scan", "exscan"})
ROOTED = frozenset({"reduce", "broadcast", "gather", "scatter"})
BLOCKED = frozenset({"allgather", "reduce_scatter", "gather", "scatter", "alltoall"})
NAMES = (
    "allreduce", "reduce", "broadcast", "allgather", "reduce_scatter", "gather", "scatter", "alltoall",
    "scan", "exscan", "barrier",
)  # fmt: skip
# Collectives of which, when they are ragged, no rank knows all counts.
LOCALLY_RAGGED = frozenset({"gather", "scatter", "alltoall"})
STRIDE = 1 << 44

# Per rank: how many elements for (or from) every rank.
Rows = Mapping[int, tuple[int, ...]]


@dataclass(frozen=True)
class Collective:
    """One collective: its name, how many ranks, elements of the buffer (or of each block), root.

    `counts` gives unequal blocks; without it every block has `count` elements.  An all-to-all is ragged by
    `gives` and `takes` instead: the rows and columns that are known.
    """

    name: str
    size: int
    count: int
    root: int = 0
    counts: tuple[int, ...] | None = None
    gives: Rows = field(default_factory=dict, hash=False)
    takes: Rows = field(default_factory=dict, hash=False)

    @property
    def reduces(self) -> bool:
        return self.name in REDUCTIONS

    @property
    def ragged(self) -> bool:
        return self.counts is not None or bool(self.gives) or bool(self.takes)

    @cached_property
    def blocks(self) -> tuple[Span, ...]:
        """The block of every rank, for collectives that have a block for each."""
        if self.counts is not None and self.name in LOCALLY_RAGGED:
            return tuple(Span(rank * STRIDE, rank * STRIDE + count) for rank, count in enumerate(self.counts))
        counts = self.counts if self.counts is not None else (self.count,) * self.size
        ends = list(accumulate(counts))
        return tuple(Span(end - count, end) for end, count in zip(ends, counts, strict=True))

    @cached_property
    def elements(self) -> int:
        """How many elements all blocks, or the buffer, have."""
        if self.name == "alltoall":
            if self.ragged:
                return sum(sum(row) for row in (self.gives or self.takes).values())
            return self.count * self.size * self.size
        if self.name in BLOCKED:
            return sum(self.counts) if self.counts is not None else self.count * self.size
        return self.count

    @cached_property
    def everything(self) -> Region:
        """All elements; for a scan those that a rank gives."""
        if self.name in BLOCKED and self.name != "alltoall":
            return region(*self.blocks)
        return region(Span(0, self.elements))

    def block(self, rank: int) -> Region:
        return region(self.blocks[rank])

    def pair(self, source: int, target: int) -> Span:
        """What one rank gives to another in an all-to-all."""
        index = source * self.size + target
        if not self.ragged:
            return Span(index * self.count, (index + 1) * self.count)
        if source in self.gives:
            count = self.gives[source][target]
        elif target in self.takes:
            count = self.takes[target][source]
        else:
            raise ValueError(f"what rank {source} gives to rank {target} is not known here")
        return Span(index * STRIDE, index * STRIDE + count)

    def part(self, number: int) -> Region:
        """One of the three runs of a scan: GIVEN, RESULT, BEFORE."""
        return region(Span(number * self.count, (number + 1) * self.count))

    def input(self, rank: int) -> Region:
        """The elements that the send buffer of a rank holds, in the order of its memory."""
        if self.name == "alltoall":
            return region(*(self.pair(rank, other) for other in range(self.size)))
        if self.name in ("allgather", "gather"):
            return self.block(rank)
        if self.name in ("broadcast", "scatter") and rank != self.root:
            return ()
        return self.everything

    def output(self, rank: int) -> Region:
        """The elements that the receive buffer of a rank holds afterwards, in the order of its memory."""
        if self.name == "alltoall":
            return region(*(self.pair(other, rank) for other in range(self.size)))
        if self.name in SCANS:
            return self.part(RESULT) if self.name == "scan" or rank > 0 else ()
        if self.name in ("reduce_scatter", "scatter"):
            return self.block(rank)
        if self.name in ("reduce", "gather") and rank != self.root:
            return ()
        return self.everything


GIVEN, RESULT, BEFORE = range(3)
