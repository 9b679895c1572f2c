"""The engine's calls on a group, in one process: against NumPy, and with members on the Python transport."""

from __future__ import annotations

import functools
import os
import random
import sys
from pathlib import Path

import numpy as np
import pytest

from hpccoll import _native
from hpccoll.plans.program import Memory, Place
from hpccoll.plans.steps import Kind
from hpccoll.runtime import engine
from tests.support.staging import (
    KINDS,
    SUM,
    Call,
    Run,
    Shared,
    Team,
    calls_program,
    drawn,
    drive,
    in_turn,
    together,
)

pytestmark = pytest.mark.skipif(not _native.available(), reason=f"no extension: {_native.reason()}")

TEAMS = [
    pytest.param((True,), id="alone"),
    pytest.param((True, True), id="two"),
    pytest.param((True, True, True, True, True), id="five"),
    pytest.param((True, False), id="engine and Python"),
    pytest.param((False, True, False), id="Python, engine, Python"),
    pytest.param((False, False, False), id="Python"),
]
each_team = pytest.mark.parametrize("native", TEAMS)


@each_team
@pytest.mark.parametrize("kind", KINDS, ids=lambda kind: kind.value)
def test_each_kind_of_call(native: tuple[bool, ...], kind: Kind) -> None:
    chance = random.Random(repr((native, kind.value)))
    for slot_bytes, longest, pieces in ((64 * len(native), 70, 4), (4096, 200, 1), (4096, 3000, 3)):
        team = Team(native, slot_bytes)
        for turn in range(4):
            if turn == 2:
                team.pass_caches()
            run = Run(team, [drawn(chance, kind, len(native), longest)], chance, pieces)
            in_turn(chance, run.executions)
            run.check()


@pytest.mark.parametrize("native", [(True, True), (True, False, True)])
@pytest.mark.parametrize("kind", KINDS, ids=lambda kind: kind.value)
def test_calls_that_are_longer_than_what_is_combined_at_a_time(native: tuple[bool, ...], kind: Kind) -> None:
    chance = random.Random(repr((native, kind.value)))
    team = Team(native, 1 << 19)
    for _ in range(4):
        run = Run(team, [drawn(chance, kind, len(native), 150_000)], chance, 1)
        in_turn(chance, run.executions)
        run.check()


def from_process_to_process(members: int, least: int = 100, has_cores: bool = True) -> Team:
    """A team whose members copy from process to process what is at least so many bytes."""
    team = Team((True,) * members, 4096)
    for end in team.ends:
        assert isinstance(end, engine.NodeGroup)
        end.native.use_processes([os.getpid()] * members, least, has_cores)
    return team


@pytest.mark.parametrize("members", [1, 2, 3, 5])
@pytest.mark.parametrize("kind", KINDS, ids=lambda kind: kind.value)
def test_calls_between_processes(kind: Kind, members: int) -> None:
    chance = random.Random(repr((kind.value, members)))
    for least, pieces in ((0, 1), (100, 1), (100, 3), (10_000, 1), (0, 2)):
        team = from_process_to_process(members, least, has_cores=pieces < 3)
        for _ in range(3):
            calls = [drawn(chance, kind, members, 5000), drawn(chance, chance.choice(KINDS), members, 900)]
            run = Run(team, calls, chance, pieces)
            in_turn(chance, run.executions)
            run.check()


@pytest.mark.parametrize("native", [(True, True), (False, True, False), (False, False)])
@pytest.mark.parametrize("kind", [Kind.ALLREDUCE, Kind.ALLTOALL, Kind.BROADCAST])
def test_short_blocks_go_round_the_slots(native: tuple[bool, ...], kind: Kind) -> None:
    """It takes long to write what another core has just read: a half's next block is behind the last."""
    chance = random.Random(repr((native, kind.value)))
    members, length = len(native), 96
    team = Team(native, 4096)
    given = length * (members if kind is Kind.ALLTOALL else 1)
    counts = [length] * members**2 if kind is Kind.ALLTOALL else []
    gives = [
        np.full(given * (me == 0 or kind is not Kind.BROADCAST), 1 + me, np.float32) for me in range(members)
    ]
    takes = [given - gives[me].size if kind is Kind.BROADCAST else given for me in range(members)]
    piece, room = 4 * given, 4096 * (members if kind is Kind.BROADCAST else 1)
    for _ in range(2 * (room // piece)):
        run = Run(team, [Call(kind, 0, counts, gives, takes)], chance, 1)
        in_turn(chance, run.executions)
        run.check()
    halves = team.data.reshape(2, -1, room)
    assert halves[:, 0, : room // piece * piece].reshape(2, -1, piece).any(axis=2).all()
    assert not halves[:, 0, room // piece * piece :].any()


def test_results_go_past_the_caches_where_these_do_not_have_their_lines() -> None:
    """Between a call and the last one that wrote there, more was moved than a member's part of the caches."""
    length = 1000
    team = Team((True, True), 4096)
    group = team.ends[0].native
    group.cache_bytes, group.least_cold = 2 * 3 * 8 * length, 4 * length  # three calls fit a member's half
    arrays = [np.zeros(length, np.float32) for _ in range(5)]

    def past(target: int, source: int = -1, count: int = length) -> bool:
        before = group.past
        given = np.ones(length, np.float32) if source < 0 else arrays[source]
        parts = [Place(memory, 0, count) for memory in (Memory.INPUT, Memory.OUTPUT)]
        own = (Kind.ALLREDUCE, 0, parts[:1], parts[1:], ())
        pairs = [(given, arrays[target]), (np.ones(length, np.float32), np.zeros(length, np.float32))]
        executions = [
            team.execution(me, calls_program(me, 2, [own]), (*pair, given[:0]), SUM.combine, "sum")
            for me, pair in enumerate(pairs)
        ]
        in_turn(random.Random(target), executions)
        assert (arrays[target][:count] == 2).all()
        arrays[target][...] = 1
        return bool(group.past > before)

    assert past(0)  # never seen
    assert not past(0)
    assert past(1)
    assert past(2)
    assert not past(0)  # three calls ago
    assert past(3)
    assert past(4)
    assert not past(3)
    assert past(0)  # four calls ago
    assert not past(1, count=length - 1)  # short
    assert not past(2, source=2)  # the caches have what is combined, and its results lie there


def test_a_broadcast_is_taken_while_the_root_copies_in() -> None:
    """What the root says is in the slot already, in the word behind the one that says that all is."""
    length, here = 10_000, 3000
    team = Team((True, True), 1 << 15)
    given, outputs = np.arange(1, length + 1, dtype=np.float32), np.zeros(length, np.float32)
    whole = Place(Memory.INPUT, 0, length), Place(Memory.OUTPUT, 0, length)
    programs = [
        calls_program(0, 2, [(Kind.BROADCAST, 0, whole[:1], (), ())]),
        calls_program(1, 2, [(Kind.BROADCAST, 0, (), whole[1:], ())]),
    ]
    root, other = (
        team.execution(me, program, (given, outputs, given[:0]), SUM.combine, "sum")
        for me, program in enumerate(programs)
    )
    team.data.reshape(-1)[: 4 * here] = given[:here].view(np.uint8)
    team.head.view(np.uint64)[1] = 4 * here + 2  # of block 0, with half of an element
    assert not other.advance()
    assert (outputs[:here] == given[:here]).all()
    assert not outputs[here:].any()
    assert root.advance()
    assert other.advance()
    assert (outputs == given).all()


@pytest.mark.parametrize("members", [2, 3])
def test_a_scatter_is_read_where_the_root_has_it(members: int) -> None:
    """From its process, not through the slots; the root's memory is its own again when all have read."""
    team = from_process_to_process(members)
    given = np.arange(1000 * members, dtype=np.float32)
    outputs = [np.zeros(1000, np.float32) for _ in range(members)]
    executions = []
    for me in range(members):
        places = (Place(Memory.INPUT, 0, given.size),) if me == 0 else ()
        own = (Place(Memory.OUTPUT, 0, 1000),)
        program = calls_program(me, members, [(Kind.SCATTER, 0, places, own, [1000] * members)])
        executions.append(team.execution(me, program, (given, outputs[me], given[:0]), SUM.combine, "sum"))
    team.data[...] = 0xA5
    assert not executions[0].advance()
    for execution in executions[1:]:
        assert not executions[0].complete
        assert execution.advance()
    assert executions[0].advance()
    assert (np.concatenate(outputs) == given).all()
    assert (team.data == 0xA5).all()


@pytest.mark.parametrize("members", [2, 3])
def test_of_a_broadcast_the_root_pushes_a_part(members: int) -> None:
    """The others fetch the rest meanwhile, and are through when the root is."""
    team = from_process_to_process(members)
    given = np.arange(600, dtype=np.float32)  # one part
    outputs = [np.zeros(600, np.float32) for _ in range(members)]
    executions = []
    for me in range(members):
        source, target = ((Place(Memory.INPUT, 0, 600),), ()), ((), (Place(Memory.OUTPUT, 0, 600),))
        program = calls_program(me, members, [(Kind.BROADCAST, 0, *(target if me else source), ())])
        executions.append(team.execution(me, program, (given, outputs[me], given[:0]), SUM.combine, "sum"))
    team.data[...] = 0xA5
    assert not executions[0].advance()
    for execution in executions[1:]:
        assert not execution.advance()
    first = 600 // members
    for output in outputs[1:]:
        assert not output[:first].any()
        assert (output[first:] == given[first:]).all()
    assert not executions[0].advance()
    for output in outputs[1:]:
        assert (output == given).all()
    for execution in executions[1:]:
        assert execution.advance()
    assert executions[0].advance()
    assert (team.data == 0xA5).all()


def test_processes_that_are_none() -> None:
    team = Team((True, True), 4096)
    end = team.ends[0]
    assert isinstance(end, engine.NodeGroup)
    with pytest.raises(ValueError, match="for each member"):
        end.native.use_processes([1], 0, True)
    with pytest.raises(TypeError):
        end.native.use_processes([1, "2"], 0, True)  # type: ignore[list-item]
    with pytest.raises(OverflowError):
        end.native.use_processes([1, 2**70], 0, True)
    end.native.use_processes([os.getpid(), 2**22 + 1], 0, True)  # no such process
    with pytest.raises(ValueError, match="told once"):
        end.native.use_processes([os.getpid()] * 2, 0, True)


@each_team
def test_calls_of_all_kinds_under_way_in_threads(native: tuple[bool, ...]) -> None:
    chance = random.Random(repr(native))
    team = Team(native, 128 * len(native))
    before = sys.getswitchinterval()
    sys.setswitchinterval(1e-5)
    try:
        for _ in range(3):
            calls = [drawn(chance, chance.choice(KINDS), len(native), 150) for _ in range(20)]
            run = Run(team, calls, chance, 3)
            together([functools.partial(drive, one) for one in run.executions])
            run.check()
    finally:
        sys.setswitchinterval(before)


@each_team
@pytest.mark.parametrize("share", [0.5, 1.0])
def test_memory_that_all_members_reach(native: tuple[bool, ...], share: float, tmp_path: Path) -> None:
    """Nobody copies in what others can read where it is, nor out what others can write."""
    chance = random.Random(repr((native, share)))
    team = Team(native, 64 * len(native))
    shared = Shared(team, tmp_path, chance, share)
    for number in range(60):
        if number == 30:
            team.pass_caches()
        kind = KINDS[number % len(KINDS)]
        run = Run(team, [drawn(chance, kind, len(native), 200)], chance, 1, shared)
        in_turn(chance, run.executions)
        run.check()
    shared.close()


@pytest.mark.parametrize("native", [(True, True), (True, False)])
@pytest.mark.parametrize("reached", [(True, True), (True, False), (False, True), (False, False)])
def test_in_place_in_memory_that_others_reach(
    native: tuple[bool, ...], reached: tuple[bool, ...], tmp_path: Path
) -> None:
    team = Team(native, 128)
    shared = Shared(team, tmp_path, random.Random(1), 1.0)
    everything = (Place(Memory.INPUT, 0, 300),), (Place(Memory.OUTPUT, 0, 300),)
    for kind, wanted in (
        (Kind.ALLREDUCE, [300, 300]),
        (Kind.SCAN, [100, 300]),
        (Kind.EXSCAN, [100, 100]),
    ):
        plain = [np.full(300, 100.0, np.float32), np.full(300, 200.0, np.float32)]
        memory = [
            own[seen] for own, seen in zip(zip(plain, shared(plain), strict=True), reached, strict=True)
        ]
        executions = []
        for me in range(2):
            place = everything if kind is not Kind.EXSCAN or me else (everything[0], ())
            program = calls_program(me, 2, [(kind, 0, *place, ())])
            executions.append(
                team.execution(me, program, (memory[me], memory[me], memory[me][:0]), SUM.combine, "sum")
            )
        in_turn(random.Random(2), executions)
        for me in range(2):
            assert (memory[me] == wanted[me]).all(), (kind, me, memory[me][:4])
    shared.close()


def test_elements_that_are_offered_are_the_callers_again_when_all_have_read_them(tmp_path: Path) -> None:
    team = Team((True, True), 4096)
    shared = Shared(team, tmp_path, random.Random(1), 1.0)
    given = shared([np.ones(8, np.float32), np.ones(8, np.float32)])
    place = (Place(Memory.INPUT, 0, 8),)
    programs = [
        calls_program(0, 2, [(Kind.BROADCAST, 0, place, (), ())]),
        calls_program(1, 2, [(Kind.BROADCAST, 0, (), (Place(Memory.OUTPUT, 0, 8),), ())]),
    ]
    output = np.zeros(8, np.float32)
    root = team.execution(0, programs[0], (given[0], output[:0], output[:0]), SUM.combine, "sum")
    other = team.execution(1, programs[1], (given[1], output, output[:0]), SUM.combine, "sum")
    assert not root.run(0.02)
    assert other.advance()
    assert root.advance()
    assert (output == 1).all()
    shared.close()


def test_areas_come_and_go(tmp_path: Path) -> None:
    team = Team((True, True), 128)
    chance = random.Random(4)
    shared = Shared(team, tmp_path, chance, 1.0)
    for number in range(30):
        run = Run(team, [drawn(chance, Kind.ALLREDUCE, 2, 90)], chance, 1, shared)
        in_turn(chance, run.executions)
        run.check()
        if number % 3 == 2:
            gone = chance.randrange(2 * number - 3, 2 * number)
            for areas in team.areas:
                if gone in areas._areas:
                    areas._unused.append(gone)
                    areas.drop([gone])
    shared.close()


def test_an_offer_of_unknown_memory_ends_the_execution() -> None:
    team = Team((True, True), 128)
    run = Run(team, [drawn(random.Random(5), Kind.ALLREDUCE, 2, 30)], random.Random(5), 1)
    run.executions[1].advance()
    lines = team.head[3 * 2 * 64 :].view(np.int64).reshape(-1, 8)
    lines[1, :2] = 8, 0
    for _ in range(2):
        with pytest.raises(RuntimeError, match="memory that is not known here"):
            run.executions[0].advance()


def test_executions_of_one_group_that_are_moved_on_in_any_order() -> None:
    """Several calls in flight: what was made first has the group first, whoever is moved on first."""
    chance = random.Random(7)
    for native in ((True, True, True), (True, False, True)):
        team = Team(native, 256)
        runs = [Run(team, [drawn(chance, chance.choice(KINDS), 3, 200)], chance, 2) for _ in range(6)]
        in_turn(chance, [one for run in runs for one in run.executions])
        for run in runs:
            run.check()


def test_two_threads_on_one_execution() -> None:
    chance = random.Random(3)
    for _ in range(5):
        team = Team((True, True), 256)
        run = Run(team, [drawn(chance, chance.choice(KINDS), 2, 3000) for _ in range(10)], chance, 2)
        together([functools.partial(drive, one) for one in run.executions for _ in range(3)])
        run.check()


@pytest.mark.parametrize("dtype", ["int8", "float64", "complex128", "V3", "datetime64[s]"])
def test_elements_of_any_size_are_moved(dtype: str) -> None:
    team = Team((True, False, True), 192)
    counts = (5, 0, 300)
    places = [(Place(Memory.INPUT, 0, count),) for count in counts]
    everything = (Place(Memory.OUTPUT, 0, sum(counts)),)
    given = [np.arange(count * np.dtype(dtype).itemsize).astype(np.uint8).view(dtype) for count in counts]
    taken = [np.zeros(sum(counts) * np.dtype(dtype).itemsize, np.uint8).view(dtype) for _ in counts]
    executions = [
        team.execution(
            me,
            calls_program(me, 3, [(Kind.ALLGATHER, 0, places[me], everything, counts)]),
            (given[me], taken[me], taken[me][:0]),
            SUM.combine,
        )
        for me in range(3)
    ]
    in_turn(random.Random(1), executions)
    for result in taken:
        assert result.tobytes() == b"".join(one.tobytes() for one in given)
