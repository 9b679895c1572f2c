"""Arrays in memory that all ranks of a node reach, so that collectives need not copy them there.

Each is an area of a segment of its own, in which every rank of the node has one.  All ranks of a communicator
make them together and number them alike.  An area may go when no rank has an array in it any more, which
they tell one another when the next one is made.
"""

from __future__ import annotations

import weakref
from bisect import bisect_right, insort
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np

from hpccoll.memory.segments import Segment
from hpccoll.transports.base import Array

ALIGNMENT = 4096  # a rank's part begins on a page of its own
MOST_TOLD = 15  # unused areas in one exchange


class Offer(NamedTuple):
    """Where elements lie: the number of the area, and bytes from the start of the rank's part."""

    area: int
    offset: int


@dataclass(frozen=True)
class _Area:
    parts: Sequence[Array]  # of every member, as bytes
    segment: Segment


class Areas:
    """The areas of one communicator, as member `me` of a node sees them."""

    def __init__(self, me: int) -> None:
        self._me = me
        self._areas: dict[int, _Area] = {}
        self._unused: list[int] = []
        self._starts: list[tuple[int, int, int]] = []  # own parts: address, end, number

    def add(
        self,
        number: int,
        segment: Segment | None,
        nbytes: Sequence[int],
        shape: tuple[int, ...],
        dtype: np.dtype[Any],
    ) -> Array:
        """A new area with a part of so many bytes for each member; returns the own part as an array.

        `segment` is None where the rank has its node for itself.
        """
        if segment is None:
            return _private(shape, dtype)
        starts = part_starts(nbytes)
        parts = [segment.array(np.uint8, start, count) for start, count in zip(starts, nbytes, strict=True)]
        self._areas[number] = _Area(parts, segment)
        if nbytes[self._me] == 0:
            self._unused.append(number)
            return _private(shape, dtype)
        root = segment.array(np.uint8, starts[self._me], nbytes[self._me])
        begin = root.ctypes.data
        insort(self._starts, (begin, begin + root.size, number))
        weakref.finalize(root, self._unused.append, number)
        return root.view(dtype).reshape(shape)

    def locate(self, array: Array) -> Offer | None:
        """Where a contiguous array lies, if in one of the own parts."""
        if not self._starts or not array.size:
            return None
        begin = array.ctypes.data
        at = bisect_right(self._starts, (begin, 1 << 63, 0)) - 1
        if at < 0:
            return None
        start, stop, number = self._starts[at]
        return Offer(number, begin - start) if begin + array.nbytes <= stop else None

    def parts(self) -> Mapping[int, Sequence[Array]]:
        """By number of the area, the parts of all members as bytes."""
        return {number: area.parts for number, area in self._areas.items()}

    def view(self, member: int, offer: Offer, start: int, nbytes: int) -> Array:
        """Bytes of another member's array."""
        begin = offer.offset + start
        return self._areas[offer.area].parts[member][begin : begin + nbytes]

    def unused(self) -> list[int]:
        """Some areas in which this rank has no array any more."""
        return sorted(self._unused)[:MOST_TOLD]

    def drop(self, numbers: Sequence[int]) -> None:
        """Let areas go that no rank uses."""
        for number in numbers:
            self._areas.pop(number).segment.close()
            self._unused.remove(number)
            self._starts = [one for one in self._starts if one[2] != number]

    def release(self) -> None:
        """Let all go; arrays stay as long as they are used."""
        for area in self._areas.values():
            area.segment.close()
        self._areas.clear()
        self._starts.clear()


def _private(shape: tuple[int, ...], dtype: np.dtype[Any]) -> Array:
    return np.empty(shape, dtype)


def part_starts(nbytes: Sequence[int]) -> list[int]:
    """Where each member's part starts in the segment."""
    starts, at = [], 0
    for count in nbytes:
        starts.append(at)
        at += -(-count // ALIGNMENT) * ALIGNMENT
    return starts


def total_bytes(nbytes: Sequence[int]) -> int:
    """Bytes of the segment."""
    return max(sum(-(-count // ALIGNMENT) * ALIGNMENT for count in nbytes), ALIGNMENT)
