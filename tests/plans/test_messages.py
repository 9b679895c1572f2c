"""How many messages cross between nodes: counted in all ranks' programs."""

from __future__ import annotations

from collections import Counter

import pytest

from hpccoll.plans.catalogue import make_plan
from hpccoll.plans.collective import Collective
from hpccoll.plans.lower import lower
from hpccoll.plans.program import Copy, Memory, Send
from hpccoll.plans.steps import Plan
from hpccoll.topology.layout import Layout

LAYOUTS = ("2+2", "3+1", "cyclic:2+2", "1+2+3", "3x4", "cyclic:4x4", "cyclic:3+1+2")
LONG = 1 << 20  # elements in a message: more than any of these calls has


def plan_of(name: str, collective: str, layout: Layout, count: int = 5, root: int = 0) -> Plan:
    return make_plan(name, Collective(collective, layout.size, count, root), layout, segment=LONG)


def crossing(plan: Plan) -> Counter[tuple[int, int]]:
    """Messages from node to node."""
    found: Counter[tuple[int, int]] = Counter()
    for rank in range(plan.layout.size):
        for one in lower(plan, rank).operations:
            if isinstance(one, Send):
                ends = plan.layout.node(rank), plan.layout.node(one.peer)
                if ends[0] != ends[1]:
                    found[ends] += 1
    return found


@pytest.mark.parametrize("text", LAYOUTS)
def test_an_alltoall_through_leaders_has_a_message_for_each_pair_of_nodes(text: str) -> None:
    layout = Layout.parse(text)
    nodes = layout.node_count
    found = crossing(plan_of("two_level", "alltoall", layout))
    assert len(found) == nodes * (nodes - 1)
    assert set(found.values()) == {1}


@pytest.mark.parametrize("text", ["2+2", "cyclic:2+2", "3x4", "cyclic:4x4"])
def test_an_alltoall_by_rails_has_one_for_each_rank_and_other_node(text: str) -> None:
    layout = Layout.parse(text)
    found = crossing(plan_of("rail", "alltoall", layout))
    assert sum(found.values()) == layout.size * (layout.node_count - 1)
    assert set(found.values()) == {layout.counts[0]}


@pytest.mark.parametrize("text", LAYOUTS)
def test_a_direct_alltoall_has_one_for_each_pair_of_ranks(text: str) -> None:
    layout = Layout.parse(text)
    found = crossing(plan_of("direct", "alltoall", layout))
    for (source, target), messages in found.items():
        assert messages == layout.counts[source] * layout.counts[target]


@pytest.mark.parametrize("text", LAYOUTS)
@pytest.mark.parametrize("collective", ["gather", "scatter"])
@pytest.mark.parametrize("name", ["two_level", "direct"])
def test_gather_and_scatter(text: str, collective: str, name: str) -> None:
    layout = Layout.parse(text)
    for root in range(layout.size):
        found = crossing(plan_of(name, collective, layout, root=root))
        at = layout.node(root)
        others = [node for node in range(layout.node_count) if node != at]
        each = {node: 1 if name == "two_level" else layout.counts[node] for node in others}
        ends = {(node, at) if collective == "gather" else (at, node): each[node] for node in others}
        assert found == ends


@pytest.mark.parametrize("text", ["2+2", "1+2+3", "3x4"])
@pytest.mark.parametrize("collective", ["scan", "exscan"])
def test_a_scan_by_nodes_passes_each_border_once(text: str, collective: str) -> None:
    layout = Layout.parse(text)
    call = Collective(collective, layout.size, 5)
    plan = make_plan("two_level", call, layout, segment=LONG, between="linear_scan")
    assert crossing(plan) == {(node, node + 1): 1 for node in range(layout.node_count - 1)}


@pytest.mark.parametrize("text", ["2+2", "cyclic:2+2", "3x4", "cyclic:4x4"])
@pytest.mark.parametrize("name", ["two_level", "rail"])
def test_what_goes_together_is_collected_where_it_is_sent_from(text: str, name: str) -> None:
    layout = Layout.parse(text)
    plan = plan_of(name, "alltoall", layout)
    for rank in range(layout.size):
        copies = [one for one in lower(plan, rank).operations if isinstance(one, Copy)]
        # What comes for apart places of the output is dealt out there; nothing is packed.
        assert all(one.target.memory is Memory.OUTPUT for one in copies)
        assert not copies or "cyclic" in text


@pytest.mark.parametrize("segment", [1, 4, 7, 100])
def test_long_messages_are_cut_at_the_segment(segment: int) -> None:
    layout = Layout.parse("2+2")
    call = Collective("alltoall", 4, 6)
    plan = make_plan("two_level", call, layout, segment=segment)
    together = 2 * 2 * 6
    assert set(crossing(plan).values()) == {-(-together // segment)}
    for rank in range(4):
        for one in lower(plan, rank).operations:
            if isinstance(one, Send):
                assert one.source.stop - one.source.start <= segment
