"""The shared segment of a node group: counters, slots, and offers of memory that needs no slot.

Every member has two halves of a slot in the segment and three counters.  Long messages go through in
blocks, numbered without end over all calls; block t uses half t % 2, so that copying in block t + 1
overlaps reading block t.  It takes three times as long to write lines that another core has just read, so
short blocks go round the slot: the next one of the half is behind it, as long as there is room.

    member      0         1         2              counters of a member (each in a cache line of its own)
    half 0   [ slot ]  [ slot ]  [ slot ]          arrived   its part of block t is in its slot, or offered
    half 1   [ slot ]  [ slot ]  [ slot ]          combined  its share of block t is combined
                                                   left      it has read what it needs of block t

A member whose elements lie in memory that the others reach (`comm.empty`) does not copy them into its slot:
it offers them where they are, for each half in one line:

    offer    source area + 1 (0: they are in the slot) | byte offset | target area + 1 | byte offset

Where elements are checked, their checksums (sums.py) lie behind the offers, and nothing is offered.
"""

from __future__ import annotations

from collections.abc import Generator
from typing import Any

import numpy as np

from hpccoll.memory.areas import Areas, Offer
from hpccoll.memory.flags import Flags
from hpccoll.transports.base import Array
from hpccoll.transports.sums import sums_bytes

Waits = Generator[None, None, None]

CACHE_LINE_WORDS = 8
LINE_BYTES = 8 * CACHE_LINE_WORDS
ARRIVED, COMBINED, LEFT = range(3)
COUNTERS = 3
MOST_STAGING_BYTES = 64 * 1024 * 1024


def offers_end(members: int) -> int:
    """Bytes of the counters and offers."""
    return (COUNTERS + 2) * members * LINE_BYTES


def slot_bytes(wanted: int, members: int) -> int:
    """Bytes of one half of a member's slot when `wanted` are asked for both: a multiple of 64.

    All slots together stay within MOST_STAGING_BYTES where each can still hold 64 bytes for every member.
    """
    fair = min(wanted, MOST_STAGING_BYTES // members) // 2
    return max(fair // 64, members) * 64


def staging_layout(members: int, slot_bytes: int, checksums: bool = False) -> tuple[int, int]:
    """Bytes of the counters, offers and checksums, and bytes of the whole segment."""
    head = offers_end(members) + (sums_bytes(members) if checksums else 0)
    head = -(-head // 4096) * 4096
    return head, head + 2 * members * slot_bytes


class Slots:
    """The segment as one member sees it.

    `head`: the counters and offers, as bytes, all zero at the start.  `data`: uint8, shape
    (2, members, slot_bytes).
    """

    def __init__(self, me: int, members: int, flags: Flags, head: Array, data: Array, areas: Areas) -> None:
        self.me = me
        self.members = members
        self.slot_bytes = data.shape[2]
        self.areas = areas
        self._flags = flags
        self._data = data
        self._used = 0
        offers = head[COUNTERS * members * LINE_BYTES :][: 2 * members * LINE_BYTES]
        self._offers = offers.view(np.int64).reshape(2, members, CACHE_LINE_WORDS)

    # --- elements -------------------------------------------------------------------------------

    def use(self, nbytes: int) -> None:
        """Blocks take so many bytes of each slot from here on; those of a broadcast of all together."""
        self._used = nbytes

    def of(self, block: int, dtype: np.dtype[Any]) -> Array:
        """What a block uses of the slots, as elements: shape (members, room)."""
        return self._turned(self._data[block % 2], block, dtype)

    def together(self, block: int, dtype: np.dtype[Any]) -> Array:
        """The same of all slots as one run of elements."""
        found: Array = self._turned(self._data[block % 2].reshape(1, -1), block, dtype)[0]
        return found

    def _turned(self, rows: Array, block: int, dtype: np.dtype[Any]) -> Array:
        lines = -(-self._used // LINE_BYTES) * LINE_BYTES
        turns = rows.shape[1] // lines if lines else 0
        begin = block // 2 % turns * lines if turns else 0
        found: Array = rows[:, begin : begin + self._used // dtype.itemsize * dtype.itemsize]
        return found.view(dtype)

    def offer(self, block: int, source: Offer | None, target: Offer | None) -> None:
        """Say where this member's elements are (None: in its slot) and where its results may be put."""
        line = self._offers[block % 2, self.me]
        for at, one in ((0, source), (2, target)):
            line[at] = 0 if one is None else one.area + 1
            line[at + 1] = 0 if one is None else one.offset

    def source(self, block: int, member: int) -> Offer | None:
        """Where a member offers its elements; None when they are in its slot."""
        area, offset = self._offers[block % 2, member, :2].tolist()
        return Offer(area - 1, offset) if area else None

    def targets(self, block: int) -> list[Offer] | None:
        """Where all members want their results; None when not all say."""
        lines = self._offers[block % 2, :, 2:4].tolist()
        return [Offer(area - 1, offset) for area, offset in lines] if all(area for area, _ in lines) else None

    def given(
        self, block: int, member: int, dtype: np.dtype[Any], start: int, in_slot: int, count: int
    ) -> Array:
        """Some of a member's elements, from `start` of what it gives, in its slot from `in_slot` on."""
        offer = self.source(block, member)
        if offer is None:
            return self.of(block, dtype)[member, in_slot : in_slot + count]
        return self.offered(member, offer, dtype, start, count)

    def offered(self, member: int, offer: Offer, dtype: np.dtype[Any], start: int, count: int) -> Array:
        """Elements of what a member offers."""
        size = dtype.itemsize
        return self.areas.view(member, offer, start * size, count * size).view(dtype)

    # --- counters -------------------------------------------------------------------------------

    def mark(self, counter: int, block: int) -> None:
        self._flags.store(self._index(counter, self.me), block + 1)

    def is_free(self, block: int) -> bool:
        """Nobody reads the half of the slots any more, which block - 2 used."""
        return self._flags.reached(self._index(LEFT), self.members, CACHE_LINE_WORDS, max(block - 1, 0))

    def all(self, counter: int, block: int) -> Waits:
        """Until all members have marked a block."""
        first = self._index(counter)
        while not self._flags.reached(first, self.members, CACHE_LINE_WORDS, block + 1):
            yield

    def one(self, counter: int, member: int, block: int) -> Waits:
        """Until one member has."""
        index = self._index(counter, member)
        while self._flags.load(index) < block + 1:
            yield

    def _index(self, counter: int, member: int = 0) -> int:
        return (counter * self.members + member) * CACHE_LINE_WORDS
