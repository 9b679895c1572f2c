"""What arrays on devices take: NCCL's own call, unless a plan is clearly cheaper, or measured faster."""

from __future__ import annotations

from math import isnan
from typing import Any

import pytest

from benchmarks.published.figures import figures
from hpccoll.plans import select
from hpccoll.plans.collective import BLOCKED, Collective
from hpccoll.plans.links import Links
from hpccoll.plans.machines import MACHINES
from hpccoll.plans.margins import OFF, SLOWER, margin
from hpccoll.plans.measured import Time
from hpccoll.plans.on_devices import by_nccl, choose_on_device
from hpccoll.plans.select import Choice, Tuning, describe
from hpccoll.topology.layout import Layout

WITH_GPUS = [machine for machine in MACHINES.values() if machine.links.fabric is not None]
COLLECTIVES = (
    "allreduce",
    "reduce",
    "broadcast",
    "allgather",
    "reduce_scatter",
    "gather",
    "scatter",
    "alltoall",
)
SIZES = [1 << power for power in range(10, 33, 2)]


def choose(collective: str, layout: str | Layout, nbytes: int, links: Links | None, **more: Any) -> Choice:
    found = Layout.parse(layout) if isinstance(layout, str) else layout
    count = nbytes // found.size if collective in BLOCKED else nbytes
    call = Collective(collective, found.size, count)
    return choose_on_device(call, found, 1, chunk_bytes=4 << 20, links=links, **more)


def test_the_margins_are_those_of_the_published_figures() -> None:
    """The worst ratios of each range of sizes; of a sweep's start and what was fitted to, none."""
    judged = [one for one in figures() if not one.calibrates]
    started = [
        one for one in judged if one.timing == "each call" and one.nodes > 1 and one.nbytes <= 128 << 10
    ]
    assert len(started) == 3
    least, beyond = 0.0, 0
    for bound, low, high in OFF:
        ratios = [one.ratio for one in judged if one not in started and least < one.nbytes <= bound]
        assert len(ratios) > 20
        assert low - 0.01 < min(ratios) < low + 0.01
        assert high - 0.01 < max(ratios) < high + 0.01
        # Each price wrong by its worst, in the worse direction: at most 5 % slower.
        some = int(min(bound, 1 << 40))
        assert margin(some) * SLOWER >= max(ratios) / min(ratios) * 0.98
        least, beyond = bound, some
    assert margin(3 << 19) >= max(margin(1 << 20), margin(1 << 21))  # between two ranges the larger one
    assert margin(beyond) > 1


@pytest.mark.parametrize("layout", ["8", "1+1+1+1", "16x1", "1"])
@pytest.mark.parametrize("collective", COLLECTIVES)
def test_one_node_and_one_rank_a_node_pick_flat(collective: str, layout: str) -> None:
    for nbytes in SIZES:
        choice = choose(collective, layout, nbytes, MACHINES["dgx-h100"].links)
        assert [one.name for one in choice.candidates] == ["flat"]
        assert choice.why.startswith("NCCL's own call, which is all there is")


@pytest.mark.parametrize("machine", WITH_GPUS, ids=lambda machine: machine.name)
@pytest.mark.parametrize("collective", COLLECTIVES)
def test_what_is_taken_is_clearly_cheaper(collective: str, machine: Any) -> None:
    """Else it is NCCL's own call; the reason has the two numbers that decide."""
    for layout in (machine.layout(nodes, min(8, machine.ranks)) for nodes in (2, 16, 64)):
        for nbytes in SIZES[::2]:
            choice = choose(collective, layout, nbytes, machine.links)
            times = {one.name: one.time_s for one in choice.candidates}
            taken = choice.candidates[0].name
            others = [one.time_s for one in choice.candidates[1:]]
            assert others == sorted(others)
            if taken == "flat":
                assert times["flat"] < margin(nbytes) * min(times.values()) * (1 + 1e-9)
                assert choice.why.startswith("NCCL's own call")
            else:
                assert times["flat"] >= margin(nbytes) * times[taken]
                said = f"predicted {times['flat'] / times[taken]:.2f} times as fast as NCCL's own call"
                assert choice.why == f"{said}; {margin(nbytes):.2f} is enough"


def test_rails_win_where_the_ring_is_long() -> None:
    """An all-gather of many nodes of 8: NCCL has no logarithmic one over several GPUs of a node."""
    links = MACHINES["dgx-h100"].links
    for collective in ("allgather", "reduce_scatter"):
        taken = {
            (nodes, nbytes): choose(collective, f"{nodes}x8", nbytes, links).candidates[0].name
            for nodes in (2, 4, 16, 64)
            for nbytes in (8 << 10, 1 << 20, 16 << 20, 1 << 30)
        }
        assert {taken[16, 8 << 10], taken[16, 1 << 20], taken[64, 1 << 20], taken[64, 16 << 20]} == {"rail"}
        assert {taken[2, 8 << 10], taken[4, 1 << 20], taken[64, 1 << 30], taken[16, 1 << 30]} == {"flat"}
    for nodes in (2, 16, 64):  # flat NCCL has a tree
        assert choose("allreduce", f"{nodes}x8", 1 << 20, links).candidates[0].name == "flat"


def test_an_nccl_without_its_logarithmic_algorithm_gives_rails_less() -> None:
    from dataclasses import replace

    links = MACHINES["dgx-h100"].links
    assert links.fabric is not None
    old = replace(links, fabric=replace(links.fabric, pat=False))
    times = [
        {one.name: one.time_s for one in choose("allgather", "16x8", 64 << 10, found).candidates}
        for found in (links, old)
    ]
    assert times[0]["rail"] < times[1]["rail"]
    assert times[0]["flat"] == times[1]["flat"]


def test_without_links_nothing_is_priced_and_that_is_said() -> None:
    choice = choose("allgather", "16x8", 1 << 20, None, why_not="the hosts have different GPUs")
    assert choice.candidates[0].name == "flat"
    assert {one.name for one in choice.candidates} == {"flat", "rail", "two_level"}
    assert all(isnan(one.time_s) for one in choice.candidates)
    assert choice.why == "NCCL's own call: nothing was measured, and the hosts have different GPUs"


def test_what_was_measured_counts_for_more_than_prices() -> None:
    links = MACHINES["dgx-h100"].links
    slow, fast = Time(2e-4, 1.9e-4, 2.1e-4), Time(1e-4, 0.9e-4, 1.1e-4)
    priced = choose("allgather", "16x8", 1 << 20, links)
    assert priced.candidates[0].name == "rail"
    flat = choose("allgather", "16x8", 1 << 20, links, times={"flat": fast, "rail": slow})
    assert (flat.candidates[0].name, flat.candidates[0].measured) == ("flat", fast)
    assert "measured" in flat.why
    rail = choose("allreduce", "2x8", 1 << 20, links, times={"flat": slow, "scatter_rail_gather": fast})
    assert rail.candidates[0].name == "scatter_rail_gather"
    assert rail.why == "measured: faster than flat (NCCL's own call)"


def test_a_name_asked_for_is_taken() -> None:
    choice = choose("allgather", "2x8", 1 << 30, MACHINES["dgx-h100"].links, only="rail")
    assert (choice.candidates[0].name, choice.why) == ("rail", "asked for by name: rail")
    other = choose("allgather", "2x8", 1 << 30, MACHINES["dgx-h100"].links, only="ring")
    assert other.candidates[0].name == "flat"


def test_an_nvlink_domain_of_several_hosts_is_one_node() -> None:
    """A rack of 18 hosts takes NCCL's own call; between racks there are rails."""
    hosts = Layout.from_keys([rank // 4 for rank in range(144)], [rank // 72 for rank in range(144)])
    assert "rail" in by_nccl("allgather", hosts)  # between the hosts, for arrays on them
    assert by_nccl("allgather", hosts.restrict(range(72)).by_domain) == ("flat",)
    choice = choose("allgather", hosts.by_domain, 64 << 10, MACHINES["gb200-nvl72"].links)
    (rail,) = (one for one in choice.candidates if one.name == "rail")
    assert rail.made.steps[0].groups == tuple((rank, rank + 72) for rank in range(72))


@pytest.mark.parametrize("collective", ["allreduce", "allgather", "broadcast"])
def test_equal_bytes_take_the_same_plan_whatever_the_elements(collective: str) -> None:
    layout, links = Layout.parse("32x8"), MACHINES["dgx-h100"].links
    count = 32768 // layout.size if collective in BLOCKED else 32768
    of_int8, of_float64 = (
        choose_on_device(
            Collective(collective, layout.size, count // itemsize),
            layout,
            itemsize,
            chunk_bytes=4 << 20,
            links=links,
        )
        for itemsize in (1, 8)
    )
    assert describe(of_int8.candidates[0].made) == describe(of_float64.candidates[0].made)


@pytest.mark.parametrize("collective", ["allreduce", "allgather", "broadcast", "gather"])
def test_hpccoll_plan_shows_what_a_communicator_takes(collective: str) -> None:
    """By the same margins."""
    links = MACHINES["dgx-h100"].links
    for layout in map(Layout.parse, ("8", "2x8", "16x8", "64x8")):
        for nbytes in SIZES[::3]:
            count = nbytes // layout.size if collective in BLOCKED else nbytes
            shown = select.choose(Collective(collective, layout.size, count), layout, 1, Tuning(links=links))
            taken = choose(collective, layout, nbytes, links)
            assert shown.candidates[0].name == taken.candidates[0].name
