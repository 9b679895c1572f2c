"""Groups on one node, through a shared segment of our own (slots.py).

An all-reduce of one block: every member copies in and arrives; combines its share of all slots, in member
order, into the first slot (member 1 its own); when all have combined, copies the block out and leaves.  Each
element is combined by one member only, hence the same bits everywhere.  Of two members each that wants the
results of a short all-reduce or reduce combines all of them itself, one hand-over earlier, and gets the same
bits as NumPy's loops do not go by where elements lie (tests/unit/test_kernels.py).

Traffic of S bytes among P members: (5 P + 1) S read and written; a broadcast 2 P S, a reduce-scatter
(3 P + 3) S, an all-gather (2 P + 2) S, an all-to-all 4 S (S of all members together), a scan 7 P S.  The
engine (_native/group.c) does not copy in what a member combines or keeps itself, and puts what it combines
into the target as well, or there only: an all-reduce is (5 P - 2) S there, a reduce-scatter (3 P - 1) S.

Where members offer their memory (`comm.empty`) nobody copies in, and in an all-reduce in which all do nobody
copies out: (2 P + 2) S.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Sequence

import numpy as np

from hpccoll.memory.areas import Offer
from hpccoll.transports.base import Array, Combine, GroupTransport, Stages, Work
from hpccoll.transports.corrupted import Corrupted
from hpccoll.transports.slots import ARRIVED, COMBINED, LEFT, Slots, Waits
from hpccoll.transports.streams import Part, Stream
from hpccoll.transports.sums import Sums

BYTE = np.dtype(np.uint8)
ALLREDUCE_ALONE_BYTES, REDUCE_ALONE_BYTES, ROOM_BYTES = 32768, 262144, 8192  # those of _native/group.c


class ShmGroup(GroupTransport):
    """One process as a member of the ranks that share a staging segment."""

    def __init__(self, slots: Slots, sums: Sums | None = None) -> None:
        self._slots = slots
        self._sums = sums
        self._me = slots.me
        self._members = slots.members
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
        dtype = pieces[0].dtype if pieces else BYTE
        call = Part(Stream(source), Stream(target), root, list(counts), dtype, combine)
        action = {
            "allreduce": self._allreduce,
            "reduce": self._reduce,
            "broadcast": self._broadcast,
            "reduce_scatter": self._reduce_scatter,
            "allgather": self._allgather,
            "gather": self._allgather,
            "scatter": self._scatter,
            "alltoall": self._alltoall,
            "scan": self._scan,
            "exscan": self._exscan,
        }[kind]
        return Stages(self._in_turn(ticket, action(call)))

    def _in_turn(self, ticket: int, stages: Waits) -> Waits:
        while self._queue[0] != ticket:
            yield
        yield from stages
        self._queue.popleft()

    # --- actions: how a part gets to the others, and from them -----------------------------------

    def _reduce(self, call: Part) -> Waits:
        return self._allreduce(call, rooted=True)

    def _allreduce(self, call: Part, *, rooted: bool = False) -> Waits:
        """All-reduce, and reduce when only the root has a target."""
        length = call.source.length
        room = self._room(call, length)
        alone = self._is_combined_alone(call, rooted)

        def fill(part: int, block: int) -> None:
            start = part * room
            stop = min(start + room, length)
            call.source.read(start, stop, self._slots.of(block, call.dtype)[self._me])
            self._tell_shares(call, block, start, stop - start)

        def drain(part: int, block: int) -> Waits:
            slots, start = self._slots, part * room
            count = min(room, length - start)
            if alone and rooted and not call.target.length:
                return
            low, high = self._share(self._me, count)
            yield from slots.all(ARRIVED, block)
            if alone and (rooted or not any(slots.source(block, member) for member in range(2))):
                call.target.write(start, self._both_combined(call, block, start, count))
                return
            result = self._combined(call, block, start + low, low, high - low)
            if self._sums is not None:
                self._sums.tell(block, 0, self._me, result)
                self._results(block, call, self._me)[low:high] = result
            targets = slots.targets(block)
            for member, offer in enumerate(targets or ()):
                slots.offered(member, offer, call.dtype, start + low, high - low)[...] = result
            slots.mark(COMBINED, block)
            if call.target.length:
                yield from slots.all(COMBINED, block)
                for member in range(self._members if targets is None else 0):
                    low, high = self._share(member, count)
                    call.target.write(start + low, self._results(block, call, member)[low:high])
                self._check_shares(call, block, 0, start, count)

        return self._walk(length, room, call, fill, drain)

    def _reduce_scatter(self, call: Part) -> Waits:
        """A block holds a piece for every member; each combines the pieces that are for it."""
        room = self._room(call, max(call.counts), pieces=self._members)

        def fill(part: int, block: int) -> None:
            slot = self._slots.of(block, call.dtype)[self._me]
            for member in range(self._members):
                begin, low, high = call.piece(member, part, room)
                call.source.read(begin + low, begin + high, slot[member * room :])
                self._tell(call, block, self._me, member, begin + low, begin + high)

        def drain(part: int, block: int) -> Waits:
            yield from self._slots.all(ARRIVED, block)
            begin, low, high = call.piece(self._me, part, room)
            call.target.write(low, self._combined(call, block, begin + low, self._me * room, high - low))

        return self._walk(max(call.counts), room, call, fill, drain, pieces=self._members)

    def _allgather(self, call: Part) -> Waits:
        """All-gather, and gather when only the root has a target."""
        room = self._room(call, max(call.counts))

        def fill(part: int, block: int) -> None:
            _, low, high = call.piece(self._me, part, room)
            call.source.read(low, high, self._slots.of(block, call.dtype)[self._me])
            self._tell(call, block, self._me, 0, low, high)

        def drain(part: int, block: int) -> Waits:
            if call.target.length:
                yield from self._slots.all(ARRIVED, block)
                for member in range(self._members):
                    begin, low, high = call.piece(member, part, room)
                    given = self._slots.given(block, member, call.dtype, low, 0, high - low)
                    call.target.write(begin + low, given)
                    self._check(call, block, member, 0, begin + low, begin + high, member)

        return self._walk(max(call.counts), room, call, fill, drain)

    def _broadcast(self, call: Part) -> Waits:
        """The root fills all members' slots with one block."""
        length = max(call.source.length, call.target.length)
        room = self._room(call, length, slots=self._members)

        def fill(part: int, block: int) -> None:
            start = part * room
            stop = min(start + room, length)
            call.source.read(start, stop, self._slots.together(block, call.dtype))
            self._tell(call, block, self._me, 0, start, stop)

        def drain(part: int, block: int) -> Waits:
            if self._me != call.root:
                yield from self._slots.one(ARRIVED, call.root, block)
                start = part * room
                count = min(room, length - start)
                offer = self._slots.source(block, call.root)
                if offer is None:
                    given = self._slots.together(block, call.dtype)[:count]
                else:
                    given = self._slots.offered(call.root, offer, call.dtype, start, count)
                call.target.write(start, given)
                self._check(call, block, call.root, 0, start, start + count, call.root)

        return self._walk(length, room, call, fill if self._me == call.root else None, drain)

    def _scatter(self, call: Part) -> Waits:
        """The root fills every member's slot with a piece for it."""
        room = self._room(call, max(call.counts))

        def fill(part: int, block: int) -> None:
            slots = self._slots.of(block, call.dtype)
            for member in range(self._members):
                begin, low, high = call.piece(member, part, room)
                call.source.read(begin + low, begin + high, slots[member])
                self._tell(call, block, self._me, member, begin + low, begin + high)

        def drain(part: int, block: int) -> Waits:
            yield from self._slots.one(ARRIVED, call.root, block)
            begin, low, high = call.piece(self._me, part, room)
            offer = self._slots.source(block, call.root)
            if offer is None:
                given = self._slots.of(block, call.dtype)[self._me, : high - low]
            else:
                given = self._slots.offered(call.root, offer, call.dtype, begin + low, high - low)
            call.target.write(low, given)
            self._check(call, block, call.root, self._me, low, high, call.root)

        return self._walk(max(call.counts), room, call, fill if self._me == call.root else None, drain)

    def _alltoall(self, call: Part) -> Waits:
        """A slot holds a piece for every member; each copies out the pieces that are for it."""
        members = self._members
        room = self._room(call, max(call.counts), pieces=members)
        rows = [call.with_counts(call.counts[member * members :][:members]) for member in range(members)]
        takes = call.with_counts(call.counts[self._me :: members])

        def fill(part: int, block: int) -> None:
            slot = self._slots.of(block, call.dtype)[self._me]
            for member in range(members):
                begin, low, high = rows[self._me].piece(member, part, room)
                call.source.read(begin + low, begin + high, slot[member * room :])
                self._tell(call, block, self._me, member, begin + low, begin + high)

        def drain(part: int, block: int) -> Waits:
            yield from self._slots.all(ARRIVED, block)
            for member in range(members):
                begin, low, high = rows[member].piece(self._me, part, room)
                given = self._slots.given(block, member, call.dtype, begin + low, self._me * room, high - low)
                at = takes.piece(member, part, room)[0]
                call.target.write(at + low, given)
                self._check(call, block, member, self._me, at + low, at + high, member)

        return self._walk(max(call.counts), room, call, fill, drain, pieces=members)

    def _exscan(self, call: Part) -> Waits:
        return self._scan(call, exclusive=True)

    def _scan(self, call: Part, *, exclusive: bool = False) -> Waits:
        """Each combines its share of all slots from the first on, every slot with the one before it."""
        length = call.source.length
        room = self._room(call, length)

        def fill(part: int, block: int) -> None:
            start = part * room
            stop = min(start + room, length)
            call.source.read(start, stop, self._slots.of(block, call.dtype)[self._me])
            self._tell_shares(call, block, start, stop - start)

        def drain(part: int, block: int) -> Waits:
            slots, start = self._slots.of(block, call.dtype), part * room
            count = min(room, length - start)
            low, high = self._share(self._me, count)
            yield from self._slots.all(ARRIVED, block)
            before = slots[0, low:high]
            for member in range(self._members - exclusive):
                given = self._given(call, block, member, start + low, low, high - low)
                into = slots[member, low:high]
                if self._sums is None:
                    if member:
                        call.combine(before, given, into)
                    elif self._slots.source(block, 0) is not None:
                        into[...] = given
                    before = into
                else:
                    if member:
                        call.combine(before, given, given)
                    self._sums.tell(block, member, self._me, given)
                    into[...] = before = given
            self._slots.mark(COMBINED, block)
            if call.target.length:
                yield from self._slots.all(COMBINED, block)
                call.target.write(start, slots[self._me - exclusive, :count])
                self._check_shares(call, block, self._me - exclusive, start, count)

        return self._walk(length, room, call, fill, drain)

    def _results(self, block: int, call: Part, member: int) -> Array:
        """The slot into which a member combines its share: the first; member 1 its own (_native/group.c)."""
        found: Array = self._slots.of(block, call.dtype)[int(member == 1)]
        return found

    def _combined(self, call: Part, block: int, start: int, in_slot: int, count: int) -> Array:
        """So many elements of all members, from `start` of what each gives, combined in a slot.

        With checksums in memory of its own.
        """
        left = self._given(call, block, 0, start, in_slot, count)
        result = left
        if self._sums is None:
            result = self._results(block, call, self._me)[in_slot : in_slot + count]
        for member in range(1, self._members):
            call.combine(left, self._given(call, block, member, start, in_slot, count), result)
            left = result
        return result

    def _is_combined_alone(self, call: Part, rooted: bool) -> bool:
        """As in _native/group.c: of two members each that wants the results combines all of them."""
        most = REDUCE_ALONE_BYTES if rooted else ALLREDUCE_ALONE_BYTES
        fits = call.source.length * call.dtype.itemsize <= most and call.dtype.itemsize <= ROOM_BYTES
        return fits and self._members == 2 and self._sums is None

    def _both_combined(self, call: Part, block: int, start: int, count: int) -> Array:
        result = np.empty(count, call.dtype)
        first, second = (self._given(call, block, member, start, 0, count) for member in range(2))
        call.combine(first, second, result)
        return result

    def _given(self, call: Part, block: int, member: int, start: int, in_slot: int, count: int) -> Array:
        """What this member is to combine of another's elements; with checksums a copy that was checked."""
        given = self._slots.given(block, member, call.dtype, start, in_slot, count)
        if self._sums is None:
            return given
        return self._sums.check(block, member, self._me, given.copy(), member)

    # --- checksums ------------------------------------------------------------------------------

    def _share(self, member: int, count: int) -> tuple[int, int]:
        """Of `count` elements of a block, those that a member combines."""
        return count * member // self._members, count * (member + 1) // self._members

    def _tell(self, call: Part, block: int, row: int, taker: int, start: int, stop: int) -> None:
        if self._sums is not None:
            self._sums.tell_of(block, row, taker, call.source, start, stop)

    def _tell_shares(self, call: Part, block: int, start: int, count: int) -> None:
        for member in range(self._members if self._sums is not None else 0):
            low, high = self._share(member, count)
            self._tell(call, block, self._me, member, start + low, start + high)

    def _check(self, call: Part, block: int, row: int, taker: int, start: int, stop: int, giver: int) -> None:
        """What has come to the target is what was told.  Raises: Corrupted."""
        if self._sums is not None:
            self._sums.check_in(block, row, taker, call.target, start, stop, giver)

    def _check_shares(self, call: Part, block: int, row: int, start: int, count: int) -> None:
        for member in range(self._members if self._sums is not None else 0):
            low, high = self._share(member, count)
            self._check(call, block, row, member, start + low, start + high, member)

    def _room(self, call: Part, length: int, *, pieces: int = 1, slots: int = 1) -> int:
        """Elements of one part: what `slots` hold, which have `pieces` of it, or all there are."""
        room: int = self._slots.slot_bytes * slots // call.dtype.itemsize // pieces
        return min(room, max(length, 1))

    def _walk(
        self,
        length: int,
        room: int,
        call: Part,
        fill: Callable[[int, int], None] | None,
        drain: Callable[[int, int], Waits],
        pieces: int = 1,
    ) -> Waits:
        """Every part of `room` elements through a block; the next goes in early when its half is free."""
        slots, first, parts = self._slots, self._block, -(-length // room)
        slots.use(room * pieces * call.dtype.itemsize)
        source, target = self._offers(call)
        filled = 0
        for part in range(parts):
            block = first + part
            while fill is not None and filled < min(part + 2, parts):
                if not slots.is_free(first + filled):
                    if filled > part:
                        break
                    yield
                    continue
                slots.offer(first + filled, source, target)
                if source is None:
                    fill(filled, first + filled)
                slots.mark(ARRIVED, first + filled)
                filled += 1
            try:
                yield from drain(part, block)
            except Corrupted as error:
                error.part = part
                raise
            slots.mark(LEFT, block)
        self._block = first + parts
        if source is not None and parts:
            # The caller may change its elements from here on, which others read where they are.
            yield from slots.all(LEFT, first + parts - 1)

    def _offers(self, call: Part) -> tuple[Offer | None, Offer | None]:
        """Where the elements and the results lie, in memory that all members reach."""
        if self._sums is not None:
            return None, None  # there others read what they have not checked
        areas = self._slots.areas
        source, target = call.source.whole(), call.target.whole()
        return (
            None if source is None else areas.locate(source),
            None if target is None else areas.locate(target),
        )
