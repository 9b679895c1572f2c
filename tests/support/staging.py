"""Groups on one node, all members in this process: each by the engine or by the Python transport.

A `Team` has a staging segment; a `Run` is calls of random lengths on it, and what must come out.
"""

from __future__ import annotations

import functools
import operator as operators
import random
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
from mpi4py import MPI

from hpccoll.memory.areas import Areas, total_bytes
from hpccoll.memory.flags import open_flags
from hpccoll.memory.segments import Segment, create_segment
from hpccoll.ops.table import arithmetic, operator_of
from hpccoll.plans.program import CODES, GroupCall, Memory, Place, Program
from hpccoll.plans.steps import Kind
from hpccoll.runtime import engine
from hpccoll.runtime.executor import Execution, Schedule
from hpccoll.transports.base import Array
from hpccoll.transports.base import Combine as CombineArrays
from hpccoll.transports.shm import ShmGroup
from hpccoll.transports.slots import Slots, staging_layout

__all__ = [
    "KINDS", "LIMIT_S", "Call", "Run", "Shared", "Team", "calls_program", "drawn", "drive", "in_turn",
    "together",
]  # fmt: skip

LIMIT_S = 30.0
UNTOUCHED = -77
KINDS = [kind for kind in Kind if kind.value in CODES]
SUM = arithmetic(operator_of(MPI.SUM), np.dtype(np.float32))


class Team:
    """Members of one group, with a staging segment; `native[m]`: member m uses the engine."""

    def __init__(self, native: Sequence[bool], slot_bytes: int) -> None:
        members = len(native)
        head, total = staging_layout(members, slot_bytes)
        memory = np.zeros(total // 8, np.uint64).view(np.uint8)
        data = memory[head:].reshape(2, members, slot_bytes)
        self.native = native
        self.head, self.data = memory[:head], data
        self.areas = [Areas(me) for me in range(members)]
        self.ends = [
            engine.NodeGroup(me, members, memory[:head], data, partial(area_parts, self.areas[me]))
            if by_engine
            else ShmGroup(Slots(me, members, open_flags(memory[:head]), memory[:head], data, self.areas[me]))
            for me, by_engine in enumerate(native)
        ]

    def pass_caches(self) -> None:
        """From here on results go past the caches, as those of long calls do."""
        for end in self.ends:
            if isinstance(end, engine.NodeGroup):
                end.native.cache_bytes = end.native.least_cold = 0

    def allocate(self, number: int, segment: Segment, counts: Sequence[int]) -> list[Array]:
        """For every member so many float32 in memory that all reach."""
        nbytes = [4 * count for count in counts]
        return [
            areas.add(number, segment, nbytes, (count,), np.dtype(np.float32))
            for areas, count in zip(self.areas, counts, strict=True)
        ]

    def execution(
        self, me: int, program: Program, memory: Sequence[Array], combine: CombineArrays, operator: str = ""
    ) -> Execution | engine.NativeExecution:
        """A program of group calls; `operator`: what `combine` is called, where the engine has a kernel."""
        schedule, dtype, end = Schedule(program), memory[0].dtype, self.ends[me]
        if not isinstance(end, engine.NodeGroup):
            return Execution(schedule, memory, _no_network(), lambda call: end, combine, lambda step: step)
        end.refresh()
        kernel = engine.kernel(combine, dtype, (operator, dtype.name) if operator else None)
        return engine.NativeExecution(schedule, memory, None, end, kernel, 0, 1)


def calls_program(
    me: int,
    members: int,
    calls: Sequence[tuple[Kind, int, Sequence[Place], Sequence[Place], Sequence[int]]],
    step: int = 0,
) -> Program:
    """Calls of one group, each started after the one before it: kind, root, sources, targets, counts."""
    everybody = tuple(range(members))
    return Program(
        me,
        tuple(
            GroupCall(
                step + index, (), kind, "NODE", everybody, me, root, tuple(source), tuple(target),
                tuple(counts), index - 1,
            )
            for index, (kind, root, source, target, counts) in enumerate(calls)
        ),
        0,
    )  # fmt: skip


def area_parts(areas: Areas) -> Mapping[int, Sequence[Array]]:
    return {number: area.parts for number, area in areas._areas.items()}


def together(parts: Sequence[Callable[[], Any]]) -> None:
    """Each in a thread of its own; raises what one of them raised, or TimeoutError."""
    failures: list[BaseException] = []

    def guarded(part: Callable[[], Any]) -> None:
        try:
            part()
        except BaseException as failure:
            failures.append(failure)

    threads = [threading.Thread(target=guarded, args=(part,), daemon=True) for part in parts]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(LIMIT_S)
    if failures:
        raise failures[0]
    if any(thread.is_alive() for thread in threads):
        raise TimeoutError(f"threads are stuck after {LIMIT_S:g} s")


def _no_network() -> Any:
    return None


@dataclass
class Call:
    """One call of a group: what each member gives, and how many elements it gets."""

    kind: Kind
    root: int
    counts: list[int]
    gives: list[Array]
    takes: list[int]


def drawn(chance: random.Random, kind: Kind, members: int, longest: int) -> Call:
    """A call of random lengths; parts may be empty, for some members or for all."""
    root, count = chance.randrange(members), chance.randrange(longest)
    nothing, all_of_it = [0] * members, [count] * members
    at_root = [count * (me == root) for me in range(members)]
    counts = [chance.choice((0, chance.randrange(longest))) for _ in range(members)]
    total = [sum(counts)] * members
    total_at_root = [sum(counts) * (me == root) for me in range(members)]
    table = [chance.choice((0, chance.randrange(longest))) for _ in range(members**2)]
    gives, takes, own = {
        Kind.ALLREDUCE: (all_of_it, all_of_it, []),
        Kind.REDUCE: (all_of_it, at_root, []),
        Kind.BROADCAST: (at_root, [count - one for one in at_root], []),
        Kind.REDUCE_SCATTER: (total, counts, counts),
        Kind.ALLGATHER: (counts, total, counts),
        Kind.GATHER: (counts, total_at_root, counts),
        Kind.SCATTER: (total_at_root, counts, counts),
        Kind.ALLTOALL: (
            [sum(table[me * members : (me + 1) * members]) for me in range(members)],
            [sum(table[me::members]) for me in range(members)],
            table,
        ),
        Kind.SCAN: (all_of_it, all_of_it, []),
        Kind.EXSCAN: (all_of_it, [0, *all_of_it[1:]], []),
    }.get(kind, (nothing, nothing, []))
    values = np.random.default_rng(chance.getrandbits(32))
    return Call(kind, root, own, [values.normal(size=one).astype(np.float32) for one in gives], takes)


def results(call: Call) -> list[Array]:
    """What each member must get."""
    members, empty = len(call.gives), np.empty(0, np.float32)
    if call.kind in (Kind.SCAN, Kind.EXSCAN, Kind.ALLREDUCE, Kind.REDUCE, Kind.REDUCE_SCATTER):
        sums = [functools.reduce(operators.add, call.gives[: me + 1]) for me in range(members)]
    if call.kind is Kind.SCAN:
        return sums
    if call.kind is Kind.EXSCAN:
        return [empty, *sums[:-1]]
    if call.kind is Kind.ALLTOALL:
        table = np.reshape(call.counts, (members, members))
        rows = [np.split(call.gives[me], np.cumsum(table[me])) for me in range(members)]
        return [np.concatenate([rows[source][me] for source in range(members)]) for me in range(members)]
    if call.kind in (Kind.ALLGATHER, Kind.GATHER):
        everything = np.concatenate(call.gives)
    elif call.kind in (Kind.BROADCAST, Kind.SCATTER):
        everything = call.gives[call.root]
    else:
        everything = sums[-1]
    if call.kind in (Kind.REDUCE_SCATTER, Kind.SCATTER):
        return np.split(everything, np.cumsum(call.counts))[:members]
    return [everything if takes else empty for takes in call.takes]


def laid_out(
    chance: random.Random, calls: Sequence[Call], me: int, pieces: int
) -> tuple[Program, Array, Array, list[list[Place]]]:
    """The program of a member, its input, room for its output, and where in it the results of each call go.

    Each stream is in up to `pieces` places, in any order, with elements between them that nobody may touch.
    """
    rows, targets = [], []
    given = np.full(sum(call.gives[me].size + 2 * pieces for call in calls), UNTOUCHED, np.float32)
    ends = [0, 0]
    for call in calls:
        source = split(chance, Memory.INPUT, call.gives[me].size, pieces, ends)
        target = split(chance, Memory.OUTPUT, call.takes[me], pieces, ends)
        begin = 0
        for place in source:
            given[place.start : place.stop] = call.gives[me][begin : begin + place.stop - place.start]
            begin += place.stop - place.start
        rows.append((call.kind, call.root, source, target, call.counts))
        targets.append(target)
    program = calls_program(me, len(calls[0].gives), rows)
    return program, given, np.full(ends[1], UNTOUCHED, np.float32), targets


def split(chance: random.Random, memory: Memory, count: int, pieces: int, ends: list[int]) -> list[Place]:
    cuts = sorted(chance.randrange(count + 1) for _ in range(chance.randrange(pieces)))
    lengths = [stop - start for start, stop in zip([0, *cuts], [*cuts, count], strict=True)]
    order = list(range(len(lengths)))
    chance.shuffle(order)
    places: dict[int, Place] = {}
    for index in order:
        start = ends[memory] + chance.randrange(2)
        places[index] = Place(memory, start, start + lengths[index])
        ends[memory] = start + lengths[index]
    return [places[index] for index in range(len(lengths))]


class Run:
    """Calls carried out by a team, and what came out.

    `shared` puts inputs and outputs where all members reach them, or leaves them where they are.
    """

    def __init__(
        self,
        team: Team,
        calls: Sequence[Call],
        chance: random.Random,
        pieces: int,
        shared: Callable[[list[Array]], list[Array]] = list,
    ) -> None:
        self.team, self.calls = team, calls
        programs: list[Program] = []
        self.inputs, self.outputs, self.targets = [], [], []
        self.executions: list[Execution | engine.NativeExecution] = []
        for me in range(len(team.native)):
            program, given, output, targets = laid_out(chance, calls, me, pieces)
            programs.append(program)
            self.inputs.append(given)
            self.outputs.append(output)
            self.targets.append(targets)
        self.inputs, self.outputs = shared(self.inputs), shared(self.outputs)
        self.before = [given.copy() for given in self.inputs]
        for me, program in enumerate(programs):
            memory = (self.inputs[me], self.outputs[me], self.outputs[me][:0])
            self.executions.append(team.execution(me, program, memory, SUM.combine, "sum"))

    def check(self) -> None:
        for number, call in enumerate(self.calls):
            for me, wanted in enumerate(results(call)):
                places = self.targets[me][number]
                found = [self.outputs[me][place.start : place.stop] for place in places]
                text = f"member {me} of {self.team.native}, call {number}: {call.kind} {call.counts}"
                assert np.concatenate(found).tobytes() == wanted.tobytes(), text
        for me, output in enumerate(self.outputs):
            assert self.inputs[me].tobytes() == self.before[me].tobytes()
            for place in (place for places in self.targets[me] for place in places):
                output[place.start : place.stop] = UNTOUCHED
            assert (output == UNTOUCHED).all(), f"member {me} was given more than its part"


def in_turn(chance: random.Random, executions: Sequence[Execution | engine.NativeExecution]) -> None:
    waiting = list(executions)
    for _ in range(100_000):
        if not waiting:
            return
        one = chance.choice(waiting)
        if one.advance():
            waiting.remove(one)
    raise TimeoutError(f"stuck at {[one.waiting_for() for one in waiting]}")


def drive(execution: Execution | engine.NativeExecution) -> None:
    end = time.monotonic() + LIMIT_S
    if isinstance(execution, engine.NativeExecution):
        assert execution.run(LIMIT_S), execution.waiting_for()
    while not execution.advance():
        assert time.monotonic() < end, execution.waiting_for()
        time.sleep(0)


class Shared:
    """Puts arrays into areas that all members of a team reach; as many members as `chance` has it."""

    def __init__(self, team: Team, directory: Path, chance: random.Random, share: float) -> None:
        self.team, self.directory, self.chance, self.share = team, directory, chance, share
        self.segments: list[Segment] = []

    def __call__(self, arrays: list[Array]) -> list[Array]:
        counts = [array.size for array in arrays]
        nbytes = total_bytes([4 * count for count in counts])
        self.segments.append(create_segment(nbytes, directory=str(self.directory), purpose="area"))
        areas = self.team.allocate(len(self.segments), self.segments[-1], counts)
        for area, array in zip(areas, arrays, strict=True):
            area[...] = array
        return [
            area if self.chance.random() < self.share else array
            for area, array in zip(areas, arrays, strict=True)
        ]

    def close(self) -> None:
        for segment in self.segments:
            segment.close()
            segment.unlink()
