"""Selection is a function of facts that all ranks share; what it must and must not choose."""

from __future__ import annotations

import subprocess
import sys
import time

import pytest

from hpccoll.errors import UsageError
from hpccoll.plans.catalogue import RECIPES, names
from hpccoll.plans.collective import Collective
from hpccoll.plans.flat import ONE_SHOT
from hpccoll.plans.select import Tuning, candidates, describe, fits_one_shot, select
from hpccoll.plans.steps import Plan
from hpccoll.topology.layout import Layout
from tests.plans.cases import COLLECTIVES

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
    assert [one.time_s for one in found] == sorted(one.time_s for one in found)
    assert sorted(one.name for one in found) == sorted(set(names("allreduce", layout)) - {ONE_SHOT})
    assert found[0].made == select(Collective("allreduce", 32, 1 << 20), layout, 4, Tuning())


def test_without_a_native_call_flat_is_taken_on_one_node_only() -> None:
    for text, there in (("4", True), ("2+2", False)):
        layout = Layout.parse(text)
        found = candidates(Collective("allreduce", 4, 1 << 16), layout, 4, Tuning(native=False))
        assert ("flat" in {one.name for one in found}) == there


def test_a_plan_asked_for_by_name() -> None:
    layout = Layout.parse("3+1")
    large = Collective("allreduce", 4, 1 << 20)
    assert {one.name for one in candidates(large, layout, 4, Tuning(), "tree")} == {"tree"}
    assert select(large, layout, 4, Tuning(), ONE_SHOT).name == ONE_SHOT
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
        ("reduce_scatter", 16, True),  # a rank sends 32 blocks of 64 bytes
        ("reduce_scatter", 33, False),
    ],
)
def test_what_fits_beside_the_check(collective: str, count: int, fits: bool) -> None:
    layout = Layout.parse("4x8")
    assert fits_one_shot(Collective(collective, 32, count), layout, 4, small_bytes=4096) is fits


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
