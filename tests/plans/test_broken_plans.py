"""What is wrong with a broken plan is found, and said in words that name it."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from hpccoll.plans.builder import Builder
from hpccoll.plans.catalogue import make_plan
from hpccoll.plans.collective import Collective
from hpccoll.plans.flat import one_step
from hpccoll.plans.lower import lower
from hpccoll.plans.pairs import Pairs
from hpccoll.plans.program import Combine
from hpccoll.plans.steps import Kind, Order, Plan
from hpccoll.plans.verify import verify
from hpccoll.topology.layout import Layout
from tests.plans.breaking import changed, first, one_of, plan_of, programs_of, with_step, without_step


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
        ("gather", "two_level"),
        ("scatter", "two_level"),
        ("alltoall", "two_level"),
        ("alltoall", "rail"),
        ("scan", "two_level"),
        ("exscan", "two_level"),
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


# --- blocks for each rank -----------------------------------------------------------------------


@pytest.mark.parametrize("collective", ["gather", "scatter"])
def test_a_gather_or_scatter_with_the_wrong_root(collective: str) -> None:
    plan = plan_of("two_level", "2+2", 3, collective)
    inner, outer = (0, 1) if collective == "gather" else (1, 0)
    elsewhere = verify(with_step(plan, outer, roots=(1,)))
    assert one_of(elsewhere, "rank 0 element 6 is never written") or one_of(elsewhere, "has no value for all")
    wrong_head = verify(with_step(plan, inner, roots=(0, 1)))
    assert one_of(wrong_head, "rank 2 has no value for all of") or one_of(
        wrong_head, "rank 2 element 6 is never written"
    )


@pytest.mark.parametrize(
    ("collective", "name", "number"),
    [("gather", "two_level", 1), ("scatter", "two_level", 1), ("alltoall", "two_level", 2),
     ("alltoall", "two_level", 3), ("alltoall", "rail", 1)],
)  # fmt: skip
def test_blocks_used_without_a_wait(collective: str, name: str, number: int) -> None:
    plan = plan_of(name, "2+2", 3, collective)
    earlier = plan.steps[number].after[-1]
    problems = verify(with_step(plan, number, after=()))
    assert one_of(problems, f"uses in step {number} what step {earlier} gives")


def all_pairs(collective: Collective, turn: int = 0) -> Pairs:
    ranks = [(rank,) for rank in range(collective.size)]
    return Pairs(collective, ranks, [*ranks[turn:], *ranks[:turn]])


@pytest.mark.parametrize("name", ["direct", "flat"])
def test_blocks_that_go_to_the_wrong_rank(name: str) -> None:
    plan = plan_of(name, "3", 2, "alltoall")
    assert verify(with_step(plan, 0, regions=(all_pairs(plan.collective),))) == []
    turned = verify(with_step(plan, 0, regions=(all_pairs(plan.collective, 1),)))
    # What is not for a rank does not come to its output.
    assert one_of(turned, "rank 1 element 2 is never written")


def test_blocks_in_another_order_than_that_of_their_places() -> None:
    plan = plan_of("flat", "2", 2, "alltoall")
    regions = list(all_pairs(plan.collective))
    regions[0], regions[2] = regions[2], regions[0]
    assert verify(with_step(plan, 0, regions=(regions,)))


def test_a_block_too_many() -> None:
    plan = plan_of("direct", "3", 2, "alltoall")
    regions = list(all_pairs(plan.collective))
    assert one_of(verify(with_step(plan, 0, regions=(regions[:-1],))), "step 0 has 8 regions for ranks 0-2")
    regions[1] = regions[2]
    assert one_of(verify(with_step(plan, 0, regions=(regions,))), "rank 1 element 2 is never written")


def test_unequal_blocks_of_a_call_that_takes_them_for_equal() -> None:
    """MPI's own call over several nodes, which no program tells the lengths of blocks."""
    rows = {0: (1, 2), 1: (3, 4)}
    plan = plan_of("flat", "1+1", 0, "alltoall")
    ragged = Collective("alltoall", 2, 0, gives=rows)
    problems = verify(replace(plan, collective=ragged, steps=one_step(ragged, plan.layout)))
    assert one_of(problems, "rank 1 gives 7 elements to the alltoall of step 0, which takes 3 from it")


# --- scans --------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", ["flat", "linear", "recursive_doubling"])
def test_a_scan_that_is_done_as_an_exscan(name: str) -> None:
    scan, exscan = plan_of(name, "3", 2, "scan"), plan_of(name, "3", 2, "exscan")
    missing = verify(with_step(scan, 0, kind=Kind.EXSCAN))
    assert one_of(missing, "rank 1 element 2", "lacks the input of rank 1")
    assert one_of(missing, "rank 0 element 2 is never written")
    too_much = verify(with_step(exscan, 0, kind=Kind.SCAN))
    assert one_of(too_much, "rank 1 element 2", "has element 0 of rank 1")


@pytest.mark.parametrize("collective", ["scan", "exscan"])
def test_members_of_a_scan_out_of_order(collective: str) -> None:
    for name in ("linear", "recursive_doubling"):
        plan = plan_of(name, "3", 2, collective)
        problems = verify(with_step(plan, 0, groups=((0, 2, 1),)))
        assert one_of(problems, "rank 1 element 2")
        assert one_of(problems, "rank 2 element 2")


def test_totals_of_the_wrong_rank_of_a_node() -> None:
    plan = plan_of("two_level", "2+2", 2, "scan")
    problems = verify(with_step(plan, 1, groups=((0, 3),)))
    assert one_of(problems, "rank 3 element 2", "lacks the input of rank 1")


@pytest.mark.parametrize("collective", ["scan", "exscan"])
def test_what_is_prepended_twice_or_behind(collective: str) -> None:
    plan = plan_of("two_level", "2+2", 2, collective)
    last = len(plan.steps) - 1
    step = plan.steps[last]
    twice = replace(plan, steps=(*plan.steps, replace(step, after=(*step.after, last))))
    assert one_of(verify(twice), "rank 3 element 2", "has the input of rank 0 2 times")
    turned = with_step(plan, last, regions=tuple((result, before) for before, result in step.regions))
    problems = verify(turned)
    assert one_of(problems, "rank 3 element 2", "lacks the input of ranks 0, 1") or one_of(
        problems, "rank 2 has no value for all of"
    )


@pytest.mark.parametrize("collective", ["scan", "exscan"])
def test_a_scan_that_does_not_wait(collective: str) -> None:
    plan = plan_of("two_level", "2+2", 2, collective)
    last = len(plan.steps) - 1
    for number, step in enumerate(plan.steps):
        if step.family == "LAST" or number == last:
            problems = verify(with_step(plan, number, after=()))
            assert one_of(problems, f"uses in step {number} what step"), number


# --- bits ---------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("name", "text", "between"),
    [
        ("ring", "cyclic:2+2", None),
        ("tree", "3+2", None),
        ("recursive_doubling", "3+1", None),
        ("recursive_doubling", "2+3", None),
        ("reduce_ring_broadcast", "2+1+1", "ring"),
        ("scatter_rail_gather", "3x2", "tree"),
    ],
)
def test_ranks_that_keep_what_others_get_rounded(
    name: str, text: str, between: str | None, monkeypatch: pytest.MonkeyPatch
) -> None:
    layout = Layout.parse(text)
    call = Collective("allreduce", layout.size, 8)
    plan = make_plan(name, call, layout, segment=3, between=between, wire="bfloat16")
    assert verify(plan) == []
    monkeypatch.setattr(Builder, "settle", lambda self, members, one: None)
    assert one_of(verify(plan), "was combined or rounded otherwise than on rank")


def test_ranks_that_combine_in_another_order() -> None:
    plan = plan_of("recursive_doubling", "2")
    programs = programs_of(plan)
    index, one = first(programs[1], Combine)
    programs[1] = changed(programs[1], index, left=one.right, right=one.left)
    in_any_order = replace(plan, order=Order.ANY)
    assert one_of(verify(in_any_order, programs), "rank 1 element 0 was combined or rounded otherwise")


def test_messages_that_are_not_rounded_alike() -> None:
    layout = Layout.parse("1+1")
    call = Collective("allreduce", 2, 4)
    plans = [make_plan("ring", call, layout, segment=4, wire=wire) for wire in ("bfloat16", "")]
    programs = [lower(plan, rank) for rank, plan in enumerate(plans)]
    assert one_of(verify(plans[0], programs), "sends wire[", "receives scratch[", "not the same dtype")


# --- order --------------------------------------------------------------------------------------


def promising(plan: Plan) -> list[str]:
    """What is found when a plan says that it folds."""
    return verify(replace(plan, order=Order.FOLD))


@pytest.mark.parametrize(
    ("collective", "name", "text"),
    [
        ("allreduce", "recursive_doubling", "4"),
        ("allreduce", "tree", "5"),
        ("allreduce", "reduce_ring_broadcast", "2+2"),
        ("allreduce", "scatter_rail_gather", "2+2"),
        ("reduce", "binomial", "4"),
        ("scan", "recursive_doubling", "4"),
        ("exscan", "recursive_doubling", "5"),
        ("scan", "two_level", "2+2"),
        ("exscan", "two_level", "2+3"),  # two ranks before the last one are on its own node
    ],
)
def test_a_plan_that_says_it_folds_and_does_not(collective: str, name: str, text: str) -> None:
    between = {"allreduce": "recursive_doubling", "scan": "linear_scan", "exscan": "linear_scan"}
    two_level = "+" in text
    plan = plan_of(name, text, 2, collective, between=between[collective] if two_level else None)
    assert verify(plan) == []
    problems = promising(plan)
    assert one_of(problems, "has operands that were combined before their turn"), problems
    assert not one_of(problems, "in the order of ranks"), problems


@pytest.mark.parametrize(
    ("collective", "name"),
    [("allreduce", "ring"), ("reduce_scatter", "ring"), ("reduce", "chain"), ("reduce", "binomial")],
)
def test_a_plan_that_says_it_keeps_rank_order_and_does_not(collective: str, name: str) -> None:
    layout = Layout.parse("5")
    plan = make_plan(name, Collective(collective, 5, 8, 2), layout, segment=4)
    assert verify(plan) == []
    assert one_of(verify(replace(plan, order=Order.RANKS)), "has its operands in the order of ranks")
