"""Times between measured sizes, and when they count for more than a price."""

from __future__ import annotations

import math
import random

import pytest

from hpccoll.plans.catalogue import names
from hpccoll.plans.collective import Collective
from hpccoll.plans.measured import BEYOND, FLAT_MARGIN, MARGIN, Measured, Time, call_bytes, decide
from hpccoll.plans.select import Tuning, candidates, choose, describe
from hpccoll.topology.layout import Layout
from tests.tuning.cases import curve, measured, time

LAYOUT = Layout.parse("2+2")


def chosen(
    nbytes: int, table: Measured, itemsize: int = 4, collective: str = "allreduce", **more: object
) -> str:
    call = Collective(collective, LAYOUT.size, nbytes // itemsize)
    return choose(call, LAYOUT, itemsize, Tuning(measured=table, **more)).candidates[0].name  # type: ignore[arg-type]


# --- between sizes ------------------------------------------------------------------------------


def test_measured_sizes_have_their_own_times() -> None:
    points = {8: 10.0, 512: 12.0, 65536: 300.0}
    for size, value in points.items():
        assert curve(points).at(size) == time(value)


def test_between_sizes_any_power_of_the_size_is_met_exactly() -> None:
    for power in (0.0, 0.5, 1.0, 1.7):
        line = curve({64: 64**power, 4096: 4096**power, 1 << 20: (1 << 20) ** power})
        for nbytes in (65, 100, 1000, 5000, 77777):
            found = line.at(nbytes)
            assert found is not None
            assert found.time_s * 1e6 == pytest.approx(nbytes**power, rel=1e-9)
            assert found.low_s == pytest.approx(0.99 * found.time_s)
            assert found.high_s == pytest.approx(1.01 * found.time_s)


def test_outside_latency_below_and_bandwidth_above_up_to_a_limit() -> None:
    line = curve({64: 10.0, 4096: 50.0})
    assert line.at(0) == line.at(1) == line.at(64) == time(10.0)
    double, last = line.at(8192), line.at(BEYOND * 4096)
    assert double is not None
    assert last is not None
    assert double.time_s == pytest.approx(100e-6)
    assert last.time_s == pytest.approx(BEYOND * 50e-6)
    assert line.at(BEYOND * 4096 + 1) is None


def test_a_median_never_leaves_its_interval() -> None:
    chance = random.Random(5)
    for _ in range(300):
        tight = curve({8: chance.uniform(1, 9), 64: chance.uniform(1, 9)}, spread=0.0)
        assert tight.at(chance.randint(1, 200)) is not None  # Time itself would refuse it


def test_sizes_are_those_of_nccl_tests() -> None:
    for collective, nbytes in (
        ("allreduce", 400),
        ("broadcast", 400),
        ("allgather", 1600),
        ("alltoall", 1600),
    ):
        assert call_bytes(Collective(collective, 4, 100), 4) == nbytes


@pytest.mark.parametrize(
    "values", [(0.0, 0.0, 1.0), (1.0, 2.0, 3.0), (1.0, 0.5, 0.9), (math.inf, 1.0, math.inf), (math.nan,) * 3]
)
def test_what_is_no_time_is_refused(values: tuple[float, float, float]) -> None:
    with pytest.raises(ValueError, match="do not hold"):
        Time(*values)


# --- the decision -------------------------------------------------------------------------------


def test_without_measurements_the_price_decides() -> None:
    assert decide("ring", {}) == ("ring", "lowest predicted time")
    assert decide("ring", {"tree": time(1.0)}) == ("ring", "lowest predicted time; it was not measured")


def test_a_plan_that_is_surely_faster_is_taken() -> None:
    assert decide("ring", {"ring": time(100.0), "tree": time(80.0), "fold": time(70.0)})[0] == "fold"


def test_noise_does_not_flip_the_choice() -> None:
    wide = 0.3
    assert decide("ring", {"ring": time(100.0, wide), "tree": time(80.0, wide)})[0] == "ring"
    # Certain, and too little to matter.
    little = 100.0 / MARGIN * 1.001
    assert decide("ring", {"ring": time(100.0, 0.001), "tree": time(little, 0.001)})[0] == "ring"
    # The fastest is uncertain, the next one is not.
    times = {"ring": time(100.0), "tree": time(70.0, 0.5), "fold": time(80.0)}
    assert decide("ring", times)[0] == "fold"


def test_two_runs_that_differ_by_noise_choose_alike() -> None:
    """Medians move by 2 % between the runs: one choice at every size, and the surely faster plan in all."""
    chance = random.Random(11)
    for _ in range(200):
        times = {name: time(base * chance.uniform(0.99, 1.01), 0.02) for name, base in (
            ("ring", 100.0), ("tree", 100.5), ("fold", 99.5), ("flat", 101.0)
        )}  # fmt: skip
        assert decide("ring", times)[0] == "ring"


def test_what_is_slower_than_flat_is_not_taken_even_in_doubt() -> None:
    wide = 0.3
    assert decide("ring", {"ring": time(100.0, 0.04), "flat": time(95.0, wide)})[0] == "flat"
    near = 100.0 / FLAT_MARGIN * 1.001
    assert decide("ring", {"ring": time(100.0, 0.001), "flat": time(near, wide)})[0] == "ring"
    # Not where nobody can tell the two apart.
    assert decide("ring", {"ring": time(100.0, wide), "flat": time(95.0, wide)})[0] == "ring"
    times = {"ring": time(100.0), "tree": time(60.0), "flat": time(90.0)}
    assert decide("ring", times)[0] == "tree"


def test_no_choice_is_measured_to_be_slower_than_flat() -> None:
    chance = random.Random(3)
    plans = names("allreduce", LAYOUT)
    for _ in range(500):
        times = {name: time(chance.uniform(50, 150), chance.uniform(0, 0.4)) for name in plans}
        taken = times[decide(chance.choice(plans), times)[0]]
        assert times["flat"].time_s >= min(taken.low_s, taken.time_s / FLAT_MARGIN)


# --- selection ----------------------------------------------------------------------------------


def test_selection_takes_what_was_measured_and_says_why() -> None:
    price = chosen(65536, Measured())
    assert price != "tree"
    table = measured("allreduce", **{price: {65536: 500.0}, "tree": {65536: 100.0}, "flat": {65536: 300.0}})
    assert chosen(65536, table) == "tree"
    choice = choose(Collective("allreduce", 4, 16384), LAYOUT, 4, Tuning(measured=table))
    assert choice.why == f"measured: faster than {price} (lowest predicted time)"
    assert {one.name: one.measured for one in choice.candidates if one.measured} == {
        price: time(500.0), "tree": time(100.0), "flat": time(300.0)
    }  # fmt: skip
    others = [one.time_s for one in choice.candidates[1:]]
    assert choice.candidates[0].name == "tree"
    assert min(others) == others[0]


def test_equal_bytes_take_the_same_plan_whatever_the_elements() -> None:
    price = chosen(32768, Measured())
    table = measured("allreduce", **{price: {8: 20.0, 65536: 500.0}, "tree": {8: 30.0, 65536: 100.0}})
    found = [
        choose(
            Collective("allreduce", 4, 32768 // itemsize), LAYOUT, itemsize, Tuning(measured=table)
        ).candidates
        for itemsize in (1, 8)  # int8, float64
    ]
    assert describe(found[0][0].made) == describe(found[1][0].made)
    assert [(one.name, one.measured) for one in found[0]] == [(one.name, one.measured) for one in found[1]]
    assert found[0][0].name == "tree"


def test_a_plan_asked_for_by_name_is_taken_and_its_time_shown() -> None:
    table = measured("allreduce", ring={65536: 900.0}, tree={65536: 100.0})
    choice = choose(Collective("allreduce", 4, 16384), LAYOUT, 4, Tuning(measured=table), "ring")
    assert [one.name for one in choice.candidates] == ["ring"]
    assert choice.why == "asked for by name: ring"
    assert choice.candidates[0].measured == time(900.0)


def test_what_is_rounded_between_nodes_was_not_measured() -> None:
    table = measured("allreduce", ring={65536: 900.0}, tree={65536: 1.0})
    assert chosen(65536, table, wire="bfloat16") == chosen(65536, Measured(), wire="bfloat16")


def test_a_measured_plan_that_cannot_do_the_call_is_not_taken() -> None:
    table = measured("allreduce", ring={8: 900.0, 1 << 20: 900.0}, one_shot={8: 1.0, 1 << 20: 1.0})
    assert chosen(1 << 20, table) != "one_shot"


@pytest.mark.parametrize("text", ["1", "2", "4", "8"])
@pytest.mark.parametrize("collective", ["allreduce", "reduce", "broadcast", "allgather", "reduce_scatter"])
def test_one_node_takes_flat(text: str, collective: str) -> None:
    layout = Layout.parse(text)
    for nbytes in (8, 4096, 32768, 1 << 20, 1 << 24):
        count = nbytes // 4 // (layout.size if collective in ("allgather", "reduce_scatter") else 1)
        call = Collective(collective, layout.size, max(1, count))
        assert candidates(call, layout, 4, Tuning())[0].name in ("flat", "one_shot")
        assert candidates(call, layout, 4, Tuning(small_bytes=0))[0].name == "flat"


@pytest.mark.parametrize("text", ["1+1", "1+1+1+1", "8x1"])
def test_one_rank_a_node_takes_flat_where_that_was_measured_to_be_as_good(text: str) -> None:
    layout = Layout.parse(text)
    call = Collective("allreduce", layout.size, 1 << 16)
    plans = {name: {1 << 18: 100.0} for name in names("allreduce", layout)}
    assert "flat" in plans
    table = measured("allreduce", **(plans | {"flat": {1 << 18: 97.0}}))
    assert candidates(call, layout, 4, Tuning(measured=table))[0].name == "flat"
