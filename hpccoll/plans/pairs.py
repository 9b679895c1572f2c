"""What every member of a group has for every other one, made only where it is asked for.

A thousand members have a million pairs; a rank looks at its own row and column.
"""

from __future__ import annotations

from collections.abc import Sequence
from operator import mul
from typing import overload

from hpccoll.plans.collective import Collective
from hpccoll.plans.spans import Region, region


class Made(Sequence[Region]):
    """Regions that are made when they are asked for."""

    def _key(self) -> tuple[object, ...]:
        raise NotImplementedError

    def _region(self, index: int) -> Region:
        raise NotImplementedError

    @property
    def elements(self) -> int:
        """All of them, of blocks of equal length."""
        raise NotImplementedError

    def __eq__(self, other: object) -> bool:
        return isinstance(other, type(self)) and self._key() == other._key()

    def __hash__(self) -> int:
        return hash(self._key())

    @overload
    def __getitem__(self, index: int) -> Region: ...
    @overload
    def __getitem__(self, index: slice) -> Sequence[Region]: ...
    def __getitem__(self, index: int | slice) -> Region | Sequence[Region]:
        if isinstance(index, slice):
            return [self._region(number) for number in range(*index.indices(len(self)))]
        if not 0 <= index < len(self):
            raise IndexError(index)
        return self._region(index)


class Pairs(Made):
    """The regions of an all-to-all step: entry i * n + j is what member i gives to member j.

    `sources[i]` are the ranks whose blocks member i holds, `targets[j]` those whose blocks member j is to
    get.  With `others_only` a member keeps what it would give to itself.
    """

    def __init__(
        self,
        collective: Collective,
        sources: Sequence[Sequence[int]],
        targets: Sequence[Sequence[int]],
        *,
        others_only: bool = False,
    ) -> None:
        self._collective = collective
        self._sources = tuple(map(tuple, sources))
        self._targets = tuple(map(tuple, targets))
        self._others_only = others_only

    def _key(self) -> tuple[object, ...]:
        return (self._collective, self._sources, self._targets, self._others_only)

    @property
    def gives(self) -> tuple[int, ...]:
        """Elements that each member has for one rank, of blocks of equal length."""
        return tuple(len(ranks) * self._collective.count for ranks in self._sources)

    @property
    def takes(self) -> tuple[int, ...]:
        """For how many ranks each member gets elements."""
        return tuple(map(len, self._targets))

    @property
    def elements(self) -> int:
        gives, takes = self.gives, self.takes
        kept = sum(map(mul, gives, takes)) if self._others_only else 0
        return sum(gives) * sum(takes) - kept

    def between(self, giver: int, taker: int) -> Region:
        """What member `giver` gives to member `taker`."""
        if self._others_only and giver == taker:
            return ()
        return region(
            *(
                self._collective.pair(source, target)
                for source in self._sources[giver]
                for target in self._targets[taker]
            )
        )

    def __len__(self) -> int:
        return len(self._sources) * len(self._targets)

    def _region(self, index: int) -> Region:
        return self.between(*divmod(index, len(self._targets)))


class Crossing(Made):
    """For each rank of a node, its blocks of an all-to-all for ranks elsewhere, or from them."""

    def __init__(self, collective: Collective, members: Sequence[int], *, outgoing: bool) -> None:
        self._collective = collective
        self._members = tuple(members)
        self._outgoing = outgoing

    @property
    def lengths(self) -> tuple[int, ...]:
        """Elements of each region, of blocks of equal length."""
        elsewhere = self._collective.size - len(self._members)
        return (elsewhere * self._collective.count,) * len(self._members)

    @property
    def elements(self) -> int:
        return sum(self.lengths)

    def __len__(self) -> int:
        return len(self._members)

    def _key(self) -> tuple[object, ...]:
        return (self._collective, self._members, self._outgoing)

    def _region(self, index: int) -> Region:
        pair, me, inside = self._collective.pair, self._members[index], set(self._members)
        others = (rank for rank in range(self._collective.size) if rank not in inside)
        return region(*(pair(me, other) if self._outgoing else pair(other, me) for other in others))
