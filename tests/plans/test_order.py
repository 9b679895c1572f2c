"""The order in which operands are combined: that which a plan promises, and the same bits for all ranks."""

from __future__ import annotations

import random
from collections.abc import Iterator

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from hpccoll.plans.catalogue import RECIPES, make_plan
from hpccoll.plans.collective import REDUCTIONS, ROOTED, Collective
from hpccoll.plans.flat import ONE_SHOT
from hpccoll.plans.fold import MOST_SEGMENTS
from hpccoll.plans.hazards import IN_PLACE
from hpccoll.plans.lower import lower
from hpccoll.plans.program import Combine, Receive, Send
from hpccoll.plans.spans import length
from hpccoll.plans.steps import Order, Plan
from hpccoll.topology.layout import Layout
from hpccoll.transports.base import Array
from tests.plans.cases import all_layouts, plans, text_of
from tests.plans.execution import add, compose, execute, expected, maps

LAYOUTS = ("1", "2", "5", "2+2", "3+1", "cyclic:2+2", "cyclic:3+1+2", "1+1+1+1+1+1", "2+3+2")
# The plans that keep rank order on at least one layout.
IN_RANK_ORDER = {
    "allreduce": {
        "flat", "tree", "recursive_doubling", "fold", "scatter_rail_gather", "reduce_ring_broadcast",
    },
    "reduce": {"flat", "fold"},
    "reduce_scatter": {"flat", "fold"},
    "scan": {"flat", "recursive_doubling", "linear", "two_level"},
    "exscan": {"flat", "recursive_doubling", "linear", "two_level"},
}  # fmt: skip


@pytest.mark.parametrize(
    ("collective", "in_place"),
    [(one, False) for one in sorted(REDUCTIONS)] + [(one, True) for one in sorted(REDUCTIONS & IN_PLACE)],
)
def test_operands_are_combined_in_rank_order_where_promised(collective: str, in_place: bool) -> None:
    checked = set()
    for text in LAYOUTS:
        layout = Layout.parse(text)
        for number, plan in enumerate(plans(collective, layout, (5,), (0, layout.size - 1), (1, 3))):
            if plan.order < Order.RANKS:
                continue
            given = maps(plan.collective, np.random.default_rng(number))
            outcome = execute(plan, given, compose, in_place=in_place, order=random.Random(number))
            for rank, wanted in enumerate(expected(plan.collective, given, compose)):
                assert np.array_equal(outcome.results[rank], wanted), f"rank {rank}: {text_of(plan)}"
            checked.add(plan.name)
    assert checked == IN_RANK_ORDER[collective]


def test_the_order_of_operands_shows_in_the_composition() -> None:
    left, right = np.array([2 + 1j]), np.array([3 - 1j])
    one, other = np.empty(1, complex), np.empty(1, complex)
    compose(left, right, one)
    compose(right, left, other)
    assert one[0] != other[0]


# --- fold ---------------------------------------------------------------------------------------


def folding_plans(collective: str, layout: Layout, root: int) -> Iterator[Plan]:
    """Every plan that folds, with every segment, chunk count and algorithm between nodes."""
    count = 33 if collective == "reduce_scatter" else 97
    call = Collective(collective, layout.size, count, root if collective in ROOTED else 0)
    for recipe in RECIPES[collective]:
        if recipe.name == ONE_SHOT or not recipe.exists(layout):
            continue
        for between in recipe.between or (None,):
            for segment in (1 << 20, 10, 3):
                for chunks in (1, 2, 5):
                    plan = make_plan(
                        recipe.name, call, layout, segment=segment, chunks=chunks, between=between
                    )
                    if plan.order is Order.FOLD:
                        yield plan


def rounded(collective: Collective) -> list[Array]:
    """Numbers whose sum in float32 shows the order in which they are added."""
    chance = np.random.default_rng(collective.size)
    lengths = [length(collective.input(rank)) for rank in range(collective.size)]
    return [
        (chance.normal(size=count) * 10.0 ** chance.integers(-3, 4, count)).astype(np.float32)
        for count in lengths
    ]


@pytest.mark.parametrize("collective", sorted(REDUCTIONS))
def test_plans_that_fold_give_the_same_bits_on_every_layout(collective: str) -> None:
    for size in (2, 3, 4, 5):
        layouts = list(all_layouts(size)) if size < 5 else [Layout.parse(t) for t in ("3+2", "cyclic:2+2+1")]
        seen: set[object] = set()
        for layout in layouts:
            for plan in folding_plans(collective, layout, size - 1):
                given = rounded(plan.collective)
                alike = (plan.steps, plan.segment)
                if alike in seen:
                    continue
                seen.add(alike)
                outcome = execute(plan, given, order=random.Random(size))
                for rank, wanted in enumerate(expected(plan.collective, given)):
                    assert outcome.results[rank].tobytes() == wanted.tobytes(), (
                        f"rank {rank}: {text_of(plan)}"
                    )


@pytest.mark.parametrize(
    ("collective", "name"),
    [
        ("allreduce", "recursive_doubling"),
        ("allreduce", "ring"),
        ("allreduce", "tree"),
        ("allreduce", "reduce_ring_broadcast"),
        ("reduce", "binomial"),
        ("reduce_scatter", "two_level"),
        ("scan", "two_level"),
        ("exscan", "recursive_doubling"),
    ],
)
def test_the_bits_of_plans_that_do_not_fold_are_others(collective: str, name: str) -> None:
    layout = Layout.parse("3+3")
    plan = make_plan(name, Collective(collective, 6, 97), layout, segment=10)
    assert plan.order < Order.FOLD
    given = rounded(plan.collective)
    found = execute(plan, given, order=random.Random(1)).results
    wanted = expected(plan.collective, given)
    assert any(one.tobytes() != other.tobytes() for one, other in zip(found, wanted, strict=True))
    for one, other in zip(found, wanted, strict=True):
        assert np.allclose(one, other, rtol=1e-4, atol=1e-1)


def test_a_fold_does_not_depend_on_where_an_element_is_in_the_array() -> None:
    layout, count = Layout.parse("2+1+1"), 50
    column = np.array([1e8, 1.0, -1e8, 1.0], np.float32)  # 1 when folded; 0 and 2 in other orders
    for plan in folding_plans("allreduce", layout, 0):
        given = [np.full(plan.collective.count, value) for value in column]
        outcome = execute(plan, given, add, order=random.Random(count))
        for result in outcome.results:
            assert set(result.tolist()) == {1.0}, text_of(plan)


@settings(max_examples=40)
@given(seed=st.integers(0, 2**32))
def test_all_ranks_get_the_same_bits_of_a_rounded_sum(seed: int) -> None:
    chance = random.Random(seed)
    layout = Layout.from_keys([chance.randrange(3) for _ in range(chance.randint(2, 9))])
    plan = chance.choice(list(plans("allreduce", layout, (33,))))
    elements = np.random.default_rng(seed).normal(size=(layout.size, 33)).astype(np.float32)
    outcome = execute(plan, list(elements), order=chance)
    for rank, result in enumerate(outcome.results):
        assert result.tobytes() == outcome.results[0].tobytes(), f"rank {rank}: {text_of(plan)}"
    assert np.allclose(outcome.results[0], elements.astype(np.float64).sum(0), rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize(("collective", "ranks", "count"), [("allreduce", 7, 200), ("reduce_scatter", 5, 40)])
def test_no_two_ranks_wait_for_the_same_one(collective: str, ranks: int, count: int) -> None:
    """Where values are combined in order they need not come in it: one rank would send at a time."""
    plan = make_plan("fold", Collective(collective, ranks, count), Layout.parse(str(ranks)), segment=8)
    programs = [lower(plan, rank) for rank in range(ranks)]
    sources = [[one.peer for one in each.operations if isinstance(one, Receive)] for each in programs]
    targets = [[one.peer for one in each.operations if isinstance(one, Send)] for each in programs]
    for turn in range(ranks - 1):
        assert {each[turn] for each in sources} == {each[turn] for each in targets} == set(range(ranks))


def test_what_comes_early_has_its_limits() -> None:
    """However many ranks send at once, and however long the buffer is."""
    segment = 64
    plan = make_plan("fold", Collective("allreduce", 300, 60_000), Layout.parse("300"), segment=segment)
    program = lower(plan, 5)
    assert program.scratch <= 2 * MOST_SEGMENTS * segment
    longest = max(
        one.target.stop - one.target.start for one in program.operations if isinstance(one, Combine)
    )
    assert 1 < longest < segment
