"""What the program of one rank may do wrong with its memory, whatever the other ranks do.

Two operations that touch the same elements, at least one writing, need an order: the later one waits,
through `after`, for the earlier one to be complete.  An operation may write what it reads only element
onto element.  Messages to one peer, from one peer, and calls of one group start in program order, since
the other side matches them by their order.  The caller's input is never written.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Hashable, Iterable, Iterator, Sequence
from dataclasses import replace
from typing import Any

from hpccoll.plans.collective import Collective
from hpccoll.plans.program import Combine, Copy, GroupCall, Memory, Operation, Place, Program, Receive, Send
from hpccoll.plans.steps import Kind
from hpccoll.plans.text import operation_text, place_text

# Where MPI.IN_PLACE makes a rank's input the part of its output with the same indices.
IN_PLACE = frozenset({"allreduce", "reduce", "broadcast", "allgather", "gather"})

Cell = tuple[Memory, int]


def in_place(program: Program, collective: Collective) -> Program:
    """The same program with its input inside its output, as with MPI.IN_PLACE.

    Ranks without an output (of a reduce, those that are not the root) keep their input.
    """
    given, wanted = collective.input(program.rank), collective.output(program.rank)
    if not given or not wanted:
        return program
    shift = sum(min(span.stop, given[0].start) - span.start for span in wanted if span.start < given[0].start)

    def moved(place: Place) -> Place:
        if place.memory is not Memory.INPUT:
            return place
        return Place(Memory.OUTPUT, place.start + shift, place.stop + shift)

    return replace(program, operations=tuple(_with_places(one, moved) for one in program.operations))


def hazards(program: Program) -> Iterator[str]:
    """What is wrong, in words; the operations are given by their index."""
    before = _before(program)
    touched = [list(touches(operation)) for operation in program.operations]
    found = [
        *_waits_for_later(program),
        *_unordered_messages(program, before),
        *_races(program, before, touched),
        *_overlaps(program),
    ]
    for index, places in enumerate(touched):
        if any(writes and place.memory is Memory.INPUT for place, writes in places):
            found.append(f"operation {index} writes the caller's input")
    return (f"rank {program.rank} {problem}" for problem in found)


def touches(operation: Operation) -> Iterator[tuple[Place, bool]]:
    """The places of an operation, and whether it writes there.  A copy onto itself does nothing."""
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
            if operation.source != operation.target:
                yield operation.source, False
                yield operation.target, True
        case GroupCall():
            yield from ((place, False) for place in operation.source)
            yield from ((place, True) for place in operation.target)


def _with_places(operation: Operation, moved: Callable[[Place], Place]) -> Operation:
    if not any(place.memory is Memory.INPUT for place, _ in touches(operation)):
        return operation
    changes: dict[str, Any] = {}
    for name in ("source", "target", "left", "right"):
        value = getattr(operation, name, None)
        if isinstance(value, Place):
            changes[name] = moved(value)
        elif value is not None:
            changes[name] = tuple(map(moved, value))
    return replace(operation, **changes)


def _before(program: Program) -> list[int]:
    """Bit i of entry j: operation i is complete before operation j starts."""
    before: list[int] = []
    for index, operation in enumerate(program.operations):
        bits = 0
        for earlier in operation.after:
            if 0 <= earlier < index:
                bits |= before[earlier] | 1 << earlier
        before.append(bits)
    return before


def _waits_for_later(program: Program) -> Iterator[str]:
    for index, operation in enumerate(program.operations):
        for earlier in operation.after:
            if not 0 <= earlier < index:
                yield f"operation {index} waits for operation {earlier}, which is not before it"


def _unordered_messages(program: Program, before: Sequence[int]) -> Iterator[str]:
    last: dict[Hashable, int] = {}
    for index, operation in enumerate(program.operations):
        channel: Hashable
        match operation:
            case Send() | Receive():
                channel = (type(operation), operation.step, operation.peer)
            case GroupCall():
                channel = operation.members
            case _:
                continue
        earlier = last.get(channel, -1)
        last[channel] = index
        started = operation.previous == earlier or (earlier >= 0 and before[index] >> earlier & 1)
        if not started:
            yield (
                f"operation {_named(program, index)} may start before operation {earlier}, "
                "and be matched with what that is for"
            )


def _races(
    program: Program, before: Sequence[int], touched: Sequence[Sequence[tuple[Place, bool]]]
) -> Iterator[str]:
    # An operation ordered after the last writer, and a writer after all readers since, is ordered after all.
    writer: dict[Cell, int] = {}
    readers: dict[Cell, list[int]] = defaultdict(list)
    told: set[tuple[int, int]] = set()
    for index, places in enumerate(touched):
        for place, writes in places:
            for cell in _cells((place,)):
                others = (writer.get(cell, index), *(readers[cell] if writes else ()))
                for other in others:
                    if other != index and not before[index] >> other & 1 and (other, index) not in told:
                        told.add((other, index))
                        yield (
                            f"operations {_named(program, other)} and {_named(program, index)} "
                            f"race for {place_text(place)}: nothing orders them"
                        )
        for place, writes in places:
            for cell in _cells((place,)):
                if writes:
                    writer[cell], readers[cell] = index, []
                else:
                    readers[cell].append(index)


def _named(program: Program, index: int) -> str:
    return f"{index} ({operation_text(program.operations[index])})"


def _overlaps(program: Program) -> Iterator[str]:
    for index, operation in enumerate(program.operations):
        sources: tuple[tuple[Place, ...], ...] = ()
        target: tuple[Place, ...] = ()
        shift = 0
        match operation:
            case Combine():
                sources, target = ((operation.left,), (operation.right,)), (operation.target,)
            case Copy():
                sources, target = ((operation.source,),), (operation.target,)
            case GroupCall():
                sources, target = (operation.source,), operation.target
                shift = _shift(operation, program.rank)
        if any(_misses(source, target, shift) for source in sources):
            yield f"operation {_named(program, index)} writes what it has yet to read"


def _misses(source: Sequence[Place], target: Sequence[Place], shift: int) -> bool:
    """Whether an element is written over another one that is to be read."""
    if source == target and shift == 0:
        return False
    if not any(one.memory is other.memory for one in source for other in target):
        return False
    at = {cell: position for position, cell in enumerate(_cells(source))}
    return any(at.get(cell, to + shift) != to + shift for to, cell in enumerate(_cells(target)))


def _shift(call: GroupCall, rank: int) -> int:
    """How much further in the source than in the target a member's element is."""
    if call.kind in (Kind.ALLREDUCE, Kind.REDUCE, Kind.BROADCAST, Kind.ALLTOALL, Kind.SCAN, Kind.EXSCAN):
        return 0  # an all-to-all that reads and writes the same memory is wrong wherever it does
    own = sum(call.counts[: call.members.index(rank)])
    return own if call.kind in (Kind.REDUCE_SCATTER, Kind.SCATTER) else -own


def _cells(places: Iterable[Place]) -> Iterator[Cell]:
    for memory, start, stop in places:
        for position in range(start, stop):
            yield memory, position
