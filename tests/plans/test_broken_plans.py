"""What is wrong with a broken plan is found, and said in words that name it."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from hpccoll.plans.verify import verify
from tests.plans.breaking import one_of, plan_of, with_step, without_step


@pytest.mark.parametrize(
    ("number", "words"),
    [
        (0, ["rank 3 element 0", "lacks the input of ranks 1, 3"]),  # reduce in the nodes
        (1, ["rank 0 element 7", "lacks the input of ranks 2, 3"]),  # all-reduce over the leaders
        (2, ["rank 1 element 0", "lacks the input of ranks 0, 2, 3"]),  # broadcast in the nodes
    ],
)
def test_a_step_left_out(number: int, words: list[str]) -> None:
    assert one_of(verify(without_step(plan_of("reduce_ring_broadcast", "2+2"), number)), *words)


def test_a_step_left_out_of_every_plan_is_found() -> None:
    for collective, name in (
        ("allreduce", "scatter_rail_gather"),
        ("allgather", "rail"),
        ("allgather", "two_level"),
        ("reduce_scatter", "rail"),
        ("reduce_scatter", "two_level"),
        ("reduce", "two_level"),
        ("broadcast", "two_level"),
    ):
        plan = plan_of(name, "3x2", 8, collective, chunks=2)
        for number in range(len(plan.steps)):
            problems = verify(without_step(plan, number))
            said = ("lacks the input", "is never written", "has no value for all of", "nothing has written")
            assert any(word in problem for word in said for problem in problems), (name, number, problems[:3])


def test_a_step_done_twice() -> None:
    plan = plan_of("reduce_ring_broadcast", "2+2")
    twice = replace(plan, steps=(*plan.steps, replace(plan.steps[1], after=(2,))))
    assert one_of(verify(twice), "rank 0 element 0", "has the input of rank 0 2 times")


def test_a_wrong_root() -> None:
    plan = plan_of("reduce_ring_broadcast", "2+2")
    assert one_of(verify(with_step(plan, 0, roots=(1, 0))), "rank 2 element 0", "lacks the input of rank 1")
    assert one_of(
        verify(with_step(plan, 2, roots=(0, 1))), "rank 2 element 0", "lacks the input of ranks 0-2"
    )
    moved = plan_of("two_level", "2+2", 4, "broadcast")
    problems = verify(with_step(moved, 1, roots=(0, 1)))
    assert one_of(problems, "rank 3 element 0 is never written")


def test_a_missing_wait_between_steps() -> None:
    plan = plan_of("reduce_ring_broadcast", "2+2")
    problems = verify(with_step(plan, 2, after=()))
    assert one_of(problems, "uses in step 2 what step 1 gives", "step 2 is not after step 1")
    # A wait through another step is as good.
    waits = with_step(plan_of("reduce_ring_broadcast", "2+2"), 2, after=(1, 0))
    assert verify(waits) == []


def test_steps_that_wait_in_a_circle() -> None:
    plan = plan_of("reduce_ring_broadcast", "2+2")
    assert verify(with_step(plan, 0, after=(2,))) == ["step 0 waits for step 2, which is not before it"]


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"groups": ((0, 1), (1, 2))}, "disjoint groups of the ranks 0 to 3"),
        ({"groups": ((0, 1), (2, 4))}, "disjoint groups of the ranks 0 to 3"),
        ({"regions": (((),),)}, "needs regions, and a root if any, for each of its 2 groups"),
        ({"regions": (((), ()), ((), ()))}, "has 2 regions for ranks 0, 1"),
        ({"roots": (0, 2)}, "has root 2 in a group of 2"),
        ({"roots": (0,)}, "needs regions, and a root if any"),
    ],
)
def test_a_step_of_the_wrong_form(changes: dict[str, Any], words: str) -> None:
    assert one_of(verify(with_step(plan_of("reduce_ring_broadcast", "2+2"), 0, **changes)), "step 0", words)


def test_operands_out_of_order() -> None:
    plan = plan_of("recursive_doubling", "2+2")
    assert plan.order is Order.RANKS
    # The groups' order is the order of operands.
    turned = with_step(plan, 0, groups=((2, 3, 0, 1),))
    assert one_of(verify(turned), "rank 0 element 0", "in the order of ranks 2, 3, 0, 1")
    assert verify(replace(turned, order=Order.ANY)) == []
