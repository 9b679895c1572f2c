"""Which rank has which coordinates: a bijection on any layout, with as few crossings as there can be."""

from __future__ import annotations

import random
from collections import Counter
from collections.abc import Sequence
from functools import cache
from itertools import combinations
from math import prod

import pytest
from hypothesis import given
from hypothesis import strategies as st

from hpccoll.errors import UsageError
from hpccoll.parallel.dimensions import HEAVIEST_FIRST, complete_order, divisors, settle
from hpccoll.parallel.placement import Placement, place
from hpccoll.parallel.zero_sums import EXACT, parts
from hpccoll.topology.layout import Layout
from tests.plans.cases import all_layouts

NAMES = ("tensor", "data", "pipeline")


def fewest_crossings(counts: Sequence[int], size: int) -> int:
    """By brute force: the least sum of (nodes of a group - 1) over all ways to form groups."""

    @cache
    def least(left: tuple[int, ...]) -> int:
        if not any(left):
            return 0
        first = next(node for node, count in enumerate(left) if count)
        found = []
        for taken in compositions(left, first, size):
            rest = tuple(sorted(have - take for have, take in zip(left, taken, strict=True)))
            found.append(sum(map(bool, taken)) - 1 + least(rest))
        return min(found)

    return least(tuple(sorted(counts)))


def compositions(left: tuple[int, ...], first: int, size: int) -> list[tuple[int, ...]]:
    """How many ranks a group may take of each node, with at least one of node `first`."""
    found: list[tuple[int, ...]] = []

    def choose(node: int, chosen: tuple[int, ...], missing: int) -> None:
        if node == len(left):
            if missing == 0:
                found.append(chosen)
            return
        for take in range(1 if node == first else 0, min(left[node], missing) + 1):
            choose(node + 1, (*chosen, take), missing - take)

    choose(0, (), size)
    return found


def check(placement: Placement) -> None:
    """Coordinates and ranks are each other's inverse, and groups are where coordinates say."""
    size = placement.layout.size
    assert sorted(placement.line) == list(range(size))
    for rank in range(size):
        coordinates = placement.coordinates(rank)
        assert all(
            0 <= coordinates[name] < n for name, n in zip(placement.names, placement.sizes, strict=True)
        )
        assert placement.rank_at(**coordinates) == rank
    for name, length in zip(placement.names, placement.sizes, strict=True):
        groups = placement.groups(name)
        assert Counter(rank for group in groups for rank in group) == Counter(range(size))
        for group in groups:
            assert len(group) == length
            assert [placement.coordinates(rank)[name] for rank in group] == list(range(length))
            others = [{**placement.coordinates(rank), name: 0} for rank in group]
            assert all(one == others[0] for one in others)


@st.composite
def layouts_with_sizes(draw: st.DrawFn) -> tuple[Layout, tuple[int, ...]]:
    sizes = tuple(draw(st.lists(st.integers(1, 4), min_size=3, max_size=3)))
    size = prod(sizes)
    nodes = draw(st.integers(1, max(1, size // 2)))
    keys = draw(st.lists(st.integers(0, nodes - 1), min_size=size, max_size=size))
    domains = draw(st.sampled_from([None, 2, 3]))
    if domains is None:
        return Layout.from_keys(keys), sizes
    of_rank = draw(st.lists(st.integers(0, domains - 1), min_size=size, max_size=size))
    return Layout.from_keys(keys, list(zip(keys, of_rank, strict=True))), sizes


@given(layouts_with_sizes())
def test_coordinates_are_a_bijection_on_any_layout(case: tuple[Layout, tuple[int, ...]]) -> None:
    layout, sizes = case
    placement = place(layout, NAMES, sizes)
    check(placement)
    assert place(layout, NAMES, sizes) == placement  # of nothing but the layout and the sizes


@given(layouts_with_sizes())
def test_tensor_groups_cross_as_few_nodes_as_any_could(case: tuple[Layout, tuple[int, ...]]) -> None:
    layout, sizes = case
    if layout.size <= 16:
        placement = place(Layout(layout.node_of), NAMES, sizes)
        assert placement.crossings("tensor") == fewest_crossings(layout.counts, sizes[0])


@pytest.mark.parametrize("size", [2, 3, 4, 6])
def test_on_every_layout_of_few_ranks(size: int) -> None:
    for layout in all_layouts(size):
        for tensor in divisors(size):
            for data in divisors(size // tensor):
                placement = place(layout, NAMES, (tensor, data, size // tensor // data))
                check(placement)
                assert placement.crossings("tensor") == fewest_crossings(layout.counts, tensor)


# Machines such as those of tests/topology/fixtures: nodes of 8 GPUs, boxes of 4, nodes that have lost some.
DGX, BOXES = "8x8", "6x4"


@pytest.mark.parametrize(
    ("text", "tensor"),
    [("2x8", 4), ("2x8", 8), ("3x4", 4), ("3x4", 2), ("3x4", 6), ("8+6", 7), ("8+5+3", 4), ("7+7", 2)],
)
def test_small_machines_against_brute_force(text: str, tensor: int) -> None:
    layout = Layout.parse(text)
    for data in divisors(layout.size // tensor):
        placement = place(layout, NAMES, (tensor, data, layout.size // tensor // data))
        check(placement)
        assert placement.crossings("tensor") == fewest_crossings(layout.counts, tensor)


@pytest.mark.parametrize(
    ("text", "sizes", "tensor", "data"),
    [
        (DGX, (8, 1, 8), 0, 0),
        (DGX, (4, 2, 8), 0, 0),  # tensor and data groups share a node
        (DGX, (2, 8, 4), 0, 8),  # of two nodes each
        (BOXES, (4, 2, 3), 0, 12),
        (BOXES, (8, 1, 3), 3, 0),  # no box holds one
    ],
)
def test_whole_machines(text: str, sizes: tuple[int, ...], tensor: int, data: int) -> None:
    placement = place(Layout.parse(text), NAMES, sizes)
    check(placement)
    assert (placement.crossings("tensor"), placement.crossings("data")) == (tensor, data)


def test_a_domain_over_hosts_holds_groups_that_no_host_does() -> None:
    """72 GPUs on 18 hosts, on one NVLink fabric and without: groups of 8."""
    hosts = [rank // 4 for rank in range(72)]
    fabric, plain = Layout.from_keys(hosts, [0] * 72), Layout.from_keys(hosts)
    for layout, across in ((fabric, 0), (plain, 9)):
        placement = place(layout, NAMES, (8, 9, 1))
        check(placement)
        assert placement.crossings("tensor") == across


def test_the_brute_force_is_one() -> None:
    """Against all partitions of the ranks themselves, where these are few."""

    def every(ranks: tuple[int, ...], size: int, node_of: Sequence[int]) -> int:
        if not ranks:
            return 0
        return min(
            len({node_of[rank] for rank in (ranks[0], *others)})
            - 1
            + every(tuple(rank for rank in ranks[1:] if rank not in others), size, node_of)
            for others in combinations(ranks[1:], size - 1)
        )

    for text, size in (("3+3+2", 2), ("5+3", 4), ("3+1+1+1", 3), ("cyclic:3+2+3", 2)):
        layout = Layout.parse(text)
        assert every(tuple(range(layout.size)), size, layout.node_of) == fewest_crossings(layout.counts, size)


@pytest.mark.parametrize("seed", range(20))
def test_parts_are_as_many_as_there_can_be(seed: int) -> None:
    """Against all partitions of up to 9 counts into sets, by the bits of a number."""
    chance = random.Random(seed)
    size = chance.randint(2, 9)
    counts = [chance.randint(1, 12) for _ in range(chance.randint(1, 8))]
    counts.append(-sum(counts) % size or size)
    whole = (1 << len(counts)) - 1
    sums = [sum(one for at, one in enumerate(counts) if mask >> at & 1) for mask in range(whole + 1)]
    most = [0] * (whole + 1)
    for mask in range(1, whole + 1):
        part = mask
        while part:
            if sums[part] % size == 0:
                most[mask] = max(most[mask], most[mask ^ part] + 1)
            part = (part - 1) & mask
    found = parts(counts, size)
    assert sorted(at for part in found for at in part) == list(range(len(counts)))
    assert all(sum(counts[at] for at in part) % size == 0 for part in found)
    assert len(found) == most[whole]


def test_parts_of_many_nodes_take_the_shortest_first() -> None:
    counts = [3] * 40 + [1] * 24  # of 8: 3 + 3 + 1 + 1 is 8, and nothing shorter
    found = parts(counts, 8)
    assert len(counts) > EXACT
    assert sorted(at for part in found for at in part) == list(range(64))
    assert all(sum(counts[at] for at in part) % 8 == 0 for part in found)
    assert len(found) == 14  # 12 such sets, and of the 16 counts of 3 that are left, sets of 8


def test_nodes_that_complete_each_other_are_not_searched_for() -> None:
    found = parts([3, 5] * 4096, 8)  # at once: the search would take minutes
    assert found == [[at, at + 1] for at in range(0, 8192, 2)]


@pytest.mark.parametrize(
    ("text", "sizes", "crossings"),
    [
        ("4+4", (2, 2, 2), (0, 0, 4)),
        ("2+2+2+2", (2, 2, 2), (0, 4, 4)),
        ("cyclic:4+4", (2, 2, 2), (0, 0, 4)),
        ("3+3+2", (2, 2, 2), (1, 3, 4)),
        ("8x8", (8, 1, 8), (0, 0, 56)),
        ("8x8", (4, 4, 4), (0, 16, 48)),
        ("64x6", (4, 3, 32), (32,)),
    ],
)
def test_crossings_of_usual_layouts(text: str, sizes: tuple[int, ...], crossings: tuple[int, ...]) -> None:
    placement = place(Layout.parse(text), NAMES, sizes)
    check(placement)
    found = tuple(placement.crossings(name) for name in NAMES)
    assert found[: len(crossings)] == crossings


def test_a_group_over_two_dimensions_has_the_heavier_one_inside() -> None:
    placement = place(Layout.parse("4+4"), NAMES, (2, 2, 2))
    assert placement.groups("tensor", "data") == ((0, 1, 2, 3), (4, 5, 6, 7))
    assert placement.groups("pipeline", "tensor") == ((0, 1, 4, 5), (2, 3, 6, 7))


def test_tensor_groups_lie_in_nvlink_domains() -> None:
    islands = Layout((0,) * 8, (0, 1, 0, 1, 0, 1, 0, 1))  # two in a node, dealt in turn
    assert place(islands, NAMES, (4, 2, 1)).groups("tensor") == ((0, 2, 4, 6), (1, 3, 5, 7))
    rack = Layout((0, 0, 1, 1, 2, 2, 3, 3), (0, 0, 1, 1, 0, 0, 1, 1))  # each of two nodes
    placement = place(rack, NAMES, (4, 2, 1))
    assert placement.groups("tensor") == ((0, 1, 4, 5), (2, 3, 6, 7))
    assert placement.crossings("tensor") == 0


def test_what_cannot_be_placed() -> None:
    layout = Layout.parse("4+4")
    with pytest.raises(UsageError, match="do not make 8 ranks"):
        place(layout, NAMES, (2, 2, 3))
    placement = place(layout, NAMES, (2, 2, 2))
    with pytest.raises(UsageError, match="no dimension 'depth'"):
        placement.groups("depth")
    with pytest.raises(UsageError, match="tensor is 2: must be 0 to 1"):
        placement.rank_at(tensor=2)


@pytest.mark.parametrize(
    ("sizes", "message"),
    [
        ({"data": 2, "tensor": 3}, "8 ranks are not data 2 x tensor 3 = 6; .* tensor 4 would fit"),
        ({"data": 1, "tensor": 2}, "8 ranks are not tensor 2 = 2; .* data 4, or tensor 8 would fit"),
        ({"data": 3, "tensor": 3}, "sizes that divide 8 are 1, 2, 4, 8"),
        ({"data": -1, "tensor": 2, "pipeline": 3}, "pipeline 1 or 2 or 4 would fit"),
        ({"data": -1, "tensor": -1}, "data and tensor are -1"),
        ({"tensor": 0}, "tensor is 0: must be at least 1"),
        ({"tensor": -2}, "tensor is -2: must be at least 1"),
    ],
)
def test_sizes_that_do_not_fit_name_those_that_do(sizes: dict[str, int], message: str) -> None:
    with pytest.raises(UsageError, match=message):
        settle(sizes, 8)


def test_one_size_may_be_left_to_the_others() -> None:
    assert settle({"data": -1, "tensor": 4}, 8) == {"data": 2, "tensor": 4}
    assert settle({"data": 2, "tensor": 4}, 8) == {"data": 2, "tensor": 4}


def test_an_order_names_each_dimension_once() -> None:
    assert complete_order(()) == HEAVIEST_FIRST
    assert complete_order(("pipeline", "data")) == ("pipeline", "data", "tensor", "context", "expert")
    for wrong in (("depth",), ("data", "data")):
        with pytest.raises(UsageError, match="must name some of"):
            complete_order(wrong)
