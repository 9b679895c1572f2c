"""The bytes that the cost model says are those that the lowered programs send."""

from __future__ import annotations

import random
from collections import Counter
from dataclasses import replace

import pytest

from hpccoll.plans.algorithm import Edge
from hpccoll.plans.catalogue import make_plan
from hpccoll.plans.collective import Collective
from hpccoll.plans.cost import LEVELS, edges, price, shape_of, traffics
from hpccoll.plans.links import Links
from hpccoll.plans.lower import lower
from hpccoll.plans.program import Receive, Send
from hpccoll.plans.steps import NATIVE, Plan
from hpccoll.topology.layout import Layout
from tests.plans.cases import COLLECTIVES, RAGGED, all_layouts, plans, ragged_plans, random_plan, text_of

Pairs = Counter[tuple[int, int, int]]  # step, from rank, to rank: elements
ITEMSIZE = 8


def counted(plan: Plan) -> tuple[Pairs, Pairs]:
    """Elements sent, and elements received, by all ranks' programs."""
    sent: Pairs = Counter()
    received: Pairs = Counter()
    for rank in range(plan.layout.size):
        for one in lower(plan, rank).operations:
            if isinstance(one, Send):
                sent[one.step, rank, one.peer] += one.source.stop - one.source.start
            elif isinstance(one, Receive):
                received[one.step, one.peer, rank] += one.target.stop - one.target.start
    return sent, received


def said(plan: Plan) -> Pairs:
    pairs: Pairs = Counter()
    for number, step in enumerate(plan.steps):
        if step.algorithm != NATIVE:
            for source, target, elements in edges(plan, step):
                pairs[number, source, target] += elements
    return +pairs


def check(plan: Plan) -> None:
    sent, received = counted(plan)
    assert sent == received == said(plan), text_of(plan)
    layout = plan.layout
    check_phases(plan, sent)
    if (
        any(step.algorithm == NATIVE and step.family != "NODE" for step in plan.steps)
        and layout.node_count > 1
    ):
        return  # MPI's own call sends what it likes
    leaving = [0] * layout.node_count
    itemsize = plan.wire_itemsize(ITEMSIZE)
    for (_, source, target), elements in sent.items():
        if layout.node(source) != layout.node(target):
            leaving[layout.node(source)] += elements * itemsize
    assert price(plan, ITEMSIZE).bytes_between_nodes == max(leaving), text_of(plan)


def check_phases(plan: Plan, sent: Pairs) -> None:
    """By node, what a step sends, moves inside and gets from others: all of its phases together."""
    node_of = plan.layout.node_of
    for number, step in enumerate(plan.steps):
        if step.algorithm == NATIVE:
            continue
        shape = shape_of(step)
        wanted: Counter[tuple[int, int]] = Counter()
        for (of_step, source, target), elements in sent.items():
            if of_step == number and node_of[source] == node_of[target]:
                wanted[node_of[source], 1] += elements
            elif of_step == number:
                wanted[node_of[source], 0] += elements
                wanted[node_of[target], 2] += elements
        found: Counter[tuple[int, int]] = Counter()
        for group, members in enumerate(step.groups):
            nodes = tuple(node_of[member] for member in members)
            for phase in traffics(
                shape.algorithm, shape.kind, shape.lengths[group], shape.root(group), nodes
            ):
                for node, counts in phase.items():
                    found.update({(node, at): count for at, count in enumerate(counts)})
        assert +found == +wanted, text_of(plan)


@pytest.mark.parametrize("collective", COLLECTIVES)
@pytest.mark.parametrize("size", range(1, 6))
def test_every_plan_on_every_layout(collective: str, size: int) -> None:
    counts, roots, chunks = ((1, 7), (0, size - 1), (1, 3)) if size <= 4 else ((7,), (3,), (3,))
    for layout in all_layouts(size):
        for plan in plans(collective, layout, counts, roots, chunks):
            check(plan)


@pytest.mark.parametrize("collective", ["allreduce", "reduce", "reduce_scatter"])
def test_elements_that_are_rounded_between_nodes(collective: str) -> None:
    for size in (2, 3, 4, 5):
        for layout in all_layouts(size):
            if layout.node_count > 1:
                for plan in plans(collective, layout, (7,), (size - 1,), (1, 3), "bfloat16"):
                    check(plan)
                    whole = replace(plan, wire="")
                    ratio = ITEMSIZE // plan.wire_itemsize(ITEMSIZE)
                    sent = [price(one, ITEMSIZE).bytes_between_nodes for one in (whole, plan)]
                    assert sent[0] == ratio * sent[1] > 0, text_of(plan)


@pytest.mark.parametrize("collective", [one for one in RAGGED if one != "alltoall"])
def test_blocks_of_unequal_lengths(collective: str) -> None:
    """Not of an all-to-all, which is priced as if its blocks were equal: no rank knows all of them."""
    chance = random.Random(collective)
    for size in (2, 3, 4, 5):
        for layout in all_layouts(size):
            for plan in ragged_plans(collective, layout, chance, chance.randrange(size)):
                check(plan)


@pytest.mark.parametrize("seed", range(8))
def test_random_layouts_of_many_ranks(seed: int) -> None:
    chance = random.Random(seed)
    for _ in range(4):
        check(random_plan(chance, 40, (1, 16, 33)))


@pytest.mark.parametrize("text", ["2+2", "3x2", "4x8", "8x3", "cyclic:4x4"])
@pytest.mark.parametrize("name", ["reduce_ring_broadcast", "scatter_rail_gather"])
@pytest.mark.parametrize("count", [4096, 1_000_003])
@pytest.mark.parametrize("chunks", [1, 4])
def test_a_two_level_allreduce_sends_the_least_there_is(
    text: str, name: str, count: int, chunks: int
) -> None:
    layout = Layout.parse(text)
    plan = make_plan(
        name, Collective("allreduce", layout.size, count), layout, segment=4096, chunks=chunks, between="ring"
    )
    nodes, rails = layout.node_count, layout.counts[0]
    least = 2 * (nodes - 1) / nodes * count * ITEMSIZE
    # Each phase of each ring is cut into pieces of whole elements.
    rounding = 2 * chunks * rails * ITEMSIZE
    assert price(plan, ITEMSIZE).bytes_between_nodes == pytest.approx(least, abs=rounding)


def test_prices_of_a_ring_by_hand() -> None:
    layout = Layout.parse("1+1+1+1")
    plan = make_plan("ring", Collective("allreduce", 4, 1000), layout, segment=1000)
    links = Links(node_latency_us=0, network_latency_us=10, network_gbs=1, combine_gbs=2)
    cost = price(plan, 8, links)
    # 2 (p - 1) messages, 2 (p - 1)/p of the buffer, half of that combined; the check: ceil(log2 4) messages.
    moving, combining = 1.5 * 8000 / 1e9, 0.75 * 8000 / 2e9
    assert cost.time_s == pytest.approx(6 * 10e-6 + moving + combining + 2 * 10e-6)
    assert (cost.bytes_between_nodes, cost.bytes_inside_node) == (12000, 0)
    assert cost.busy_s == {"NODE": 0.0, "network": pytest.approx(60e-6 + moving + combining)}
    assert (cost.steps[0].level, cost.start_s) == ("network", (pytest.approx(20e-6),))


def test_the_schedule_does_the_steps_of_a_level_in_order_and_waits_for_what_is_handed_over() -> None:
    layout = Layout.parse("4x8")
    plan = make_plan(
        "scatter_rail_gather", Collective("allreduce", 32, 1 << 20), layout, segment=1 << 16, chunks=4
    )
    cost = price(plan, 8)
    ends = [start + step.time_s for start, step in zip(cost.start_s, cost.steps, strict=True)]
    last = dict.fromkeys(LEVELS, 0.0)
    for number, step in enumerate(plan.steps):
        level = cost.steps[number].level
        assert cost.start_s[number] >= last[level]
        assert all(cost.start_s[number] >= ends[earlier] for earlier in step.after)
        last[level] = ends[number]
    assert max(ends) == cost.time_s
    for level in LEVELS:
        assert cost.busy_s[level] == pytest.approx(
            sum(one.time_s for one in cost.steps if one.level == level)
        )
        assert cost.busy_s[level] <= cost.time_s


def test_a_ring_over_nodes_dealt_in_turn_crosses_with_every_message() -> None:
    count = 1200
    of = {
        text: price(
            make_plan("ring", Collective("allreduce", 4, count), Layout.parse(text), segment=count), 8
        ).bytes_between_nodes
        for text in ("2+2", "cyclic:2+2")
    }
    assert of == {"2+2": 1.5 * count * 8, "cyclic:2+2": 2 * 1.5 * count * 8}


def test_an_edge_is_plain_data() -> None:
    layout = Layout.parse("1+1")
    plan = make_plan("binomial", Collective("broadcast", 2, 5, root=1), layout, segment=2)
    assert list(edges(plan, plan.steps[0])) == [Edge(1, 0, 5)]


@pytest.mark.parametrize("name", ["direct", "binomial", "two_level"])
def test_a_gather_waits_for_what_arrives_at_its_root(name: str) -> None:
    layout, count = Layout.parse("4x2"), 1 << 20
    plan = make_plan(name, Collective("gather", 8, count), layout, segment=count)
    assert price(plan, 4).time_s >= 6 * count * 4 / (Links().network_gbs * 1e9)
