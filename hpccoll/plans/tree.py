"""Trees: chain and binomial for one root, two complementary binary trees for all-reduce.

The double binary tree halves the buffer; each half goes up and down a tree of its own, and a member
that is inside one tree is (but for the ends) a leaf of the other, so that everybody sends and receives
about the whole buffer once: about 2 log2 n rounds, 2 S bytes.  Under a member are its neighbours on both
sides, so that operands are combined in the order of the members.  Source: P. Sanders, J. Speck,
J. Traeff, "Two-tree algorithms for full bandwidth broadcast, reduction and scan", Parallel Comput. 35 (2009).

    tree of 8      7                mirrored      0
                   3                              4
                1     5                        6     2
               0 2   4 6                      7 5   3 1
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from functools import lru_cache
from typing import NamedTuple

from hpccoll.plans.algorithm import Algorithm, Edge, Rounds
from hpccoll.plans.builder import Builder
from hpccoll.plans.spans import Region, length, segments, split, split_evenly, union
from hpccoll.plans.steps import Kind, Order


class Tree(NamedTuple):
    """parent[i] is -1 for the root; children in the order in which they are combined."""

    parent: tuple[int, ...]
    children: tuple[tuple[int, ...], ...]

    def depth(self) -> int:
        deepest, front = 0, [index for index, up in enumerate(self.parent) if up < 0]
        while front := [child for member in front for child in self.children[member]]:
            deepest += 1
        return deepest

    def subtree(self, member: int) -> list[int]:
        """A member and all under it."""
        found = [member]
        for one in found:
            found += self.children[one]
        return found

    def totals(self, lengths: Sequence[int]) -> list[int]:
        """For each member, what it and all under it have together."""
        total = list(lengths)
        for member in reversed(self.subtree(self.parent.index(-1))):
            if self.parent[member] >= 0:
                total[self.parent[member]] += total[member]
        return total

    def renamed(self, names: Sequence[int]) -> Tree:
        """The same tree with member i called names[i]."""
        parent = [-1] * len(names)
        children: list[tuple[int, ...]] = [()] * len(names)
        for index, name in enumerate(names):
            up = self.parent[index]
            parent[name] = names[up] if up >= 0 else -1
            children[name] = tuple(names[child] for child in self.children[index])
        return Tree(tuple(parent), tuple(children))


def from_parents(parent: Sequence[int]) -> Tree:
    """The tree in which member i hangs under parent[i]."""
    children: list[list[int]] = [[] for _ in parent]
    for index, up in enumerate(parent):
        if up >= 0:
            children[up].append(index)
    return Tree(tuple(parent), tuple(tuple(sorted(below)) for below in children))


@lru_cache(maxsize=64)
def chain(count: int) -> Tree:
    """0 <- 1 <- 2 <- ...: pipelined in segments it keeps every link full."""
    return from_parents([index - 1 for index in range(count)])


@lru_cache(maxsize=64)
def binomial(count: int) -> Tree:
    """ceil(log2 n) rounds; the parent of i is i without its lowest bit."""
    return from_parents([index & (index - 1) if index else -1 for index in range(count)])


@lru_cache(maxsize=64)
def binary(count: int) -> Tree:
    """In-order binary tree of 0..count-2 under the last member, which is the root."""
    parent = [-1] * count
    todo = [(1, count - 1, count)]  # labels from 1, so that odd labels are leaves
    while todo:
        low, high, up = todo.pop()
        if low <= high:
            middle = _roundest(low, high)
            parent[middle - 1] = up - 1
            todo += [(low, middle - 1, middle), (middle + 1, high, middle)]
    return from_parents(parent)


def _roundest(low: int, high: int) -> int:
    """The number in low..high that the highest power of two divides."""
    bit = ((low - 1) ^ high).bit_length() - 1
    return high >> bit << bit


def two_trees(count: int) -> tuple[Tree, Tree]:
    """A binary tree and its complement: mirrored when count is even, shifted by one when odd."""
    first = binary(count)
    if count % 2 == 0:
        return first, first.renamed([count - 1 - index for index in range(count)])
    return first, first.renamed([(index + 1) % count for index in range(count)])


def reduce_up(build: Builder, tree: Tree, names: Sequence[int], me: int, part: Region) -> None:
    """Combine the children's values with the own one and hand them to the parent."""
    for span in segments(part, build.segment):
        for child in tree.children[me]:
            build.receive_and_combine(names[child], span, theirs_first=child < me)
        if tree.parent[me] >= 0:
            build.send(names[tree.parent[me]], span)


def broadcast_down(build: Builder, tree: Tree, names: Sequence[int], me: int, part: Region) -> None:
    """Take the value from the parent and hand it to the children."""
    for span in segments(part, build.segment):
        if tree.parent[me] >= 0:
            build.receive(names[tree.parent[me]], span)
        for child in reversed(tree.children[me]):
            build.send(names[child], span)


def gather_up(build: Builder, tree: Tree, names: Sequence[int], me: int, regions: Sequence[Region]) -> None:
    """Collect the regions of all below, and hand them to the parent with the own one."""
    for child in tree.children[me]:
        build.receive_region(names[child], _below(tree, child, regions))
    if tree.parent[me] >= 0:
        build.send_region(names[tree.parent[me]], _below(tree, me, regions))


def scatter_down(
    build: Builder, tree: Tree, names: Sequence[int], me: int, regions: Sequence[Region]
) -> None:
    """Take the regions of all below and the own one, and hand the children theirs."""
    if tree.parent[me] >= 0:
        build.receive_region(names[tree.parent[me]], _below(tree, me, regions))
    for child in reversed(tree.children[me]):
        build.send_region(names[child], _below(tree, child, regions))


def _below(tree: Tree, member: int, regions: Sequence[Region]) -> Region:
    """The regions of a member and of all under it."""
    return union(regions[one] for one in tree.subtree(member))


class DoubleTree(Algorithm):
    """All-reduce over two complementary binary trees."""

    name = "tree"
    kinds = frozenset({Kind.ALLREDUCE})
    order = Order.RANKS

    def lower(
        self,
        build: Builder,
        kind: Kind,
        members: tuple[int, ...],
        me: int,
        regions: Sequence[Region],
        root: int,
    ) -> None:
        halves = split(regions[0], split_evenly(length(regions[0]), 2))
        trees = two_trees(len(members))
        for tree, half in zip(trees, halves, strict=True):
            reduce_up(build, tree, members, me, half)
        for tree, half in zip(trees, halves, strict=True):
            if tree.parent[me] < 0:
                build.settle(members, half)
            broadcast_down(build, tree, members, me, half)

    def edges(self, kind: Kind, lengths: Sequence[int], root: int) -> Iterator[Edge]:
        halves = split_evenly(sum(lengths), 2)
        for tree, half in zip(two_trees(len(lengths)), halves, strict=True):
            for member, up in enumerate(tree.parent):
                if up >= 0:
                    yield Edge(member, up, half)
                    yield Edge(up, member, half)

    def combines(self, kind: Kind, lengths: Sequence[int]) -> int:
        # A member is inside one tree at most, or the root of one with one child.
        return min(len(lengths) - 1, 2) * split_evenly(sum(lengths), 2)[0]

    def rounds(self, kind: Kind, count: int) -> Rounds:
        depth = binary(count).depth()
        return Rounds(2 * depth, max(0, 2 * depth - 2))


class RootedTree(Algorithm):
    """Reduce, broadcast, gather and scatter over one tree, rotated so that the root is its root."""

    kinds = frozenset({Kind.REDUCE, Kind.BROADCAST, Kind.GATHER, Kind.SCATTER})

    def __init__(self, name: str) -> None:
        self.name = name
        self.along = name == "chain"
        self._shape = {"chain": chain, "binomial": binomial}[name]

    def _tree(self, count: int, root: int) -> Tree:
        return self._shape(count).renamed([(index + root) % count for index in range(count)])

    def lower(
        self,
        build: Builder,
        kind: Kind,
        members: tuple[int, ...],
        me: int,
        regions: Sequence[Region],
        root: int,
    ) -> None:
        tree = self._tree(len(members), root)
        match kind:
            case Kind.REDUCE:
                reduce_up(build, tree, members, me, regions[0])
            case Kind.BROADCAST:
                broadcast_down(build, tree, members, me, regions[0])
            case Kind.GATHER:
                gather_up(build, tree, members, me, regions)
            case _:
                scatter_down(build, tree, members, me, regions)

    def edges(self, kind: Kind, lengths: Sequence[int], root: int) -> Iterator[Edge]:
        tree = self._tree(len(lengths), root)
        totals = tree.totals(lengths) if kind.by_member else [sum(lengths)] * len(lengths)
        rises = kind in (Kind.REDUCE, Kind.GATHER)
        for member, up in enumerate(tree.parent):
            if up >= 0:
                yield Edge(member, up, totals[member]) if rises else Edge(up, member, totals[member])

    def combines(self, kind: Kind, lengths: Sequence[int]) -> int:
        children = max(map(len, self._shape(len(lengths)).children))
        return children * sum(lengths) if kind.reduces else 0

    def rounds(self, kind: Kind, count: int) -> Rounds:
        depth = self._shape(count).depth()
        if self.along:
            return Rounds(depth, max(0, depth - 1))
        match kind:
            case Kind.REDUCE:
                fills = min(depth - 1, 1)
            case Kind.BROADCAST:
                fills = depth
            case Kind.GATHER:
                fills = 0
            case _:  # a scatter: what the farther members get is short
                fills = min(depth - 1, 2)
        return Rounds(depth, max(0, fills))
