"""The interface of an algorithm: how the members of one group do a step with messages."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterator, Sequence
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
    """The longest chain of messages: how many, and how many of them wait for a whole segment to arrive."""

    messages: int
    fills: int


# By node: the elements that it sends to other nodes, and those that move inside it.
Traffic = dict[int, tuple[int, int]]


class Algorithm(ABC):
    """One way to do a step.  `members` are world ranks, `me` and `root` indices into them."""

    name: str
    kinds: frozenset[Kind]
    order = Order.ANY  # in which the members' operands are combined

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

    def traffic(self, kind: Kind, lengths: Sequence[int], root: int, nodes: Sequence[int]) -> Traffic:
        """What each node sends in the whole step; `nodes` are those of the members."""
        between = dict.fromkeys(nodes, 0)
        within = between.copy()
        for source, target, elements in self.edges(kind, lengths, root):
            node = nodes[source]
            if nodes[target] == node:
                within[node] += elements
            else:
                between[node] += elements
        return {node: (between[node], within[node]) for node in between}

    def arriving(self, kind: Kind, lengths: Sequence[int], root: int, nodes: Sequence[int]) -> dict[int, int]:
        """Elements that come to each node from others in the whole step; arguments as for `traffic`."""
        found = dict.fromkeys(nodes, 0)
        for source, target, elements in self.edges(kind, lengths, root):
            if nodes[source] != nodes[target]:
                found[nodes[target]] += elements
        return found

    def combines(self, kind: Kind, lengths: Sequence[int]) -> int:
        """Elements that the member with most to combine combines; `lengths` as for `edges`."""
        return 0

    @abstractmethod
    def rounds(self, kind: Kind, count: int) -> Rounds:
        """The chain of messages in a group of `count` members."""
