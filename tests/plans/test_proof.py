"""Every plan does what its collective says: on all layouts of few ranks, on random ones of many."""

from __future__ import annotations

import random

import pytest

from hpccoll.plans.catalogue import names
from hpccoll.plans.collective import BLOCKED
from hpccoll.plans.lower import lower
from hpccoll.plans.program import Memory, Receive, Send
from hpccoll.plans.steps import Order
from hpccoll.plans.verify import verify
from hpccoll.topology.layout import Layout
from tests.plans.cases import (
    COLLECTIVES,
    all_layouts,
    plans,
    ragged_plans,
    random_plan,
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
    chunks = (1, 3) if size <= 5 else (3,)
    # Plans of one step over all ranks are the same plan on many layouts: one proof is enough.
    proofs: dict[object, list[str]] = {}
    seen = 0
    for layout in all_layouts(size):
        for plan in plans(collective, layout, counts, roots, chunks):
            key = (plan.collective, plan.steps, plan.order)
            if key not in proofs:
                proofs[key] = verify(plan)
            assert proofs[key] == [], text_of(plan)
            seen += 1
    assert seen >= BELL_NUMBERS[size - 1] * len(counts)


ROUNDING = ("allreduce", "reduce", "reduce_scatter")


@pytest.mark.parametrize("collective", ROUNDING)
def test_plans_that_round_between_nodes(collective: str) -> None:
    """That all ranks get the same bits is part of the proof, wherever their elements were rounded."""
    for size in (2, 3, 4, 5):
        for layout in all_layouts(size):
            if layout.node_count > 1:
                for plan in plans(collective, layout, (0, 7), (0, size - 1), (1, 3), "bfloat16"):
                    assert verify(plan) == [], text_of(plan)
                    assert bool(plan.collective.count) == any(
                        lower(plan, rank).wire for rank in range(size)
                    ), text_of(plan)


def test_messages_between_nodes_are_rounded_and_no_others() -> None:
    layout = Layout.parse("cyclic:3+2")
    for collective in ROUNDING:
        for plan in plans(collective, layout, (7,), wire="float16"):
            for rank in range(layout.size):
                for one in lower(plan, rank).operations:
                    if isinstance(one, (Send, Receive)):
                        place = one.source if isinstance(one, Send) else one.target
                        crosses = layout.node(one.peer) != layout.node(rank)
                        assert (place.memory is Memory.WIRE) == crosses, text_of(plan)


@pytest.mark.parametrize("seed", range(12))
def test_random_layouts_of_many_ranks(seed: int) -> None:
    chance = random.Random(seed)
    for most_ranks in (16, 16, 16, 64):
        plan = random_plan(chance, most_ranks, (1, 5, 17))
        assert verify(plan) == [], text_of(plan)


@pytest.mark.parametrize("collective", ["allgather", "reduce_scatter", "gather", "scatter", "alltoall"])
def test_unequal_blocks(collective: str) -> None:
    chance = random.Random(collective)
    for size in (2, 3, 4, 5):
        for layout in all_layouts(size):
            for plan in ragged_plans(collective, layout, chance, chance.randrange(size)):
                assert verify(plan) == [], text_of(plan)


@pytest.mark.parametrize("text", ["2+2", "3+1", "cyclic:2+2", "1+3+2"])
def test_a_plan_that_promises_rank_order_is_proved_in_that_order(text: str) -> None:
    layout = Layout.parse(text)
    promised = {plan.name for plan in plans("allreduce", layout, (7,)) if plan.order >= Order.RANKS}
    if layout.is_contiguous:
        keeping = {"tree", "recursive_doubling", "fold", "reduce_ring_broadcast", "scatter_rail_gather"}
        assert promised == keeping & {*names("allreduce", layout)}
    else:
        assert promised == {"tree", "recursive_doubling", "fold"}


def test_plans_that_fold_are_there_for_every_reduction() -> None:
    for layout in all_layouts(4):
        for collective in ("allreduce", "reduce", "reduce_scatter", "scan", "exscan"):
            folded = {plan.name for plan in plans(collective, layout, (7,)) if plan.order is Order.FOLD}
            assert ("linear" if "scan" in collective else "fold") in folded, f"{collective} on {layout}"
