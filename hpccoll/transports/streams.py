"""One member's part in an action of its group: pieces of memory as one run of elements."""

from __future__ import annotations

from collections.abc import Generator, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from itertools import accumulate
from typing import Any

import numpy as np

from hpccoll.memory.checksums import Checksum
from hpccoll.transports.base import Array, Combine


@dataclass(frozen=True)
class Part:
    """What one member brings to an action on its group."""

    source: Stream
    target: Stream
    root: int
    counts: list[int]
    dtype: np.dtype[Any]
    combine: Combine

    @cached_property
    def _starts(self) -> list[int]:
        return [0, *accumulate(self.counts)]

    def with_counts(self, counts: list[int]) -> Part:
        """The same with other counts."""
        return replace(self, counts=counts)

    def piece(self, member: int, part: int, room: int) -> tuple[int, int, int]:
        """Where a member's elements start in the stream, and which of them part number `part` holds."""
        count = self.counts[member]
        return self._starts[member], min(part * room, count), min((part + 1) * room, count)


class Stream:
    """Pieces of memory read or written as one run of elements."""

    def __init__(self, pieces: Sequence[Array]) -> None:
        self._pieces = pieces
        self.length = sum(piece.size for piece in pieces)

    def whole(self) -> Array | None:
        """All elements, where they are in one piece."""
        return self._pieces[0] if len(self._pieces) == 1 else None

    def read(self, start: int, stop: int, out: Array) -> None:
        """out[: stop - start] = the elements start, ..., stop - 1."""
        if len(self._pieces) == 1:
            out[: stop - start] = self._pieces[0][start:stop]
            return
        for inside, at in self._parts(start, stop):
            out[at : at + inside.size] = inside

    def write(self, start: int, values: Array) -> None:
        """The elements start, start + 1, ... = values."""
        if len(self._pieces) == 1:
            self._pieces[0][start : start + values.size] = values
            return
        for inside, at in self._parts(start, start + values.size):
            inside[...] = values[at : at + inside.size]

    def checksum(self, checksum: Checksum, start: int, stop: int, value: int) -> int:
        """That of the elements start, ..., stop - 1, which lie behind what has this value."""
        for inside, _ in self._parts(start, stop):
            value = checksum(inside, value)
        return value

    def bytes_of(self, count: int) -> int:
        """Bytes of so many elements."""
        return count * self._pieces[0].itemsize if self._pieces else 0

    def _parts(self, start: int, stop: int) -> Generator[tuple[Array, int], None, None]:
        offset = 0
        for piece in self._pieces:
            low, high = max(start, offset), min(stop, offset + piece.size)
            if low < high:
                yield piece[low - offset : high - offset], low - start
            offset += piece.size
