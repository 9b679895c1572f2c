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
from collections.abc import Generator, Sequence
from typing import Any

import numpy as np

from hpccoll.memory.flags import Flags
from hpccoll.transports.base import Array, Combine, GroupTransport, Stages, Work

CACHE_LINE_WORDS = 8
ARRIVED, COMBINED, LEFT = range(3)
COUNTERS = 3


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
        action = {
            "allreduce": self._allreduce,
            "reduce": self._allreduce,
            "broadcast": self._broadcast,
            "reduce_scatter": self._reduce_scatter,
            "allgather": self._allgather,
            "gather": self._allgather,
            "scatter": self._scatter,
        }[kind]
        dtype = (source or target)[0].dtype if source or target else np.dtype(np.uint8)
        stages = action(_Stream(source), _Stream(target), root, list(counts), dtype, combine)
        return Stages(self._in_turn(ticket, stages))

    def _in_turn(self, ticket: int, stages: Generator[None, None, None]) -> Generator[None, None, None]:
        while self._queue[0] != ticket:
            yield
        yield from stages
        self._queue.popleft()

    # --- actions --------------------------------------------------------------------------------

    def _allreduce(
        self,
        source: _Stream,
        target: _Stream,
        root: int,
        counts: list[int],
        dtype: np.dtype[Any],
        combine: Combine,
    ) -> Generator[None, None, None]:
        """All-reduce, and reduce when only the root has a target."""
        room = self._slot_bytes // dtype.itemsize
        for start in range(0, source.length, room):
            stop = min(start + room, source.length)
            slots = self._slots(dtype)
            yield from self._enter()
            source.read(start, stop, slots[self._me])
            self._mark(ARRIVED)
            low, high = _share(stop - start, self._members, self._me)
            yield from self._all(ARRIVED)
            for member in range(1, self._members):
                combine(slots[0, low:high], slots[member, low:high], slots[0, low:high])
            self._mark(COMBINED)
            if target.length:
                yield from self._all(COMBINED)
                target.write(start, slots[0, : stop - start])
            self._leave()

    def _broadcast(
        self,
        source: _Stream,
        target: _Stream,
        root: int,
        counts: list[int],
        dtype: np.dtype[Any],
        combine: Combine,
    ) -> Generator[None, None, None]:
        """The root fills all members' slots with one block."""
        block = self._all_slots(dtype).size
        length = max(source.length, target.length)
        for start in range(0, length, block):
            stop = min(start + block, length)
            slots = self._all_slots(dtype)
            if self._me == root:
                yield from self._enter()
                source.read(start, stop, slots)
                self._mark(ARRIVED)
            else:
                yield from self._one(root)
                target.write(start, slots[: stop - start])
            self._leave()

    def _reduce_scatter(
        self,
        source: _Stream,
        target: _Stream,
        root: int,
        counts: list[int],
        dtype: np.dtype[Any],
        combine: Combine,
    ) -> Generator[None, None, None]:
        """A block holds a piece for every member; each combines the pieces that are for it."""
        room = self._slot_bytes // dtype.itemsize // self._members
        starts = np.concatenate(([0], np.cumsum(counts))).tolist()
        for begin in range(0, max(counts), room):
            slots = self._slots(dtype)
            yield from self._enter()
            for member, count in enumerate(counts):
                low, high = min(begin, count), min(begin + room, count)
                at = member * room
                source.read(starts[member] + low, starts[member] + high, slots[self._me, at:])
            self._mark(ARRIVED)
            yield from self._all(ARRIVED)
            low, high = min(begin, counts[self._me]), min(begin + room, counts[self._me])
            mine = slice(self._me * room, self._me * room + high - low)
            for member in range(1, self._members):
                combine(slots[0, mine], slots[member, mine], slots[0, mine])
            target.write(low, slots[0, mine])
            self._leave()

    def _allgather(
        self,
        source: _Stream,
        target: _Stream,
        root: int,
        counts: list[int],
        dtype: np.dtype[Any],
        combine: Combine,
    ) -> Generator[None, None, None]:
        """All-gather, and gather when only the root has a target."""
        room = self._slot_bytes // dtype.itemsize
        starts = np.concatenate(([0], np.cumsum(counts))).tolist()
        for begin in range(0, max(counts), room):
            slots = self._slots(dtype)
            yield from self._enter()
            low, high = min(begin, counts[self._me]), min(begin + room, counts[self._me])
            source.read(low, high, slots[self._me])
            self._mark(ARRIVED)
            if target.length:
                yield from self._all(ARRIVED)
                for member, count in enumerate(counts):
                    low, high = min(begin, count), min(begin + room, count)
                    target.write(starts[member] + low, slots[member, : high - low])
            self._leave()

    def _scatter(
        self,
        source: _Stream,
        target: _Stream,
        root: int,
        counts: list[int],
        dtype: np.dtype[Any],
        combine: Combine,
    ) -> Generator[None, None, None]:
        """The root fills every member's slot with a piece for it."""
        room = self._slot_bytes // dtype.itemsize
        starts = np.concatenate(([0], np.cumsum(counts))).tolist()
        for begin in range(0, max(counts), room):
            slots = self._slots(dtype)
            if self._me == root:
                yield from self._enter()
                for member, count in enumerate(counts):
                    low, high = min(begin, count), min(begin + room, count)
                    source.read(starts[member] + low, starts[member] + high, slots[member])
                self._mark(ARRIVED)
            else:
                yield from self._one(root)
            low, high = min(begin, counts[self._me]), min(begin + room, counts[self._me])
            target.write(low, slots[self._me, : high - low])
            self._leave()

    # --- counters -------------------------------------------------------------------------------

    def _slots(self, dtype: np.dtype[Any]) -> Array:
        """The half of the slots that the current block uses, as elements: shape (members, room)."""
        room = self._slot_bytes // dtype.itemsize
        slots: Array = self._data[self._block % 2, :, : room * dtype.itemsize]
        return slots.view(dtype)

    def _all_slots(self, dtype: np.dtype[Any]) -> Array:
        """The same half as one run of elements."""
        half = self._data[self._block % 2].reshape(-1)
        whole: Array = half[: half.size // dtype.itemsize * dtype.itemsize]
        return whole.view(dtype)

    def _index(self, counter: int, member: int = 0) -> int:
        return (counter * self._members + member) * CACHE_LINE_WORDS

    def _mark(self, counter: int) -> None:
        self._flags.store(self._index(counter, self._me), self._block + 1)

    def _leave(self) -> None:
        self._mark(LEFT)
        self._block += 1

    def _enter(self) -> Generator[None, None, None]:
        """Until nobody reads the half of the slots any more, which block t - 2 used."""
        first = self._index(LEFT)
        while not self._flags.reached(first, self._members, CACHE_LINE_WORDS, max(self._block - 1, 0)):
            yield

    def _all(self, counter: int) -> Generator[None, None, None]:
        first = self._index(counter)
        while not self._flags.reached(first, self._members, CACHE_LINE_WORDS, self._block + 1):
            yield

    def _one(self, member: int) -> Generator[None, None, None]:
        index = self._index(ARRIVED, member)
        while self._flags.load(index) < self._block + 1:
            yield


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


def _share(count: int, members: int, me: int) -> tuple[int, int]:
    """The part of `count` elements that a member combines."""
    return count * me // members, count * (me + 1) // members
