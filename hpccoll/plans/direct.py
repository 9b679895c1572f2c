"""Direct: the root exchanges with every other member; one round, all bytes through the root."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from hpccoll.plans.algorithm import Algorithm, Edge, Rounds
from hpccoll.plans.builder import Builder
from hpccoll.plans.spans import Region, segments
from hpccoll.plans.steps import Kind


class Direct(Algorithm):
    """See the module."""

    name = "direct"
    kinds = frozenset({Kind.GATHER, Kind.SCATTER})

    def lower(
        self,
        build: Builder,
        kind: Kind,
        members: tuple[int, ...],
        me: int,
        regions: Sequence[Region],
        root: int,
    ) -> None:
        gathers = kind is Kind.GATHER
        if me != root:
            for span in segments(regions[me], build.segment):
                (build.send if gathers else build.receive)(members[root], span)
            return
        for other, peer in enumerate(members):
            if other != root:
                for span in segments(regions[other], build.segment):
                    (build.receive if gathers else build.send)(peer, span)

    def edges(self, kind: Kind, lengths: Sequence[int], root: int) -> Iterator[Edge]:
        for member, elements in enumerate(lengths):
            if member != root:
                yield Edge(member, root, elements) if kind is Kind.GATHER else Edge(root, member, elements)

    def rounds(self, kind: Kind, count: int) -> Rounds:
        return Rounds(1, 0)
