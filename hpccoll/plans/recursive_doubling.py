"""Recursive doubling: in round k members 2^k apart exchange what they have; ceil(log2 n) rounds.

Every member sends the whole buffer in each round: best where latency rules.  When n is no power of two
the first 2 (n - 2^k) members are folded in pairs before the rounds and unfolded after them.  Operands
are combined in the order of the members, and every member combines the same pairs, so that all end
with the same bits.  Source: R. Thakur, R. Rabenseifner, W. Gropp, "Optimization of collective
communication operations in MPICH", Int. J. High Perf. Comput. Appl. 19 (2005).
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from hpccoll.plans.algorithm import Algorithm, Edge, Rounds
from hpccoll.plans.builder import Builder
from hpccoll.plans.spans import Region, segments
from hpccoll.plans.steps import Kind, Order


class RecursiveDoubling(Algorithm):
    """See the module."""

    name = "recursive_doubling"
    kinds = frozenset({Kind.ALLREDUCE})
    order = Order.RANKS
    whole = True

    def lower(
        self,
        build: Builder,
        kind: Kind,
        members: tuple[int, ...],
        me: int,
        regions: Sequence[Region],
        root: int,
    ) -> None:
        power, extra = _fold(len(members))
        spans = list(segments(regions[0], build.segment))
        folded = me < 2 * extra
        if folded and me % 2:
            for span in spans:
                build.send(members[me - 1], span)
            for span in spans:
                build.receive(members[me - 1], span)
            return
        if folded:
            for span in spans:
                build.receive_and_combine(members[me + 1], span, theirs_first=False)
        position = me // 2 if folded else me - extra
        distance = 1
        while distance < power:
            partner = members[_member(position ^ distance, extra)]
            theirs_first = bool(position & distance)
            build.settle(members, regions[0])  # each of a pair combines what the other one gets
            for span in spans:
                build.send(partner, span)
            for span in spans:
                build.receive_and_combine(partner, span, theirs_first=theirs_first)
            distance *= 2
        if extra:
            build.settle(members, regions[0])
        if folded:
            for span in spans:
                build.send(members[me + 1], span)

    def edges(self, kind: Kind, lengths: Sequence[int], root: int) -> Iterator[Edge]:
        for each in self.phases(kind, lengths, root):
            yield from each

    def phases(self, kind: Kind, lengths: Sequence[int], root: int) -> Sequence[Sequence[Edge]]:
        total = sum(lengths)
        power, extra = _fold(len(lengths))
        rounds = [
            [
                Edge(_member(position, extra), _member(position ^ (1 << bit), extra), total)
                for position in range(power)
            ]
            for bit in range(power.bit_length() - 1)
        ]
        if extra:
            rounds.insert(0, [Edge(2 * pair + 1, 2 * pair, total) for pair in range(extra)])
            rounds.append([Edge(2 * pair, 2 * pair + 1, total) for pair in range(extra)])
        return rounds

    def combines(self, kind: Kind, lengths: Sequence[int]) -> int:
        power, extra = _fold(len(lengths))
        return (power.bit_length() - 1 + (extra > 0)) * sum(lengths)

    def rounds(self, kind: Kind, count: int) -> Rounds:
        power, extra = _fold(count)
        return Rounds(power.bit_length() - 1 + (2 if extra else 0), 0)


def _fold(count: int) -> tuple[int, int]:
    """The largest power of two not above `count`, and how many members are over it."""
    power = 1 << (count.bit_length() - 1)
    return power, count - power


def _member(position: int, extra: int) -> int:
    return 2 * position if position < extra else position + extra
