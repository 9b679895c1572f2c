"""Group calls that do not fit together, and operands out of their order, are found in a program."""

from __future__ import annotations

from dataclasses import replace

import pytest

from hpccoll.plans.program import Combine, Memory, Place, Program, Receive
from hpccoll.plans.steps import Kind
from hpccoll.plans.verify import verify
from tests.plans.breaking import changed, first, one_of, plan_of, problems_of, programs_of


@pytest.mark.parametrize(
    ("name", "text", "collective", "changes"),
    [
        ("flat", "3", "broadcast", {"root": 1}),
        ("flat", "3", "gather", {"root": 1}),
        ("flat", "3", "scatter", {"counts": (8, 8, 9)}),
        ("flat", "3", "alltoall", {"counts": (8,) * 8 + (9,)}),
        ("flat", "3", "scan", {"kind": Kind.EXSCAN}),
        ("two_level", "3+1", "alltoall", {"counts": (24, 8, 8)}),
    ],
)
def test_members_that_do_not_make_the_same_call(
    name: str, text: str, collective: str, changes: dict[str, object]
) -> None:
    plan = plan_of(name, text, 8, collective)
    problems = problems_of(plan, 2, lambda program: changed(program, 0, **changes))
    assert one_of(problems, "ranks 0-2 do not make the same call in step 0")


@pytest.mark.parametrize(
    ("collective", "counts", "words"),
    [
        ("gather", (8, 8, 9), "rank 2 gives 8 elements to the gather of step 0, which takes 9 from it"),
        ("scatter", (8, 8, 9), "rank 0 gives 24 elements to the scatter of step 0, which takes 25 from it"),
        ("reduce_scatter", (8, 7, 8), "rank 1 gives 24 elements to the reduce_scatter of step 0"),
        ("alltoall", (8,) * 8 + (9,), "rank 2 gives 24 elements to the alltoall of step 0, which takes 25"),
    ],
)
def test_counts_that_are_not_those_of_the_blocks(
    collective: str, counts: tuple[int, ...], words: str
) -> None:
    plan = plan_of("flat", "3", 8, collective)
    programs = [changed(program, 0, counts=counts) for program in programs_of(plan)]
    assert one_of(verify(plan, programs), words)


def test_blocks_of_an_alltoall_that_are_cut_elsewhere() -> None:
    plan = plan_of("flat", "2", 4, "alltoall")
    programs = [changed(program, 0, counts=(3, 5, 4, 4)) for program in programs_of(plan)]
    problems = verify(plan, programs)
    assert one_of(problems, "rank 0 has room for 8 of 7 elements")
    assert one_of(problems, "rank 1 element 4", "has element 3 of rank 0")


def test_the_first_member_of_an_exscan_gets_nothing() -> None:
    plan = plan_of("flat", "3", 8, "exscan")

    def greedy(program: Program) -> Program:
        return replace(changed(program, 0, target=(Place(Memory.SCRATCH, 0, 8),)), scratch=8)

    assert one_of(problems_of(plan, 0, greedy), "rank 0 has room for 8 of 0 elements")


# --- order --------------------------------------------------------------------------------------


def with_swapped(program: Program) -> Program:
    index, combine = first(program, Combine)
    return changed(program, index, left=combine.right, right=combine.left)


@pytest.mark.parametrize("collective", ["scan", "exscan"])
@pytest.mark.parametrize("name", ["linear", "recursive_doubling"])
def test_swapped_operands_of_a_scan(collective: str, name: str) -> None:
    plan = plan_of(name, "4", 2, collective)
    rank = next(
        rank
        for rank, program in enumerate(programs_of(plan))
        if any(isinstance(one, Combine) for one in program.operations)
    )
    assert one_of(problems_of(plan, rank, with_swapped), "has its operands in the order of ranks 1, 0")


def test_swapped_operands_of_a_fold() -> None:
    plan = plan_of("fold", "4", 4)
    problems = problems_of(plan, 2, with_swapped)
    assert one_of(problems, "rank 0 element 2 has its operands in the order of ranks 1, 0, 2, 3")


def test_a_fold_that_takes_its_turn_too_early() -> None:
    """Operands in rank order, but x0 (x1 x2) instead of (x0 x1) x2."""
    plan = plan_of("fold", "3", 3, "reduce")

    def early(program: Program) -> Program:
        operations = list(program.operations)
        at, one = first(program, Combine)
        then, other = first(program, Combine, after=at)
        received = [index for index, it in enumerate(operations) if isinstance(it, Receive)]
        place = Place(Memory.SCRATCH, program.scratch, program.scratch + 1)
        operations[at] = replace(
            one, after=tuple(received[:2]), left=one.right, right=other.right, target=place
        )
        operations[then] = replace(other, left=one.left, right=place)
        return replace(program, operations=tuple(operations), scratch=program.scratch + 1)

    problems = problems_of(plan, 0, early)
    assert one_of(problems, "rank 0 element 0 has operands that were combined before their turn")
    assert not one_of(problems, "in the order of ranks")
