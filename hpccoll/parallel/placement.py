"""Which rank has which coordinates: a pure function of the layout and of the sizes of the dimensions.

The dimension with the heaviest traffic comes first, and its groups are laid inside nodes (NVLink domains
where these are larger) as far as that is possible; then blocks of those groups form the groups of the next
dimension, and so on.  For 8 ranks on two nodes, tensor 2, data 2, pipeline 2::

    node 0     0 1   2 3      tensor groups (0 1) (2 3) (4 5) (6 7)
    node 1     4 5   6 7      data groups (0 2) (1 3) (4 6) (5 7), pipelines (0 4) (1 5) (2 6) (3 7)

Nodes may have any number of ranks, in any order: ranks of a node are collected first, and of groups that
cannot lie inside a node as few as possible cross (`zero_sums`).
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from math import prod
from typing import TypeVar

from hpccoll.errors import UsageError
from hpccoll.parallel.zero_sums import parts
from hpccoll.topology.layout import Groups, Layout

T = TypeVar("T")
Unit = tuple[int, ...]  # ranks that stay together, by their coordinates in the dimensions placed so far


@dataclass(frozen=True)
class Placement:
    """The coordinates of every rank.

    Attributes:
        layout: where the ranks are.
        names: of the dimensions, the heaviest first.
        sizes: of each.
        line: the ranks by their coordinates, of which the first dimension's runs fastest.

    """

    layout: Layout
    names: tuple[str, ...]
    sizes: tuple[int, ...]
    line: tuple[int, ...]

    def coordinates(self, rank: int) -> dict[str, int]:
        """The place of a rank in each dimension."""
        place = self._places[rank]
        found = {}
        for name, size in zip(self.names, self.sizes, strict=True):
            place, found[name] = divmod(place, size)
        return found

    def rank_at(self, **coordinates: int) -> int:
        """The rank with these coordinates; 0 in dimensions that are not given.

        Raises: UsageError for an unknown dimension, or a coordinate outside of it.
        """
        for name in coordinates:
            self._check_name(name)
        place, stride = 0, 1
        for name, size in zip(self.names, self.sizes, strict=True):
            at = coordinates.get(name, 0)
            if not 0 <= at < size:
                raise UsageError(f"{name} is {at}: must be 0 to {size - 1}")
            place, stride = place + at * stride, stride * size
        return self.line[place]

    def groups(self, *names: str) -> Groups:
        """The ranks that differ in these dimensions alone, each group in order of its coordinates.

        In a group over several dimensions the coordinate of the heaviest one runs fastest.  Groups are in
        order of the coordinates of their members in the other dimensions.
        """
        for name in names:
            self._check_name(name)
        offsets, starts, stride = [0], [0], 1
        for name, size in zip(self.names, self.sizes, strict=True):
            steps = [at * stride for at in range(size)]
            if name in names:
                offsets = [offset + step for step in steps for offset in offsets]
            else:
                starts = [start + step for step in steps for start in starts]
            stride *= size
        return tuple(tuple(self.line[start + offset] for offset in offsets) for start in starts)

    def crossings(self, *names: str) -> int:
        """How many boundaries of nodes (NVLink domains where these are larger) all groups together cross."""
        places = fast_places(self.layout)
        return sum(len({places[rank] for rank in group}) - 1 for group in self.groups(*names))

    @cached_property
    def _places(self) -> dict[int, int]:
        return {rank: place for place, rank in enumerate(self.line)}

    def _check_name(self, name: str) -> None:
        if name not in self.names:
            raise UsageError(f"no dimension {name!r}; there are {', '.join(self.names)}")


def place(layout: Layout, names: Sequence[str], sizes: Sequence[int]) -> Placement:
    """Lay dimensions on a machine, the heaviest first.

    The groups of the first dimension cross as few boundaries between nodes as any assignment could
    (`Placement.crossings`; exactly so up to `zero_sums.EXACT` nodes that do not hold whole groups and do
    not complete each other in pairs).  Those of the others follow in turn, given the ones before; that is
    the least, too, where the blocks before them lie inside nodes.  Where nodes have several NVLink domains,
    the groups inside a node that holds whole groups cross as few of these as possible.

    Raises: UsageError when the product of the sizes is not the number of ranks.
    """
    if prod(sizes) != layout.size or min(sizes, default=1) < 1:
        raise UsageError(f"sizes {tuple(sizes)} do not make {layout.size} ranks")
    coarse, fine = fast_places(layout), _inner_places(layout)
    units: list[Unit] = [(rank,) for rank in range(layout.size)]
    for size in sizes:
        line = _line_up(units, coarse, fine, size)
        blocks = (line[at : at + size] for at in range(0, len(line), size))
        units = [tuple(rank for unit in block for rank in unit) for block in blocks]
    return Placement(layout, tuple(names), tuple(sizes), units[0])


def fast_places(layout: Layout) -> tuple[int, ...]:
    """For each rank its node, or its NVLink domain where that is larger."""
    domains = layout.domain_of
    if domains is None or len(set(zip(layout.node_of, domains, strict=True))) > layout.node_count:
        return layout.node_of  # a node of several domains is larger than they are
    return domains


def _inner_places(layout: Layout) -> tuple[tuple[int, int], ...]:
    """What a fast part consists of: domains of a node, or nodes of a domain."""
    return tuple(zip(layout.node_of, layout.domain_of or layout.node_of, strict=True))


def _line_up(
    units: Sequence[Unit], coarse: Sequence[int], fine: Sequence[tuple[int, int]], size: int
) -> list[Unit]:
    """The units in an order in which runs of `size` cross few boundaries."""
    by_place: dict[int, dict[tuple[int, int], list[Unit]]] = {}
    for unit in units:
        home = _most(unit, coarse)
        inner = _most([rank for rank in unit if coarse[rank] == home], fine)
        by_place.setdefault(home, {}).setdefault(inner, []).append(unit)
    places = [_in_parts(list(inside.values()), size) for _, inside in sorted(by_place.items())]
    return _in_parts(places, size)


def _in_parts(places: Sequence[Sequence[Unit]], size: int) -> list[Unit]:
    lengths = [len(units) for units in places]
    if sum(lengths) % size:  # a node that does not hold whole groups: what is over goes to the end
        order = sorted(range(len(places)), key=lambda at: (lengths[at] % size != 0, at))
        return [unit for at in order for unit in places[at]]
    return [unit for part in parts(lengths, size) for at in part for unit in places[at]]


def _most(ranks: Sequence[int], place_of: Sequence[T]) -> T:
    """Where most of the ranks are; of equals, where the first is."""
    return Counter(place_of[rank] for rank in ranks).most_common(1)[0][0]
