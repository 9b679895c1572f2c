"""Connections between the leaders of the nodes, over which they hear at once what MPI does not tell.

The kernel closes a process's connections when it dies, however it dies, and needs nothing of the process for
that: no heartbeat, no turn of an interpreter.  So leaders are connected as a tree, in which nobody has more
than `connecting.CHILDREN` + 1 connections, and

    a leader dies                the others read the end of its connection
    its host, or the network     the kernel's keep-alive ends the connection after `connecting.SILENT_S`
    a communicator is given up   the reason is passed on, to all
    a deadline passes            each leader says for whose answer it waits: who says nothing is to blame
    a leader ends its program    it says so first: whoever waits for a later call of it gives up

`WATCH` is the thread that reads them, one in a process that leads; it sees as well whether ranks of its own
node die, and what they give up.  Nothing here carries elements, and all goes on without, up to deadlines:
where a connection cannot be made, or `lifelines` is "off".
"""

from __future__ import annotations

import contextlib
import json
import os
import select
import socket
import struct
import threading
import time
import weakref
from collections.abc import Callable, Generator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass

from hpccoll.runtime.control import Control, Farewell
from hpccoll.runtime.peers import Farewells, Peers
from hpccoll.runtime.reason import LOST, Reason
from hpccoll.runtime.threads import started_thread

TICK_S = 0.25
LOOK_S = 1.0  # ranks that wait look more often
FRESH_S = 2.0
_LONGEST = 8192  # bytes of a message


@dataclass
class Line:
    """A connection to the leader of another node; `place`: which node, in words."""

    connection: socket.socket
    rank: int
    place: str
    heard: bytes = b""
    farewell: bool = False


class Lifelines:
    """Those of one leader of one communicator.

    Attributes:
        farewells: leaders of other nodes that have left.

    """

    def __init__(self, rank: int, lines: Sequence[Line], control: Control, peers: Peers) -> None:
        self._rank = rank
        self.lines = list(lines)
        self.farewells: Farewells = {}
        self._waits: dict[int, tuple[int, float]] = {}  # by leader: for whom it waited, and when it said so
        self._awaited: Callable[[], int | None] = lambda: None
        self._control = control
        self._peers = peers
        self._told = False
        self._looked = time.monotonic()
        self._lock = threading.RLock()
        WATCH.add(self)

    def tick(self) -> None:
        """Pass on what this node's ranks have given up, and now and then look whether they live."""
        reason = self._control.aborted()
        if reason is None and time.monotonic() - self._looked > LOOK_S:
            self._looked = time.monotonic()
            if (reason := self._peers.dead()) is not None:
                self._control.abort(reason)
        if reason is not None:
            self.tell(reason)

    def asks(self, awaited: Callable[[], int | None]) -> None:
        """By what to learn which rank this leader waits for."""
        self._awaited = awaited

    def say_who_waits(self) -> None:
        """Tell the others which rank this leader waits for, and let them do the same."""
        awaited = self._awaited()
        if awaited is not None:
            self._pass_on(self._rank, awaited)

    def waits_for(self, rank: int) -> int | None:
        """Which leader a leader has lately said to wait for."""
        awaited, when = self._waits.get(rank, (None, 0.0))
        return awaited if time.monotonic() - when < FRESH_S else None

    def _pass_on(self, rank: int, awaited: int) -> None:
        if self.waits_for(rank) != awaited:
            self._waits[rank] = awaited, time.monotonic()
            with self._lock:
                self._send_all(b"W" + json.dumps([rank, awaited]).encode())

    def tell(self, reason: Reason) -> None:
        """Tell all nodes why the communicator is given up, once."""
        with self._lock:
            if not self._told:
                self._told = True
                self._send_all(b"R" + reason.to_bytes())

    def leave(self, farewell: Farewell) -> None:
        """Say that this rank makes no more calls, and end the connections."""
        WATCH.remove(self)
        with self._lock:
            self._told = True
            self._send_all(b"F" + json.dumps(farewell).encode())
            for line in self.lines:
                _end(line.connection)
            self.lines = []

    def hear(self, line: Line) -> None:
        """Read what has come over a connection."""
        try:
            data = line.connection.recv(_LONGEST)
        except (BlockingIOError, InterruptedError):
            return
        except OSError as error:
            self._ended(line, error.strerror or str(error))
            return
        if not data:
            self._ended(line, "its connection has ended")
            return
        line.heard += data
        while len(line.heard) >= 4:
            (length,) = struct.unpack_from("<I", line.heard)
            if length > _LONGEST:
                self._drop(line)
                return
            if len(line.heard) < 4 + length:
                return
            message, line.heard = line.heard[4 : 4 + length], line.heard[4 + length :]
            self._take(line, message)

    def _take(self, line: Line, message: bytes) -> None:
        try:
            if message[:1] == b"R":
                reason = Reason.from_bytes(message[1:])
                self._control.abort(reason)
                self.tell(reason)
            elif message[:1] == b"W":
                rank, awaited = map(int, json.loads(message[1:]))
                self._pass_on(rank, awaited)
                self.say_who_waits()
            else:
                calls, enqueued, why = json.loads(message[1:])
                self.farewells[line.rank] = Farewell(int(calls), int(enqueued), str(why))
                line.farewell = True
        except (ValueError, TypeError, OverflowError, RecursionError):
            self._drop(line)

    def _ended(self, line: Line, why: str) -> None:
        if self._drop(line) and not line.farewell:
            text = f"rank {line.rank} ({line.place}) died, or its host is not reached any more: {why}"
            reason = Reason(self._rank, LOST, text, (line.rank,))
            self._control.abort(reason)
            self.tell(reason)

    def _drop(self, line: Line) -> bool:
        """Do without a connection; False where that is so already."""
        with self._lock:
            if line not in self.lines:
                return False
            self.lines.remove(line)
        line.connection.close()
        return True

    def _send_all(self, message: bytes) -> None:
        for line in self.lines:
            with contextlib.suppress(OSError):  # a full or dead connection: its end is read by itself
                line.connection.send(struct.pack("<I", len(message)) + message)


def _end(connection: socket.socket) -> None:
    with contextlib.suppress(OSError):
        connection.shutdown(socket.SHUT_WR)
    connection.close()


# --- the thread that reads them ---------------------------------------------------------------------


class Watch:
    """Reads all lifelines of this process, and looks after the nodes that it leads."""

    def __init__(self) -> None:
        self._all: set[weakref.ref[Lifelines]] = set()
        self._start()

    def _start(self) -> None:
        self._lock = threading.RLock()
        self._thread: threading.Thread | None = None
        self._reserved = 0

    def forked(self) -> None:
        """In a forked child, whose parent's connections would stay open with it."""
        for reference in self._all:  # without the lock, which another thread may have held
            one = reference()
            for line in () if one is None else one.lines:
                line.connection.close()
        self._all = set()
        self._start()

    def add(self, lifelines: Lifelines) -> None:
        """Read these too."""
        with self._lock:
            self._all.add(weakref.ref(lifelines))
            self._have_thread()

    @contextmanager
    def reserved(self) -> Generator[bool, None, None]:
        """Inside there is the thread that reads connections; False where the system has none to give."""
        with self._lock:
            self._reserved += 1
            found = self._have_thread()
        try:
            yield found
        finally:
            with self._lock:
                self._reserved -= 1

    def _have_thread(self) -> bool:
        if self._thread is None:
            self._thread = started_thread(self._run, "hpccoll-watch")
        return self._thread is not None

    def remove(self, lifelines: Lifelines) -> None:
        """Read these no more."""
        with self._lock:
            self._all.discard(weakref.ref(lifelines))

    def connections(self) -> int:
        """How many connections this process has."""
        return sum(len(one.lines) for one in self._lifelines())

    def _lifelines(self) -> list[Lifelines]:
        with self._lock:
            found = [one() for one in self._all]
            self._all = {weakref.ref(one) for one in found if one is not None}
        return [one for one in found if one is not None]

    def _run(self) -> None:
        ticked = 0.0
        while True:
            self._listen()
            if time.monotonic() - ticked > TICK_S / 2:
                ticked = time.monotonic()
                for one in self._lifelines():
                    one.tick()
                    del one  # which is not to be kept while this thread listens
            with self._lock:
                if not self._all and not self._reserved:
                    self._thread = None
                    return

    def _listen(self) -> None:
        """Until something has come, at most `TICK_S`."""
        poll = select.poll()
        owners: dict[int, tuple[weakref.ref[Lifelines], Line]] = {}
        for one in self._lifelines():
            for line in list(one.lines):
                number = line.connection.fileno()
                if number >= 0:
                    owners[number] = weakref.ref(one), line
                    poll.register(number, select.POLLIN)
            del one
        for number, _ in poll.poll(1e3 * TICK_S):
            owner, line = owners[number]
            if (lifelines := owner()) is not None:
                lifelines.hear(line)


WATCH = Watch()
os.register_at_fork(after_in_child=WATCH.forked)
