"""The engine in one process: what it waits for, what goes wrong, when it is used."""

from __future__ import annotations

import functools
import gc
import math
import random
import signal
import subprocess
import sys
import threading
import time
import weakref

import numpy as np
import pytest
from mpi4py import MPI

from hpccoll import _native
from hpccoll.errors import ResourceError
from hpccoll.ops.table import arithmetic, operator_of
from hpccoll.plans.program import Combine, Copy, Memory, Place, Program, Receive, Send
from hpccoll.plans.steps import Kind
from hpccoll.runtime import engine
from hpccoll.runtime.executor import Schedule
from hpccoll.transports.base import Array
from tests.support.launch import REPOSITORY, environment
from tests.support.staging import LIMIT_S, Run, Team, calls_program, drawn, drive, in_turn, together

pytestmark = pytest.mark.skipif(not _native.available(), reason=f"no extension: {_native.reason()}")

SUM = arithmetic(operator_of(MPI.SUM), np.dtype(np.float32))


# Programs without a group


def local(program: Program, *memory: Array, kernel: object = None) -> engine.NativeExecution:
    return engine.NativeExecution(Schedule(program), memory, None, None, kernel, 0, 1)


def chain(length: int) -> tuple[Program, Array]:
    """x -> x + x, over and over in scratch memory, then a copy to the output."""
    first, second = Place(Memory.SCRATCH, 0, 4), Place(Memory.SCRATCH, 4, 8)
    steps = [Copy(0, (), Place(Memory.INPUT, 0, 4), first)]
    for number in range(1, length):
        places = (first, second) if number % 2 else (second, first)
        steps.append(Combine(number, (number - 1,), places[0], places[0], places[1]))
    last = second if length % 2 == 0 else first
    steps.append(Copy(length, (length - 1,), last, Place(Memory.OUTPUT, 0, 4)))
    return Program(0, tuple(steps), 8), np.zeros(8, np.float32)


def test_operations_wait_for_those_before_them() -> None:
    program, scratch = chain(21)
    output = np.zeros(4, np.float32)
    kernel = engine.kernel(SUM.combine, SUM.working, SUM.kernel)
    execution = local(program, np.arange(4, dtype=np.float32), output, scratch, kernel=kernel)
    assert (execution.left, execution.complete, execution.step) == (22, False, 0)
    assert execution.advance()
    assert (execution.left, execution.complete) == (0, True)
    assert output.tolist() == [0, 2**20, 2 * 2**20, 3 * 2**20]
    assert execution.advance()
    assert execution.run(0)


def test_a_copy_in_place_is_none() -> None:
    memory = np.arange(4)
    program = Program(0, (Copy(0, (), Place(Memory.INPUT, 1, 3), Place(Memory.OUTPUT, 1, 3)),), 0)
    assert local(program, memory, memory, memory[:0]).advance()
    memory.flags.writeable = False
    assert local(program, memory, memory, memory[:0]).advance()
    with pytest.raises(ValueError, match="read-only"):
        local(program, memory[::-1].copy(), memory, memory[:0])
    assert memory.tolist() == [0, 1, 2, 3]


def test_an_empty_program_is_complete() -> None:
    nothing = np.empty(0, np.uint8)
    assert local(Program(0, (), 0), nothing, nothing, nothing).advance()


def test_the_tables_are_made_once() -> None:
    schedule = Schedule(chain(3)[0])
    assert engine.program_of(schedule) is engine.program_of(schedule)
    assert len(engine.program_of(schedule)) == 4


# Waiting


def half_of_an_allreduce(count: int = 8) -> tuple[engine.NativeExecution, Array]:
    """A call for which the other member never comes."""
    team = Team((True, True), 128)
    output = np.zeros(count, np.float32)
    place = (Place(Memory.INPUT, 0, count),), (Place(Memory.OUTPUT, 0, count),)
    program = calls_program(0, 2, [(Kind.ALLREDUCE, 0, *place, ())], step=5)
    given = np.ones(count, np.float32)
    return team.execution(0, program, (given, output, output[:0]), SUM.combine, "sum"), output


@pytest.mark.parametrize("seconds", [-1.0, 0.0, 1e-6, 0.05, 0.2])
@pytest.mark.parametrize("spin_s", [0.0, 1.0])
@pytest.mark.parametrize("yield_s", [0.0, 20e-3])
def test_a_run_in_vain_takes_its_time(seconds: float, spin_s: float, yield_s: float) -> None:
    execution, _ = half_of_an_allreduce()
    start = time.monotonic()
    assert not execution.run(seconds, spin_s=spin_s, yield_s=yield_s)
    assert max(seconds, 0) <= time.monotonic() - start < max(seconds, 0) + 2
    assert (execution.left, execution.step) == (1, 5)
    assert [one.kind for one in execution.waiting_for()] == [Kind.ALLREDUCE]


def test_a_time_that_is_no_number_is_refused() -> None:
    execution, _ = half_of_an_allreduce()
    for times in ({"seconds": math.nan}, {"seconds": 1, "spin_s": -1}, {"seconds": 1, "yield_s": math.nan}):
        with pytest.raises(ValueError, match="seconds must be a number"):
            execution.run(**times)


def test_other_threads_run_meanwhile() -> None:
    execution, _ = half_of_an_allreduce()
    turns = []
    end = time.monotonic() + 0.3

    def compute() -> None:
        while time.monotonic() < end:
            turns.append(sum(range(100)))

    thread = threading.Thread(target=compute)
    thread.start()
    assert not execution.run(0.3)
    thread.join()
    assert len(turns) > 200  # about 60 if it had to wait for 5 ms each time


def test_ctrl_c_interrupts_a_run() -> None:
    code = (
        "import signal\nfrom tests.unit import test_engine as t\n"
        # A shell that starts jobs in the background has them ignore it.
        "signal.signal(signal.SIGINT, signal.default_int_handler)\n"
        "e, _ = t.half_of_an_allreduce()\nprint('runs', flush=True)\n"
        "try:\n    e.run(t.math.inf)\nexcept KeyboardInterrupt:\n    print('interrupted')"
    )
    child = subprocess.Popen(
        [sys.executable, "-c", code], cwd=REPOSITORY, env=environment(), stdout=subprocess.PIPE, text=True
    )
    try:
        assert child.stdout is not None
        assert child.stdout.readline() == "runs\n"
        time.sleep(0.3)
        assert child.poll() is None
        child.send_signal(signal.SIGINT)
        out, _ = child.communicate(timeout=20)
    finally:
        child.kill()
    assert (child.returncode, out) == (0, "interrupted\n")


# Several at once


def test_run_all_returns_when_one_is_over() -> None:
    stuck, _ = half_of_an_allreduce()
    team = Team((True, True), 128)
    run = Run(team, [drawn(random.Random(5), Kind.ALLREDUCE, 2, 500)], random.Random(5), 1)
    under_way = [stuck, *run.executions]
    while len(under_way) > 1:
        assert engine.run_all(under_way, LIMIT_S)
        assert any(one.complete for one in under_way)
        under_way = [one for one in under_way if not one.complete]
    run.check()
    start = time.monotonic()
    assert not engine.run_all([stuck], 0.1)
    assert not engine.run_all([], 0.05, yield_s=0)
    assert 0.15 <= time.monotonic() - start < 2


def test_a_bell_ends_run_all() -> None:
    stuck, _ = half_of_an_allreduce()
    bell = engine.new_bell()
    threading.Timer(0.1, bell.ring).start()
    start = time.monotonic()
    assert not engine.run_all([stuck], LIMIT_S, bell)
    assert 0.05 <= time.monotonic() - start < 5
    start = time.monotonic()
    assert not engine.run_all([stuck], 0.1, bell)  # it rings once
    assert time.monotonic() - start >= 0.09
    with pytest.raises(TypeError, match=r"must be a .*Bell or None"):
        engine.run_all([], 0, stuck.native)


# What goes wrong


def failing(left: Array, right: Array, target: Array) -> None:
    raise ZeroDivisionError("as asked")


def test_what_the_operator_raises_ends_the_execution_and_is_raised_by_every_call() -> None:
    program, scratch = chain(3)
    kernel = engine.kernel(failing, np.dtype(np.float32))
    execution = local(program, np.ones(4, np.float32), np.zeros(4, np.float32), scratch, kernel=kernel)
    for call in (execution.advance, lambda: execution.run(1), execution.advance):
        with pytest.raises(ZeroDivisionError, match="as asked"):
            call()
    assert execution.left == 3
    assert engine.run_all([execution], LIMIT_S)  # it is over


def test_what_was_raised_does_not_keep_the_execution_alive() -> None:
    program, scratch = chain(3)
    given = np.ones(4, np.float32)
    kernel = engine.kernel(failing, np.dtype(np.float32))
    execution = local(program, given, np.zeros(4, np.float32), scratch, kernel=kernel)
    with pytest.raises(ZeroDivisionError):
        execution.advance()
    alive = weakref.ref(given)
    del execution, given
    gc.collect()
    assert alive() is None


def test_buffers_are_let_go_when_all_is_done() -> None:
    memory = np.arange(4)
    program = Program(0, (Copy(0, (), Place(Memory.INPUT, 0, 2), Place(Memory.OUTPUT, 2, 4)),), 0)
    execution = local(program, memory, memory, memory[:0])
    alive = weakref.ref(memory)
    del memory
    gc.collect()
    assert alive() is not None
    assert execution.advance()
    gc.collect()
    assert alive() is None
    assert execution.advance()


def test_buffers_live_as_long_as_the_execution() -> None:
    execution, output = half_of_an_allreduce()
    alive = weakref.ref(output)
    del output
    gc.collect()
    assert alive() is not None
    del execution
    gc.collect()
    assert alive() is None


def test_python_operators_see_the_elements() -> None:
    seen = []

    def add(left: Array, right: Array, target: Array) -> None:
        seen.append((left.tolist(), right.tolist(), left.flags.writeable, target.flags.writeable))
        np.add(left, right, out=target)

    team = Team((True, True), 128)
    place = (Place(Memory.INPUT, 0, 4),), (Place(Memory.OUTPUT, 0, 4),)
    program = [calls_program(me, 2, [(Kind.ALLREDUCE, 0, *place, ())]) for me in range(2)]
    outputs = [np.zeros(4), np.zeros(4)]
    executions = [
        team.execution(me, program[me], (np.arange(4) + 10.0 * me, outputs[me], np.empty(0)), add)
        for me in range(2)
    ]
    together([functools.partial(drive, one) for one in executions])
    assert outputs[0].tolist() == outputs[1].tolist() == [10, 12, 14, 16]
    assert seen == [([0, 1, 2, 3], [10, 11, 12, 13], False, True)] * 2  # of two members each combines all


def test_memory_that_does_not_fit_is_refused() -> None:
    program, scratch = chain(3)
    kernel = engine.kernel(SUM.combine, SUM.working, SUM.kernel)
    fits = [np.ones(4, np.float32), np.zeros(4, np.float32), scratch]
    for number in range(3):
        short = list(fits)
        short[number] = short[number][:-1]
        with pytest.raises(ValueError, match="shorter than the program asks for"):
            local(program, *short, kernel=kernel)
    fits[0].flags.writeable = False
    local(program, *fits, kernel=kernel)
    fits[1].flags.writeable = False
    with pytest.raises(ValueError, match="read-only"):
        local(program, *fits, kernel=kernel)


def test_what_a_program_needs_must_be_there() -> None:
    memory = [np.ones(8, np.float32) for _ in range(3)]
    kernel = engine.kernel(SUM.combine, SUM.working, SUM.kernel)
    place = Place(Memory.INPUT, 0, 4)
    target = Place(Memory.OUTPUT, 0, 4)
    message = Program(0, (Send(0, (), 1, place, -1),), 0)
    combining = chain(3)[0]
    grouped = calls_program(0, 2, [(Kind.BROADCAST, 0, (place,), (), ())])
    for program, problem in ((message, "a network"), (combining, "a kernel"), (grouped, "a group")):
        with pytest.raises(ValueError, match=f"it needs {problem}"):
            local(program, *memory)
    with pytest.raises(ValueError, match="it needs a kernel"):
        local(combining, *(one.astype(np.float64) for one in memory), kernel=kernel)
    group = Team((True, True), 128).ends[0]
    for kind, root, source, targets, counts, problem in (
        (Kind.ALLGATHER, 0, (place,), (target,), (4, 4, 4), "not as many counts"),
        (Kind.ALLTOALL, 0, (place,), (target,), (2, 2), "not as many counts"),
        (Kind.BROADCAST, 2, (), (target,), (), "a root that is no member"),
        (Kind.EXSCAN, 0, (place,), (target,), (), "no results"),
    ):
        calls = calls_program(0, 2, [(kind, root, source, targets, counts)])
        with pytest.raises(ValueError, match=problem):
            engine.NativeExecution(Schedule(calls), memory, None, group, kernel, 0, 1)
    large = [np.zeros(8, "V128") for _ in range(3)]
    calls = calls_program(0, 2, [(Kind.ALLTOALL, 0, (place,), (target,), (1, 1, 1, 1))])
    with pytest.raises(ValueError, match="has not room for one element"):
        engine.NativeExecution(Schedule(calls), large, None, group, None, 0, 1)
    with pytest.raises(TypeError, match=r"network must be a .*Network or None"):
        engine.NativeExecution(Schedule(calls), memory, kernel, group, kernel, 0, 1)


def test_a_refused_execution_takes_no_turn_of_the_group() -> None:
    team = Team((True, True), 128)
    memory = [np.ones(8, np.float32) for _ in range(3)]
    bad = calls_program(0, 2, [(Kind.BROADCAST, 0, (Place(Memory.INPUT, 0, 9),), (), ())])
    with pytest.raises(ValueError, match="shorter"):
        team.execution(0, bad, memory, SUM.combine, "sum")
    run = Run(team, [drawn(random.Random(2), Kind.ALLREDUCE, 2, 50)], random.Random(2), 1)
    in_turn(random.Random(2), run.executions)
    run.check()


def test_tables_with_a_wrong_index_are_refused() -> None:
    good = {
        "operations": [[3, 0, 0, 0, 1, 1, 0, 0, -1]],
        "places": [[0, 0, 4], [1, 0, 4]],
        "counts": [],
        "following_starts": [0, 0],
        "following": [],
    }
    wrong = [
        ("operations", [[99, 0, 0, 0, 1, 1, 0, 0, -1]], "unknown code"),
        ("operations", [[3, 0, 0, 1, 1, 1, 0, 0, -1]], "not in the tables"),
        ("operations", [[3, 0, 0, 0, 2**62, 2**62, 0, 0, -1]], "not in the tables"),
        ("operations", [[3, 0, 0, 0, 1, 1, 0, 1, -1]], "not in the tables"),
        ("operations", [[3, 0, 0, 0, 2, 0, 0, 0, -1]], "not the places"),
        ("operations", [[0, 0, -1, 0, 1, 0, 0, 0, -1]], "not the places"),
        ("operations", [[3, 0, 0, 0, 1, 1, 0, 0, 1]], "not there"),
        ("operations", [[3, 0, 0]], "rows of 9"),
        ("places", [[0, 0, 4], [1, 0, 5]], "not the places"),
        ("places", [[0, 0, 4], [4, 0, 4]], "not a range"),
        ("places", [[3, 0, 4], [3, 4, 8]], "not the places"),
        ("places", [[0, 0, 4], [1, 4, 0]], "not a range"),
        ("places", [[0, -4, 0], [1, 0, 4]], "not a range"),
        ("following_starts", [0], "not a start for each"),
        ("following_starts", [0, 1], "not a start for each"),
    ]
    from hpccoll._native import _core

    def made(tables: dict[str, list[object]]) -> object:
        return _core.Program(**{name: np.array(rows, np.int64) for name, rows in tables.items()})

    assert len(made(good)) == 1
    for name, rows, problem in wrong:
        with pytest.raises(ValueError, match=problem):
            made(good | {name: rows})
    with pytest.raises(ValueError, match="not there"):
        made(good | {"following_starts": [0, 1], "following": [1]})


def test_segments_of_the_wrong_shape_are_refused() -> None:
    from hpccoll._native import _core

    counters, data = np.zeros(4096, np.uint8), np.zeros(512, np.uint8)
    group = _core.Group(1, 2, counters, data, 128)
    for arguments in ((2, 2, counters, data, 128), (0, 0, counters, data, 128), (0, 2, counters, data, 129)):
        with pytest.raises(ValueError, match=r"no member|two slots"):
            _core.Group(*arguments)
    with pytest.raises(ValueError, match="five aligned cache lines"):
        _core.Group(0, 2, counters[:639], data, 128)
    with pytest.raises(ValueError, match="five aligned cache lines"):
        _core.Group(0, 2, counters[1:1000], data, 128)
    parts = [np.zeros(64, np.uint8), np.zeros(0, np.uint8)]
    group.add_area(3, parts)
    for number, given in ((3, parts), (-1, parts), (4, parts[:1]), (4, [*parts, parts[0]])):
        with pytest.raises(ValueError, match=r"of an area|a part for each"):
            group.add_area(number, given)
    with pytest.raises(TypeError):
        group.add_area(4, [parts[0], "text"])
    group.drop_area(3)
    with pytest.raises(ValueError, match="no area of this number"):
        group.drop_area(3)


# When it is used


def test_it_says_why_it_is_not_used(monkeypatch: pytest.MonkeyPatch) -> None:
    assert engine.reason() == ""
    monkeypatch.setenv("HPCCOLL_NATIVE", "0")
    assert "turned off by HPCCOLL_NATIVE=0" in engine.reason()
    with pytest.raises(ResourceError, match="turned off"):
        engine.new_bell()


def test_calls_that_are_left_to_mpi_are_not_for_the_engine() -> None:
    place = (Place(Memory.INPUT, 0, 4),)
    node = calls_program(0, 2, [(Kind.BROADCAST, 0, place, (), ())])
    world = Program(0, tuple(type(one)(**{**vars(one), "family": "WORLD"}) for one in node.operations), 0)
    message = Program(0, (Receive(0, (), 1, place[0], -1),), 0)
    assert engine.usable(Schedule(node), one_node=False)
    assert engine.usable(Schedule(world), one_node=True)
    assert not engine.usable(Schedule(world), one_node=False)
    assert engine.usable(Schedule(message), one_node=False)


def test_a_thread_says_how_long_it_sleeps() -> None:
    for wrong in (-1e-6, 1.0, float("nan")):
        with pytest.raises(ValueError, match="from 0 to below 1"):
            engine.core().sleep_in_turns(wrong)
    with pytest.raises(TypeError):
        engine.core().sleep_in_turns("a moment")
    other = threading.Thread(target=engine.sleep_in_turns, args=(1e-3,))
    other.start()
    other.join()
