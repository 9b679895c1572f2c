"""Every plan, carried out by the executor on real arrays, gives what NumPy says."""

from __future__ import annotations

import random

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from hpccoll.plans.catalogue import make_plan
from hpccoll.plans.collective import Collective
from hpccoll.plans.hazards import IN_PLACE
from hpccoll.plans.lower import lower
from hpccoll.plans.program import GroupCall, Receive
from hpccoll.plans.steps import Plan
from hpccoll.runtime.executor import Execution, Schedule
from hpccoll.topology.layout import Layout
from hpccoll.transports.threads import Exchange
from tests.plans.cases import (
    COLLECTIVES,
    RAGGED,
    all_layouts,
    plans,
    ragged_plans,
    random_layout,
    random_plan,
    text_of,
)
from tests.plans.execution import add, contributions, execute, expected

COUNTS = (0, 1, 5, 17, 64)


def check(plan: Plan, seed: int, *, in_place: bool = False, threads: bool = False) -> None:
    """Integer sums are exact; inputs stay as they were unless they are the output."""
    given = contributions(plan.collective, np.random.default_rng(seed), np.int64)
    outcome = execute(plan, given, in_place=in_place, order=None if threads else random.Random(seed))
    for rank, wanted in enumerate(expected(plan.collective, given)):
        assert np.array_equal(outcome.results[rank], wanted), f"rank {rank}: {text_of(plan)}"
        if not in_place:
            assert np.array_equal(outcome.inputs[rank], given[rank]), f"input of {rank}: {text_of(plan)}"


def check_both(plan: Plan, seed: int) -> None:
    """Out of place, and in place where that is no copy."""
    check(plan, seed)
    if plan.collective.name in IN_PLACE:
        check(plan, seed, in_place=True)


@pytest.mark.parametrize("collective", COLLECTIVES)
def test_every_plan_on_every_layout_of_four(collective: str) -> None:
    for layout in all_layouts(4):
        for number, plan in enumerate(plans(collective, layout, (7,), (0, 2), (3,))):
            check_both(plan, number)


@pytest.mark.parametrize("collective", RAGGED)
def test_blocks_of_unequal_lengths_on_every_layout_of_four(collective: str) -> None:
    chance = random.Random(collective)
    for layout in all_layouts(4):
        for number, plan in enumerate(ragged_plans(collective, layout, chance, chance.randrange(4))):
            check_both(plan, number)


@settings(max_examples=200)
@given(seed=st.integers(0, 2**32), in_place=st.booleans())
def test_random_plans_on_random_layouts(seed: int, in_place: bool) -> None:
    check(random_plan(random.Random(seed), 12, COUNTS), seed, in_place=in_place)


@settings(max_examples=60)
@given(seed=st.integers(0, 2**32), in_place=st.booleans())
def test_random_blocks_on_random_layouts(seed: int, in_place: bool) -> None:
    chance = random.Random(seed)
    layout, collective = random_layout(chance, 10), chance.choice(RAGGED)
    found = list(ragged_plans(collective, layout, chance, chance.randrange(layout.size), (0, 1, 3, 20)))
    check(chance.choice(found), seed, in_place=in_place)


@pytest.mark.parametrize("seed", range(16))
def test_ranks_in_threads_of_their_own(seed: int) -> None:
    for part in range(3):
        check(
            random_plan(random.Random(3 * seed + part), 8, COUNTS),
            seed,
            in_place=bool(part % 2),
            threads=True,
        )


def test_a_rank_that_moves_on_alone_does_not_wait() -> None:
    layout = Layout.parse("2+2")
    plan = make_plan("reduce_ring_broadcast", Collective("allreduce", 4, 8), layout, segment=4)
    exchange = Exchange()
    program = lower(plan, 0)
    memory = (np.ones(8, int), np.zeros(8, int), np.zeros(program.scratch, int))
    group = exchange.group((0, 1), 0)
    alone = Execution(
        Schedule(program), memory, exchange.network(0), lambda call: group, add, lambda step: step
    )
    for _ in range(3):
        assert not alone.advance()
    assert not alone.complete
    # What the other node will send goes elsewhere than what is given to the group: both are under way.
    assert {type(one) for one in alone.waiting_for()} == {GroupCall, Receive}
    assert alone.step == 0
