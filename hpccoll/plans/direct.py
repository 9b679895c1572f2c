"""Direct: whoever has something for another one sends it there; one round.

Gather and scatter bring all bytes through the root's link.  In an all-to-all member i sends to i + 1, i + 2,
... and receives from i - 1, i - 2, ..., so that no member is everybody's first; n (n - 1) messages, where
the two-level plans have fewer between the nodes.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Sequence

from hpccoll.plans.algorithm import Algorithm, Edge, Rounds, Traffic
from hpccoll.plans.builder import Builder
from hpccoll.plans.spans import Region
from hpccoll.plans.steps import Kind


class Direct(Algorithm):
    """See the module."""

    name = "direct"
    kinds = frozenset({Kind.GATHER, Kind.SCATTER, Kind.ALLTOALL})

    def lower(
        self,
        build: Builder,
        kind: Kind,
        members: tuple[int, ...],
        me: int,
        regions: Sequence[Region],
        root: int,
    ) -> None:
        if kind is Kind.ALLTOALL:
            self._exchange(build, members, me, regions)
            return
        gathers = kind is Kind.GATHER
        if me != root:
            (build.send_region if gathers else build.receive_region)(members[root], regions[me])
            return
        for other, peer in enumerate(members):
            if other != root:
                (build.receive_region if gathers else build.send_region)(peer, regions[other])

    def _exchange(self, build: Builder, members: tuple[int, ...], me: int, regions: Sequence[Region]) -> None:
        count = len(members)
        for distance in range(1, count):
            to, origin = (me + distance) % count, (me - distance) % count
            build.send_region(members[to], regions[me * count + to])
            build.receive_region(members[origin], regions[origin * count + me])

    def edges(self, kind: Kind, lengths: Sequence[int], root: int) -> Iterator[Edge]:
        if kind is Kind.ALLTOALL:
            gives, takes = _halves(lengths)
            for source, has in enumerate(gives):
                for target, wants in enumerate(takes):
                    if source != target:
                        yield Edge(source, target, has * wants)
            return
        for member, elements in enumerate(lengths):
            if member != root:
                yield Edge(member, root, elements) if kind is Kind.GATHER else Edge(root, member, elements)

    def traffic(self, kind: Kind, lengths: Sequence[int], root: int, nodes: Sequence[int]) -> Traffic:
        if kind is not Kind.ALLTOALL:
            return super().traffic(kind, lengths, root, nodes)
        gives, takes = _halves(lengths)
        given: Counter[int] = Counter()
        taken: Counter[int] = Counter()
        kept: Counter[int] = Counter()
        for node, has, wants in zip(nodes, gives, takes, strict=True):
            given[node] += has
            taken[node] += wants
            kept[node] += has * wants
        everything = sum(takes)
        return {
            node: (given[node] * (everything - taken[node]), given[node] * taken[node] - kept[node])
            for node in given
        }

    def arriving(self, kind: Kind, lengths: Sequence[int], root: int, nodes: Sequence[int]) -> dict[int, int]:
        if kind is not Kind.ALLTOALL:
            return super().arriving(kind, lengths, root, nodes)
        gives, takes = _halves(lengths)
        other_way = self.traffic(kind, (*takes, *gives), root, nodes)
        return {node: between for node, (between, _) in other_way.items()}

    def rounds(self, kind: Kind, count: int) -> Rounds:
        return Rounds(1, 0, count - 1)


def _halves(lengths: Sequence[int]) -> tuple[Sequence[int], Sequence[int]]:
    """What each member has for one rank, and for how many ranks each member gets."""
    return lengths[: len(lengths) // 2], lengths[len(lengths) // 2 :]
