"""The program of one rank as calls on NCCL communicators, copies, and events between two streams.

What goes on inside nodes runs on the caller's stream.  Where a plan has several chunks, what goes on between
nodes runs on a second one, so that one chunk is between the nodes while the next is inside; an event is
recorded wherever an operation of one stream waits for one of the other.  Without chunks there are none.

What NCCL does not combine is combined by a kernel (device_combining.py).

NCCL takes elements in a row.  A member whose elements lie apart packs them into scratch memory, and unpacks
what it gets: which ranks do is nobody else's business.
"""

from __future__ import annotations

from collections.abc import Mapping
from itertools import accumulate

from hpccoll.plans.program import Copy, GroupCall, Memory, Operation, Place, Program
from hpccoll.plans.steps import Kind, Plan
from hpccoll.runtime.between import Crossing, HopsOf
from hpccoll.runtime.device_combining import Action, Address, Bases, Combining
from hpccoll.runtime.tape import GIVEN, SECOND, Code, Parts, Tape
from hpccoll.transports.nccl import NcclGroup

Instruction = tuple[str, int, Action | int]  # what, on which of the two streams, action or number of an event

CALLERS, NETWORK = GIVEN, SECOND
ALIGNMENT = 512
_BETWEEN_NODES = frozenset({"LEADERS", "RAIL", "LAST"})
CROSSING = _BETWEEN_NODES | {"WORLD"}


class DeviceProgram:
    """A compiled program.

    `groups`: the communicators by their members.  `itemsize`: bytes of a plan's element; `width`: how many
    of NCCL's elements of type `kind` one is.  `combining`: what combines elements, if NCCL does not.
    `hops`: where steps between nodes go by MPI.
    """

    def __init__(
        self,
        plan: Plan,
        program: Program,
        groups: Mapping[tuple[int, ...], NcclGroup],
        itemsize: int,
        kind: int,
        width: int,
        combining: Combining | None = None,
        hops: HopsOf | None = None,
    ) -> None:
        self.plan = plan
        self.name = plan.name
        self._groups = groups
        self._itemsize = itemsize
        self._kind = kind
        self._width = width
        self._combining = combining
        self.hops = hops
        self._scratch = program.scratch * itemsize
        self._split = plan.chunks > 1
        self.groups: tuple[NcclGroup, ...] = ()
        compiled = self._compile if hops is None else self._compile_with_hops
        self.instructions = compiled(program.operations)
        self.scratch_bytes = self._scratch

    def write(self, tape: Tape, bases: Bases, operator: int) -> None:
        """All of it, for memories at these addresses."""
        events: dict[int, int] = {}
        for what, level, thing in self.instructions:
            if what == "mark":
                events[int(thing)] = tape.mark(level)  # type: ignore[arg-type]
            elif what == "follow":
                tape.follow(level, events[int(thing)])  # type: ignore[arg-type]
            else:
                thing(tape, level, bases, operator)  # type: ignore[operator]

    # --- compiling ------------------------------------------------------------------------------

    def _compile(self, operations: tuple[Operation, ...]) -> list[Instruction]:
        levels = [self._level(operation) for operation in operations]
        waited_for = {
            before
            for index, operation in enumerate(operations)
            for before in operation.after
            if levels[before] != levels[index]
        }
        made: list[Instruction] = []
        event_of: dict[int, int] = {}
        begun = -1
        followed = [begun, begun - 1]  # by each stream: up to which operation of the other
        if NETWORK in levels:
            made.append(("mark", CALLERS, 0))
            event_of[begun] = 0
        used: dict[tuple[int, ...], NcclGroup] = {}
        for index, (operation, level) in enumerate(zip(operations, levels, strict=True)):
            across = max((one for one in operation.after if levels[one] != level), default=begun)
            if across > followed[level]:
                made.append(("follow", level, event_of[across]))
                followed[level] = across
            made += [("call", level, action) for action in self._actions(operation)]
            if index in waited_for:
                event_of[index] = len(event_of)
                made.append(("mark", level, event_of[index]))
            if isinstance(operation, GroupCall):
                used[operation.members] = self._groups[operation.members]
        last = max((index for index, level in enumerate(levels) if level == NETWORK), default=begun)
        if last > followed[CALLERS]:
            made += [("mark", NETWORK, len(event_of)), ("follow", CALLERS, len(event_of))]
        self.groups = tuple(used.values())
        return made

    def _compile_with_hops(self, operations: tuple[Operation, ...]) -> list[Instruction]:
        """As `_compile`; what a step between nodes brings lands just before it is needed."""
        made: list[Instruction] = []
        landings: dict[int, list[Action]] = {}
        used: dict[tuple[int, ...], NcclGroup] = {}
        for index, operation in enumerate(operations):
            for before in sorted(set(operation.after) & set(landings)):
                made += [("call", CALLERS, action) for action in landings.pop(before)]
            if isinstance(operation, GroupCall) and operation.family in CROSSING:
                leaving, landings[index] = self._hop(operation)
                made += [("mark", CALLERS, index), ("follow", NETWORK, index)]
                made += [("call", NETWORK, action) for action in leaving]
                continue
            made += [("call", CALLERS, action) for action in self._actions(operation)]
            if isinstance(operation, GroupCall):
                used[operation.members] = self._groups[operation.members]
        made += [("call", CALLERS, action) for index in sorted(landings) for action in landings[index]]
        self.groups = tuple(used.values())
        return made

    def _hop(self, call: GroupCall) -> tuple[list[Action], list[Action]]:
        """What leaves this node and what lands in it."""
        assert self.hops is not None
        bridge, hop, under_way = self.hops.bridge, self.hops.hop(call), list[Crossing]()
        source, before = self._in_a_row(call.source, pack=True)
        target, after = self._in_a_row(call.target, pack=False)
        (m, o), (n, p) = source or (0, 0), target or (0, 0)

        def leave(tape: Tape, level: int, bases: Bases, operator: int) -> None:
            address = bases[m] + o
            tape.kernel(level, lambda stream: under_way.append(bridge.leave(hop, address, stream)))

        def land(tape: Tape, level: int, bases: Bases, operator: int) -> None:
            address = bases[n] + p
            tape.kernel(level, lambda stream: bridge.land(under_way.pop(0), address, stream))

        return [*before, leave], [land, *after]

    def _level(self, operation: Operation) -> int:
        between = isinstance(operation, GroupCall) and operation.family in _BETWEEN_NODES
        return NETWORK if self._split and between else CALLERS

    def _actions(self, operation: Operation) -> list[Action]:
        if isinstance(operation, Copy):
            return [
                self._copy(self._at(operation.source), self._at(operation.target), _length(operation.source))
            ]
        if not isinstance(operation, GroupCall):
            raise TypeError(f"{type(operation).__name__} is nothing that NCCL does")
        source, before = self._in_a_row(operation.source, pack=True)
        target, after = self._in_a_row(operation.target, pack=False)
        return [*before, self._call(operation, source, target), *after]

    def _in_a_row(self, places: tuple[Place, ...], *, pack: bool) -> tuple[Address | None, list[Action]]:
        """Where elements are for NCCL, and the copies that bring them there, or from there."""
        if len(places) <= 1:
            return (self._at(places[0]) if places else None), []
        begin = -(-self._scratch // ALIGNMENT) * ALIGNMENT
        self._scratch = begin + sum(map(_length, places)) * self._itemsize
        copies, at = [], begin
        for place in places:
            row = (int(Memory.SCRATCH), at)
            pair = (self._at(place), row) if pack else (row, self._at(place))
            copies.append(self._copy(*pair, _length(place)))
            at += _length(place) * self._itemsize
        return (int(Memory.SCRATCH), begin), copies

    def _at(self, place: Place) -> Address:
        return int(place.memory), place.start * self._itemsize

    def _copy(self, source: Address, target: Address, count: int) -> Action:
        nbytes = count * self._itemsize

        def copy(tape: Tape, level: int, bases: Bases, operator: int) -> None:
            begin, end = bases[source[0]] + source[1], bases[target[0]] + target[1]
            if begin != end:
                tape.copy(level, end, begin, nbytes)

        return copy

    def _call(self, call: GroupCall, source: Address | None, target: Address | None) -> Action:
        if call.kind.reduces and self._combining is not None:
            return self._combined(self._combining, call, source, target)
        group, kind, root = self._groups[call.members], self._kind, call.root
        me = call.index
        count = self._width * sum(map(_length, call.source or call.target))
        counts = [self._width * one for one in call.counts]
        alike = len(set(counts)) <= 1
        (m, o), (n, p) = source or target or (0, 0), target or source or (0, 0)

        def simple(code: Code, count: int, *rest: int, operator: bool = False) -> Action:
            def write(tape: Tape, level: int, bases: Bases, op: int) -> None:
                more = (op, *rest) if operator else rest
                tape.call(code, level, group, bases[m] + o, bases[n] + p, count, kind, *more)

            return write

        match call.kind:
            case Kind.ALLREDUCE:
                return simple(Code.ALL_REDUCE, count, operator=True)
            case Kind.REDUCE:
                return simple(Code.REDUCE, count, root, operator=True)
            case Kind.BROADCAST:
                return simple(Code.BROADCAST, count, root)
            case Kind.ALLGATHER if alike:
                return simple(Code.ALL_GATHER, counts[0])
            case Kind.REDUCE_SCATTER if alike:
                return simple(Code.REDUCE_SCATTER, counts[0], operator=True)
            case Kind.ALLGATHER:
                return self._unequal_gather(group, (m, o), (n, p), counts)
            case Kind.REDUCE_SCATTER:
                return self._unequal_scatter(group, (m, o), (n, p), counts)
            case Kind.GATHER:
                gives = [(root, (m, o), counts[me])]
                takes = self._blocks((n, p), counts) if me == root else []
                return self._messages(group, gives, takes)
            case Kind.SCATTER:
                gives = self._blocks((m, o), counts) if me == root else []
                return self._messages(group, gives, [(root, (n, p), counts[me])])
            case Kind.ALLTOALL:
                size = len(call.members)
                rows = counts[me * size : (me + 1) * size]
                return self._messages(
                    group, self._blocks((m, o), rows), self._blocks((n, p), counts[me::size])
                )
        raise TypeError(f"NCCL has no {call.kind.value}")

    def _combined(
        self, combining: Combining, call: GroupCall, source: Address | None, target: Address | None
    ) -> Action:
        """A call of which NCCL moves the elements, and a kernel combines them."""
        begin = -(-self._scratch // ALIGNMENT) * ALIGNMENT
        row = (int(Memory.SCRATCH), begin)
        count = sum(map(_length, call.source or call.target))
        group = self._groups[call.members]
        nbytes, action = combining.action(call, group, count, source or row, target or row, row)
        self._scratch = begin + nbytes
        return action

    def _unequal_gather(
        self, group: NcclGroup, source: Address, target: Address, counts: list[int]
    ) -> Action:
        blocks, me, kind = self._blocks(target, counts), group.index, self._kind

        def gather(tape: Tape, level: int, bases: Bases, operator: int) -> None:
            tape.call(Code.BEGIN, level, group)
            for member, (memory, offset), count in blocks:
                to = bases[memory] + offset
                origin = bases[source[0]] + source[1] if member == me else to
                tape.call(Code.BROADCAST, level, group, origin, to, count, kind, member)
            tape.call(Code.END, level, group)

        return gather

    def _unequal_scatter(
        self, group: NcclGroup, source: Address, target: Address, counts: list[int]
    ) -> Action:
        blocks, me, kind = self._blocks(source, counts), group.index, self._kind

        def scatter(tape: Tape, level: int, bases: Bases, operator: int) -> None:
            tape.call(Code.BEGIN, level, group)
            for member, (memory, offset), count in blocks:
                origin = bases[memory] + offset
                to = bases[target[0]] + target[1] if member == me else origin
                tape.call(Code.REDUCE, level, group, origin, to, count, kind, operator, member)
            tape.call(Code.END, level, group)

        return scatter

    def _blocks(self, begin: Address, counts: list[int]) -> list[tuple[int, Address, int]]:
        """Each member's block where it has one: member, address, count."""
        size = self._itemsize // self._width
        starts = [0, *accumulate(counts)]
        return [
            (member, (begin[0], begin[1] + starts[member] * size), count)
            for member, count in enumerate(counts)
            if count
        ]

    def _messages(
        self,
        group: NcclGroup,
        gives: list[tuple[int, Address, int]],
        takes: list[tuple[int, Address, int]],
    ) -> Action:
        """Blocks sent to members and received from members; the own one is copied."""
        kind, size = self._kind, self._itemsize // self._width

        def exchange(tape: Tape, level: int, bases: Bases, operator: int) -> None:
            tape.exchange(level, group, kind, size, _placed(gives, bases), _placed(takes, bases))

        return exchange


def _placed(parts: list[tuple[int, Address, int]], bases: Bases) -> Parts:
    return [(member, bases[memory] + offset, count) for member, (memory, offset), count in parts]


def _length(place: Place) -> int:
    return place.stop - place.start
