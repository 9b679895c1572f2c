"""Tables of programs with random and missing bytes: refused, or run inside the memory they were given."""

from __future__ import annotations

import contextlib
import random
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from hpccoll import _native
from hpccoll.plans.program import Combine, Copy, Memory, Place, Program
from hpccoll.runtime import engine
from hpccoll.runtime.executor import Schedule
from tests.support.fuzzing import EDGES, TIMES, rounds
from tests.support.staging import KINDS, SUM, calls_program, drawn, split

if not _native.available():
    pytest.skip(_native.reason(), allow_module_level=True)

from hpccoll._native import _core

pytestmark = pytest.mark.timeout(60 * TIMES)

Tables = list[np.ndarray[Any, Any]]
COLUMNS = (9, 3, 1, 1, 1)  # of program.h: an operation, a place, a count, a start, what follows
GUARD = 0xA5
GUARD_BYTES = 256
ELEMENTS = 600


class Guarded:
    """Memory with bytes around it that nobody may write."""

    def __init__(self, nbytes: int) -> None:
        self._all = np.full(nbytes + 2 * GUARD_BYTES, GUARD, np.uint8)
        self.inside = self._all[GUARD_BYTES : GUARD_BYTES + nbytes]
        self.inside[:] = 0

    def check(self) -> None:
        assert (self._all[:GUARD_BYTES] == GUARD).all()
        assert (self._all[GUARD_BYTES + self.inside.size :] == GUARD).all()


def valid_program(chance: random.Random, members: int) -> Program:
    """Of member 0: calls of the group, or copies and combinations that wait for one another."""
    if chance.random() < 0.3:
        places = [Place(Memory(chance.randrange(len(Memory))), start, start + 8) for start in range(0, 64, 8)]
        steps: list[Any] = []
        for number in range(chance.randrange(1, 8)):
            before = tuple(sorted(chance.sample(range(number), min(number, chance.randrange(3)))))
            one, two, three = chance.sample(places, 3)
            steps.append(
                Copy(number, before, one, two)
                if chance.random() < 0.5
                else Combine(number, before, one, two, three)
            )
        return Program(0, tuple(steps), 64)
    ends, rows = [0, 0], []
    for _ in range(chance.randrange(1, 4)):
        call = drawn(chance, chance.choice(KINDS), members, 40)
        source = split(chance, Memory.INPUT, call.gives[0].size, 3, ends)
        target = split(chance, Memory.OUTPUT, call.takes[0], 3, ends)
        rows.append((call.kind, call.root, source, target, call.counts))
    return calls_program(0, members, rows)


def tables_of(program: Program, monkeypatch: pytest.MonkeyPatch) -> Tables:
    """What the engine would hand over to C."""
    with monkeypatch.context() as patch:
        patch.setattr(engine, "core", lambda: SimpleNamespace(Program=lambda *tables: list(tables)))
        tables: Tables = engine._flattened(Schedule(program))
    return tables


def changed(chance: random.Random, tables: Tables) -> Tables:
    """Some numbers others, at edges or near by; or rows, or bytes, gone or come."""
    tables = [table.copy() for table in tables]
    for _ in range(chance.randrange(4)):
        which = chance.choice((0, 0, 0, 1, 1, 2, 3, 4))
        table, width = tables[which], COLUMNS[which]
        at = chance.randrange(max(table.size, 1))
        match chance.randrange(12):
            case 0:
                tables[which] = table[: at - at % width]
            case 1:
                tables[which] = np.concatenate([table, table[-width:]])
            case 2:
                tables[which] = np.frombuffer(bytearray(chance.randbytes(table.nbytes)), np.int64)
            case 3:
                tables[which] = table.view(np.uint8)[: chance.randrange(table.nbytes + 1)]
                break
            case _ if table.size:
                near = int(table[at]) + chance.choice((-1, 1, 2))
                value = chance.choice((near, chance.choice(EDGES), chance.randrange(16)))
                table[at] = (value + 2**63) % 2**64 - 2**63
    return tables


def run_for_a_while(chance: random.Random, program: Any, members: int) -> bool:
    """All members, or the first alone; whether they could be made at all."""
    itemsize = 4 if chance.random() < 0.9 else chance.choice(EDGES)
    slot_bytes = chance.choice((64 * members, 256 * members, 4 * chance.randrange(1, 200)))
    head, data = Guarded(5 * 64 * members), Guarded(2 * members * slot_bytes)
    memory = [Guarded(4 * ELEMENTS) for _ in range(len(Memory) * members)]
    wire = chance.choice(("", "bfloat16", "float16"))
    kernel = engine.kernel(SUM.combine, SUM.working, SUM.kernel)
    executions = []
    try:
        for me in range(members if chance.random() < 0.7 else 1):
            group = _core.Group(me, members, head.inside, data.inside, slot_bytes)
            own = [one.inside for one in memory[len(Memory) * me : len(Memory) * (me + 1)]]
            executions.append(_core.Execution(program, own, itemsize, None, group, kernel, 0, 1, wire))
    except ValueError:
        return False
    for _ in range(12):
        chance.choice(executions).advance(2)
    for one in executions:
        assert 0 <= one.left <= len(program)
        assert all(0 <= index < len(program) for index in one.active())
    for guarded in (head, data, *memory):
        guarded.check()
    return True


def test_changed_tables(monkeypatch: pytest.MonkeyPatch) -> None:
    refused = ran = 0
    for number, chance in rounds(2500, "tables"):
        members = chance.randrange(1, 4)
        tables = changed(chance, tables_of(valid_program(chance, members), monkeypatch))
        try:
            program = _core.Program(*tables)
        except ValueError:
            refused += 1
            continue
        try:
            ran += run_for_a_while(chance, program, members)
        except AssertionError as error:
            raise AssertionError(f"round {number}") from error
    assert refused > 100
    assert ran > 100


def test_tables_of_nothing_but_noise() -> None:
    for _, chance in rounds(1000, "noise"):
        tables = [np.frombuffer(chance.randbytes(chance.randrange(200)), np.uint8) for _ in range(5)]
        with pytest.raises(ValueError, match=r"\w"):
            _core.Program(*tables)


@pytest.mark.parametrize("which", range(5))
@pytest.mark.parametrize("table", [None, 3, "words", memoryview(np.zeros((6, 6), np.int64))[::2]], ids=str)
def test_what_is_no_table(which: int, table: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    tables: list[Any] = tables_of(valid_program(random.Random(1), 2), monkeypatch)
    tables[which] = table
    with pytest.raises((TypeError, BufferError, ValueError)):
        _core.Program(*tables)


def test_random_entries_of_a_tape() -> None:
    """They are refused, or kept; none is played, as their numbers would be addresses."""
    kept = 0
    for _, chance in rounds(1500, "tape"):
        numbers = (*EDGES[4:], *range(15), 2**64 - 1, 2**64, 1.5, None, "1", np.int64(3))
        entry = tuple(chance.choice(numbers) for _ in range(chance.randrange(11)))
        functions = tuple(chance.choice((1, 2**47, 2**64 - 1)) for _ in range(13 + (chance.random() < 0.1)))
        try:
            tape = _core.Tape(functions, (entry,) * chance.randrange(1, 4), chance.choice((0, 2**64 - 1)))
        except (ValueError, TypeError, OverflowError):
            continue
        kept += 1
        for begin in (-1, 4, chance.choice(EDGES[:5])):
            with pytest.raises(ValueError, match="outside the tape"):
                tape.play(0, begin)
    assert kept > 10


def test_offers_that_nobody_made() -> None:
    """Numbers in the shared segment at random: elements are not taken from where they are not."""
    for _, chance in rounds(600, "offers"):
        members, count = chance.randrange(2, 4), 32
        call = drawn(chance, chance.choice(KINDS), members, count)
        head, data = Guarded(5 * 64 * members), Guarded(2 * members * 4096)
        words = head.inside.view(np.int64)
        area = [Guarded(4 * count) for _ in range(members)]
        source, target = call.gives[0], np.zeros(max(call.takes[0], 1), np.float32)
        places = (Place(Memory.INPUT, 0, source.size),), (Place(Memory.OUTPUT, 0, call.takes[0]),)
        program = calls_program(0, members, [(call.kind, call.root, *places, call.counts)])
        group = _core.Group(0, members, head.inside, data.inside, 4096)
        group.add_area(3, [one.inside for one in area])
        if chance.random() < 0.5:
            group.use_processes([2**22 + 1] * members, 2**40, True)  # no process has this number
        kernel = engine.kernel(SUM.combine, SUM.working, SUM.kernel)
        nothing = target[:0].view(np.uint8)
        memory = [source.view(np.uint8), target.view(np.uint8), nothing, nothing]
        execution = _core.Execution(
            engine.program_of(Schedule(program)), memory, 4, None, group, kernel, 0, 1
        )
        for member in range(1, members):
            for counter in range(3):
                words[(counter * members + member) * 8] = chance.choice((1, 2, 10))
            for half in range(2):
                line = (3 * members + half * members + member) * 8
                words[line : line + 4] = [chance.choice((0, 4, 5, *EDGES)) for _ in range(4)]
        with contextlib.suppress(RuntimeError):  # that a member offers memory that is not known here
            for _ in range(4):
                execution.advance()
        for guarded in (head, data, *area):
            guarded.check()
