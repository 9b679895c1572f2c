"""Proof that a plan does what its collective says, on one layout, by running it on symbols.

Every element of every rank's input is a symbol that no other has; a combination is the list of its
operands in order.  All ranks' programs run together as the executor would run them: an operation
starts when what it waits for is complete, messages between two ranks match in the order in which they
started, a message is complete only when both sides have started (no plan may count on buffers), a
group call when all members have come to it.  Reported are: elements that do not arrive, arrive more than
once or come from elsewhere; operands out of rank order in a plan that promises it; programs that never
end (cycles, unmatched messages); reads of places never written; steps that use what a step gives without
naming it in `after`; and what hazards.py finds in the programs alone.

Without a hazard the order in which ranks move on cannot change a result, so that one run stands for all.
Collectives that take MPI.IN_PLACE are proved a second time with the input inside the output.
"""

from __future__ import annotations

from collections import Counter, defaultdict, deque
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field

from hpccoll.plans.collective import Collective
from hpccoll.plans.flat import ONE_SHOT
from hpccoll.plans.hazards import IN_PLACE, hazards, in_place
from hpccoll.plans.lower import lower
from hpccoll.plans.program import Combine, Copy, GroupCall, Memory, Operation, Place, Program, Receive, Send
from hpccoll.plans.spans import Region, length
from hpccoll.plans.steps import Kind, Plan
from hpccoll.plans.text import operation_text, place_text
from hpccoll.topology.notation import format_ranks


def verify(plan: Plan, programs: Sequence[Program] | None = None) -> list[str]:
    """What is wrong with a plan, in words; an empty list is the proof.

    `programs` replaces the lowered ones, one for each rank in rank order.  The work grows with elements
    times ranks times operations: meant for counts of tens of elements.
    """
    problems = list(_malformed(plan))
    if problems or any(step.algorithm == ONE_SHOT for step in plan.steps):
        return problems  # one_shot is carried by the agreement check, not by a program
    if programs is None:
        try:
            programs = [lower(plan, rank) for rank in range(plan.layout.size)]
        except ValueError as error:
            return [f"the plan cannot be lowered: {error}"]
    problems = _prove(plan, programs)
    if not problems and plan.collective.name in IN_PLACE:
        aliased = [in_place(program, plan.collective) for program in programs]
        problems = [f"in place: {problem}" for problem in _prove(plan, aliased)]
    return problems


def _prove(plan: Plan, programs: Sequence[Program]) -> list[str]:
    run = _Run(plan, programs)
    run.advance()
    problems = [problem for program in programs for problem in hazards(program)] + list(run.problems)
    return problems + (run.unfinished() or list(run.wrong_results()))


def _malformed(plan: Plan) -> Iterator[str]:
    for number, step in enumerate(plan.steps):
        for earlier in step.after:
            if not 0 <= earlier < number:
                yield f"step {number} waits for step {earlier}, which is not before it"
        members = Counter(rank for group in step.groups for rank in group)
        if members and (max(members.values()) > 1 or not set(members) <= set(range(plan.layout.size))):
            yield f"the groups of step {number} are not disjoint groups of ranks of the layout"
        if len(step.regions) != len(step.groups) or len(step.roots) not in (0, len(step.groups)):
            yield f"step {number} needs regions, and roots if any, for each of its {len(step.groups)} groups"
            continue
        for group, regions in zip(step.groups, step.regions, strict=True):
            if len(regions) != (len(group) if step.kind.by_member else 1):
                yield f"step {number} has {len(regions)} regions for {format_ranks(group)}"
        for group, root in zip(step.groups, step.roots, strict=False):
            if not 0 <= root < len(group):
                yield f"step {number} has root {root} in a group of {len(group)}"


@dataclass(frozen=True)
class _Value:
    """What one place holds: the inputs combined there, in order, and the step that gave it (-1: the caller)."""

    operands: tuple[tuple[int, int], ...]  # element, rank
    step: int


Values = list["_Value | None"]
Channel = tuple[int, int, int]  # from rank, to rank, step


@dataclass
class _Rank:
    program: Program
    memory: dict[Memory, Values]
    waits: list[int]
    following: dict[int, list[int]] = field(default_factory=lambda: defaultdict(list))
    following_start: dict[int, list[int]] = field(default_factory=lambda: defaultdict(list))
    started: set[int] = field(default_factory=set)
    complete: set[int] = field(default_factory=set)


class _Run:
    """All ranks' programs, run together."""

    def __init__(self, plan: Plan, programs: Sequence[Program]) -> None:
        self.problems: dict[str, None] = {}  # in order, each once
        self._collective = plan.collective
        self._ordered = plan.ordered
        self._handed: list[set[int]] = []  # by step: those whose elements it may use
        for number, step in enumerate(plan.steps):
            self._handed.append({number, -1}.union(*(self._handed[earlier] for earlier in step.after)))
        self._ranks = [_start(program, plan.collective) for program in programs]
        self._sent: dict[Channel, deque[tuple[int, Values]]] = defaultdict(deque)
        self._wanted: dict[Channel, deque[tuple[int, Receive]]] = defaultdict(deque)
        self._came: dict[tuple[int, tuple[int, ...]], dict[int, int]] = defaultdict(dict)
        self._ready: deque[tuple[_Rank, int]] = deque()

    def advance(self) -> None:
        """Run until nothing moves."""
        for rank in self._ranks:
            self._ready += [(rank, index) for index, waits in enumerate(rank.waits) if waits == 0]
        while self._ready:
            rank, index = self._ready.popleft()
            rank.started.add(index)
            for following in rank.following_start[index]:
                self._release(rank, following)
            self._begin(rank, index, rank.program.operations[index])

    def _begin(self, rank: _Rank, index: int, operation: Operation) -> None:
        me = rank.program.rank
        match operation:
            case Send():
                channel = (me, operation.peer, operation.step)
                self._sent[channel].append((index, self._read(rank, (operation.source,), operation)))
                self._deliver(channel)
            case Receive():
                channel = (operation.peer, me, operation.step)
                self._wanted[channel].append((index, operation))
                self._deliver(channel)
            case Combine():
                left = self._read(rank, (operation.left,), operation)
                right = self._read(rank, (operation.right,), operation)
                values = [_combined(pair, operation.step) for pair in zip(left, right, strict=False)]
                self._write(rank, (operation.target,), values)
                self._end(rank, index)
            case Copy():
                self._write(rank, (operation.target,), self._read(rank, (operation.source,), operation))
                self._end(rank, index)
            case GroupCall():
                came = self._came[operation.step, operation.members]
                came[me] = index
                if len(came) == len(operation.members):
                    self._call([(self._ranks[member], came[member]) for member in operation.members])

    def _end(self, rank: _Rank, index: int) -> None:
        rank.complete.add(index)
        for following in rank.following[index]:
            self._release(rank, following)

    def _release(self, rank: _Rank, index: int) -> None:
        rank.waits[index] -= 1
        if rank.waits[index] == 0:
            self._ready.append((rank, index))

    def _deliver(self, channel: Channel) -> None:
        sent, wanted = self._sent[channel], self._wanted[channel]
        while sent and wanted:
            send, values = sent.popleft()
            receive, operation = wanted.popleft()
            source, target, step = channel
            room = operation.target.stop - operation.target.start
            if len(values) != room:
                self._tell(
                    f"rank {target} expects {room} elements in step {step} and rank {source} sends {len(values)}"
                )
            self._write(self._ranks[target], (operation.target,), _given_by(values[:room], step))
            self._end(self._ranks[source], send)
            self._end(self._ranks[target], receive)

    def _call(self, came: list[tuple[_Rank, int]]) -> None:
        calls = [self._operation(rank, index) for rank, index in came]
        first = calls[0]
        given = [self._read(rank, call.source, call) for (rank, _), call in zip(came, calls, strict=True)]
        if first.kind.reduces:
            if len(set(map(len, given))) > 1:
                self._tell(f"the members of a {first.kind.value} in step {first.step} give unequal lengths")
            everything = [_combined(column, first.step) for column in zip(*given, strict=False)]
        elif first.kind in (Kind.BROADCAST, Kind.SCATTER):
            everything = given[first.root]
        else:
            everything = [value for values in given for value in values]
        everything = _given_by(everything, first.step)
        start = 0
        for number, ((rank, index), call) in enumerate(zip(came, calls, strict=True)):
            count = call.counts[number] if call.counts else 0
            own = call.kind in (Kind.REDUCE_SCATTER, Kind.SCATTER)
            if call.target or own:
                self._write(rank, call.target, everything[start : start + count] if own else everything)
            start += count
            self._end(rank, index)

    def _operation(self, rank: _Rank, index: int) -> GroupCall:
        operation = rank.program.operations[index]
        if not isinstance(operation, GroupCall):
            raise TypeError(f"operation {index} of rank {rank.program.rank} is no group call")
        return operation

    def _read(self, rank: _Rank, places: Iterable[Place], operation: Operation) -> Values:
        values: Values = []
        me, step = rank.program.rank, operation.step
        for place in places:
            part = rank.memory[place.memory][place.start : place.stop]
            if None in part:
                self._tell(f"rank {me} reads {place_text(place)} in step {step}, which nothing has written")
            values += part
        if not isinstance(operation, Copy):  # which uses nothing: it only moves what others use
            for source in {value.step for value in values if value is not None} - self._handed[step]:
                self._tell(f"step {step} uses elements that step {source} gives, and is not after it (rank {me})")
        return values

    def _write(self, rank: _Rank, places: Sequence[Place], values: Values) -> None:
        start = 0
        for place in places:
            part = values[start : start + place.stop - place.start]
            rank.memory[place.memory][place.start : place.start + len(part)] = part
            start += place.stop - place.start
        if start != len(values):
            self._tell(f"rank {rank.program.rank} has room for {start} of {len(values)} elements")

    def _tell(self, problem: str) -> None:
        self.problems[problem] = None

    # --- afterwards -----------------------------------------------------------------------------

    def unfinished(self) -> list[str]:
        """Operations that started and never end, and who waits for whom in a circle."""
        found: list[str] = []
        waits_for: dict[int, tuple[int, ...]] = {}
        for rank in self._ranks:
            me, operations = rank.program.rank, rank.program.operations
            stuck = [index for index in range(len(operations)) if index not in rank.complete]
            under_way = [index for index in stuck if index in rank.started]
            if stuck and not under_way:
                found.append(f"rank {me}: operations {', '.join(map(str, stuck))} wait for each other")
            for index in under_way:
                others = self._awaited(operations[index], me)
                waits_for.setdefault(me, others)
                found.append(
                    f"rank {me} never completes operation {index} of step {operations[index].step} "
                    f"({operation_text(operations[index])}): {format_ranks(others)} "
                    f"never {'comes' if len(others) == 1 else 'come'} to it"
                )
        circle = _circle(waits_for)
        return found + ([f"ranks {' -> '.join(map(str, circle))} wait for each other"] if circle else [])

    def _awaited(self, operation: Operation, me: int) -> tuple[int, ...]:
        match operation:
            case Send() | Receive():
                return (operation.peer,)
            case GroupCall():
                came = self._came[operation.step, operation.members]
                return tuple(member for member in operation.members if member not in came)
        return (me,)

    def wrong_results(self) -> Iterator[str]:
        """Outputs that are not every input exactly once."""
        wanted = _wanted_operands(self._collective)
        for rank in self._ranks:
            me = rank.program.rank
            indices = _indices(self._collective.output(me))
            for index, value in zip(indices, rank.memory[Memory.OUTPUT], strict=True):
                got = value.operands if value is not None else ()
                if got != wanted[index] and (self._ordered or sorted(got) != list(wanted[index])):
                    yield f"rank {me} element {index}: {_difference(got, wanted[index])}"


def _start(program: Program, collective: Collective) -> _Rank:
    me = program.rank
    memory: dict[Memory, Values] = {
        Memory.INPUT: [_Value(((index, me),), -1) for index in _indices(collective.input(me))],
        Memory.OUTPUT: [None] * length(collective.output(me)),
        Memory.SCRATCH: [None] * program.scratch,
    }
    rank = _Rank(program, memory, [len(operation.after) for operation in program.operations])
    for index, operation in enumerate(program.operations):
        for earlier in operation.after:
            rank.following[earlier].append(index)
        if isinstance(operation, (Send, Receive, GroupCall)) and operation.previous >= 0:
            rank.waits[index] += 1
            rank.following_start[operation.previous].append(index)
    return rank
