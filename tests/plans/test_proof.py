"""Every plan does what its collective says: on all layouts of few ranks, on random ones of many."""

from __future__ import annotations

import random

import pytest

from hpccoll.plans.catalogue import RECIPES, make_plan
from hpccoll.plans.collective import BLOCKED, Collective
from hpccoll.plans.verify import verify
from hpccoll.topology.layout import Layout
from tests.plans.cases import (
    COLLECTIVES,
    SEGMENT,
    all_layouts,
    plans,
    random_plan,
    rooted_block_plans,
    text_of,
)

BELL_NUMBERS = (1, 2, 5, 15, 52, 203)


def test_all_layouts_are_all() -> None:
    assert [len(set(all_layouts(size))) for size in range(1, 7)] == list(BELL_NUMBERS)


@pytest.mark.parametrize("collective", COLLECTIVES)
@pytest.mark.timeout(240)
@pytest.mark.parametrize("size", range(1, 7))
def test_every_plan_on_every_layout(collective: str, size: int) -> None:
    # 7 divides by no number of ranks but 1, 12 by all but 5.
    blocked = collective in BLOCKED
    counts = (0, 1, 7, 12) if size <= 4 else (0, 7) if size == 5 else (3,) if blocked else (7,)
    roots = tuple(range(size)) if size <= 3 else (0, size - 2) if size <= 5 else (4,)
    # Plans of one step over all ranks are the same plan on many layouts: one proof is enough.
    proofs: dict[object, list[str]] = {}
    seen = 0
    for layout in all_layouts(size):
        for plan in plans(collective, layout, counts, roots):
            key = (plan.collective, plan.steps, plan.ordered)
            if key not in proofs:
                proofs[key] = verify(plan)
            assert proofs[key] == [], text_of(plan)
            seen += 1
    assert seen >= BELL_NUMBERS[size - 1] * len(counts)


@pytest.mark.parametrize("seed", range(12))
def test_random_layouts_of_many_ranks(seed: int) -> None:
    chance = random.Random(seed)
    for most_ranks in (16, 16, 16, 64):
        plan = random_plan(chance, most_ranks, (1, 5, 17))
        assert verify(plan) == [], text_of(plan)


@pytest.mark.parametrize("collective", ["allgather", "reduce_scatter"])
def test_unequal_blocks(collective: str) -> None:
    chance = random.Random(collective)
    for size in (2, 3, 4, 5):
        for layout in all_layouts(size):
            counts = tuple(chance.choice([0, 1, 3, 4]) for _ in range(size))
            call = Collective(collective, size, max(counts), counts=counts)
            for recipe in RECIPES[collective]:
                if recipe.exists(layout):
                    plan = make_plan(recipe.name, call, layout, segment=SEGMENT)
                    assert verify(plan) == [], text_of(plan)


@pytest.mark.parametrize("count", [0, 1, 5])
def test_gather_and_scatter(count: int) -> None:
    for text in ("1", "2", "5", "2+1"):
        for plan in rooted_block_plans(Layout.parse(text), count):
            assert verify(plan) == [], text_of(plan)


@pytest.mark.parametrize("text", ["2+2", "3+1", "cyclic:2+2", "1+3+2"])
def test_a_plan_that_promises_rank_order_is_proved_in_that_order(text: str) -> None:
    layout = Layout.parse(text)
    promised = {plan.name for plan in plans("allreduce", layout, (7,)) if plan.ordered}
    if layout.is_contiguous:
        assert {"flat", "recursive_doubling", "reduce_ring_broadcast"} <= promised
    else:
        assert not promised
