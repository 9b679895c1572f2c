"""Scans by messages: what the members before a member give, combined in their order.

Recursive doubling: in round k a member sends its combination to the one 2^k after it; ceil(log2 n) rounds,
the whole buffer in each.  Linear: each member takes from the one before it and hands on, segment after
segment; n - 1 messages deep, but the buffer crosses each link once, and operands are combined one after
the other.  Source: W. D. Hillis, G. L. Steele, "Data parallel algorithms", Commun. ACM 29 (1986).

Recursive doubling of 4 members, a - d:

    round   0    1    2     3
            a    b    c     d
      1     a    ab   bc    cd       from 1 before
      2     a    ab   abc   abcd     from 2 before
"""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Iterator, Sequence
from operator import add

from hpccoll.plans.algorithm import Algorithm, Edge, Rounds
from hpccoll.plans.builder import Builder
from hpccoll.plans.collective import STRIDE
from hpccoll.plans.spans import Region, Span, length, split
from hpccoll.plans.steps import Kind, Order


class _Scan(Algorithm):
    """Lowers a scan segment by segment: what is GIVEN, the RESULT, and room for what comes in."""

    kinds = frozenset({Kind.SCAN, Kind.EXSCAN})

    def lower(
        self,
        build: Builder,
        kind: Kind,
        members: tuple[int, ...],
        me: int,
        regions: Sequence[Region],
        root: int,
    ) -> None:
        given, result = regions
        for start in range(0, length(given), build.segment):
            part = [start, min(build.segment, length(given) - start)]
            ((own,), (into,)) = (split(one, [*part, length(one) - sum(part)])[1] for one in (given, result))
            self._segment(build, members, me, own, into, inclusive=kind is Kind.SCAN)

    @abstractmethod
    def _segment(
        self, build: Builder, members: tuple[int, ...], me: int, own: Span, result: Span, *, inclusive: bool
    ) -> None: ...


class DoublingScan(_Scan):
    """See the module."""

    name = "doubling_scan"
    order = Order.RANKS

    def _segment(
        self, build: Builder, members: tuple[int, ...], me: int, own: Span, result: Span, *, inclusive: bool
    ) -> None:
        current, distance = own, 1
        running = result if inclusive else _apart(own)
        while distance < len(members):
            if me + distance < len(members):
                build.send(members[me + distance], current)
            if me >= distance:
                theirs = build.arrival(members[me - distance], own.length)
                if not inclusive:
                    build.merge(theirs, result)
                if inclusive or me + 2 * distance < len(members):
                    build.merge(theirs, current, into=running)
                    current = running
            distance *= 2
        if inclusive and me == 0:
            build.copy(own, result)

    def edges(self, kind: Kind, lengths: Sequence[int], root: int) -> Iterator[Edge]:
        total, distance = sum(lengths), 1
        while distance < len(lengths):
            for member in range(len(lengths) - distance):
                yield Edge(member, member + distance, total)
            distance *= 2

    def combines(self, kind: Kind, lengths: Sequence[int]) -> int:
        count = len(lengths)
        rounds = (count - 1).bit_length()
        if kind is Kind.SCAN:
            return rounds * sum(lengths)
        # What is handed on has a member's own elements, its result has not: it begins with what comes first.
        results = (me.bit_length() - 1 for me in range(1, count))
        handed_on = (
            sum(1 << turn <= me < count - (2 << turn) for turn in range(rounds)) for me in range(1, count)
        )
        return max(map(add, results, handed_on), default=0) * sum(lengths)

    def rounds(self, kind: Kind, count: int) -> Rounds:
        rounds = (count - 1).bit_length()
        return Rounds(rounds, rounds)


class LinearScan(_Scan):
    """See the module."""

    name = "linear_scan"
    order = Order.FOLD
    along = True

    def _segment(
        self, build: Builder, members: tuple[int, ...], me: int, own: Span, result: Span, *, inclusive: bool
    ) -> None:
        last = me == len(members) - 1
        running = result if inclusive else _apart(own)
        if me > 0:
            theirs = build.arrival(members[me - 1], own.length)
            if not inclusive:
                build.merge(theirs, result)
            if inclusive or not last:
                build.merge(theirs, own, into=running)
        elif inclusive:
            build.copy(own, result)
        if not last:
            build.send(members[me + 1], own if me == 0 else running)

    def edges(self, kind: Kind, lengths: Sequence[int], root: int) -> Iterator[Edge]:
        total = sum(lengths)
        for member in range(len(lengths) - 1):
            yield Edge(member, member + 1, total)

    def combines(self, kind: Kind, lengths: Sequence[int]) -> int:
        return sum(lengths) if len(lengths) > (1 if kind is Kind.SCAN else 2) else 0

    def rounds(self, kind: Kind, count: int) -> Rounds:
        return Rounds(count - 1, max(0, count - 2))


def _apart(own: Span) -> Span:
    """Where what is handed on is put together, so that what a rank gives stays as it is."""
    return Span(own.start + STRIDE, own.stop + STRIDE)
