"""Plans on shared links: the price where all is even, and by hand where it is not."""

from __future__ import annotations

import time

import pytest

from hpccoll.plans.catalogue import make_plan
from hpccoll.plans.collective import BLOCKED, Collective
from hpccoll.plans.cost import price
from hpccoll.plans.links import Links
from hpccoll.plans.machines import machine_of
from hpccoll.plans.select import Tuning, candidates
from hpccoll.plans.steps import Plan
from hpccoll.scaling.flows import simulate_plan
from hpccoll.scaling.network import Contention
from hpccoll.topology.layout import Layout

MIB = 1 << 20
# No latency, and nothing but the network takes time: 1e9 bytes a second of each node.
BARE = Links(
    node_latency_us=0, memory_gbs=1e9, message_latency_us=0, message_gbs=1e9, network_latency_us=0,
    network_gbs=1.0, mpi_efficiency=1.0, combine_gbs=1e9,
)  # fmt: skip


def plan(name: str, collective: str, layout: str, nbytes: int, chunks: int = 1, **options: str) -> Plan:
    where = Layout.parse(layout)
    count = nbytes // (where.size if collective in BLOCKED else 1)
    return make_plan(
        name, Collective(collective, where.size, count), where, segment=MIB // 4, chunks=chunks, **options
    )


def time_s(one: Plan, links: Links = BARE, **contention: object) -> float:
    return simulate_plan(one, 1, links, Contention(**contention)).time_s  # type: ignore[arg-type]


@pytest.mark.parametrize("machine", ["plain", "cpu-1gbit", "dgx-h100", "gb200-nvl72"])
@pytest.mark.parametrize("collective", ["allreduce", "allgather", "reduce_scatter", "broadcast", "reduce"])
def test_without_contention_it_is_the_price(machine: str, collective: str) -> None:
    links = machine_of(machine).links
    for nodes, ranks in ((1, 4), (2, 2), (4, 2), (3, 8), (8, 1)):
        layout = machine_of(machine).layout(nodes, ranks)
        for nbytes in (4096, 4 * MIB):
            count = nbytes // 4 // (layout.size if collective in BLOCKED else 1)
            for one in candidates(Collective(collective, layout.size, count), layout, 4, Tuning(links=links)):
                run = simulate_plan(one.made, 4, links)
                assert run.time_s == pytest.approx(one.cost.time_s, rel=0.01), (one.plan, nodes, ranks)


def test_where_ranks_combine_as_slowly_as_the_network_brings() -> None:
    """Then tasks that share links are priced as one; the simulation lets them overlap."""
    links = machine_of("cpu-hdr").links
    layout = Layout.parse("4x2")
    for one in candidates(Collective("allreduce", 8, MIB), layout, 4, Tuning(links=links)):
        assert 0.85 < simulate_plan(one.made, 4, links).time_s / one.cost.time_s < 1.1, one.plan


def test_a_ring_takes_what_its_slowest_node_takes() -> None:
    one = plan("ring", "allreduce", "4x1", 4 * MIB)
    assert time_s(one) == pytest.approx(6 * MIB / 1e9)
    assert time_s(one, slow_nodes={2: 0.5}) == pytest.approx(12 * MIB / 1e9)
    assert time_s(one, slow_nodes={9: 0.5}) == time_s(one)  # there is no such node


def test_an_oversubscribed_tree_of_switches() -> None:
    """Two leaves of 2 nodes at 4:1: half a node's rate leaves a leaf."""
    tree = {"leaf": 2, "oversubscription": 4.0}
    # A ring in node order has one message at a time over each way up, at half the rate.
    ring = plan("ring", "allreduce", "4x1", 4 * MIB)
    assert time_s(ring, **tree) == pytest.approx(2 * time_s(ring))
    # Of recursive doubling the second round has two; the first stays under the leaf.
    doubling = plan("recursive_doubling", "allreduce", "4x1", 4 * MIB)
    assert time_s(doubling) == pytest.approx(8 * MIB / 1e9)
    assert time_s(doubling, **tree) == pytest.approx((4 + 16) * MIB / 1e9)
    # All-to-all: of each node 2/3 of what it sends leaves the leaf.
    everyone = plan("direct", "alltoall", "4x1", 4 * MIB)
    assert time_s(everyone, **tree) == pytest.approx(time_s(everyone) * (2 / 3) * 4)
    assert time_s(everyone, leaf=2) == time_s(everyone)


def test_one_card_is_shared_by_the_rails() -> None:
    machine = machine_of("dgx-h100")
    layout = machine.layout(4)
    rails = make_plan("rail", Collective("allgather", 32, MIB), layout, segment=MIB // 4, between="native")
    every, one = (simulate_plan(rails, 1, machine.links.with_cards(cards)) for cards in (8, 1))
    moved = 3 / 4 * 32 * MIB  # bytes that leave a node
    rate = machine.links.fabric.network.rate  # type: ignore[union-attr]
    # The price of eight cards is less than that of one by what the cards carry, or more where PAT is left.
    assert one.time_s - every.time_s == pytest.approx(moved / rate * (1 - 1 / 8), rel=0.35)
    assert one.used["network out"] > 0.7 > every.used["network out"]


def test_a_slow_card_holds_up_a_flat_ring_and_one_rail() -> None:
    machine = machine_of("dgx-h100")
    layout = machine.layout(4)
    flat = make_plan("flat", Collective("allgather", 32, 32 * MIB), layout, segment=MIB)
    even = simulate_plan(flat, 1, machine.links).time_s
    slow = simulate_plan(flat, 1, machine.links, Contention(slow_nodes={1: 0.5})).time_s
    assert 1.6 < slow / even < 2.01


def test_who_is_late_holds_up_the_others() -> None:
    one = plan("ring", "allreduce", "4x1", 4 * MIB)
    assert time_s(one, late_us={3: 1000.0}) == pytest.approx(time_s(one) + 1e-3)
    machine = machine_of("dgx-h100")
    flat = make_plan("flat", Collective("allreduce", 16, MIB), machine.layout(2), segment=MIB)
    even = simulate_plan(flat, 1, machine.links).time_s
    late = simulate_plan(flat, 1, machine.links, Contention(late_us={5: 50.0})).time_s
    assert late == pytest.approx(even + 50e-6)


def test_a_late_rank_does_not_hold_up_other_nodes_before_they_need_it() -> None:
    """On devices: the reduce-scatters of the other nodes are done when it comes."""
    machine = machine_of("dgx-h100")
    layout = machine.layout(4)
    one = make_plan(
        "scatter_rail_gather", Collective("allreduce", 32, 256 * MIB), layout, segment=MIB, between="native"
    )
    even = simulate_plan(one, 1, machine.links).time_s
    late = simulate_plan(one, 1, machine.links, Contention(late_us={0: 300.0})).time_s
    assert late == pytest.approx(even + 300e-6)  # everybody needs node 0's part
    broadcast = make_plan(
        "two_level", Collective("broadcast", 32, 64 * MIB), layout, segment=MIB, between="native"
    )
    even = simulate_plan(broadcast, 1, machine.links).time_s
    late = simulate_plan(broadcast, 1, machine.links, Contention(late_us={31: 200.0})).time_s
    assert even <= late < even + 200e-6  # the last of the broadcast: the network was at work meanwhile


def test_a_slow_rank() -> None:
    links = Links(combine_gbs=0.5)
    one = plan("ring", "allreduce", "1+1", 4 * MIB)
    even, slow = (
        simulate_plan(one, 1, links, Contention(slow_ranks=ranks)).time_s for ranks in ({}, {1: 0.5})
    )
    assert 1.6 < slow / even < 2.0
    inside = plan("flat", "allreduce", "2", 4 * MIB)
    even, slow = (
        simulate_plan(inside, 1, links, Contention(slow_ranks=ranks)).time_s for ranks in ({}, {1: 0.5})
    )
    assert 1.8 < slow / even < 2.0


def test_uneven_nodes() -> None:
    """The smaller node's ring is through sooner; the leaders' ring takes what it takes between even nodes."""
    even = plan("reduce_ring_broadcast", "allreduce", "4x4", 4 * MIB, chunks=4)
    uneven = plan("reduce_ring_broadcast", "allreduce", "3x4+1", 4 * MIB, chunks=4)
    assert time_s(uneven) == pytest.approx(time_s(even), rel=1e-3)
    links = machine_of("plain").links
    assert time_s(uneven, links) <= time_s(even, links)


def test_what_is_used() -> None:
    run = simulate_plan(plan("ring", "allreduce", "4x1", 4 * MIB), 1, BARE)
    assert run.used["network out"] == pytest.approx(1.0)
    tree = Contention(leaf=2, oversubscription=4.0)
    run = simulate_plan(plan("ring", "allreduce", "4x1", 4 * MIB), 1, BARE, tree)
    assert run.used["leaf up"] == pytest.approx(1.0)
    assert run.used["network out"] == pytest.approx(0.5)


def test_many_ranks_with_contention_are_simulated_in_seconds() -> None:
    """Of processor time: 1.5 s when nothing else ran, for the plan with most tasks (32,832)."""
    machine = machine_of("dgx-h100")
    layout = machine.layout(2048)
    begin = time.process_time()
    one = next(
        each
        for each in candidates(
            Collective("allreduce", 16384, 1 << 28), layout, 4, Tuning(links=machine.links)
        )
        if each.name == "scatter_rail_gather"
    )
    uneven = Contention(32, 4.0, True, {7: 0.5}, {100: 0.8}, {55: 100.0})
    run = simulate_plan(one.made, 4, machine.links, uneven)
    assert time.process_time() - begin < 10
    assert run.time_s > price(one.made, 4, machine.links).time_s + 100e-6
