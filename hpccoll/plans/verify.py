"""Proof that a plan does what its collective says, on one layout, by running it on symbols.

Every element of every rank's input is a symbol that no other has; a combination is the list of its
operands in order.  All ranks' programs run together as the executor would run them: an operation
starts when what it waits for is complete, messages between two ranks match in the order in which they
started, a group call is done when all members have come to it.  Reported are: elements that do not
arrive, or arrive more than once; operands out of rank order in a plan that promises it; programs that
never end (cycles, unmatched messages); reads of places never written; and two operations of a rank
that touch the same place, at least one writing, with nothing that orders them.
"""

from __future__ import annotations

from collections import defaultdict, deque
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field

from hpccoll.plans.flat import ONE_SHOT
from hpccoll.plans.lower import lower
from hpccoll.plans.program import Combine, Copy, GroupCall, Memory, Operation, Place, Program, Receive, Send
from hpccoll.plans.spans import Region
from hpccoll.plans.steps import Kind, Plan

# A value is the ranks whose inputs were combined, in order; None is a place never written.
Value = tuple[int, ...]
Values = list["Value | None"]


def verify(plan: Plan, programs: list[Program] | None = None) -> list[str]:
    """What is wrong with a plan, in words; an empty list is the proof.

    `programs` replaces the lowered ones (tests hand in broken ones).  The work grows with elements
    times ranks times operations: meant for counts of tens of elements.
    """
    if any(step.algorithm == ONE_SHOT for step in plan.steps):
        return []  # carried by the agreement check, not by a program
    if programs is None:
        programs = [lower(plan, rank) for rank in range(plan.layout.size)]
    problems = [problem for program in programs for problem in _unordered(program, plan)]
    run = _Run(plan, programs)
    run.advance()
    return problems + run.problems + (run.unfinished() or run.wrong_results())


@dataclass
class _Rank:
    program: Program
    memory: dict[Memory, Values]
    complete: set[int] = field(default_factory=set)
    started: set[int] = field(default_factory=set)


class _Run:
    def __init__(self, plan: Plan, programs: list[Program]) -> None:
        self.plan = plan
        self.problems: list[str] = []
        self.ranks = [self._start(program) for program in programs]
        self.mail: dict[tuple[int, int, int], deque[Values]] = defaultdict(deque)
        self.wanted: dict[tuple[int, int, int], deque[tuple[int, Receive]]] = defaultdict(deque)
        self.gathered: dict[tuple[int, tuple[int, ...]], dict[int, tuple[int, GroupCall]]] = defaultdict(dict)

    def _start(self, program: Program) -> _Rank:
        collective = self.plan.collective
        given = _count(collective.input(program.rank))
        memory: dict[Memory, Values] = {
            Memory.INPUT: [(program.rank,)] * given,
            Memory.OUTPUT: [None] * _count(collective.output(program.rank)),
            Memory.SCRATCH: [None] * program.scratch,
        }
        if not collective.reduces:
            labels = _indices(collective.input(program.rank))
            memory[Memory.INPUT] = [(index,) for index in labels]
        return _Rank(program, memory)

    def advance(self) -> None:
        """Run all ranks until nothing moves."""
        moved = True
        while moved:
            moved = False
            for rank in self.ranks:
                for index, operation in enumerate(rank.program.operations):
                    if index not in rank.started and self._ready(rank, operation):
                        rank.started.add(index)
                        self._do(rank, index, operation)
                        moved = True

    def _ready(self, rank: _Rank, operation: Operation) -> bool:
        if not rank.complete.issuperset(operation.after):
            return False
        if isinstance(operation, (Send, Receive, GroupCall)) and operation.previous >= 0:
            return operation.previous in rank.started
        return True

    def _do(self, rank: _Rank, index: int, operation: Operation) -> None:
        me = rank.program.rank
        match operation:
            case Send():
                key = (me, operation.peer, operation.step)
                self.mail[key].append(self._read(rank, (operation.source,)))
                rank.complete.add(index)
                self._deliver(key)
            case Receive():
                key = (operation.peer, me, operation.step)
                self.wanted[key].append((index, operation))
                self._deliver(key)
            case Combine():
                left = self._read(rank, (operation.left,))
                right = self._read(rank, (operation.right,))
                self._write(rank, (operation.target,), [_combined(pair) for pair in zip(left, right, strict=True)])
                rank.complete.add(index)
            case Copy():
                self._write(rank, (operation.target,), self._read(rank, (operation.source,)))
                rank.complete.add(index)
            case GroupCall():
                calls = self.gathered[operation.step, operation.members]
                calls[me] = (index, operation)
                if len(calls) == len(operation.members):
                    self._call([calls[member] for member in operation.members])

    def _deliver(self, key: tuple[int, int, int]) -> None:
        mail, wanted = self.mail[key], self.wanted[key]
        while mail and wanted:
            values = mail.popleft()
            index, receive = wanted.popleft()
            rank = self.ranks[key[1]]
            if len(values) != receive.target.stop - receive.target.start:
                self.problems.append(f"rank {key[1]} expects another length than rank {key[0]} sends: {receive}")
                continue
            self._write(rank, (receive.target,), values)
            rank.complete.add(index)

    def _call(self, calls: list[tuple[int, GroupCall]]) -> None:
        first = calls[0][1]
        members = [self.ranks[member] for member in first.members]
        given = [self._read(rank, call.source) for rank, (_, call) in zip(members, calls, strict=True)]
        if first.kind.reduces:
            everything = [_combined(column) for column in zip(*given, strict=True)]
        elif first.kind in (Kind.BROADCAST, Kind.SCATTER):
            everything = given[first.root]
        else:
            everything = [value for values in given for value in values]
        start = 0
        for number, (rank, (index, call)) in enumerate(zip(members, calls, strict=True)):
            count = call.counts[number] if call.counts else 0
            own = call.kind in (Kind.REDUCE_SCATTER, Kind.SCATTER)
            values = everything[start : start + count] if own else everything
            start += count
            if call.target or own:
                self._write(rank, call.target, values)
            rank.complete.add(index)

    def _read(self, rank: _Rank, places: Iterable[Place]) -> Values:
        values: Values = []
        for place in places:
            part = rank.memory[place.memory][place.start : place.stop]
            if None in part:
                self.problems.append(f"rank {rank.program.rank} reads {place}, which nothing has written")
            values += part
        return values

    def _write(self, rank: _Rank, places: Iterable[Place], values: Values) -> None:
        start = 0
        for place in places:
            count = place.stop - place.start
            rank.memory[place.memory][place.start : place.stop] = values[start : start + count]
            start += count
        if start != len(values):
            self.problems.append(f"rank {rank.program.rank} has room for {start} of {len(values)} elements")

    def unfinished(self) -> list[str]:
        """Ranks whose programs did not end."""
        return [
            f"rank {rank.program.rank} never completes operation {index}: {operation}"
            for rank in self.ranks
            for index, operation in enumerate(rank.program.operations)
            if index not in rank.complete
        ] + [f"message {key} is never received" for key, mail in self.mail.items() if mail]

    def wrong_results(self) -> list[str]:
        """Outputs that are not every input exactly once."""
        collective, problems = self.plan.collective, []
        all_ranks = tuple(range(collective.size))
        for rank in self.ranks:
            indices = _indices(collective.output(rank.program.rank))
            for index, value in zip(indices, rank.memory[Memory.OUTPUT], strict=True):
                wanted = all_ranks if collective.reduces else (index,)
                got = value if value is None or self.plan.ordered else tuple(sorted(value))
                if got != wanted:
                    problems.append(f"rank {rank.program.rank} element {index}: {value} instead of {wanted}")
        return problems


def _combined(values: Iterable[Value | None]) -> Value | None:
    result: Value = ()
    for value in values:
        if value is None:
            return None
        result += value
    return result


def _indices(one: Region) -> list[int]:
    return [index for span in one for index in range(*span)]


def _count(one: Region) -> int:
    return sum(span.length for span in one)


def _unordered(program: Program, plan: Plan) -> Iterator[str]:
    """Pairs of operations that touch one place, one of them writing, with nothing that orders them."""
    before: list[int] = []  # bit i of before[j]: operation i is complete before j starts
    touched: dict[Memory, list[tuple[int, int, int, bool]]] = defaultdict(list)
    for index, operation in enumerate(program.operations):
        bits = 0
        for earlier in operation.after:
            if earlier >= index:
                yield f"rank {program.rank} operation {index} waits for a later one"
                continue
            bits |= before[earlier] | 1 << earlier
        before.append(bits)
        for place, writes in _touches(operation):
            for start, stop, other, wrote in touched[place.memory]:
                crosses = start < place.stop and place.start < stop
                if crosses and (writes or wrote) and other != index and not bits >> other & 1:
                    yield f"rank {program.rank} operations {other} and {index} race for {place}"
        for place, writes in _touches(operation):
            touched[place.memory].append((place.start, place.stop, index, writes))


def _touches(operation: Operation) -> Iterator[tuple[Place, bool]]:
    match operation:
        case Send():
            yield operation.source, False
        case Receive():
            yield operation.target, True
        case Combine():
            yield operation.left, False
            yield operation.right, False
            yield operation.target, True
        case Copy():
            yield operation.source, False
            yield operation.target, True
        case GroupCall():
            yield from ((place, False) for place in operation.source)
            yield from ((place, True) for place in operation.target)
