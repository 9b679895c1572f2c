"""Selection is a function of facts that all ranks share; what it must and must not choose."""

from __future__ import annotations

import random
import subprocess
import sys
import time

import pytest

from hpccoll.errors import UsageError
from hpccoll.plans.catalogue import RECIPES, names
from hpccoll.plans.collective import LOCALLY_RAGGED, REDUCTIONS, Collective
from hpccoll.plans.flat import ONE_SHOT
from hpccoll.plans.links import Links
from hpccoll.plans.select import NEAR, Tuning, candidates, choose, describe, fits_one_shot, select
from hpccoll.plans.steps import Order, Plan
from hpccoll.topology.layout import Layout
from tests.plans.cases import COLLECTIVES, all_layouts, ragged

RAILS = "scatter_rail_gather"
SIZES = (8, 1024, 32768, 1 << 20, 1 << 24)
TWO_LEVEL = {recipe.name for recipes in RECIPES.values() for recipe in recipes if recipe.two_level}


def chosen(collective: str, text: str, nbytes: int, itemsize: int = 4, **tuning: object) -> Plan:
    layout = Layout.parse(text)
    count = nbytes // itemsize
    return select(Collective(collective, layout.size, count), layout, itemsize, Tuning(**tuning))  # type: ignore[arg-type]


def choices() -> str:
    return "\n".join(
        f"{collective} {text} {nbytes} {describe(chosen(collective, text, nbytes))}"
        for collective in COLLECTIVES
        for text in ("4", "2+2", "3+1", "cyclic:2+2", "4x8", "5+1+9")
        for nbytes in SIZES
    )


def test_another_process_chooses_the_same() -> None:
    program = "from tests.plans.test_selection import choices; print(choices())"
    done = subprocess.run(
        [sys.executable, "-c", program],
        env={
            "PYTHONHASHSEED": "4711",  # sets and dictionaries of texts are in another order there
            "PYTHONPATH": ":".join(filter(None, sys.path)),
        },
        capture_output=True,
        text=True,
        timeout=50,
        check=True,
    )
    assert done.stdout.strip() == choices()


@pytest.mark.parametrize("collective", COLLECTIVES)
@pytest.mark.parametrize("text", ["1", "2", "4", "1+1+1+1", "1+1"])
def test_layouts_of_one_level_take_no_two_level_plan(collective: str, text: str) -> None:
    assert not TWO_LEVEL & set(names(collective, Layout.parse(text)))
    for nbytes in SIZES:
        assert chosen(collective, text, nbytes).name not in TWO_LEVEL


@pytest.mark.parametrize("text", ["2+2", "4x8", "3+1", "2", "1+1"])
def test_eight_bytes_travel_with_the_check(text: str) -> None:
    assert chosen("allreduce", text, 8).name == ONE_SHOT


@pytest.mark.parametrize("text", ["2+2", "3+1", "4x8"])
@pytest.mark.parametrize("collective", COLLECTIVES)
def test_equal_bytes_take_the_same_plan_whatever_the_elements(text: str, collective: str) -> None:
    bytes_of_int8, of_float64 = (chosen(collective, text, 32768, itemsize) for itemsize in (1, 8))
    assert describe(bytes_of_int8) == describe(of_float64)


def test_two_nodes_of_two_take_different_plans_for_different_sizes() -> None:
    plans = [chosen("allreduce", "2+2", nbytes) for nbytes in SIZES]
    assert plans[0].name == ONE_SHOT
    assert len({plan.name for plan in plans}) >= 2
    assert len({describe(plan) for plan in plans}) >= 3


def test_the_cheapest_is_first_and_each_name_comes_once() -> None:
    layout = Layout.parse("4x8")
    found = candidates(Collective("allreduce", 32, 1 << 20), layout, 4, Tuning())
    times = [one.time_s for one in found]
    assert times == sorted(times)
    assert sorted(one.name for one in found) == sorted(set(names("allreduce", layout)) - {ONE_SHOT})
    assert found[0].made == select(Collective("allreduce", 32, 1 << 20), layout, 4, Tuning())


def test_fewest_bytes_between_nodes_where_the_network_is_not_measured() -> None:
    """Of plans whose prices are as good as equal: the network may be slower than the default."""
    layout = Layout.parse("4x2")
    call = Collective("allreduce", 8, 1 << 18)
    unmeasured, measured = (
        choose(call, layout, 4, Tuning(links=links)) for links in (Links(), Links(network_latency_us=25.1))
    )
    ring, rails = ({one.name: one for one in unmeasured.candidates}[name] for name in ("ring", RAILS))
    assert ring.time_s < rails.time_s < NEAR * ring.time_s
    assert rails.bytes_between_nodes < ring.bytes_between_nodes
    assert (unmeasured.candidates[0].name, measured.candidates[0].name) == (RAILS, "ring")
    assert unmeasured.why == "fewest bytes between nodes, whose links are not measured"
    assert measured.why == "lowest predicted time"


def test_without_a_native_call_flat_is_taken_on_one_node_only() -> None:
    for text, there in (("4", True), ("2+2", False)):
        layout = Layout.parse(text)
        found = candidates(Collective("allreduce", 4, 1 << 16), layout, 4, Tuning(native=False))
        assert ("flat" in {one.name for one in found}) == there


def test_a_plan_asked_for_by_name() -> None:
    layout = Layout.parse("3+1")
    large = Collective("allreduce", 4, 1 << 20)
    assert {one.name for one in candidates(large, layout, 4, Tuning(), "tree")} == {"tree"}
    assert select(Collective("allreduce", 4, 1 << 10), layout, 4, Tuning(), ONE_SHOT).name == ONE_SHOT
    # Where it cannot do the call, the others are there.
    assert select(large, layout, 4, Tuning(), ONE_SHOT) == select(large, layout, 4, Tuning())
    in_order = Tuning(order=Order.RANKS)
    assert select(large, layout, 4, in_order, "ring") == select(large, layout, 4, in_order)
    with pytest.raises(UsageError, match=r"'scatter_rail_gather' of allreduce does not exist on layout 3\+1"):
        select(large, layout, 4, Tuning(), "scatter_rail_gather")
    with pytest.raises(
        UsageError, match="allreduce has no algorithm 'magic'; there are flat, one_shot, ring"
    ):
        select(large, layout, 4, Tuning(), "magic")


def test_chunks_are_no_smaller_than_asked_for() -> None:
    layout = Layout.parse("2+2")
    for nbytes, most in ((1 << 20, 1), (4 << 20, 4), (64 << 20, 8)):
        plan = select(Collective("allreduce", 4, nbytes // 4), layout, 4, Tuning(), "scatter_rail_gather")
        assert plan.chunks <= most
    assert plan.chunks > 1


@pytest.mark.parametrize(
    ("collective", "count", "fits"),
    [
        ("allreduce", 1024, True),
        ("allreduce", 1025, False),
        ("broadcast", 1024, True),
        ("allgather", 512, True),  # 32 blocks of 2 KiB: 16 payloads of 4 KiB
        ("allgather", 513, False),
        ("gather", 512, True),
        ("gather", 513, False),
        ("reduce_scatter", 32, True),  # a rank sends 32 blocks of 128 bytes
        ("reduce_scatter", 33, False),
        ("scatter", 32, True),
        ("scatter", 33, False),
        ("alltoall", 16, True),  # 32 payloads, of 32 blocks of 64 bytes
        ("alltoall", 17, False),
        ("scan", 512, True),  # all payloads reach all ranks
        ("exscan", 513, False),
    ],
)
def test_what_fits_beside_the_check(collective: str, count: int, fits: bool) -> None:
    layout = Layout.parse("4x8")
    assert fits_one_shot(Collective(collective, 32, count), layout, 4, small_bytes=4096) is fits


@pytest.mark.parametrize(
    ("text", "order", "most"),
    [
        ("4x8", Order.ANY, 1024),
        ("4x8", Order.RANKS, 1024),  # node by node is in rank order
        ("4x8", Order.FOLD, 512),  # all payloads reach all ranks
        ("cyclic:4x8", Order.RANKS, 512),
        ("32", Order.FOLD, 1024),
    ],
)
def test_an_order_asked_for_may_need_all_payloads(text: str, order: Order, most: int) -> None:
    layout = Layout.parse(text)
    for count, fits in ((most, True), (most + 1, False)):
        call = Collective("allreduce", 32, count)
        assert fits_one_shot(call, layout, 4, small_bytes=4096, order=order) is fits
    made = select(Collective("allreduce", 32, most), layout, 4, Tuning(order=order), ONE_SHOT)
    assert made.name == ONE_SHOT
    assert made.order >= order


def test_blocks_of_unequal_lengths_do_not_travel_with_the_check() -> None:
    call = Collective("gather", 4, 0, 0, (1, 0, 1, 1))
    assert not fits_one_shot(call, Layout.parse("2+2"), 1, small_bytes=4096)


# --- order, and what a plan can do --------------------------------------------------------------


@pytest.mark.parametrize("collective", sorted(REDUCTIONS))
@pytest.mark.parametrize("order", Order)
@pytest.mark.parametrize("native", [True, False])
def test_every_order_has_a_plan_on_every_layout(collective: str, order: Order, native: bool) -> None:
    for layout in (*all_layouts(3), *map(Layout.parse, ("4x8", "cyclic:2+2", "3+1", "5+1+9"))):
        for count in (1, 1 << 20):
            call = Collective(collective, layout.size, count)
            found = candidates(call, layout, 4, Tuning(native=native, order=order))
            assert found, layout
            assert all(one.made.order >= order for one in found), layout


@pytest.mark.parametrize(
    ("order", "layout", "names_"),
    [
        (
            Order.RANKS,
            "2+2",
            {"tree", "recursive_doubling", "fold", "scatter_rail_gather", "reduce_ring_broadcast"},
        ),
        (Order.RANKS, "cyclic:2+2", {"tree", "recursive_doubling", "fold"}),
        (Order.RANKS, "4", {"flat", "tree", "recursive_doubling", "fold"}),
        (Order.FOLD, "2+2", {"fold"}),
        (Order.FOLD, "4", {"flat", "fold"}),
    ],
)
def test_plans_that_keep_an_order(order: Order, layout: str, names_: set[str]) -> None:
    call = Collective("allreduce", 4, 1 << 20)
    found = candidates(call, Layout.parse(layout), 4, Tuning(order=order))
    assert {one.name for one in found} == names_
    # Of plans in levels only those whose algorithm between nodes keeps it, too.
    assert not any("ring" in one.plan.replace(one.name, "") for one in found)


@pytest.mark.parametrize("collective", sorted(LOCALLY_RAGGED))
def test_mpis_own_call_and_trees_are_no_plans_for_what_no_rank_knows(collective: str) -> None:
    chance = random.Random(collective)
    for text in ("2+2", "3+1", "cyclic:2+2", "1+1"):
        layout = Layout.parse(text)
        call = ragged(collective, layout.size, chance)
        found = {one.name for one in candidates(call, layout, 1, Tuning())}
        assert found == set(names(collective, layout)) - {"flat", ONE_SHOT, "binomial"}
    alone = {one.name for one in candidates(ragged(collective, 4, chance), Layout.parse("4"), 1, Tuning())}
    assert alone == {"flat", "direct"}


@pytest.mark.parametrize(("text", "together"), [("4x8", "rail"), ("8+7+8+9", "two_level")])
def test_small_blocks_of_an_alltoall_go_together_between_nodes(text: str, together: str) -> None:
    layout = Layout.parse(text)
    tuning = Tuning(native=False)
    taken = [select(Collective("alltoall", 32, size), layout, 1, tuning).name for size in (100, 1 << 20)]
    assert taken == [together, "direct"]


@pytest.mark.parametrize(
    ("text", "limit_s"),
    [("8x8", 0.25), ("cyclic:8x8", 0.25), ("7+3+9+20", 0.25), ("2048x8", 15)],
)
def test_selection_is_fast(text: str, limit_s: float) -> None:
    """Limits are ten times what one free core needs: 20 ms, and 1.5 s for 16,384 ranks."""
    layout = Layout.parse(text)
    begin = time.process_time()
    select(Collective("allreduce", layout.size, 10_000_019), layout, 4, Tuning())
    assert time.process_time() - begin < limit_s


@pytest.mark.parametrize("text", ["256x64", "cyclic:256x64"])
@pytest.mark.parametrize("collective", COLLECTIVES)
def test_sixteen_thousand_ranks(collective: str, text: str) -> None:
    """The limit is five times what it takes: 0.1 to 0.6 s."""
    layout = Layout.parse(text)
    begin = time.process_time()
    select(Collective(collective, layout.size, 1000), layout, 4, Tuning())
    assert time.process_time() - begin < 3


@pytest.mark.parametrize("layout", ["2x2", "2+2", "4x2", "8x8", "cyclic:2+2"])
@pytest.mark.parametrize("collective", ["allreduce", "allgather", "reduce_scatter"])
@pytest.mark.parametrize("network_gbs", [0.125, 1.2, 12])
def test_rails_before_leaders(layout: str, collective: str, network_gbs: float) -> None:
    """They send as many bytes, but a leader combines and copies what all ranks of its node share on rails."""
    where = Layout.parse(layout)
    count = (16 << 20) // (4 if collective == "allreduce" else 4 * where.size)
    tuning = Tuning(links=Links(network_gbs=network_gbs))
    found = [one.name for one in candidates(Collective(collective, where.size, count), where, 4, tuning)]
    rails, leaders = (
        ("scatter_rail_gather", "reduce_ring_broadcast")
        if collective == "allreduce"
        else ("rail", "two_level")
    )
    assert found.index(rails) < found.index(leaders)
