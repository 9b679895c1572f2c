"""Groups on one node, through a shared segment of our own.

Every member has two halves of a slot in the segment and three counters.  Long messages go through in
blocks, numbered without end over all calls; block t uses half t % 2, so that copying in block t + 1
overlaps reading block t:

    member      0         1         2              counters of a member (each in a cache line of its own)
    half 0   [ slot ]  [ slot ]  [ slot ]          arrived   its part of block t is in its slot
    half 1   [ slot ]  [ slot ]  [ slot ]          combined  its share of block t is combined
                                                   left      it has read what it needs of block t

An all-reduce of one block: every member copies in and arrives; combines its share of all slots, in member
order, into the first slot; when all have combined, copies the block out and leaves.  Each element is
combined by one member only, hence the same bits everywhere.  Traffic of S bytes among P members:
(5 P + 1) S read and written; a broadcast 2 P S, a reduce-scatter (3 P + 1) S, an all-gather (2 P + 2) S.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Generator, Sequence
from dataclasses import dataclass
from functools import cached_property
from itertools import accumulate
from typing import Any

import numpy as np

from hpccoll.memory.flags import Flags
from hpccoll.transports.base import Array, Combine, GroupTransport, Stages, Work

Waits = Generator[None, None, None]

CACHE_LINE_WORDS = 8
ARRIVED, COMBINED, LEFT = range(3)
COUNTERS = 3
MOST_STAGING_BYTES = 64 * 1024 * 1024


def slot_bytes(wanted: int, members: int) -> int:
    """Bytes of one half of a member's slot when `wanted` are asked for both: a multiple of 64.

    All slots together stay within MOST_STAGING_BYTES where each can still hold 64 bytes for every member.
    """
    fair = min(wanted, MOST_STAGING_BYTES // members) // 2
    return max(fair // 64, members) * 64


def staging_layout(members: int, slot_bytes: int) -> tuple[int, int]:
    """Bytes of the counters, and bytes of the whole segment."""
    head = -(-COUNTERS * members * CACHE_LINE_WORDS * 8 // 4096) * 4096
    return head, head + 2 * members * slot_bytes


class ShmGroup(GroupTransport):
    """One process as member `me` of `members` ranks that share a staging segment.

    `data` holds the slots: uint8, shape (2, members, slot_bytes), all zero counters at the start.
    """

    def __init__(self, me: int, members: int, flags: Flags, data: Array) -> None:
        self._me = me
        self._members = members
        self._flags = flags
        self._data = data
        self._slot_bytes = data.shape[2]
        self._block = 0
        self._tickets = 0
        self._queue: deque[int] = deque()

    def reserve(self) -> int:
        self._tickets += 1
        self._queue.append(self._tickets)
        return self._tickets

    def start(
        self,
        ticket: int,
        kind: str,
        root: int,
        source: Sequence[Array],
        target: Sequence[Array],
        counts: Sequence[int],
        combine: Combine,
    ) -> Work:
        pieces = source or target
        dtype = pieces[0].dtype if pieces else np.dtype(np.uint8)
        call = _Call(_Stream(source), _Stream(target), root, list(counts), dtype, combine)
        action = {
            "allreduce": self._allreduce,
            "reduce": self._allreduce,
            "broadcast": self._broadcast,
            "reduce_scatter": self._reduce_scatter,
            "allgather": self._allgather,
            "gather": self._allgather,
            "scatter": self._scatter,
        }[kind]
        return Stages(self._in_turn(ticket, action(call)))

    def _in_turn(self, ticket: int, stages: Waits) -> Waits:
        while self._queue[0] != ticket:
            yield
        yield from stages
        self._queue.popleft()

    # --- actions: how a part gets into the slots, and out of them --------------------------------

    def _allreduce(self, call: _Call) -> Waits:
        """All-reduce, and reduce when only the root has a target."""
        room = self._slot_bytes // call.dtype.itemsize
        length = call.source.length

        def fill(part: int, block: int) -> None:
            start = part * room
            call.source.read(start, min(start + room, length), self._slots(block, call.dtype)[self._me])

        def drain(part: int, block: int) -> Waits:
            start = part * room
            count = min(room, length - start)
            low, high = count * self._me // self._members, count * (self._me + 1) // self._members
            slots = self._slots(block, call.dtype)
            yield from self._all(ARRIVED, block)
            self._combine(slots, slice(low, high), call.combine)
            self._mark(COMBINED, block)
            if call.target.length:
                yield from self._all(COMBINED, block)
                call.target.write(start, slots[0, :count])

        return self._walk(-(-length // room), fill, drain)

    def _reduce_scatter(self, call: _Call) -> Waits:
        """A block holds a piece for every member; each combines the pieces that are for it."""
        room = self._slot_bytes // call.dtype.itemsize // self._members

        def fill(part: int, block: int) -> None:
            slot = self._slots(block, call.dtype)[self._me]
            for member in range(self._members):
                begin, low, high = call.piece(member, part, room)
                call.source.read(begin + low, begin + high, slot[member * room :])

        def drain(part: int, block: int) -> Waits:
            slots = self._slots(block, call.dtype)
            yield from self._all(ARRIVED, block)
            _, low, high = call.piece(self._me, part, room)
            mine = slice(self._me * room, self._me * room + high - low)
            self._combine(slots, mine, call.combine)
            call.target.write(low, slots[0, mine])

        return self._walk(-(-max(call.counts) // room), fill, drain)

    def _allgather(self, call: _Call) -> Waits:
        """All-gather, and gather when only the root has a target."""
        room = self._slot_bytes // call.dtype.itemsize

        def fill(part: int, block: int) -> None:
            _, low, high = call.piece(self._me, part, room)
            call.source.read(low, high, self._slots(block, call.dtype)[self._me])

        def drain(part: int, block: int) -> Waits:
            if call.target.length:
                yield from self._all(ARRIVED, block)
                slots = self._slots(block, call.dtype)
                for member in range(self._members):
                    begin, low, high = call.piece(member, part, room)
                    call.target.write(begin + low, slots[member, : high - low])

        return self._walk(-(-max(call.counts) // room), fill, drain)

    def _broadcast(self, call: _Call) -> Waits:
        """The root fills all members' slots with one block."""
        room = self._all_slots(0, call.dtype).size
        length = max(call.source.length, call.target.length)

        def fill(part: int, block: int) -> None:
            start = part * room
            call.source.read(start, min(start + room, length), self._all_slots(block, call.dtype))

        def drain(part: int, block: int) -> Waits:
            if self._me != call.root:
                yield from self._one(ARRIVED, call.root, block)
                start = part * room
                call.target.write(start, self._all_slots(block, call.dtype)[: min(room, length - start)])

        return self._walk(-(-length // room), fill if self._me == call.root else None, drain)

    def _scatter(self, call: _Call) -> Waits:
        """The root fills every member's slot with a piece for it."""
        room = self._slot_bytes // call.dtype.itemsize

        def fill(part: int, block: int) -> None:
            slots = self._slots(block, call.dtype)
            for member in range(self._members):
                begin, low, high = call.piece(member, part, room)
                call.source.read(begin + low, begin + high, slots[member])

        def drain(part: int, block: int) -> Waits:
            yield from self._one(ARRIVED, call.root, block)
            _, low, high = call.piece(self._me, part, room)
            call.target.write(low, self._slots(block, call.dtype)[self._me, : high - low])

        parts = -(-max(call.counts) // room)
        return self._walk(parts, fill if self._me == call.root else None, drain)

    def _combine(self, slots: Array, mine: slice, combine: Combine) -> None:
        """The own share of all slots into the first one, in member order."""
        for member in range(1, self._members):
            combine(slots[0, mine], slots[member, mine], slots[0, mine])

    def _walk(
        self,
        parts: int,
        fill: Callable[[int, int], None] | None,
        drain: Callable[[int, int], Waits],
    ) -> Waits:
        """Every part through a block; the next part goes in early when its half is free already."""
        first = self._block
        filled = 0
        for part in range(parts):
            block = first + part
            while fill is not None and filled < min(part + 2, parts):
                if not self._is_free(first + filled):
                    if filled > part:
                        break
                    yield
                    continue
                fill(filled, first + filled)
                self._mark(ARRIVED, first + filled)
                filled += 1
            yield from drain(part, block)
            self._mark(LEFT, block)
        self._block = first + parts

    # --- slots and counters ---------------------------------------------------------------------

    def _slots(self, block: int, dtype: np.dtype[Any]) -> Array:
        """The half of the slots that a block uses, as elements: shape (members, room)."""
        room = self._slot_bytes // dtype.itemsize
        slots: Array = self._data[block % 2, :, : room * dtype.itemsize]
        return slots.view(dtype)

    def _all_slots(self, block: int, dtype: np.dtype[Any]) -> Array:
        """The same half as one run of elements."""
        half = self._data[block % 2].reshape(-1)
        whole: Array = half[: half.size // dtype.itemsize * dtype.itemsize]
        return whole.view(dtype)

    def _index(self, counter: int, member: int = 0) -> int:
        return (counter * self._members + member) * CACHE_LINE_WORDS

    def _mark(self, counter: int, block: int) -> None:
        self._flags.store(self._index(counter, self._me), block + 1)

    def _is_free(self, block: int) -> bool:
        """Nobody reads the half of the slots any more, which block - 2 used."""
        return self._flags.reached(self._index(LEFT), self._members, CACHE_LINE_WORDS, max(block - 1, 0))

    def _all(self, counter: int, block: int) -> Waits:
        first = self._index(counter)
        while not self._flags.reached(first, self._members, CACHE_LINE_WORDS, block + 1):
            yield

    def _one(self, counter: int, member: int, block: int) -> Waits:
        index = self._index(counter, member)
        while self._flags.load(index) < block + 1:
            yield


@dataclass(frozen=True)
class _Call:
    """What one member brings to an action."""

    source: _Stream
    target: _Stream
    root: int
    counts: list[int]
    dtype: np.dtype[Any]
    combine: Combine

    @cached_property
    def _starts(self) -> list[int]:
        return [0, *accumulate(self.counts)]

    def piece(self, member: int, part: int, room: int) -> tuple[int, int, int]:
        """Where a member's elements start in the stream, and which of them part number `part` holds."""
        count = self.counts[member]
        return self._starts[member], min(part * room, count), min((part + 1) * room, count)


class _Stream:
    """Pieces of memory read or written as one run of elements."""

    def __init__(self, pieces: Sequence[Array]) -> None:
        self._pieces = pieces
        self.length = sum(piece.size for piece in pieces)

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

    def _parts(self, start: int, stop: int) -> Generator[tuple[Array, int], None, None]:
        offset = 0
        for piece in self._pieces:
            low, high = max(start, offset), min(stop, offset + piece.size)
            if low < high:
                yield piece[low - offset : high - offset], low - start
            offset += piece.size
