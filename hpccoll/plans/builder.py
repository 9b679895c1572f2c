"""Writes the program of one rank, operation by operation.

The builder asks `Values` where the current value of every element is, so that no element is copied
without need, and derives from reads and writes what each operation has to wait for.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import NamedTuple

from hpccoll.plans.collective import Collective
from hpccoll.plans.hazards import IN_PLACE
from hpccoll.plans.landing import Landings, Slot
from hpccoll.plans.program import Combine, Copy, GroupCall, Memory, Operation, Place, Program, Receive, Send
from hpccoll.plans.spans import Region, Span, length, packets, segments
from hpccoll.plans.steps import Kind
from hpccoll.plans.values import Values, joined


class Arrival(NamedTuple):
    """A message that is under way to a landing, and the operation that receives it."""

    slot: Slot
    place: Place
    received: int


# Where values are combined in order: of so many spans everything may be in flight or waiting.
SPANS_AHEAD = 2
# Messages that are combined on arrival: so many may be in flight or waiting.
LANDING_SLOTS = 4
# The same of those in a shorter dtype, and of what is sent so: half as many bytes each.
WIRE_SLOTS = 8


class Builder:
    """Writes the program of one rank, operation by operation, in program order.

    `nodes`: the node of each rank, where elements travel between nodes in a shorter dtype.
    """

    def __init__(
        self, collective: Collective, rank: int, segment: int, nodes: Sequence[int] | None = None
    ) -> None:
        self.collective = collective
        self.rank = rank
        self.segment = segment
        self.step = 0
        self.operations: list[Operation] = []
        self._output = collective.output(rank)
        aliased = collective.name in IN_PLACE
        self._values = Values(collective.input(rank), self._output, aliased=aliased)
        self._nodes = nodes
        self._wire = 0  # elements of Memory.WIRE in use
        room = min(segment, collective.elements)
        self._landings = Landings(Memory.SCRATCH, LANDING_SLOTS, room, self._values.fresh)
        self._arriving = Landings(Memory.WIRE, WIRE_SLOTS, room, self._fresh_wire)
        self._leaving = Landings(Memory.WIRE, WIRE_SLOTS, room, self._fresh_wire)
        self._channels: dict[tuple[type, int], int] = {}
        self._calls: dict[tuple[int, ...], int] = {}

    # --- what algorithms call -------------------------------------------------------------------

    def begin(self, step: int) -> None:
        """The operations that follow belong to this step of the plan."""
        self.step = step
        self._channels.clear()

    def send(self, peer: int, span: Span) -> None:
        """Send the current value of a span, rounded where it is to travel in a shorter dtype."""
        if self._is_shorter(peer):
            slot, place = self._rounded(span)
            slot.users = (self._send(peer, place, (self._next - 1,)),)
        else:
            source = self._contiguous(span)
            self._send(peer, source, self._values.read((span,), self._next))

    def receive(self, peer: int, span: Span) -> None:
        """Receive a span's value."""
        if self._is_shorter(peer):
            theirs = self.arrival(peer, span.length)
            theirs.slot.users = (self._widened(theirs.place, span, theirs.received),)
        else:
            target = self._values.home(span)
            self._receive(peer, target, self._values.write(span, target, self._next))

    def settle(self, members: Sequence[int], one: Region) -> None:
        """The values of a region are those that others will get from here, to the last bit.

        So they are rounded where elements travel in a shorter dtype between any two of the members.
        """
        if self._nodes is None or len({self._nodes[member] for member in members}) == 1:
            return
        for span in segments(one, self.segment):
            slot, place = self._rounded(span)
            slot.users = (self._widened(place, span, self._next - 1),)

    def send_region(self, peer: int, one: Region) -> None:
        """Send the values of a region, one span after the other, in messages of the longest length."""
        self._refuse_shorter(peer)
        for packet in packets(one, self.segment):
            source, copies = self._packed(packet)
            self._send(peer, source, copies or self._values.read(packet, self._next))

    def receive_region(self, peer: int, one: Region) -> None:
        """Receive what the peer's `send_region` sends; what is apart in the output lands in scratch."""
        self._refuse_shorter(peer)
        for packet in packets(one, self.segment):
            parts = (part for span in packet for part in self._values.home_parts(span))
            homes = joined(map(self._values.home, parts))
            target = homes[0] if len(homes) == 1 else self._values.fresh(length(packet))
            after: set[int] = set()
            begin = target.start
            for span in packet:
                place = Place(target.memory, begin, begin + span.length)
                after |= self._values.write(span, place, self._next)
                begin += span.length
            self._receive(peer, target, after)

    def lay(self, one: Region) -> None:
        """Take scratch memory in which the values of a region, once written, lie one after the other."""
        for span in one:
            self._values.scratch_home(span)

    def arrival(self, peer: int, count: int) -> Arrival:
        """Receive elements that are to be combined with values of this rank."""
        landings = self._arriving if self._is_shorter(peer) else self._landings
        slot, place, emptied = landings.take(count)
        return Arrival(slot, place, self._receive(peer, place, emptied))

    def merge(
        self, theirs: Arrival, span: Span, *, into: Span | None = None, theirs_first: bool = True
    ) -> None:
        """The value of `into` (`span` itself by default) = what arrived combined with that of `span`.

        Where `span` has no value it is what arrived.
        """
        into = into or span
        after = {theirs.received}
        if not self.holds((span,)):
            target = self._values.home(into)
            after |= self._values.write(into, target, self._next)
            index = self._add(Copy(self.step, _ordered(after), theirs.place, target))
        else:
            own = self._contiguous(span)
            after |= self._values.read((span,), self._next)
            target = self._values.home(into)
            after |= self._values.write(into, target, self._next)
            left, right = (theirs.place, own) if theirs_first else (own, theirs.place)
            index = self._add(Combine(self.step, _ordered(after), left, right, target))
        theirs.slot.users += (index,)

    def fold(self, members: Sequence[int], me: int, spans: Sequence[Span]) -> None:
        """Receive all members' values of each span and combine them one after the other, in their order.

        They come from the member before this one first, then from the one before that, so that no two
        members wait for the same one, and all of a span's lie in scratch at once.  The own value stays where
        it is until its turn: with MPI.IN_PLACE that is where the result goes.
        """
        for member in members:
            self._refuse_shorter(member)
        others = len(members) - 1
        room = max((span.length for span in spans), default=0)
        landings = Landings(Memory.SCRATCH, SPANS_AHEAD * others, room, self._values.fresh)
        for span in spans:
            came: dict[int, Arrival] = {}
            for distance in range(1, others + 1):
                member = (me - distance) % len(members)
                slot, place, emptied = landings.take(span.length)
                came[member] = Arrival(slot, place, self._receive(members[member], place, emptied))
            self._combine_in_order(came, me, span)

    def _combine_in_order(self, came: dict[int, Arrival], me: int, span: Span) -> None:
        """The value of a span = those of all members combined; `came`: from the others, by member.

        What is combined lies in the first member's place until the own value is in it.
        """
        values = self._values
        total = self._contiguous(span) if me == 0 else came[0].place
        waits = {came[0].received} if me > 0 else set()
        for member in range(1, len(came) + 1):
            right = self._contiguous(span) if member == me else came[member].place
            target = total
            if member == max(me, 1):
                waits |= values.read((span,), self._next)
            if member >= me:
                target = values.home(span)
                waits |= values.write(span, target, self._next)
            if member != me:
                waits.add(came[member].received)
                came[member].slot.users += (self._next,)
            if member <= me:
                came[0].slot.users = (self._next,)  # the last of those that read it so far
            waits = {self._add(Combine(self.step, _ordered(waits), total, right, target))}
            total = target

    def combine(self, left: Span, right: Span) -> None:
        """On this rank: the value of `right` = that of `left` combined with it, or that of `left` alone."""
        if not self.holds((right,)):
            self.copy(left, right)
            return
        one, other = self._contiguous(left), self._contiguous(right)
        after = self._values.read((left, right), self._next)
        place = self._values.home(right)
        after |= self._values.write(right, place, self._next)
        self._add(Combine(self.step, _ordered(after), one, other, place))

    def copy(self, source: Span, target: Span) -> None:
        """On this rank: the value of `target` = that of `source`."""
        begin = self._contiguous(source)
        after = self._values.read((source,), self._next)
        place = self._values.home(target)
        after |= self._values.write(target, place, self._next)
        self._add(Copy(self.step, _ordered(after), begin, place))

    def receive_and_combine(self, peer: int, span: Span, *, theirs_first: bool) -> None:
        """Receive a peer's value of a span and combine it with the own one, in the order asked for."""
        self.merge(self.arrival(peer, span.length), span, theirs_first=theirs_first)

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
        source = self._values.places(gives)
        after = self._values.read(gives, self._next)
        target: list[Place] = []
        for span in gets:
            for part in self._values.home_parts(span):
                target.append(self._values.home(part))
                after |= self._values.write(part, target[-1], self._next)
        self._calls[members] = self._add(
            GroupCall(
                self.step, _ordered(after), kind, family, members, members.index(self.rank), root,
                source, joined(target), counts, self._calls.get(members, -1),
            )
        )  # fmt: skip

    def finish(self) -> Program:
        """Bring the results that are elsewhere to the caller's output; the program is then complete."""
        for span in self._output:
            for part in self._values.home_parts(span):
                for one, piece in self._values.cut(part):
                    if piece.memory is not Memory.OUTPUT:
                        self._move(one, self._values.home(one))
        return Program(self.rank, tuple(self.operations), self._values.scratch, self._wire)

    def holds(self, one: Region) -> bool:
        """Whether this rank has a value for every element of the region."""
        return self._values.count(one) == length(one)

    # --- values at one place --------------------------------------------------------------------

    def _contiguous(self, span: Span) -> Place:
        """One place that holds the span's value; pieces that lie apart are copied together first."""
        places = self._values.places((span,))
        if len(places) > 1:
            together = self._values.scratch_home(span)
            for part, _ in self._values.cut(span):
                begin = together.start + part.start - span.start
                self._move(part, Place(Memory.SCRATCH, begin, begin + part.length))
            places = (together,)
        self._check_all((span,), places)
        return places[0]

    def _packed(self, packet: Region) -> tuple[Place, set[int]]:
        """One place with the values of several spans, and the copies that bring them there, if any."""
        if len(packet) == 1:
            return self._contiguous(packet[0]), set()
        places = self._values.places(packet)
        self._check_all(packet, places)
        if len(places) == 1:
            return places[0], set()
        together = self._values.fresh(length(packet))
        copies: set[int] = set()
        begin = together.start
        for span in packet:
            for part, piece in self._values.cut(span):
                source, target = piece.place, Place(Memory.SCRATCH, begin, begin + part.length)
                after = self._values.read((part,), self._next)
                copies.add(self._add(Copy(self.step, _ordered(after), source, target)))
                begin += part.length
        return together, copies

    def _check_all(self, one: Region, places: Sequence[Place]) -> None:
        if sum(place.stop - place.start for place in places) != length(one):
            spans = ", ".join(f"[{span.start}:{span.stop}]" for span in one)
            raise ValueError(f"rank {self.rank} has no value for all of {spans} in step {self.step}")

    def _move(self, span: Span, target: Place) -> None:
        """Bring a span's value, which lies at one place, to another."""
        (source,) = self._values.places((span,))
        after = self._values.read((span,), self._next) | self._values.write(span, target, self._next)
        self._add(Copy(self.step, _ordered(after), source, target))

    # --- values in a shorter dtype ----------------------------------------------------------------

    def _is_shorter(self, peer: int) -> bool:
        """Whether elements travel to and from a rank in a shorter dtype."""
        return self._nodes is not None and self._nodes[peer] != self._nodes[self.rank]

    def _refuse_shorter(self, peer: int) -> None:
        if self._is_shorter(peer):
            raise ValueError(f"step {self.step} has messages that are not rounded on their way to {peer}")

    def _rounded(self, span: Span) -> tuple[Slot, Place]:
        """The value of a span as it travels, by the last operation; the slot's users are to be set."""
        source = self._contiguous(span)
        slot, place, emptied = self._leaving.take(span.length)
        self._add(
            Copy(self.step, _ordered(self._values.read((span,), self._next) | {*emptied}), source, place)
        )
        return slot, place

    def _widened(self, place: Place, span: Span, received: int) -> int:
        """The value of a span = what travelled; the operation that does it."""
        target = self._values.home(span)
        after = self._values.write(span, target, self._next) | {received}
        return self._add(Copy(self.step, _ordered(after), place, target))

    def _fresh_wire(self, count: int) -> Place:
        self._wire += count
        return Place(Memory.WIRE, self._wire - count, self._wire)

    # --- operations -----------------------------------------------------------------------------

    @property
    def _next(self) -> int:
        """Index of the operation that comes next."""
        return len(self.operations)

    def _add(self, operation: Operation) -> int:
        self.operations.append(operation)
        return len(self.operations) - 1

    def _send(self, peer: int, source: Place, after: Iterable[int]) -> int:
        previous = self._channel(Send, peer)
        return self._add(Send(self.step, _ordered(after), peer, source, previous))

    def _receive(self, peer: int, target: Place, after: Iterable[int]) -> int:
        previous = self._channel(Receive, peer)
        return self._add(Receive(self.step, _ordered(after), peer, target, previous))

    def _channel(self, direction: type, peer: int) -> int:
        previous = self._channels.get((direction, peer), -1)
        self._channels[direction, peer] = self._next
        return previous


def _ordered(waits: Iterable[int]) -> tuple[int, ...]:
    return tuple(sorted(waits))
