"""Where the current value of every element of one rank lies, and which operations touched it.

A value is in the caller's input, in the caller's output, or in scratch memory.  Values that lie side by
side and were touched by the same operations are one piece; pieces are cut where an operation's span ends.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from itertools import accumulate, pairwise
from typing import TypeVar

from hpccoll.plans.program import Memory, Place
from hpccoll.plans.spans import Region, Span

T = TypeVar("T")


@dataclass(slots=True)
class Piece:
    """A run of elements whose current value lies at one place, with the operations that touched it."""

    memory: Memory
    offset: int
    length: int
    writer: int = -1  # the caller
    readers: tuple[int, ...] = ()

    @property
    def place(self) -> Place:
        return Place(self.memory, self.offset, self.offset + self.length)


class Values:
    """The elements of the index space that one rank has a value of; `scratch`: elements of it in use.

    `aliased`: the input may be part of the output (MPI.IN_PLACE), so that writing waits for its readers.
    """

    def __init__(self, given: Region, output: Region, *, aliased: bool) -> None:
        self.scratch = 0
        self._aliased = aliased
        self._starts: list[int] = []  # ascending starts of _pieces in the index space
        self._pieces: dict[int, Piece] = {}
        self._output = output
        self._output_starts = [span.start for span in output]
        self._output_offsets = [0, *accumulate(span.length for span in output)]
        self._scratch_starts: list[int] = []  # ascending keys of _scratch_home
        self._scratch_home: dict[int, tuple[int, int]] = {}  # start -> (stop, offset)
        offset = 0
        for span in given:
            self._insert(span.start, Piece(Memory.INPUT, offset, span.length))
            offset += span.length

    # --- where values are -----------------------------------------------------------------------

    def cut(self, span: Span) -> list[tuple[Span, Piece]]:
        """The pieces inside a span, after cutting those that cross its ends."""
        self._split_at(span.start)
        self._split_at(span.stop)
        first = bisect_right(self._starts, span.start - 1)
        last = bisect_right(self._starts, span.stop - 1)
        pieces = [(start, self._pieces[start]) for start in self._starts[first:last]]
        return [(Span(start, start + piece.length), piece) for start, piece in pieces]

    def places(self, one: Region) -> tuple[Place, ...]:
        """Where the values of a region are, one span after the other."""
        return joined(piece.place for span in one for _, piece in self.cut(span))

    def count(self, one: Region) -> int:
        """How many elements of a region have a value."""
        return sum(piece.length for span in one for _, piece in self.cut(span))

    # --- where values go ------------------------------------------------------------------------

    def home(self, span: Span) -> Place:
        """Where a result is written: the caller's output where that holds all of it, else scratch memory."""
        at = bisect_right(self._output_starts, span.start) - 1
        if at >= 0 and span.stop <= self._output[at].stop:
            begin = self._output_offsets[at] + span.start - self._output[at].start
            return Place(Memory.OUTPUT, begin, begin + span.length)
        return self.scratch_home(span)

    def home_parts(self, span: Span) -> list[Span]:
        """A span cut at the edges of the caller's output and of scratch memory that spans have already."""
        known = [*_near(span, self._output_starts, self._output)]
        known += (
            Span(start, self._scratch_home[start][0])
            for start in _near(span, self._scratch_starts, self._scratch_starts)
        )
        edges = {edge for one in known for edge in one if span.start < edge < span.stop}
        return [Span(*part) for part in pairwise([span.start, *sorted(edges), span.stop])]

    def scratch_home(self, span: Span) -> Place:
        """Scratch memory for a span, the same again when the program comes back to it."""
        at = bisect_right(self._scratch_starts, span.start) - 1
        if at >= 0:
            start = self._scratch_starts[at]
            stop, offset = self._scratch_home[start]
            if span.stop <= stop:
                begin = offset + span.start - start
                return Place(Memory.SCRATCH, begin, begin + span.length)
        if span.start not in self._scratch_home:
            self._scratch_starts.insert(at + 1, span.start)
        self._scratch_home[span.start] = (span.stop, self.scratch)
        return self.fresh(span.length)

    def fresh(self, count: int) -> Place:
        """Scratch memory that nothing has used."""
        self.scratch += count
        return Place(Memory.SCRATCH, self.scratch - count, self.scratch)

    # --- what waits for what --------------------------------------------------------------------

    def read(self, one: Region, index: int) -> set[int]:
        """Note that operation `index` reads a region; returns what it waits for."""
        waits: set[int] = set()
        for span in one:
            for _, piece in self.cut(span):
                if piece.writer >= 0:
                    waits.add(piece.writer)
                piece.readers = (*piece.readers, index)
        return waits - {index}

    def write(self, span: Span, place: Place, index: int) -> set[int]:
        """Note that operation `index` writes a span's value at a place; returns what it waits for."""
        waits: set[int] = set()
        for part, piece in self.cut(span):
            if self._aliased or piece.memory is not Memory.INPUT:
                waits.update(piece.readers)
            if piece.writer >= 0:
                waits.add(piece.writer)
            del self._pieces[part.start]
            self._starts.remove(part.start)
        self._insert(span.start, Piece(place.memory, place.start, span.length, index))
        return waits - {index}

    def _insert(self, start: int, piece: Piece) -> None:
        self._starts.insert(bisect_right(self._starts, start), start)
        self._pieces[start] = piece

    def _split_at(self, position: int) -> None:
        at = bisect_right(self._starts, position) - 1
        if at < 0:
            return
        start = self._starts[at]
        piece = self._pieces[start]
        if start < position < start + piece.length:
            head = position - start
            tail = Piece(piece.memory, piece.offset + head, piece.length - head, piece.writer, piece.readers)
            piece.length = head
            self._insert(position, tail)


def _near(span: Span, starts: Sequence[int], ones: Sequence[T]) -> Sequence[T]:
    """Those of `ones`, with these ascending starts, that may lie in or cross a span."""
    first = max(bisect_right(starts, span.start) - 1, 0)
    return ones[first : bisect_right(starts, span.stop)]


def joined(places: Iterable[Place]) -> tuple[Place, ...]:
    """Consecutive places of one memory, joined."""
    result: list[Place] = []
    for place in places:
        if result and result[-1].memory is place.memory and result[-1].stop == place.start:
            result[-1] = Place(place.memory, result[-1].start, place.stop)
        else:
            result.append(place)
    return tuple(result)
