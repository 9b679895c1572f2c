"""Half-open ranges of elements, and ordered sets of them."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from typing import NamedTuple


class Span(NamedTuple):
    """The elements start, start + 1, ..., stop - 1 of a collective's index space."""

    start: int
    stop: int

    @property
    def length(self) -> int:
        return self.stop - self.start


# Disjoint spans in ascending order, none empty; what a member of a group contributes or receives.
Region = tuple[Span, ...]


def region(*spans: Span) -> Region:
    """The region of these spans: sorted, neighbours joined, empty ones dropped."""
    joined: list[Span] = []
    for span in sorted(span for span in spans if span.length > 0):
        if joined and span.start <= joined[-1].stop:
            joined[-1] = Span(joined[-1].start, max(joined[-1].stop, span.stop))
        else:
            joined.append(span)
    return tuple(joined)


def union(regions: Iterable[Region]) -> Region:
    """All elements of disjoint regions, as one region."""
    return region(*(span for one in regions for span in one))


def without(one: Region, other: Region) -> Region:
    """The elements of a region that another, which lies within it, has not."""
    rest: list[Span] = []
    for span in one:
        start = span.start
        for taken in other:
            if span.start <= taken.start < span.stop:
                rest.append(Span(start, taken.start))
                start = taken.stop
        rest.append(Span(start, span.stop))
    return region(*rest)


def length(one: Region) -> int:
    """How many elements a region has."""
    return sum(span.stop - span.start for span in one)


def split_evenly(count: int, parts: int) -> list[int]:
    """Lengths of `parts` consecutive pieces of `count` elements, the longer ones first."""
    whole, extra = divmod(count, parts)
    return [whole + (index < extra) for index in range(parts)]


def split(one: Region, lengths: Sequence[int]) -> list[Region]:
    """Cut a region, in order, into consecutive regions of the given lengths (which add up to its own)."""
    pieces: list[Region] = []
    spans = iter(one)
    start = stop = 0
    for wanted in lengths:
        piece: list[Span] = []
        while wanted > 0:
            if start == stop:
                start, stop = next(spans)
            taken = min(wanted, stop - start)
            piece.append(Span(start, start + taken))
            start += taken
            wanted -= taken
        pieces.append(tuple(piece))
    return pieces


def segments(one: Region, longest: int) -> Iterator[Span]:
    """The spans of a region cut into pieces of at most `longest` elements."""
    for span in one:
        for start in range(span.start, span.stop, longest):
            yield Span(start, min(start + longest, span.stop))


def packets(one: Region, longest: int) -> list[Region]:
    """A region cut, in order, into regions of at most `longest` elements, a message each."""
    total = length(one)
    return split(one, [min(longest, total - start) for start in range(0, total, longest)])
