"""The interface of an algorithm: how the members of one group do a step with messages."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterable, Iterator, Sequence
from typing import NamedTuple

from hpccoll.plans.builder import Builder
from hpccoll.plans.spans import Region
from hpccoll.plans.steps import Kind, Order


class Edge(NamedTuple):
    """What one member sends to another in a whole step, in elements; members by their index in the group."""

    source: int
    target: int
    elements: int


class Rounds(NamedTuple):
    """The longest chain of messages: how many, and how many of them wait for a whole segment to arrive.

    `fills` are without the last one, which has to move in any case, and without those that arrive while the
    busiest link, at the root of a tree say, moves other messages.  `apart`: so many messages of one member
    leave one after the other, a quarter of a latency apart, while the first ones are on their way.
    """

    messages: int
    fills: int
    apart: int = 0


# By node: the elements that it sends to other nodes, and those that move inside it.
Traffic = dict[int, tuple[int, int]]


class Algorithm(ABC):
    """One way to do a step.  `members` are world ranks, `me` and `root` indices into them."""

    name: str
    kinds: frozenset[Kind]
    order = Order.ANY  # in which the members' operands are combined
    whole = False  # messages carry all elements, not a member's share
    along = False  # the longest chain of messages goes from each member to the next
    around = False  # and from the last to the first: all send all the time

    @abstractmethod
    def lower(
        self,
        build: Builder,
        kind: Kind,
        members: tuple[int, ...],
        me: int,
        regions: Sequence[Region],
        root: int,
    ) -> None:
        """Write the operations of member `me`."""

    @abstractmethod
    def edges(self, kind: Kind, lengths: Sequence[int], root: int) -> Iterator[Edge]:
        """What is sent in the whole step; `lengths` are the elements of each member's region.

        For kinds with one region for all, `lengths` is that region split evenly over the members; for an
        all-to-all, what each member has for one rank, then for how many ranks each member gets elements.
        """

    def phases(self, kind: Kind, lengths: Sequence[int], root: int) -> Sequence[Sequence[Edge]]:
        """The same by rounds, where a round uses other links than the next; else () for all of it at once."""
        return ()

    def traffic(self, kind: Kind, lengths: Sequence[int], root: int, nodes: Sequence[int]) -> Traffic:
        """What each node sends in the whole step; `nodes` are those of the members."""
        return traffic_of(self.edges(kind, lengths, root), nodes)

    def arriving(self, kind: Kind, lengths: Sequence[int], root: int, nodes: Sequence[int]) -> dict[int, int]:
        """Elements that come to each node from others in the whole step; arguments as for `traffic`."""
        return arriving_of(self.edges(kind, lengths, root), nodes)

    def combines(self, kind: Kind, lengths: Sequence[int]) -> int:
        """Elements that the member with most to combine combines; `lengths` as for `edges`."""
        return 0

    def follows(self, kind: Kind) -> tuple[str, Kind] | None:
        """The algorithm that passes the results on in the same step, by a chain of messages of its own."""
        return None

    @abstractmethod
    def rounds(self, kind: Kind, count: int) -> Rounds:
        """The chain of messages in a group of `count` members."""


def traffic_of(edges: Iterable[Edge], nodes: Sequence[int]) -> Traffic:
    """What each node sends in messages between members on `nodes`."""
    between = dict.fromkeys(nodes, 0)
    within = between.copy()
    for source, target, elements in edges:
        node = nodes[source]
        if nodes[target] == node:
            within[node] += elements
        else:
            between[node] += elements
    return {node: (between[node], within[node]) for node in between}


def arriving_of(edges: Iterable[Edge], nodes: Sequence[int]) -> dict[int, int]:
    """What comes to each node from others in messages between members on `nodes`."""
    found = dict.fromkeys(nodes, 0)
    for source, target, elements in edges:
        if nodes[source] != nodes[target]:
            found[nodes[target]] += elements
    return found
