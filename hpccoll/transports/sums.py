"""Checksums beside the slots of a staging segment: of what each member gives each, by half.

    words[half][giver][taker]     a member that gives all the same has one, at taker 0; that of a share that
                                  was combined stands where that of its slot's operand stood

A word is stored before the counter that says that the elements have come, so a member that has seen the one
reads the other.  The number of the block goes into the checksum: elements of an earlier one do not pass.
"""

from __future__ import annotations

import numpy as np

from hpccoll.memory.checksums import WORD, Checksum
from hpccoll.transports.base import Array
from hpccoll.transports.corrupted import SEGMENT, Corrupted
from hpccoll.transports.streams import Stream

WORD_BYTES = 4


def sums_bytes(members: int) -> int:
    """Of the words of all members."""
    return 2 * members * members * WORD_BYTES


class Sums:
    """The words as one member sees them; `memory`: `sums_bytes` bytes, zero at the start."""

    def __init__(self, members: int, memory: Array, checksum: Checksum) -> None:
        self._words = memory.view(np.uint32).reshape(2, members, members)
        self._checksum = checksum

    def tell(self, block: int, row: int, taker: int, elements: Array) -> None:
        """Say what elements are that a member is to find in its slot `row`, or another's."""
        self._words[block % 2, row, taker] = self._checksum(elements, block & WORD)

    def tell_of(self, block: int, row: int, taker: int, stream: Stream, start: int, stop: int) -> None:
        """The same of elements of a stream."""
        self._words[block % 2, row, taker] = stream.checksum(self._checksum, start, stop, block & WORD)

    def check(self, block: int, row: int, taker: int, elements: Array, giver: int) -> Array:
        """The elements, which are those that `giver` has told of.  Raises: Corrupted."""
        self._compare(block, row, taker, self._checksum(elements, block & WORD), giver, elements.nbytes)
        return elements

    def check_in(
        self, block: int, row: int, taker: int, stream: Stream, start: int, stop: int, giver: int
    ) -> None:
        """The same of elements that have come to a stream."""
        found = stream.checksum(self._checksum, start, stop, block & WORD)
        self._compare(block, row, taker, found, giver, stream.bytes_of(stop - start))

    def _compare(self, block: int, row: int, taker: int, found: int, giver: int, nbytes: int) -> None:
        told = int(self._words[block % 2, row, taker])
        if found != told:
            raise Corrupted(-1, nbytes, told, found, SEGMENT, member=giver)
