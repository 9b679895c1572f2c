"""What is wrong with one rank's program is found, and said in words that name it."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

import pytest

from hpccoll.plans.catalogue import make_plan
from hpccoll.plans.collective import Collective
from hpccoll.plans.hazards import IN_PLACE, hazards, in_place, touches
from hpccoll.plans.lower import lower
from hpccoll.plans.program import Combine, Copy, GroupCall, Memory, Place, Program, Receive, Send
from hpccoll.plans.steps import Kind
from hpccoll.plans.verify import verify
from hpccoll.topology.layout import Layout
from tests.plans.breaking import changed, first, one_of, plan_of, problems_of, programs_of


def test_an_unmatched_send() -> None:
    plan = plan_of("ring", "2+2")

    def twice(program: Program) -> Program:
        index, send = first(program, Send)
        # The copy is the last operation of its channel, where it cannot be matched with another's receive.
        last = max(at for at, one in enumerate(program.operations) if isinstance(one, Send))
        again = replace(send, after=(index,), previous=last)
        return replace(program, operations=(*program.operations, again))

    problems = problems_of(plan, 0, twice)
    assert one_of(problems, "rank 0 never completes", "send", "to rank 1", "it waits for rank 1")


def test_an_unmatched_receive() -> None:
    plan = plan_of("chain", "2", 8, "reduce")

    def unsent(program: Program) -> Program:
        return replace(program, operations=program.operations[:-1])

    problems = problems_of(plan, 1, unsent)
    assert one_of(problems, "rank 0 never completes", "receive", "from rank 1", "it waits for rank 1")


def test_a_group_call_that_one_member_does_not_make() -> None:
    plan = plan_of("flat", "4")
    problems = problems_of(plan, 2, lambda program: replace(program, operations=()))
    assert one_of(problems, "rank 0 never completes", "allreduce of WORLD, ranks 0-3", "it waits for rank 2")


def test_ranks_that_wait_for_each_other() -> None:
    plan = plan_of("recursive_doubling", "2")

    def receive_first(program: Program) -> Program:
        send, _ = first(program, Send)
        receive, _ = first(program, Receive)
        operations = list(program.operations)
        operations[send] = replace(operations[receive], after=(), previous=-1)
        operations[receive] = replace(program.operations[send], after=(send,), previous=-1)
        return replace(program, operations=tuple(operations))

    plan = replace(plan, segment=8)
    programs = [receive_first(program) for program in programs_of(plan)]
    assert one_of(verify(plan, programs), "ranks 0 -> 1 -> 0 wait for each other")


def test_programs_that_count_on_buffered_messages() -> None:
    plan = replace(plan_of("recursive_doubling", "2"), segment=8)

    def send_first(program: Program) -> Program:
        send, _ = first(program, Send)
        receive, operation = first(program, Receive)
        return changed(program, receive, after=(*operation.after, send))

    programs = [send_first(program) for program in programs_of(plan)]
    assert one_of(verify(plan, programs), "ranks 0 -> 1 -> 0 wait for each other")


def test_operations_that_wait_in_a_circle() -> None:
    plan = plan_of("flat", "4")

    def circular(program: Program) -> Program:
        return changed(program, 0, after=(0,))

    problems = problems_of(plan, 1, circular)
    assert one_of(problems, "rank 1 operation 0 waits for operation 0, which is not before it")
    assert one_of(problems, "rank 1 has operations that wait for each other: 0")


def test_a_combination_done_twice() -> None:
    plan = plan_of("ring", "2+2")

    def twice(program: Program) -> Program:
        index, combine = first(program, Combine)
        again = replace(combine, left=combine.left, right=combine.target, after=(index,))
        # Behind all others, so that it is the result that is wrong, and not an earlier message.
        waits = tuple(range(len(program.operations)))
        return replace(program, operations=(*program.operations, replace(again, after=waits)))

    problems = problems_of(plan, 1, twice)
    assert one_of(problems, "rank 1 element", "has the input of rank 0 2 times")


def test_swapped_operands() -> None:
    plan = plan_of("recursive_doubling", "2+2")

    def swapped(program: Program) -> Program:
        index, combine = first(program, Combine)
        return changed(program, index, left=combine.right, right=combine.left)

    problems = problems_of(plan, 0, swapped)
    assert one_of(problems, "rank 0 element 0", "in the order of ranks 1, 0, 2, 3")


@pytest.mark.parametrize(
    ("name", "collective"),
    [("ring", "allreduce"), ("chain", "broadcast"), ("ring", "allgather"), ("fold", "allreduce"),
     ("direct", "gather"), ("binomial", "scatter"), ("direct", "alltoall"), ("two_level", "alltoall"),
     ("linear", "scan"), ("recursive_doubling", "exscan")],
)  # fmt: skip
def test_a_send_of_the_wrong_span(name: str, collective: str) -> None:
    plan = plan_of(name, "2+2", 8, collective)

    def wrong(program: Program) -> Program:
        index, send = first(program, Send)
        start = send.source.start + (1 if send.source.start == 0 else -1)
        length = send.source.stop - send.source.start
        return changed(program, index, source=Place(send.source.memory, start, start + length))

    programs = programs_of(plan)
    rank = next(
        rank for rank, one in enumerate(programs) if any(isinstance(op, Send) for op in one.operations)
    )
    programs[rank] = wrong(programs[rank])
    problems = verify(plan, programs)
    assert one_of(problems, "has element", "of rank") or one_of(problems, "nothing has written"), problems


def test_a_send_of_the_wrong_length() -> None:
    plan = plan_of("ring", "2+2")

    def short(program: Program) -> Program:
        index, send = first(program, Send)
        return changed(program, index, source=send.source._replace(stop=send.source.stop - 1))

    assert one_of(problems_of(plan, 0, short), "rank 1 expects 2 elements in step 0, rank 0 sends 1")


def waits(program: Program) -> Iterator[tuple[int, int]]:
    return ((index, one) for index, operation in enumerate(program.operations) for one in operation.after)


def removed(program: Program, index: int, earlier: int) -> Program:
    after = tuple(one for one in program.operations[index].after if one != earlier)
    return changed(program, index, after=after)


@pytest.mark.parametrize(
    ("name", "text", "collective"),
    [
        ("ring", "2+2", "allreduce"),
        ("recursive_doubling", "3", "allreduce"),
        ("tree", "5", "allreduce"),
        ("reduce_ring_broadcast", "2+2", "allreduce"),
        ("scatter_rail_gather", "2+2", "allreduce"),
        ("two_level", "3+1", "reduce"),
        ("binomial", "4", "broadcast"),
        ("two_level", "2+2", "allgather"),
        ("rail", "2+2", "reduce_scatter"),
        ("fold", "2+1", "allreduce"),
        ("fold", "3", "reduce"),
        ("two_level", "2+2", "gather"),
        ("binomial", "4", "gather"),
        ("two_level", "2+2", "scatter"),
        ("binomial", "4", "scatter"),
        ("two_level", "2+2", "alltoall"),
        ("two_level", "cyclic:2+1", "alltoall"),
        ("rail", "cyclic:2+2", "alltoall"),
        ("recursive_doubling", "4", "scan"),
        ("linear", "3", "scan"),
        ("two_level", "2+2", "scan"),
        ("recursive_doubling", "4", "exscan"),
        ("linear", "3", "exscan"),
        ("two_level", "2+2", "exscan"),
    ],
)
def test_every_wait_is_needed_or_follows_from_others(name: str, text: str, collective: str) -> None:
    """Without one of its waits a program has a race, unless other waits imply it; both happen."""
    plan = plan_of(name, text, 8, collective)
    found = 0
    for rank, program in enumerate(programs_of(plan)):
        aliased = in_place(program, plan.collective) if collective in IN_PLACE else program
        for index, earlier in waits(program):
            if not list(touches(aliased.operations[index])):
                continue  # a copy onto itself, which waits as if it were none
            broken = [*hazards(removed(program, index, earlier)), *hazards(removed(aliased, index, earlier))]
            if implied(removed(program, index, earlier), index, earlier):
                assert broken == []
            else:
                assert one_of(broken, f"rank {rank} operations", "race for", "nothing orders them"), (
                    index,
                    earlier,
                )
                found += 1
    assert found > 0


def implied(program: Program, index: int, earlier: int) -> bool:
    """Whether operation `index` still comes after `earlier`, through others."""
    todo, seen = list(program.operations[index].after), set()
    while todo:
        one = todo.pop()
        if one not in seen:
            seen.add(one)
            todo += program.operations[one].after
    return earlier in seen


def test_messages_that_may_start_in_the_wrong_order() -> None:
    plan = plan_of("chain", "2", 8, "broadcast")
    index = 1

    def free(program: Program) -> Program:
        assert isinstance(program.operations[index], Send)
        return changed(program, index, previous=-1)

    assert one_of(problems_of(plan, 0, free), "rank 0 operation 1", "may start before operation 0")


def test_a_program_that_writes_the_callers_input() -> None:
    plan = plan_of("chain", "2", 4, "reduce")

    def spoil(program: Program) -> Program:
        copied = Copy(0, (0,), Place(Memory.INPUT, 0, 1), Place(Memory.INPUT, 1, 2))
        return replace(program, operations=(*program.operations, copied))

    assert one_of(problems_of(plan, 1, spoil), "rank 1 operation 1 writes the caller's input")


# --- in place -----------------------------------------------------------------------------------


def test_a_plan_that_is_right_only_out_of_place() -> None:
    """The result is written before the input is read for the last time; with one memory that is too early."""
    layout = Layout.parse("2")
    collective = Collective("allreduce", 2, 2)
    plan = replace(plan_of("recursive_doubling", "2", 2), collective=collective, layout=layout)
    whole, result, landing = (
        Place(Memory.INPUT, 0, 2),
        Place(Memory.OUTPUT, 0, 2),
        Place(Memory.SCRATCH, 0, 2),
    )

    def program(rank: int) -> Program:
        peer, order = 1 - rank, (landing, whole) if rank else (whole, landing)
        operations = (
            Receive(0, (), peer, landing, -1),
            Combine(0, (0,), *order, result),
            Send(0, (), peer, whole, -1),  # reads the input without the combination waiting for it
        )
        return Program(rank, operations, 2)

    problems = verify(plan, [program(0), program(1)])
    assert problems
    assert all(problem.startswith("in place: ") for problem in problems)
    assert one_of(problems, "race for output[0:2]")


def test_a_group_call_that_shifts_elements_in_place() -> None:
    shifted = Program(
        0,
        (
            GroupCall(
                0, (), Kind.ALLREDUCE, "WORLD", (0, 1), 0, 0,
                (Place(Memory.INPUT, 0, 3),), (Place(Memory.OUTPUT, 1, 4),), (), -1,
            ),
        ),
        0,
    )  # fmt: skip
    collective = Collective("allreduce", 2, 4)
    assert list(hazards(shifted)) == []
    assert one_of(
        list(hazards(in_place(shifted, collective))), "operation 0", "writes what it has yet to read"
    )


def test_in_place_moves_the_input_to_its_own_place_in_the_output() -> None:
    collective = Collective("allgather", 3, 4)
    plan = make_plan("ring", collective, Layout.parse("3"), segment=4)
    program = in_place(lower(plan, 1), collective)
    assert first(program, Send)[1].source == Place(Memory.OUTPUT, 4, 8)
    # Of a reduce, ranks that are not the root have no output, and their input stays theirs.
    reduce = Collective("reduce", 3, 4)
    untouched = lower(make_plan("chain", reduce, Layout.parse("3"), segment=4), 2)
    assert in_place(untouched, reduce) == untouched
