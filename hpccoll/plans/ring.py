"""Ring: every member sends to the next one only; bandwidth-optimal, n - 1 rounds a phase.

All-reduce is reduce-scatter, then all-gather.  Each member sends 2 (n-1)/n of the buffer (half of it
for either phase alone) in 2 (n-1) rounds.  Source: P. Patarasuk, X. Yuan, "Bandwidth optimal all-reduce
algorithms for clusters of workstations", J. Parallel Distrib. Comput. 69 (2009).

Blocks of 4 members in the reduce-scatter; after round 3 member i holds block i of all:

    round   0 sends   1 sends   2 sends   3 sends
      1     block 3   block 0   block 1   block 2
      2     block 2   block 3   block 0   block 1
      3     block 1   block 2   block 3   block 0
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from hpccoll.plans.algorithm import Algorithm, Edge, Rounds
from hpccoll.plans.builder import Builder
from hpccoll.plans.spans import Region, length, segments, split, split_evenly
from hpccoll.plans.steps import Kind


class Ring(Algorithm):
    """See the module."""

    name = "ring"
    along = around = True
    kinds = frozenset({Kind.ALLREDUCE, Kind.REDUCE_SCATTER, Kind.ALLGATHER})

    def lower(
        self,
        build: Builder,
        kind: Kind,
        members: tuple[int, ...],
        me: int,
        regions: Sequence[Region],
        root: int,
    ) -> None:
        count = len(members)
        if kind is Kind.ALLREDUCE:
            regions = split(regions[0], split_evenly(length(regions[0]), count))
        if kind.reduces:
            self._pass_on(build, members, me, regions, first=me - 1, combine=True)
        if kind is Kind.ALLREDUCE:
            build.settle(members, regions[me])
        if kind is not Kind.REDUCE_SCATTER:
            self._pass_on(build, members, me, regions, first=me, combine=False)

    def _pass_on(
        self,
        build: Builder,
        members: tuple[int, ...],
        me: int,
        regions: Sequence[Region],
        *,
        first: int,
        combine: bool,
    ) -> None:
        """In each of n - 1 rounds a member sends what it received in the round before."""
        count = len(members)
        right, left = members[(me + 1) % count], members[me - 1]
        for turn in range(count - 1):
            for span in segments(regions[(first - turn) % count], build.segment):
                build.send(right, span)
            for span in segments(regions[(first - turn - 1) % count], build.segment):
                if combine:
                    build.receive_and_combine(left, span, theirs_first=True)
                else:
                    build.receive(left, span)

    def edges(self, kind: Kind, lengths: Sequence[int], root: int) -> Iterator[Edge]:
        count, total = len(lengths), sum(lengths)
        for member in range(count):
            following = (member + 1) % count
            sent = 0
            if kind.reduces:
                sent += total - lengths[member]
            if kind is not Kind.REDUCE_SCATTER:
                sent += total - lengths[following]
            if count > 1:
                yield Edge(member, following, sent)

    def combines(self, kind: Kind, lengths: Sequence[int]) -> int:
        return sum(lengths) - min(lengths) if kind.reduces else 0

    def rounds(self, kind: Kind, count: int) -> Rounds:
        phases = 2 if kind is Kind.ALLREDUCE else 1
        return Rounds(phases * (count - 1), 0)
