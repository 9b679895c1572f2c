"""Every plan, carried out by the executor on real arrays, gives what NumPy says."""

from __future__ import annotations

import random

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from hpccoll.plans.catalogue import make_plan
from hpccoll.plans.collective import Collective
from hpccoll.plans.lower import lower
from hpccoll.plans.program import GroupCall, Receive
from hpccoll.plans.steps import Plan
from hpccoll.runtime.executor import Execution, Schedule
from hpccoll.topology.layout import Layout
from hpccoll.transports.threads import Exchange
from tests.plans.cases import COLLECTIVES, all_layouts, plans, random_plan, rooted_block_plans, text_of
from tests.plans.execution import add, compose, contributions, execute, expected

COUNTS = (0, 1, 5, 17, 64)


def check(plan: Plan, seed: int, *, in_place: bool = False, threads: bool = False) -> None:
    """Integer sums are exact; inputs stay as they were unless they are the output."""
    elements = contributions(plan.collective, np.random.default_rng(seed), np.int64)
    outcome = execute(plan, elements, in_place=in_place, order=None if threads else random.Random(seed))
    for rank, wanted in enumerate(expected(plan.collective, elements)):
        assert np.array_equal(outcome.results[rank], wanted), f"rank {rank}: {text_of(plan)}"
        if not in_place:
            span = plan.collective.input(rank)[0] if plan.collective.input(rank) else slice(0, 0)
            passed = elements[rank][span.start : span.stop]
            assert np.array_equal(outcome.inputs[rank], passed), f"input of rank {rank}: {text_of(plan)}"


@pytest.mark.parametrize("collective", COLLECTIVES)
def test_every_plan_on_every_layout_of_four(collective: str) -> None:
    for layout in all_layouts(4):
        for number, plan in enumerate(plans(collective, layout, (7,), (0, 2), (3,))):
            check(plan, number)
            check(plan, number, in_place=True)


def test_gather_and_scatter() -> None:
    for text in ("2", "5", "2+1"):
        for number, plan in enumerate(rooted_block_plans(Layout.parse(text), 5)):
            check(plan, number)


@settings(max_examples=150)
@given(seed=st.integers(0, 2**32), in_place=st.booleans())
def test_random_plans_on_random_layouts(seed: int, in_place: bool) -> None:
    check(random_plan(random.Random(seed), 12, COUNTS), seed, in_place=in_place)


@pytest.mark.parametrize("seed", range(16))
def test_ranks_in_threads_of_their_own(seed: int) -> None:
    for part in range(3):
        check(
            random_plan(random.Random(3 * seed + part), 8, COUNTS),
            seed,
            in_place=bool(part % 2),
            threads=True,
        )


@pytest.mark.parametrize("in_place", [False, True])
def test_operands_are_combined_in_rank_order_where_promised(in_place: bool) -> None:
    checked = set()
    for text in ("1", "5", "2+2", "3+1", "1+1+1+1+1+1", "2+3+2"):
        layout = Layout.parse(text)
        for collective in ("allreduce", "reduce", "reduce_scatter"):
            for number, plan in enumerate(plans(collective, layout, (5,), (layout.size - 1,), (1, 3))):
                if not plan.ordered:
                    continue
                random_ = np.random.default_rng(number)
                shape = (layout.size, plan.collective.elements)
                maps = random_.choice([-1.0, 2.0, 3.0], shape) + 1j * random_.integers(-3, 4, shape)
                outcome = execute(plan, list(maps), compose, in_place=in_place, order=random.Random(number))
                for rank, wanted in enumerate(expected(plan.collective, list(maps), compose)):
                    assert np.array_equal(outcome.results[rank], wanted), f"rank {rank}: {text_of(plan)}"
                checked.add((collective, plan.name))
    assert {("allreduce", "recursive_doubling"), ("allreduce", "flat"), ("reduce", "flat")} <= checked


def test_the_order_of_operands_shows_in_the_composition() -> None:
    left, right = np.array([2 + 1j]), np.array([3 - 1j])
    one, other = np.empty(1, complex), np.empty(1, complex)
    compose(left, right, one)
    compose(right, left, other)
    assert one[0] != other[0]


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
