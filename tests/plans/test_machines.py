"""Pricing for machines that are not there: NCCL's calls, what no price may do, and how long it takes."""

from __future__ import annotations

import time
from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from hpccoll.errors import UsageError
from hpccoll.plans.catalogue import make_plan, names, recipe_of
from hpccoll.plans.collective import BLOCKED, SCANS, Collective
from hpccoll.plans.cost import price
from hpccoll.plans.links import NDR, Fabric, LinkClass, Links
from hpccoll.plans.machines import MACHINES, Machine, machine_of
from hpccoll.plans.nccl_model import SIMPLE, Spread, ways
from hpccoll.plans.select import Tuning, candidates
from hpccoll.plans.steps import NATIVE, Kind, Plan
from hpccoll.topology.layout import Layout
from tests.plans.cases import COLLECTIVES

ON_DEVICES = [name for name in COLLECTIVES if name not in SCANS]
WITH_GPUS = [machine for machine in MACHINES.values() if machine.links.fabric is not None]
LINK = LinkClass("test", 1.0, 100, 0.5, ("", "", ""))
SWITCH = LinkClass("test, in the switch", 10.0, 100, 0.5, ("", "", ""))
NETWORK = LinkClass("test, between", 2.0, 10, 0.5, ("", "", ""))


def count_of(collective: str, layout: Layout, nbytes: int) -> int:
    return nbytes // 4 // (layout.size if collective in BLOCKED else 1)


def planned(collective: str, name: str, machine: Machine, layout: Layout, nbytes: int, chunks: int) -> Plan:
    call = Collective(collective, layout.size, count_of(collective, layout, nbytes))
    between = NATIVE if machine.links.fabric is not None else None
    return make_plan(name, call, layout, segment=1 << 16, chunks=chunks, between=between)


def of_calls(collective: str, machine: Machine, layout: Layout) -> list[str]:
    """The plans that a machine can take."""
    every = names(collective, layout)
    if machine.links.fabric is None:
        return list(every)
    return [name for name in every if name == "flat" or recipe_of(collective, name, layout).between]


# --- by hand ------------------------------------------------------------------------------------


def test_a_ring_by_hand() -> None:
    fabric = Fabric(4, LINK, None, 4, NETWORK)
    nbytes = 1 << 30
    found = ways(Kind.ALLREDUCE, Spread(8, 2, 4), nbytes, fabric)["ring, Simple"]
    # 14 hops, 2 of them between the nodes; 2 (n-1)/n of the bytes through 4 cards of 5e9.
    latency_us = SIMPLE.start_us + 12 * (1.0 + SIMPLE.inside_us) + 2 * (2.0 + SIMPLE.between_us)
    assert found.latency_us == pytest.approx(latency_us)
    assert found.time_s(fabric, fabric.group_rate(4)) == pytest.approx(
        latency_us * 1e-6 + 14 / 8 * nbytes / 20e9
    )


def test_in_the_switch_by_hand() -> None:
    fabric = Fabric(4, LINK, SWITCH, 4, NETWORK)
    found = ways(Kind.ALLREDUCE, Spread(4, 1, 4), 1 << 30, fabric)["NVLS"]
    assert found.time_s(fabric, 1.0) == pytest.approx(10e-6 + (1 << 30) * 5 / 4 / 50e9)


@pytest.mark.parametrize(
    ("gpus", "cards", "members", "rate"),
    [(8, 8, 1, 5e9), (8, 8, 8, 40e9), (8, 1, 4, 5e9), (8, 4, 1, 5e9), (4, 8, 1, 10e9)],
)
def test_a_group_uses_the_cards_near_its_members(gpus: int, cards: int, members: int, rate: float) -> None:
    assert Fabric(gpus, LINK, None, cards, NETWORK).group_rate(members) == rate


def test_rails_share_the_cards_of_a_node() -> None:
    """Eight rails over one card take eight times as long as over eight, and as long as one ring over all."""
    layout = Layout.parse("4x8")
    call = Collective("allreduce", 32, 1 << 28)
    plan = make_plan("scatter_rail_gather", call, layout, segment=1 << 20, between=NATIVE)
    times = []
    for cards in (1, 8):
        cost = price(plan, 4, Links(fabric=Fabric(8, LINK, None, cards, NETWORK)))
        times.append(next(step.time_s for step in cost.steps if step.level == "network"))
    assert times[0] == pytest.approx(8 * times[1], rel=0.01)


def test_bytes_of_a_call_between_nodes() -> None:
    layout = Layout.parse("4x8")
    nbytes = 1 << 30
    for machine in WITH_GPUS:
        if machine.ranks >= 8:
            plan = planned("allgather", "flat", machine, layout, nbytes, 1)
            cost = price(plan, 4, machine.links)
            assert cost.bytes_between_nodes == nbytes * 31 // 32
            assert cost.bytes_inside_node == nbytes * 31 // 32 * 8


# --- what may not happen ------------------------------------------------------------------------

machines = st.sampled_from(list(MACHINES.values()))
layouts = st.sampled_from(
    [Layout.parse(text) for text in ("1", "2", "8", "2x8", "3x4", "16x8", "1+1", "5+3")]
)


@given(st.data(), machines, layouts, st.sampled_from(ON_DEVICES), st.sampled_from([1, 2, 4]))
def test_more_bytes_are_never_cheaper(
    data: st.DataObject, machine: Machine, layout: Layout, collective: str, chunks: int
) -> None:
    name = data.draw(st.sampled_from(of_calls(collective, machine, layout)))
    sizes = sorted(data.draw(st.lists(st.integers(0, 30), min_size=2, max_size=4)))
    # The same number of chunks needs an element for each.
    whole = [(64 << power) * layout.size for power in sizes]
    times = [
        price(planned(collective, name, machine, layout, nbytes, chunks), 4, machine.links).time_s
        for nbytes in whole
    ]
    assert times == sorted(times)


def faster(link: LinkClass | None, factor: float) -> LinkClass | None:
    return link and replace(link, gbs=link.gbs * factor)


@given(st.data(), machines, layouts, st.sampled_from(ON_DEVICES), st.floats(1, 100))
def test_more_bandwidth_is_never_dearer(
    data: st.DataObject, machine: Machine, layout: Layout, collective: str, factor: float
) -> None:
    name = data.draw(st.sampled_from(of_calls(collective, machine, layout)))
    nbytes = (1 << data.draw(st.integers(6, 34))) * layout.size
    plan = planned(collective, name, machine, layout, nbytes, 2)
    links = machine.links
    if links.fabric is None:
        which = data.draw(st.sampled_from(["memory_gbs", "message_gbs", "network_gbs", "combine_gbs"]))
        better = replace(links, **{which: getattr(links, which) * factor})
    else:
        which = data.draw(st.sampled_from(["inside", "switch", "network"]))
        better = replace(
            links, fabric=replace(links.fabric, **{which: faster(getattr(links.fabric, which), factor)})
        )
    assert price(plan, 4, better).time_s <= price(plan, 4, links).time_s


@pytest.mark.parametrize("machine", WITH_GPUS, ids=lambda machine: machine.name)
@pytest.mark.parametrize("collective", ON_DEVICES)
def test_only_plans_of_nccls_calls_are_candidates(machine: Machine, collective: str) -> None:
    layout = machine.layout(4)
    call = Collective(collective, layout.size, count_of(collective, layout, 64 << 20))
    found = candidates(call, layout, 4, Tuning(links=machine.links))
    assert sorted(one.name for one in found) == sorted(of_calls(collective, machine, layout))
    assert all(step.algorithm == NATIVE for one in found for step in one.made.steps)
    assert all(one.time_s > 0 for one in found)


def test_two_levels_pay_where_nccl_has_no_logarithmic_algorithm_for_many_gpus_a_node() -> None:
    """All-gather and reduce-scatter on many nodes: PAT needs one GPU a node, which rails have."""
    machine = MACHINES["dgx-h100"]
    for collective in ("allgather", "reduce_scatter"):
        for nodes, wanted in ((1, "flat"), (16, "rail"), (64, "rail"), (512, "rail")):
            layout = machine.layout(nodes)
            call = Collective(collective, layout.size, count_of(collective, layout, 4 << 20))
            found = candidates(call, layout, 4, Tuning(links=machine.links))
            assert min(found, key=lambda one: one.time_s).name == wanted
    layout = machine.layout(64)
    found = candidates(Collective("allreduce", 512, 1 << 26), layout, 4, Tuning(links=machine.links))
    assert found[0].name == "flat"


@pytest.mark.parametrize("machine", ["dgx-h100", "cpu-hdr", "gb200-nvl72"])
@pytest.mark.parametrize("collective", ON_DEVICES)
def test_sixteen_thousand_ranks(machine: str, collective: str) -> None:
    """All plans of a collective; it takes 0.01 to 0.3 s."""
    where = MACHINES[machine]
    layout = where.layout(-(-16_384 // where.ranks))
    call = Collective(collective, layout.size, count_of(collective, layout, 256 << 20))
    begin = time.process_time()
    candidates(call, layout, 4, Tuning(links=where.links))
    assert time.process_time() - begin < 10


# --- machines -----------------------------------------------------------------------------------


def test_layouts_of_a_machine() -> None:
    machine = machine_of("dgx-h100")
    assert str(machine.layout(16)) == "16x8"
    assert machine.layout(2, 4) == Layout.parse("4+4")
    assert machine_of("gb200-nvl72").layout(2).size == 144
    with pytest.raises(UsageError, match="9 ranks a node: dgx-h100 has 8 GPUs in one"):
        machine.layout(2, 9)
    with pytest.raises(UsageError, match="0 nodes of 8 ranks"):
        machine.layout(0)
    with pytest.raises(UsageError, match="no machine 'dgx'; there are plain, cpu-1gbit, cpu-hdr"):
        machine_of("dgx")


def test_a_machines_name_is_its_key_and_its_cards_are_counted() -> None:
    for name, machine in MACHINES.items():
        assert machine.name == name
        if machine.links.fabric is not None:
            assert machine.links.network_gbs * 1e9 == pytest.approx(machine.links.fabric.node_rate)
            assert machine.links.fabric.gpus == machine.ranks
    h100 = MACHINES["dgx-h100"].links.fabric
    assert h100 is not None
    assert h100.node_rate == 8 * NDR.rate
