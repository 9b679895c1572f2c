"""Trees are trees, as deep as they should be; the two of the double tree complement each other."""

from __future__ import annotations

from collections.abc import Callable
from math import ceil, log2

import pytest

from hpccoll.plans.tree import Tree, binary, binomial, chain, two_trees

COUNTS = [*range(1, 18), 31, 32, 33, 63, 64, 65, 100, 127, 1000]


def climb(tree: Tree, member: int) -> int:
    """Edges from a member up to the root; fails where that does not end."""
    steps = 0
    while tree.parent[member] >= 0:
        member = tree.parent[member]
        steps += 1
        assert steps < len(tree.parent), "a circle"
    return steps


def check_tree(tree: Tree, count: int) -> None:
    assert len(tree.parent) == len(tree.children) == count
    assert sum(up < 0 for up in tree.parent) == 1
    assert sorted(child for below in tree.children for child in below) == sorted(
        member for member, up in enumerate(tree.parent) if up >= 0
    )
    for member, below in enumerate(tree.children):
        assert all(tree.parent[child] == member for child in below)
    assert max(climb(tree, member) for member in range(count)) == tree.depth()


@pytest.mark.parametrize("shape", [chain, binomial, binary])
@pytest.mark.parametrize("count", COUNTS)
def test_each_is_one_tree_of_all_members(shape: Callable[[int], Tree], count: int) -> None:
    check_tree(shape(count), count)


@pytest.mark.parametrize("count", COUNTS)
def test_depths(count: int) -> None:
    assert chain(count).depth() == count - 1
    assert binomial(count).depth() == max(member.bit_count() for member in range(count))
    assert binary(count).depth() == (ceil(log2(count)) if count > 1 else 0)


@pytest.mark.parametrize("count", COUNTS)
def test_binary_trees_hand_over_to_two_at_most_and_combine_neighbours(count: int) -> None:
    tree = binary(count)
    assert max(map(len, tree.children)) <= 2

    def span(member: int) -> list[int]:
        return sorted([member, *(below for child in tree.children[member] for below in span(child))])

    for member in range(min(count, 70)):
        covered = span(member)
        assert covered == list(range(covered[0], covered[-1] + 1))


@pytest.mark.parametrize("count", COUNTS)
def test_who_is_inside_one_tree_is_a_leaf_of_the_other(count: int) -> None:
    first, second = two_trees(count)
    check_tree(first, count)
    check_tree(second, count)
    inside_both = [member for member in range(count) if first.children[member] and second.children[member]]
    assert len(inside_both) <= count % 2
    # So that nobody hands over the whole buffer more than once down, in two halves, and once up.
    assert max(len(first.children[member]) + len(second.children[member]) for member in range(count)) <= 2
    assert count == 1 or first.parent.index(-1) != second.parent.index(-1)


def test_the_trees_of_the_picture() -> None:
    first, second = two_trees(8)
    assert first.children == ((), (0, 2), (), (1, 5), (), (4, 6), (), (3,))
    assert second.children == ((4,), (), (3, 1), (), (6, 2), (), (7, 5), ())


def test_renaming_keeps_the_order_of_the_children() -> None:
    turned = chain(4).renamed([2, 3, 0, 1])
    assert turned.parent == (3, 0, -1, 2)
    assert turned.children == ((1,), (), (3,), (0,))
