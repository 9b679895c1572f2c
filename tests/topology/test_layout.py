"""Layouts: notation, numbering, groups; no MPI."""

from __future__ import annotations

import ast
import pickle
import sys
import time
from pathlib import Path
from types import ModuleType

import pytest
from hypothesis import given
from hypothesis import strategies as st

from hpccoll.errors import UsageError
from hpccoll.topology import layout as layout_module
from hpccoll.topology import notation
from hpccoll.topology.layout import FAMILIES, Layout, Membership
from hpccoll.topology.notation import MAX_RANKS, format_ranks

layouts = st.lists(st.integers(0, 5), min_size=1, max_size=24).map(Layout.from_keys)
counts = st.lists(st.integers(1, 5), min_size=1, max_size=8)


@pytest.mark.parametrize(
    ("text", "node_of"),
    [
        ("1", (0,)),
        ("4", (0, 0, 0, 0)),
        ("2+2", (0, 0, 1, 1)),
        ("3+1", (0, 0, 0, 1)),
        ("1+3", (0, 1, 1, 1)),
        ("2+1+1", (0, 0, 1, 2)),
        ("3x2", (0, 0, 1, 1, 2, 2)),
        ("1x3", (0, 0, 0)),
        ("1+3x2", (0, 1, 1, 2, 2, 3, 3)),
        ("cyclic:2+2", (0, 1, 0, 1)),
        ("cyclic:1+3", (0, 1, 1, 1)),
        ("cyclic:3+1+2", (0, 1, 2, 0, 2, 0)),
        ("cyclic:3x2", (0, 1, 2, 0, 1, 2)),
        ("nodes:0,0,1,0", (0, 0, 1, 0)),
        ("nodes:7,3,7", (0, 1, 0)),
        ("  2 +  2 ", (0, 0, 1, 1)),
        ("Cyclic : 2+ 2", (0, 1, 0, 1)),
        ("nodes: 0 , 1", (0, 1)),
        ("3 X 2", (0, 0, 1, 1, 2, 2)),
    ],
)
def test_text_gives_the_node_of_each_rank(text: str, node_of: tuple[int, ...]) -> None:
    assert Layout.parse(text).node_of == node_of


@pytest.mark.parametrize(
    ("text", "reason"),
    [
        ("", '"" is not a number of ranks'),
        ("  ", '"" is not a number of ranks'),
        ("2+", '"" is not a number of ranks'),
        ("2++2", '"" is not a number of ranks'),
        ("two", '"two" is not a number of ranks'),
        ("2,2", '"2,2" is not a number of ranks'),
        ("-1+3", '"-1" is not a number of ranks'),
        ("2.5", '"2.5" is not a number of ranks'),
        ("2x2x2", '"2x2x2" is not a number of ranks'),
        ("²", '"²" is not a number of ranks'),
        ("2+0", '"0" makes a node without ranks'),
        ("0x4", '"0x4" makes a node without ranks or no node'),
        ("ring:2+2", '"ring:" is not a known form'),
        (":2+2", '":" is not a known form'),
        ("cyclic:nodes:0", '"nodes:0" is not a number of ranks'),
        ("nodes:", '"" is not the number of a node'),
        ("nodes:0,,1", '"" is not the number of a node'),
        ("nodes:0,a", '"a" is not the number of a node'),
        ("99999x99999", f"more than {MAX_RANKS} ranks"),
        ("cyclic:999999999+999999999", f"more than {MAX_RANKS} ranks"),
    ],
)
def test_wrong_text_is_named_with_the_reason_and_the_accepted_forms(text: str, reason: str) -> None:
    with pytest.raises(UsageError) as caught:
        Layout.parse(text)
    message = str(caught.value)
    assert f'layout "{text}"' in message
    assert reason in message
    assert all(form in message for form in ('"3+1"', '"4x8"', '"cyclic:2+2"', '"nodes:0,0,1,0"'))


def test_a_wrong_text_without_end_gives_a_message_with_an_end() -> None:
    with pytest.raises(UsageError) as caught:
        Layout.parse("x" * 100_000)
    assert len(str(caught.value)) < 1000


def test_only_text_is_parsed() -> None:
    with pytest.raises(UsageError, match="must be a text, not int"):
        Layout.parse(4)  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("node_of", "text"),
    [
        ((0,), "1"),
        ((0, 0, 1, 1), "2+2"),
        ((0, 0, 0, 1), "3+1"),
        ((0, 1, 1, 1), "1+3"),
        ((0, 0, 1, 1, 2, 2), "3x2"),
        ((0, 1, 2, 3), "4x1"),
        ((0, 1, 1, 2, 2, 3, 3), "1+3x2"),
        ((0, 1, 0, 1), "cyclic:2+2"),
        ((0, 1, 2, 0, 1, 2), "cyclic:3x2"),
        ((0, 0, 1, 0), "nodes:0,0,1,0"),
    ],
)
def test_text_is_the_shortest(node_of: tuple[int, ...], text: str) -> None:
    assert str(Layout(node_of)) == text


@given(layouts)
def test_text_of_any_layout_parses_back(layout: Layout) -> None:
    assert Layout.parse(str(layout)) == layout


@given(counts)
def test_counts_are_those_of_the_text_dealt_in_blocks_or_in_turn(sizes: list[int]) -> None:
    text = "+".join(map(str, sizes))
    blocks, turns = Layout.parse(text), Layout.parse("cyclic:" + text)
    assert blocks.counts == turns.counts == tuple(sizes)
    assert blocks.is_contiguous
    assert blocks.is_uniform == turns.is_uniform == (min(sizes) == max(sizes))
    # In turn: no node gets its k-th rank before each node with room has got its (k-1)-th.
    locals_in_order = [turns.local_rank(rank) for rank in range(turns.size)]
    assert locals_in_order == sorted(locals_in_order)


@given(st.lists(st.text(max_size=2), min_size=1, max_size=20))
def test_nodes_are_numbered_by_first_appearance(keys: list[str]) -> None:
    layout = Layout.from_keys(keys)
    assert [node[0] for node in layout.nodes] == sorted(keys.index(key) for key in set(keys))
    for rank, key in enumerate(keys):
        assert [keys[other] for other in layout.nodes[layout.node(rank)]] == [key] * layout.local_size(rank)


@given(layouts)
def test_local_numbers(layout: Layout) -> None:
    for node, ranks in enumerate(layout.nodes):
        assert list(ranks) == sorted(ranks)
        assert layout.leader(node) == ranks[0]
        assert [layout.local_rank(rank) for rank in ranks] == list(range(len(ranks)))
        assert {layout.local_size(rank) for rank in ranks} == {layout.counts[node]}
    assert layout.size == sum(layout.counts) == len(layout.node_of)
    assert layout.node_count == len(layout.counts)


def test_groups_of_the_documentation() -> None:
    layout = Layout.parse("cyclic:2+2")
    assert layout.groups("WORLD") == ((0, 1, 2, 3),)
    assert layout.groups("NODE") == layout.groups("NVLINK") == ((0, 2), (1, 3))
    assert layout.groups("LEADERS") == ((0, 1),)
    assert layout.groups("RAIL") == ((0, 1), (2, 3))


def test_rails_do_not_exist_on_unequal_nodes() -> None:
    layout = Layout.parse("3+1")
    assert layout.groups("RAIL") == ()
    assert [layout.membership("RAIL", rank) for rank in range(4)] == [Membership.NOT_EXISTING] * 4
    assert layout.group("RAIL", 0) == ()
    assert layout.group_index("RAIL", 0) is None


def test_one_rank_is_a_world_of_groups_of_one() -> None:
    layout = Layout.parse("1")
    assert {name: layout.groups(name) for name in FAMILIES} == dict.fromkeys(FAMILIES, ((0,),))
    assert all(layout.membership(name, 0) is Membership.MEMBER for name in FAMILIES)


def test_one_node_has_rails_of_one_rank() -> None:
    assert Layout.parse("3").groups("RAIL") == ((0,), (1,), (2,))
    assert Layout.parse("3").groups("LEADERS") == ((0,),)


def test_one_rank_a_node() -> None:
    layout = Layout.parse("4x1")
    assert layout.groups("NODE") == ((0,), (1,), (2,), (3,))
    assert layout.groups("LEADERS") == layout.groups("RAIL") == ((0, 1, 2, 3),)


@given(layouts)
def test_node_groups_partition_the_world(layout: Layout) -> None:
    assert sorted(rank for group in layout.groups("NODE") for rank in group) == list(range(layout.size))
    assert [group[0] for group in layout.groups("NODE")] == sorted(
        group[0] for group in layout.groups("NODE")
    )


@given(layouts)
def test_leaders_are_one_ascending_group_of_first_ranks(layout: Layout) -> None:
    (leaders,) = layout.groups("LEADERS")
    assert list(leaders) == sorted(leaders) == [layout.leader(node) for node in range(layout.node_count)]
    for rank in range(layout.size):
        expected = Membership.MEMBER if layout.local_rank(rank) == 0 else Membership.NOT_MEMBER
        assert layout.membership("LEADERS", rank) is expected


@given(counts.map(lambda sizes: [sizes[0]] * len(sizes)), st.randoms(use_true_random=False))
def test_a_rail_has_the_same_place_of_every_node_in_node_order(sizes: list[int], random: object) -> None:
    keys = [node for node, size in enumerate(sizes) for _ in range(size)]
    random.shuffle(keys)  # type: ignore[attr-defined]
    layout = Layout.from_keys(keys)
    rails = layout.groups("RAIL")
    assert len(rails) == sizes[0]
    for place, rail in enumerate(rails):
        assert [layout.node(rank) for rank in rail] == list(range(layout.node_count))
        assert {layout.local_rank(rank) for rank in rail} == {place}


@given(layouts, st.sampled_from(FAMILIES))
def test_groups_are_disjoint_and_know_their_members(layout: Layout, name: str) -> None:
    members = [rank for group in layout.groups(name) for rank in group]
    assert len(members) == len(set(members))
    for rank in range(layout.size):
        place = layout.group_index(name, rank)
        assert (
            (layout.membership(name, rank) is Membership.MEMBER) == (rank in members) == (place is not None)
        )
        assert layout.group(name, rank) == (() if place is None else layout.groups(name)[place])
        assert (rank in layout.group(name, rank)) == (rank in members)


def test_domains_that_span_nodes() -> None:
    layout = Layout((0, 0, 1, 1, 2, 2, 3, 3), domain_of=(0, 0, 0, 0, 1, 1, 1, 1))
    assert layout.groups("NODE") == ((0, 1), (2, 3), (4, 5), (6, 7))
    assert layout.groups("NVLINK") == layout.domains == ((0, 1, 2, 3), (4, 5, 6, 7))
    assert layout.groups("LEADERS") == ((0, 4),)
    assert layout.groups("RAIL") == ((0, 4), (1, 5), (2, 6), (3, 7))


def test_domains_inside_a_node_make_rails_where_the_nodes_are_unequal() -> None:
    layout = Layout((0, 0, 0, 0, 1, 1), domain_of=(0, 0, 1, 1, 2, 2))
    assert not layout.is_uniform
    assert layout.groups("LEADERS") == ((0, 2, 4),)
    assert layout.groups("RAIL") == ((0, 2, 4), (1, 3, 5))


def test_unequal_domains_on_equal_nodes_make_no_rails() -> None:
    assert Layout((0, 0, 1, 1), domain_of=(0, 0, 1, 2)).groups("RAIL") == ()


@given(layouts, st.data())
def test_restriction_keeps_who_shares_a_node(layout: Layout, data: st.DataObject) -> None:
    ranks = data.draw(
        st.permutations(range(layout.size)).flatmap(
            lambda order: st.integers(1, layout.size).map(lambda count: order[:count])
        )
    )
    part = layout.restrict(ranks)
    assert part.size == len(ranks)
    for one in range(part.size):
        for other in range(part.size):
            assert (part.node(one) == part.node(other)) == (
                layout.node(ranks[one]) == layout.node(ranks[other])
            )


def test_restriction_in_the_order_of_the_communicator() -> None:
    assert Layout.parse("2+2").restrict([3, 2, 0]).node_of == (0, 0, 1)
    assert Layout((0, 0, 1, 1), (0, 0, 0, 0)).restrict([3, 0]).domain_of == (0, 0)


@pytest.mark.parametrize(
    ("ranks", "message"),
    [
        ([], "no rank at all"),
        ([0, 1, 0], "that name rank 0 twice"),
        ([4], "rank 4 is outside"),
        ([-1], "rank -1"),
    ],
)
def test_restriction_to_wrong_ranks(ranks: list[int], message: str) -> None:
    with pytest.raises(UsageError, match=message):
        Layout.parse("2+2").restrict(ranks)


@pytest.mark.parametrize("name", ["node", "RAILS", ""])
def test_unknown_group(name: str) -> None:
    for ask in (Layout.parse("2").groups, lambda group: Layout.parse("2").membership(group, 0)):
        with pytest.raises(UsageError, match="WORLD, NODE, NVLINK, LEADERS, RAIL"):
            ask(name)


@pytest.mark.parametrize("rank", [-1, 4])
def test_rank_out_of_range_does_not_wrap_round(rank: int) -> None:
    layout = Layout.parse("2+2")
    asks = (layout.node, layout.local_rank, layout.local_size, lambda r: layout.membership("NODE", r))
    for ask in asks:
        with pytest.raises(UsageError, match=f"rank {rank} is outside of layout 2\\+2"):
            ask(rank)
    with pytest.raises(UsageError, match="node 2 does not exist"):
        layout.leader(2)
    with pytest.raises(UsageError, match="node -1 does not exist"):
        layout.leader(-1)


@pytest.mark.parametrize(
    ("node_of", "domain_of", "message"),
    [
        ((), None, "node_of is empty"),
        ((1, 0), None, "node_of has 1 at rank 0"),
        ((0, 2), None, "node_of has 2 at rank 1"),
        ((0, -1), None, "node_of has -1 at rank 1"),
        ([0, 1], None, "node_of must be a tuple"),
        ((0, 0), (0,), "domain_of has 1 entries and node_of has 2"),
        ((0, 0), (1, 0), "domain_of has 1 at rank 0"),
    ],
)
def test_indices_that_are_not_numbered_by_the_lowest_rank(
    node_of: tuple[int, ...], domain_of: tuple[int, ...] | None, message: str
) -> None:
    with pytest.raises(UsageError, match=message):
        Layout(node_of, domain_of)


def test_equal_layouts_are_one_key_also_after_pickling() -> None:
    layout = Layout.parse("cyclic:2+2")
    layout.groups("RAIL")
    twin = Layout.from_keys("abab")
    assert layout == twin
    assert len({layout, twin, pickle.loads(pickle.dumps(layout))}) == 1
    assert layout != Layout((0, 1, 0, 1), domain_of=(0, 1, 0, 1))


def test_groups_are_computed_once() -> None:
    layout = Layout.parse("4x8")
    assert all(layout.groups(name) is layout.groups(name) for name in FAMILIES)


@pytest.mark.parametrize(
    "text", ["2048x8", "cyclic:2048x8", "nodes:" + ",".join(str(r * 7 % 2048) for r in range(16384))]
)
def test_16384_ranks_take_less_than_a_second(text: str) -> None:
    begin = time.perf_counter()
    layout = Layout.parse(text)
    for name in FAMILIES:
        layout.groups(name)
        layout.membership(name, 16383)
    assert Layout.parse(str(layout)) == layout
    assert time.perf_counter() - begin < 1.0
    assert layout.size == 16384
    assert len(layout.groups("RAIL")) == 8


def test_words() -> None:
    assert Layout.parse("1").describe() == "1 node of 1 rank"
    assert Layout.parse("4").describe() == "1 node of 4 ranks"
    assert Layout.parse("3+1").describe() == "2 nodes (3+1)"
    assert len(Layout.from_keys([rank * rank % 1009 for rank in range(5000)]).shortened()) < 250


@pytest.mark.parametrize(
    ("ranks", "text"),
    [
        ([3], "rank 3"),
        ([0, 1], "ranks 0, 1"),
        ([2, 0, 1, 5], "ranks 0-2, 5"),
        (range(0, 80, 2), "ranks 0, 2, 4, 6, 8, 10, 12, 14, 16, 18, 20, 22, 24, 26, 28, 30 and 24 more"),
    ],
)
def test_ranks_in_words(ranks: list[int], text: str) -> None:
    assert format_ranks(ranks) == text


@pytest.mark.parametrize("module", [layout_module, notation])
def test_layouts_import_neither_mpi_nor_numpy(module: ModuleType) -> None:
    tree = ast.parse(Path(str(module.__file__)).read_text(encoding="utf-8"))
    names = {node.module or "" for node in ast.walk(tree) if isinstance(node, ast.ImportFrom)}
    names |= {alias.name for node in ast.walk(tree) if isinstance(node, ast.Import) for alias in node.names}
    own = {name for name in names if name.startswith("hpccoll")}
    assert own <= {"hpccoll.errors", "hpccoll.topology"}
    assert all(name.partition(".")[0] in sys.stdlib_module_names for name in names - own)
