"""All ranks' programs run together on symbols, as the executor would run them on memory.

An operation starts when what it waits for is complete; messages between two ranks match in the order in
which they started; a message is complete only when both sides have started (no plan may count on
buffers), a group call when all members have come to it.
"""

from __future__ import annotations

from collections import defaultdict, deque
from collections.abc import Hashable, Iterable, Sequence
from dataclasses import dataclass, field
from itertools import accumulate
from typing import NamedTuple

from hpccoll.plans.collective import Collective
from hpccoll.plans.program import Combine, Copy, GroupCall, Memory, Operation, Place, Program, Receive, Send
from hpccoll.plans.spans import Region
from hpccoll.plans.steps import Kind, Plan
from hpccoll.plans.text import place_text
from hpccoll.topology.notation import format_ranks


class Value(NamedTuple):
    """What a place holds: the operands (element, rank) combined there, in order, and the step that did it.

    Values with the same `bits` came about alike: the same operands in the same order and groups, rounded at
    the same places.
    """

    operands: tuple[tuple[int, int], ...]
    step: int  # -1: the caller
    bits: int
    folded: bool = True  # the operands were combined one after the other
    rounded: bool = False  # it is as it came from the wire, and would not change by being sent again


Values = list["Value | None"]
Channel = tuple[int, int, int]  # from rank, to rank, step
CALLER = -1


@dataclass
class Actor:
    """One rank: its memory, and how far its program has come."""

    program: Program
    memory: dict[Memory, Values]
    waits: list[int]
    released_by_end: dict[int, list[int]] = field(default_factory=lambda: defaultdict(list))
    released_by_start: dict[int, list[int]] = field(default_factory=lambda: defaultdict(list))
    started: set[int] = field(default_factory=set)
    complete: set[int] = field(default_factory=set)


class Rehearsal:
    """One run; `aliased`: each rank's input lies inside its output.  `problems` are those met on the way."""

    def __init__(self, plan: Plan, programs: Sequence[Program], *, aliased: bool = False) -> None:
        self._told: dict[str, None] = {}
        self._handed: list[set[int]] = []  # by step: those whose elements it may use
        for number, step in enumerate(plan.steps):
            self._handed.append({number, CALLER}.union(*(self._handed[earlier] for earlier in step.after)))
        self._bits: dict[Hashable, int] = {}
        self.actors = [self._actor(program, plan.collective, aliased) for program in programs]
        self._sent: dict[Channel, deque[tuple[int, Send, Values]]] = defaultdict(deque)
        self._wanted: dict[Channel, deque[tuple[int, Receive]]] = defaultdict(deque)
        self._came: dict[tuple[int, tuple[int, ...]], dict[int, tuple[int, GroupCall]]] = defaultdict(dict)
        self._ready: deque[tuple[Actor, int]] = deque()

    @property
    def problems(self) -> list[str]:
        return list(self._told)

    def run(self) -> None:
        """Until nothing moves."""
        for actor in self.actors:
            self._ready += [(actor, index) for index, waits in enumerate(actor.waits) if waits == 0]
        while self._ready:
            actor, index = self._ready.popleft()
            actor.started.add(index)
            for following in actor.released_by_start[index]:
                self._release(actor, following)
            self._begin(actor, index, actor.program.operations[index])

    def missing(self, rank: int, operation: Operation) -> tuple[int, ...]:
        """Whom an operation that has started waits for."""
        if isinstance(operation, GroupCall):
            came = self._came[operation.step, operation.members]
            return tuple(member for member in operation.members if member not in came)
        return (operation.peer,) if isinstance(operation, (Send, Receive)) else ()

    def _begin(self, actor: Actor, index: int, operation: Operation) -> None:
        me, step = actor.program.rank, operation.step
        match operation:
            case Send():
                values = self._use(actor, operation.source, step)
                self._sent[me, operation.peer, step].append((index, operation, values))
                self._deliver((me, operation.peer, step))
            case Receive():
                self._wanted[operation.peer, me, step].append((index, operation))
                self._deliver((operation.peer, me, step))
            case Combine():
                left, right = self._use(actor, operation.left, step), self._use(actor, operation.right, step)
                values = [self._combination(pair, step) for pair in zip(left, right, strict=False)]
                self._write(actor, (operation.target,), values)
                self._end(actor, index)
            case Copy():
                # It uses nothing: it only moves what others use.
                values = self._read(actor, operation.source, step)
                if operation.target.memory is Memory.WIRE:
                    values = list(map(self._rounded, values))
                self._write(actor, (operation.target,), values)
                self._end(actor, index)
            case GroupCall():
                came = self._came[step, operation.members]
                came[me] = (index, operation)
                if len(came) == len(operation.members):
                    self._call(operation.members, came)

    def _end(self, actor: Actor, index: int) -> None:
        actor.complete.add(index)
        for following in actor.released_by_end[index]:
            self._release(actor, following)

    def _release(self, actor: Actor, index: int) -> None:
        actor.waits[index] -= 1
        if actor.waits[index] == 0:
            self._ready.append((actor, index))

    def _deliver(self, channel: Channel) -> None:
        sent, wanted = self._sent[channel], self._wanted[channel]
        source, target, step = channel
        while sent and wanted:
            send, message, values = sent.popleft()
            receive, operation = wanted.popleft()
            if (message.source.memory is Memory.WIRE) != (operation.target.memory is Memory.WIRE):
                self._tell(
                    f"rank {source} sends {place_text(message.source)} in step {step}, rank {target} "
                    f"receives {place_text(operation.target)}: not the same dtype"
                )
            room = operation.target.stop - operation.target.start
            if len(values) != room:
                self._tell(
                    f"rank {target} expects {room} elements in step {step}, rank {source} sends {len(values)}"
                )
            self._write(self.actors[target], (operation.target,), _given_by(values[:room], step))
            self._end(self.actors[source], send)
            self._end(self.actors[target], receive)

    def _call(self, members: tuple[int, ...], came: dict[int, tuple[int, GroupCall]]) -> None:
        calls = [came[member][1] for member in members]
        first = calls[0]
        given = [
            [value for place in call.source for value in self._use(self.actors[member], place, first.step)]
            for member, call in zip(members, calls, strict=True)
        ]
        self._check_call(calls, given)
        results = self._results(first, given)
        for member, call, values in zip(members, calls, results, strict=True):
            if call.target or call.kind in (Kind.REDUCE_SCATTER, Kind.SCATTER, Kind.ALLTOALL):
                self._write(self.actors[member], call.target, _given_by(values, first.step))
            self._end(self.actors[member], came[member][0])

    def _check_call(self, calls: Sequence[GroupCall], given: Sequence[Values]) -> None:
        """All members mean the same call, and give as much as it says."""
        first = calls[0]
        if len({(call.kind, call.root, call.counts) for call in calls}) > 1:
            self._tell(f"{format_ranks(first.members)} do not make the same call in step {first.step}")
        takes = _given_lengths(first, list(map(len, given)))
        for member, values, count in zip(first.members, given, takes, strict=True):
            if len(values) != count:
                self._tell(
                    f"rank {member} gives {len(values)} elements to the {first.kind.value} of step "
                    f"{first.step}, which takes {count} from it"
                )

    def _results(self, call: GroupCall, given: list[Values]) -> list[Values]:
        """What every member gets, where it has room for it."""
        size = len(given)
        if call.kind is Kind.ALLTOALL:
            rows = [call.counts[row * size : (row + 1) * size] for row in range(size)]
            if not call.counts:  # MPI's own call, of equal blocks
                rows = [(len(values) // size,) * size for values in given]
            cut = [_cut(values, row) for values, row in zip(given, rows, strict=True)]
            return [[value for pieces in cut for value in pieces[member]] for member in range(size)]
        if call.kind in (Kind.SCAN, Kind.EXSCAN):
            until = range(call.kind is Kind.SCAN, size + (call.kind is Kind.SCAN))
            return [self._combined(call, given[:last]) for last in until]
        everything = self._together(call, given)
        if call.kind in (Kind.REDUCE_SCATTER, Kind.SCATTER):
            return _cut(everything, call.counts)
        return [everything] * size

    def _combined(self, call: GroupCall, given: list[Values]) -> Values:
        return [self._combination(column, call.step) for column in zip(*given, strict=False)]

    def _together(self, call: GroupCall, given: list[Values]) -> Values:
        if call.kind.reduces:
            return self._combined(call, given)
        if call.kind in (Kind.BROADCAST, Kind.SCATTER):
            return given[call.root]
        return [value for values in given for value in values]

    def _use(self, actor: Actor, place: Place, step: int) -> Values:
        """Values that a step needs: its own, the caller's, or those of steps that it comes after."""
        values = self._read(actor, place, step)
        for source in {value.step for value in values if value is not None} - self._handed[step]:
            self._tell(
                f"rank {actor.program.rank} uses in step {step} what step {source} gives, "
                f"but step {step} is not after step {source}"
            )
        return values

    def _read(self, actor: Actor, place: Place, step: int) -> Values:
        values = actor.memory[place.memory][place.start : place.stop]
        if None in values:
            rank = actor.program.rank
            self._tell(f"rank {rank} reads {place_text(place)} in step {step}, which nothing has written")
        return values

    def _write(self, actor: Actor, places: Iterable[Place], values: Values) -> None:
        start = 0
        for place in places:
            part = values[start : start + place.stop - place.start]
            actor.memory[place.memory][place.start : place.start + len(part)] = part
            start += place.stop - place.start
        if start != len(values):
            self._tell(f"rank {actor.program.rank} has room for {start} of {len(values)} elements")

    def _combination(self, values: Iterable[Value | None], step: int) -> Value | None:
        operands: tuple[tuple[int, int], ...] = ()
        folded = True
        bits = []
        for number, value in enumerate(values):
            if value is None:
                return None
            folded = folded and value.folded and (number == 0 or len(value.operands) == 1)
            operands += value.operands
            bits.append(value.bits)
        return Value(operands, step, bits[0] if len(bits) == 1 else self._number(tuple(bits)), folded)

    def _rounded(self, value: Value | None) -> Value | None:
        if value is None or value.rounded:
            return value
        return value._replace(bits=self._number(("rounded", value.bits)), rounded=True)

    def _number(self, bits: Hashable) -> int:
        return self._bits.setdefault(bits, len(self._bits))

    def _actor(self, program: Program, collective: Collective, aliased: bool) -> Actor:
        me = program.rank
        given, wanted = indices(collective.input(me)), indices(collective.output(me))
        values = {index: Value(((index, me),), CALLER, self._number(("given", index, me))) for index in given}
        memory: dict[Memory, Values] = {
            Memory.INPUT: [values[index] for index in given],
            Memory.OUTPUT: [values.get(index) if aliased else None for index in wanted],
            Memory.SCRATCH: [None] * program.scratch,
            Memory.WIRE: [None] * program.wire,
        }
        actor = Actor(program, memory, [len(operation.after) for operation in program.operations])
        for index, operation in enumerate(program.operations):
            for earlier in operation.after:
                actor.released_by_end[earlier].append(index)
            if isinstance(operation, (Send, Receive, GroupCall)) and operation.previous >= 0:
                actor.waits[index] += 1
                actor.released_by_start[operation.previous].append(index)
        return actor

    def _tell(self, problem: str) -> None:
        self._told[problem] = None


def indices(one: Region) -> list[int]:
    """The elements of a region."""
    return [index for span in one for index in range(*span)]


def _cut(values: Values, counts: Sequence[int]) -> list[Values]:
    """Consecutive pieces of these lengths."""
    ends = list(accumulate(counts))
    return [values[end - count : end] for end, count in zip(ends, counts, strict=True)]


def _given_lengths(call: GroupCall, lengths: Sequence[int]) -> Sequence[int]:
    """What a call takes from each member; `lengths` are what they give."""
    size, everything = len(lengths), sum(call.counts)
    match call.kind:
        case Kind.GATHER | Kind.ALLGATHER:
            return call.counts
        case Kind.REDUCE_SCATTER:
            return (everything,) * size
        case Kind.SCATTER:
            return [everything if member == call.root else 0 for member in range(size)]
        case Kind.ALLTOALL if call.counts:
            return [sum(call.counts[member * size : (member + 1) * size]) for member in range(size)]
        case Kind.BROADCAST:
            return [lengths[call.root] if member == call.root else 0 for member in range(size)]
    return (lengths[0],) * size


def _given_by(values: Values, step: int) -> Values:
    return [value if value is None else value._replace(step=step) for value in values]
