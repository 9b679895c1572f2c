"""Who of a node is still there: a rank that died, or has left, is not waited for.

Every rank tells which process it is, and says farewell when its program ends or it lets go of the
communicator; so one that is gone without a word has died.  Process numbers are believed inside one boot of
one pid namespace; elsewhere (a container for each rank) only deadlines tell.
"""

from __future__ import annotations

import hashlib
import os
import time

from hpccoll.memory.segments import PID_UNKNOWN, is_stopped, lives, pid_space, process_start
from hpccoll.runtime.control import Control, Farewell
from hpccoll.runtime.reason import LOST, Reason

BELIEVED_S = 0.2
_alive_at: dict[tuple[int, int], float] = {}  # by process and its start

Farewells = dict[int, Farewell]  # by rank


class Peers:
    """The other ranks of a node, as one of them sees them."""

    def __init__(self, control: Control, rank: int) -> None:
        self._control = control
        self._rank = rank
        self._space = _number_of(pid_space())
        self._others = [(one, other) for one, other in enumerate(control.members) if other != rank]
        pid = os.getpid()
        control.introduce(pid, process_start(pid), self._space)

    def dead(self) -> Reason | None:
        """That a rank of the node has died, if one has."""
        for member, rank in self._others:
            number, start, space = self._control.introduction(member)
            known = space == self._space != 0
            if known and not _lives(number, start) and self._control.left(member) is None:
                text = f"rank {rank} died: its process {number} is gone"
                return Reason(self._rank, LOST, text, (rank,))
        return None

    def stopped(self) -> tuple[int, ...]:
        """Which ranks of the node a signal has stopped (SIGSTOP, a debugger)."""
        return tuple(
            rank
            for member, rank in self._others
            for number, start, space in [self._control.introduction(member)]
            if space == self._space != 0 and is_stopped(number, start)
        )

    def farewells(self) -> Farewells:
        """Which ranks of the node have left."""
        found = ((rank, self._control.left(member)) for member, rank in self._others)
        return {rank: said for rank, said in found if said is not None}


def _lives(number: int, start: int) -> bool:
    """Whether a process lives, or did a moment ago: all communicators of this process ask for the same."""
    now = time.monotonic()
    when = _alive_at.get((number, start))
    if when is None or now - when > BELIEVED_S:
        if not lives(number, start):
            return False
        _alive_at[number, start] = now
    return True


def absent(farewells: Farewells, sequence: int, me: int) -> Reason | None:
    """That a rank has left before it made a call, if one has."""
    for rank, said in farewells.items():
        if said.calls <= sequence:
            return Reason(me, LOST, f"rank {rank} has left after {said.calls} calls: {said.why}", (rank,))
    return None


def absent_on_devices(farewells: Farewells, enqueued: int, me: int) -> Reason | None:
    """That a rank has left before it enqueued a call on a device that is enqueued here, if one has."""
    for rank, said in farewells.items():
        if said.enqueued < enqueued:
            calls = f"{said.enqueued} calls on devices, of {enqueued} here"
            return Reason(me, LOST, f"rank {rank} has left after {calls}: {said.why}", (rank,))
    return None


def _number_of(space: str) -> int:
    """A number for where process numbers mean the same; 0 where that is not known."""
    if space == PID_UNKNOWN:
        return 0
    return int.from_bytes(hashlib.sha256(space.encode()).digest()[:8], "little") | 1
