"""Writes the program of one rank, operation by operation.

The builder follows where the current value of every element is (the caller's input, the caller's
output, or scratch memory), so that no element is copied without need, and derives from reads and
writes what each operation has to wait for.
"""

from __future__ import annotations

from bisect import bisect_right
from itertools import pairwise

from hpccoll.plans.collective import Collective
from hpccoll.plans.program import Combine, Copy, GroupCall, Memory, Operation, Place, Program, Receive, Send
from hpccoll.plans.spans import Region, Span, length
from hpccoll.plans.steps import Kind


class _Piece:
    """A run of elements whose current value lies at one place, with the operations that touched it."""

    __slots__ = ("length", "memory", "offset", "readers", "writer")

    def __init__(
        self, memory: Memory, offset: int, length: int, writer: int, readers: tuple[int, ...]
    ) -> None:
        self.memory = memory
        self.offset = offset
        self.length = length
        self.writer = writer
        self.readers = readers


# Landing slots for messages that are combined on arrival: so many may be in flight or waiting.
LANDING_SLOTS = 4


class Builder:
    """Writes the program of one rank, operation by operation, in program order."""

    def __init__(self, collective: Collective, rank: int, segment: int) -> None:
        self.collective = collective
        self.rank = rank
        self.segment = segment
        self.step = 0
        self.operations: list[Operation] = []
        self._starts: list[int] = []  # ascending starts of _pieces in the index space
        self._pieces: dict[int, _Piece] = {}
        self._output = collective.output(rank)
        self._scratch = 0
        self._scratch_home: dict[int, tuple[int, int]] = {}  # start -> (stop, offset)
        self._landing: list[tuple[int, int, int]] = []  # offset, length, last operation
        self._next_landing = 0
        self._channels: dict[tuple[type, int], int] = {}
        self._calls: dict[tuple[int, ...], int] = {}
        offset = 0
        for span in collective.input(rank):
            self._insert(span.start, _Piece(Memory.INPUT, offset, span.length, -1, ()))
            offset += span.length

    # --- what algorithms call -------------------------------------------------------------------

    def begin(self, step: int) -> None:
        """The operations that follow belong to this step of the plan."""
        self.step = step
        self._channels.clear()

    def send(self, peer: int, span: Span) -> None:
        """Send the current value of a span."""
        source = self._contiguous(span)
        index = len(self.operations)
        after = self._read(span, index)
        self.operations.append(Send(self.step, after, peer, source, self._channel(Send, peer)))

    def receive(self, peer: int, span: Span) -> None:
        """Receive a span's value."""
        target = self._home(span)
        after = self._write(span, target)
        self.operations.append(Receive(self.step, after, peer, target, self._channel(Receive, peer)))

    def receive_and_combine(self, peer: int, span: Span, *, theirs_first: bool) -> None:
        """Receive a peer's value of a span and combine it with the own one, in the order asked for."""
        slot, landing, waits = self._land(span.length)
        received = len(self.operations)
        self.operations.append(Receive(self.step, waits, peer, landing, self._channel(Receive, peer)))
        own = self._contiguous(span)
        index = len(self.operations)
        reads = self._read(span, index)
        target = self._home(span)
        writes = self._write(span, target)
        after = tuple(sorted({*reads, *writes, received} - {index}))
        left, right = (landing, own) if theirs_first else (own, landing)
        self.operations.append(Combine(self.step, after, left, right, target))
        self._landing[slot] = (*self._landing[slot][:2], index)

    def call(
        self,
        kind: Kind,
        family: str,
        members: tuple[int, ...],
        root: int,
        gives: Region,
        gets: Region,
        counts: tuple[int, ...],
    ) -> None:
        """An action of the whole group: this member gives elements and gets some, in the order listed."""
        index = len(self.operations)
        source = tuple(place for span in gives for place in self._places(span))
        after: set[int] = set()
        for span in gives:
            after.update(self._read(span, index))
        target: list[Place] = []
        for span in gets:
            for part in self._home_parts(span):
                target.append(self._home(part))
                after.update(self._write(part, target[-1]))
        after.discard(index)
        self.operations.append(
            GroupCall(
                self.step, tuple(sorted(after)), kind, family, members, members.index(self.rank), root,
                _joined(source), _joined(target), counts, self._calls.get(members, -1),
            )
        )  # fmt: skip
        self._calls[members] = index

    def finish(self) -> Program:
        """Bring the results that are elsewhere to the caller's output; the program is then complete."""
        for span in self._output:
            for part in self._home_parts(span):
                for start, piece in self._cut(part):
                    if piece.memory is not Memory.OUTPUT:
                        place = Span(start, start + piece.length)
                        self._copy(place, self._home(place))
        return Program(self.rank, tuple(self.operations), self._scratch)

    def holds(self, one: Region) -> bool:
        """Whether this rank has a value for every element of the region."""
        return sum(piece.length for span in one for _, piece in self._cut(span)) == length(one)

    # --- where values are -----------------------------------------------------------------------

    def _insert(self, start: int, piece: _Piece) -> None:
        at = bisect_right(self._starts, start)
        self._starts.insert(at, start)
        self._pieces[start] = piece

    def _split_at(self, position: int) -> None:
        at = bisect_right(self._starts, position) - 1
        if at < 0:
            return
        start = self._starts[at]
        piece = self._pieces[start]
        if start < position < start + piece.length:
            head = position - start
            tail = _Piece(piece.memory, piece.offset + head, piece.length - head, piece.writer, piece.readers)
            piece.length = head
            self._insert(position, tail)

    def _cut(self, span: Span) -> list[tuple[int, _Piece]]:
        """The pieces inside a span, after cutting those that cross its ends."""
        self._split_at(span.start)
        self._split_at(span.stop)
        first = bisect_right(self._starts, span.start - 1)
        last = bisect_right(self._starts, span.stop - 1)
        return [(start, self._pieces[start]) for start in self._starts[first:last]]

    def _places(self, span: Span) -> list[Place]:
        places = [Place(p.memory, p.offset, p.offset + p.length) for _, p in self._cut(span)]
        return list(_joined(tuple(places)))

    def _contiguous(self, span: Span) -> Place:
        """One place that holds the span's value; pieces that lie apart are copied together first."""
        places = self._places(span)
        if len(places) > 1:
            together = self._scratch_place(span)
            for start, piece in self._cut(span):
                part = Span(start, start + piece.length)
                begin = together.start + start - span.start
                self._copy(part, Place(Memory.SCRATCH, begin, begin + piece.length))
            places = [together]
        if len(places) != 1 or places[0].stop - places[0].start != span.length:
            raise ValueError(f"rank {self.rank} has no value for all of {span} in step {self.step}")
        return places[0]

    def _copy(self, span: Span, target: Place) -> None:
        """Move a span's value, which lies at one place, to another."""
        (source,) = self._places(span)
        index = len(self.operations)
        after = {*self._read(span, index), *self._write(span, target)} - {index}
        self.operations.append(Copy(self.step, tuple(sorted(after)), source, target))

    def _home_parts(self, span: Span) -> list[Span]:
        """A span cut at the edges of the caller's output."""
        cuts = {span.start, span.stop}
        for one in self._output:
            cuts.update(edge for edge in one if span.start < edge < span.stop)
        edges = sorted(cuts)
        return [Span(*edge) for edge in pairwise(edges)]

    def _home(self, span: Span) -> Place:
        """Where a result is written: the caller's output where that holds all of it, else scratch memory."""
        offset = 0
        for one in self._output:
            if one.start <= span.start and span.stop <= one.stop:
                begin = offset + span.start - one.start
                return Place(Memory.OUTPUT, begin, begin + span.length)
            offset += one.length
        return self._scratch_place(span)

    def _scratch_place(self, span: Span) -> Place:
        """Scratch memory for a span, the same again when the program comes back to it."""
        for start, (stop, offset) in self._scratch_home.items():
            if start <= span.start and span.stop <= stop:
                begin = offset + span.start - start
                return Place(Memory.SCRATCH, begin, begin + span.length)
        self._scratch_home[span.start] = (span.stop, self._scratch)
        self._scratch += span.length
        return Place(Memory.SCRATCH, self._scratch - span.length, self._scratch)

    # --- what waits for what --------------------------------------------------------------------

    def _read(self, span: Span, index: int) -> tuple[int, ...]:
        """Note that operation `index` reads a span; returns what it waits for."""
        waits: set[int] = set()
        for _, piece in self._cut(span):
            if piece.writer >= 0:
                waits.add(piece.writer)
            piece.readers = (*piece.readers, index)
        waits.discard(index)
        return tuple(sorted(waits))

    def _write(self, span: Span, place: Place) -> tuple[int, ...]:
        """Note that the next operation writes a span's value at a place; returns what it waits for.

        Earlier readers of the span count even where they read the input: with MPI.IN_PLACE the input
        is the same memory.
        """
        index = len(self.operations)
        waits: set[int] = set()
        for start, piece in self._cut(span):
            waits.update(piece.readers)
            if piece.writer >= 0:
                waits.add(piece.writer)
            del self._pieces[start]
            self._starts.remove(start)
        self._insert(span.start, _Piece(place.memory, place.start, span.length, index, ()))
        waits.discard(index)
        return tuple(sorted(waits))

    def _land(self, count: int) -> tuple[int, Place, tuple[int, ...]]:
        """A landing slot of `count` elements, and the operation that must have emptied it."""
        slot = self._next_landing
        self._next_landing = (slot + 1) % LANDING_SLOTS
        if slot == len(self._landing):
            room = min(self.segment, self.collective.elements)
            self._landing.append((self._scratch, room, -1))
            self._scratch += room
        offset, _, last = self._landing[slot]
        return slot, Place(Memory.SCRATCH, offset, offset + count), (last,) if last >= 0 else ()

    def _channel(self, direction: type, peer: int) -> int:
        previous = self._channels.get((direction, peer), -1)
        self._channels[direction, peer] = len(self.operations)
        return previous


def _joined(places: tuple[Place, ...] | list[Place]) -> tuple[Place, ...]:
    """Consecutive places of one memory, joined."""
    result: list[Place] = []
    for place in places:
        if result and result[-1].memory is place.memory and result[-1].stop == place.start:
            result[-1] = Place(place.memory, result[-1].start, place.stop)
        else:
            result.append(place)
    return tuple(result)
