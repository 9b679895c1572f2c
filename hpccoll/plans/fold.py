"""Fold: every member combines its share of all members' values one after the other, in their order.

The result has the same bits whatever the layout, the segments and the array position: ((x0 x1) x2) ... for
every element.  Each member sends every other one its share, (n-1)/n of the buffer in all, as in a ring, but
to all members: where ranks share a node's network, more bytes leave the node.  All send at once, each to its
next member first, so that no network card waits for another's turn; what has come is combined when it is
its turn.  All-reduce then passes the shares around the ring, reduce hands them to the root.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Sequence

from hpccoll.plans.algorithm import Algorithm, Edge, Rounds, Traffic
from hpccoll.plans.builder import Builder
from hpccoll.plans.direct import Direct
from hpccoll.plans.ring import Ring
from hpccoll.plans.spans import Region, length, segments, split, split_evenly
from hpccoll.plans.steps import Kind, Order

# So much of what the others send at once lies in memory before it is combined.
MOST_SEGMENTS = 64


class Fold(Algorithm):
    """See the module."""

    name = "fold"
    kinds = frozenset({Kind.ALLREDUCE, Kind.REDUCE, Kind.REDUCE_SCATTER})
    order = Order.FOLD

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
        if kind is not Kind.REDUCE_SCATTER:
            regions = split(regions[0], split_evenly(length(regions[0]), count))
        longest = _longest(build.segment, count)
        shares = [list(segments(region, longest)) for region in regions]
        for turn in range(max(map(len, shares))):
            for distance in range(1, count):
                to = (me + distance) % count
                for span in shares[to][turn : turn + 1]:
                    build.send(members[to], span)
        build.fold(members, me, shares[me])
        if passes_on := _PASSES_ON.get(kind):
            algorithm, following = passes_on
            algorithm.lower(build, following, members, me, regions, root)

    def edges(self, kind: Kind, lengths: Sequence[int], root: int) -> Iterator[Edge]:
        count = len(lengths)
        for source in range(count):
            for target in range(count):
                if source != target:
                    yield Edge(source, target, lengths[target])
        if passes_on := _PASSES_ON.get(kind):
            algorithm, following = passes_on
            yield from algorithm.edges(following, lengths, root)

    def traffic(self, kind: Kind, lengths: Sequence[int], root: int, nodes: Sequence[int]) -> Traffic:
        members, shares = Counter(nodes), dict.fromkeys(nodes, 0)
        for node, own in zip(nodes, lengths, strict=True):
            shares[node] += own
        total = sum(lengths)
        after: Traffic = {}
        if passes_on := _PASSES_ON.get(kind):
            algorithm, following = passes_on
            after = algorithm.traffic(following, lengths, root, nodes)
        found: Traffic = {}
        for node, count in members.items():
            between, within = after.get(node, (0, 0))
            share = shares[node]
            found[node] = (count * (total - share) + between, (count - 1) * share + within)
        return found

    def arriving(self, kind: Kind, lengths: Sequence[int], root: int, nodes: Sequence[int]) -> dict[int, int]:
        members, shares = Counter(nodes), dict.fromkeys(nodes, 0)
        for node, own in zip(nodes, lengths, strict=True):
            shares[node] += own
        found = {node: shares[node] * (len(nodes) - count) for node, count in members.items()}
        if passes_on := _PASSES_ON.get(kind):
            algorithm, following = passes_on
            for node, elements in algorithm.arriving(following, lengths, root, nodes).items():
                found[node] += elements
        return found

    def combines(self, kind: Kind, lengths: Sequence[int]) -> int:
        return (len(lengths) - 1) * max(lengths)

    def rounds(self, kind: Kind, count: int) -> Rounds:
        return Rounds(1, 0, count - 1)

    def follows(self, kind: Kind) -> tuple[str, Kind] | None:
        found = _PASSES_ON.get(kind)
        return found and (found[0].name, found[1])


def _longest(segment: int, count: int) -> int:
    """Elements of a message, so that those of all members together have room."""
    return min(segment, max(1, MOST_SEGMENTS * segment // max(1, count - 1)))


# What becomes of the combined shares.
_PASSES_ON: dict[Kind, tuple[Algorithm, Kind]] = {
    Kind.ALLREDUCE: (Ring(), Kind.ALLGATHER),
    Kind.REDUCE: (Direct(), Kind.GATHER),
}
