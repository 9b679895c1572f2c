"""Memory for messages that do not go from or to where a value lies: used in turn, so that few suffice."""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple

from hpccoll.plans.program import Memory, Place


class Slot:
    """Room for one message, with the operations that use it."""

    __slots__ = ("offset", "users")

    def __init__(self, offset: int) -> None:
        self.offset = offset
        self.users: tuple[int, ...] = ()


class Landing(NamedTuple):
    """A slot in use: its place, and the operations that must be complete before it is written."""

    slot: Slot
    place: Place
    emptied: tuple[int, ...]


class Landings:
    """At most `most` slots of `room` elements each, taken from `memory` by `fresh` when first used."""

    def __init__(self, memory: Memory, most: int, room: int, fresh: Callable[[int], Place]) -> None:
        self._memory = memory
        self._most = most
        self._room = room
        self._fresh = fresh
        self._slots: list[Slot] = []
        self._taken = 0

    def take(self, count: int) -> Landing:
        """The next slot, for `count` elements; who takes it puts its operations into the slot's `users`."""
        if len(self._slots) < self._most:
            self._slots.append(Slot(self._fresh(self._room).start))
        slot = self._slots[self._taken % len(self._slots)]
        self._taken += 1
        emptied, slot.users = slot.users, ()
        return Landing(slot, Place(self._memory, slot.offset, slot.offset + count), emptied)
