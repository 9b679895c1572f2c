"""The recorder: rings of this rank's last calls on one communicator, and where a timeline is wanted of what
happened in and between them, in a mapped file (form.py).

Calls that the extension makes again write their records in C (_native/recorder.c); all others here, while the
lock of the communicator's calls is held.  A call that lasts says from time to time where it is (`look`), the
less often the longer it lasts.
"""

from __future__ import annotations

import json
import os
import socket
import struct
import sys
import threading
import time
import weakref
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

from hpccoll import _native
from hpccoll.errors import HpccollError, MismatchError, ResourceError, UsageError
from hpccoll.memory.segments import Segment, pid_space, process_start
from hpccoll.observe import files, form
from hpccoll.observe.caller import PACKAGE, calling_frame
from hpccoll.observe.events import PythonEvents, compact
from hpccoll.observe.place import Where
from hpccoll.observe.table import Table

if TYPE_CHECKING:
    from hpccoll._native import _core
    from hpccoll.runtime.planning import Planned

FIRST_LOOK_NS = 20_000_000
LONGEST_LOOK_NS = 1_000_000_000


class Writer(NamedTuple):
    """Who writes a file: a rank of a communicator, which all its ranks call by one name."""

    communicator: str
    rank: int
    size: int
    node: int
    name: str
    world_rank: int = -1


class _Open:
    """A call that is not over."""

    def __init__(self, offset: int, number: int) -> None:
        self.offset = offset
        self.number = number
        self.planned: Planned | None = None
        self.itemsize = 1
        self.pause_ns = FIRST_LOOK_NS
        self.next_look_ns = time.monotonic_ns() + FIRST_LOOK_NS


# What has given a place: asked with the call's number and plan.
Ask = Callable[[int, "Planned | None"], Where]


class Silent:
    """A recorder that records nothing; `reason` says why."""

    ring: _core.Ring | None = None
    events: PythonEvents | _core.Ring | None = None
    """Takes what a timeline is made of; None where none is wanted."""
    path: str | None = None
    token = ""
    """By which the communicator's ranks know it."""

    def __init__(self, reason: str) -> None:
        self.reason = reason

    def enter(self, collective: str, sequence: int, how: int = form.BLOCKING) -> None:
        """A call begins, form.BLOCKING or STARTED; or goes on, where C has begun it."""

    def called(self, sequence: int, fingerprint: bytes) -> None:
        """What this rank tells the others that it calls."""

    def moves(self, sequence: int, planned: Planned, itemsize: int) -> None:
        """All ranks have agreed on a plan; `itemsize`: bytes of an element as it travels."""

    def look(self, sequence: int, where: Ask) -> None:
        """A call is waiting: note where, if it is time."""

    def end(self, sequence: int, error: BaseException | None = None, where: Ask | None = None) -> None:
        """A call is over."""

    def line(self, sequence: int) -> str:
        """The caller's line of a call that is not over, in words; empty where it is not known."""
        return ""

    def text(self, text: str) -> int:
        """The number of some words in the file; 0 where there is no room."""
        return 0

    def steps(self, planned: Planned) -> int:
        """The number of the description of a plan's steps, for events."""
        return 0

    def measured(self, measurement: tuple[int, int, int, int]) -> None:
        """How this rank's clock differs from rank 0's (form.MEASUREMENT); the first and the last are kept."""

    def finished(self, most_bytes: int) -> bytes:
        """The file, now that the communicator is closed and all was well: of events the last that fit."""
        return b""

    def broken(self, text: str) -> None:
        """The communicator can make no call any more: the file stays."""

    def remove(self) -> None:
        """The communicator is closed, and all was well."""

    def close(self) -> None:
        """The communicator is let go; a file that was not removed stays."""

    def dump(self, directory: str | os.PathLike[str]) -> Path:
        """Copy the file as it is into a directory.  Raises ResourceError where nothing is recorded."""
        raise ResourceError(f"nothing is recorded: {self.reason}")


class Recorder(Silent):
    """Records the calls of one communicator."""

    def __init__(
        self, segment: Segment, writer: Writer, *, keep: bool, native: bool, timeline: bool = False
    ) -> None:
        super().__init__("")
        self.path, self.token = segment.path, writer.communicator
        self._segment, memory = segment, segment.buffer
        self._memory = memory
        self._long, self._int, self._short = memory.cast("q"), memory.cast("i"), memory.cast("h")
        self._count, events = form.shares(len(memory), timeline)
        table = form.table_at(self._count, events)
        self._table = Table(memory, table, len(memory) - table)
        self._open: dict[int, _Open] = {}
        self._steps: dict[int, tuple[Planned, int]] = {}
        self._state = _State(segment.path, keep)
        self._begin(writer, table)
        self._long[form.EVENTS // 8], self._long[form.ORIGIN // 8] = events, table
        if native and _native.available():
            from hpccoll._native import _core

            self.ring = _core.Ring(
                memory=memory, written=form.WRITTEN, records=form.PAGE, count=self._count,
                number_of=self._table.code, inside=PACKAGE, events_written=form.EVENTS_WRITTEN,
                events=form.events_at(self._count), event_count=events,
            )  # fmt: skip
        if timeline:
            self.events = self.ring or PythonEvents(memory, form.events_at(self._count), events)
        weakref.finalize(self, self._state.settle).atexit = False
        files.open_recorders.add(self)

    def _begin(self, writer: Writer, table: int) -> None:
        pid = os.getpid()
        about = writer._asdict() | {
            "pid": pid,
            "start": process_start(pid),
            "pid_space": pid_space(),
            "host": socket.gethostname(),
            "program": os.path.basename(sys.argv[0]) if sys.argv else "",
        }
        self._put_text(form.ABOUT, form.ABOUT_BYTES, json.dumps(about))
        form.FIXED.pack_into(
            self._memory, 0, form.MAGIC, self._count, table, len(self._memory), 0, 0,
            time.monotonic_ns(), time.time_ns(),
        )  # fmt: skip

    def enter(self, collective: str, sequence: int, how: int = form.BLOCKING) -> None:
        if sequence < 0:
            return
        written = self._long[form.WRITTEN // 8]
        if (found := self._begun(sequence, written)) is not None:
            self._open[sequence] = found
            return
        code, instruction = self._caller()
        number = written + 1
        at = form.PAGE + written % self._count * form.RECORD_BYTES
        head = struct.pack("<Qq40x", number, sequence)
        collective_text = self._table.text(collective)
        self._memory[at : at + 8] = head[:8]
        self._memory[at + 8 : at + form.RECORD_BYTES - 8] = form.RECORD.pack(
            number, head[8:], time.monotonic_ns(), 0, 0, form.ENTERED, how, -1, -1, 0, -1, 0, 0, 0,
            code, instruction, threading.get_ident(), 0, 0, 0, collective_text, number,
        )[8:-8]  # fmt: skip
        self._long[(at + form.RECORD_BYTES) // 8 - 1] = number
        self._long[form.WRITTEN // 8] = number
        self._open[sequence] = _Open(at, number)

    def _begun(self, sequence: int, written: int) -> _Open | None:
        """A call that the extension has begun: among the last, which come in the order of their numbers."""
        for number in range(written, max(0, written - self._count), -1):
            at = form.PAGE + (number - 1) % self._count * form.RECORD_BYTES
            recorded = self._long[(at + form.FINGERPRINT) // 8]
            if recorded == sequence and sequence not in self._open:
                return _Open(at, number)
            if recorded <= sequence:
                break
        return None

    def _caller(self) -> tuple[int, int]:
        """The code outside this package that has called, and its instruction."""
        frame = calling_frame()
        return (0, -1) if frame is None else (self._table.code(frame.f_code), frame.f_lasti)

    def _found(self, sequence: int) -> _Open | None:
        """A call that is not over, if its record has not been overwritten."""
        call = self._open.get(sequence)
        return call if call is not None and self._long[call.offset // 8] == call.number else None

    def called(self, sequence: int, fingerprint: bytes) -> None:
        if (call := self._found(sequence)) is not None:
            at = call.offset + form.FINGERPRINT + 8  # behind the sequence number
            self._memory[at : at + len(fingerprint) - 8] = fingerprint[8:]

    def moves(self, sequence: int, planned: Planned, itemsize: int) -> None:
        if (call := self._found(sequence)) is not None:
            call.planned, call.itemsize = planned, itemsize
            at = call.offset
            self._int[(at + form.PLAN) // 4] = self._table.text(planned.plan.name)
            self._int[(at + form.STEPS) // 4] = len(planned.plan.steps)
            self._int[(at + form.CHUNKS) // 4] = planned.plan.chunks
            self._long[(at + form.AGREED_NS) // 8] = time.monotonic_ns()
            self._int[(at + form.PEER) // 4] = -1
            self._short[(at + form.STATUS) // 2] = form.AGREED if planned.schedule is None else form.MOVING

    def look(self, sequence: int, where: Ask) -> None:
        call = self._found(sequence)
        if call is None or (now := time.monotonic_ns()) < call.next_look_ns:
            return
        call.pause_ns = min(2 * call.pause_ns, LONGEST_LOOK_NS)
        call.next_look_ns = now + call.pause_ns
        self._note(call, where(sequence, call.planned))

    def _note(self, call: _Open, where: Where) -> None:
        at = call.offset
        self._int[(at + form.STEP) // 4] = where.step
        self._int[(at + form.CHUNK) // 4] = where.chunk
        self._int[(at + form.PEER) // 4] = where.peer
        family = form.FAMILIES.index(where.family) if where.family in form.FAMILIES else 0
        self._int[(at + form.FAMILY) // 4] = family
        self._long[(at + form.BYTES_DONE) // 8] = where.done * call.itemsize
        self._long[(at + form.BYTES_TOTAL) // 8] = where.total * call.itemsize

    def end(self, sequence: int, error: BaseException | None = None, where: Ask | None = None) -> None:
        call = self._found(sequence)
        self._open.pop(sequence, None)
        if call is None:
            return
        state = form.DONE
        if error is not None:
            state = form.REFUSED if isinstance(error, UsageError) else form.FAILED
            if where is not None:
                self._note(call, where(sequence, call.planned))
            if isinstance(error, HpccollError) and error.suspects and not isinstance(error, MismatchError):
                self._int[(call.offset + form.PEER) // 4] = error.suspects[0]
            said = f"{type(error).__name__}: {error}"
            self._int[(call.offset + form.ERROR_TEXT) // 4] = self._table.text(said)
        self._long[(call.offset + form.ENDED_NS) // 8] = time.monotonic_ns()
        self._short[(call.offset + form.STATUS) // 2] = state

    def line(self, sequence: int) -> str:
        call = self._found(sequence)
        if call is None:
            return ""
        return self._table.line(*struct.unpack_from("<Ii", self._memory, call.offset + form.CALLER))

    def text(self, text: str) -> int:
        return self._table.text(text)

    def steps(self, planned: Planned) -> int:
        found = self._steps.get(id(planned.plan))
        if found is None:
            steps = [[one.kind.value, one.family, one.chunk] for one in planned.plan.steps]
            text = self._table.text(json.dumps([str(planned.plan.name), steps]), form.MOST_TEXT_BYTES)
            found = self._steps[id(planned.plan)] = planned, text  # with it, so that no other has its id
        return found[1]

    def measured(self, measurement: tuple[int, int, int, int]) -> None:
        number = min(self._long[form.CLOCK // 8], 1)
        form.MEASUREMENT.pack_into(
            self._memory, form.CLOCK + 8 + number * form.MEASUREMENT.size, *measurement
        )
        self._long[form.CLOCK // 8] = number + 1

    def finished(self, most_bytes: int) -> bytes:
        self._mark(form.OVER)
        return compact(self._memory, most_bytes)

    def broken(self, text: str) -> None:
        self._state.keep = True
        self._put_text(form.ERROR, form.ERROR_BYTES, text)

    def remove(self) -> None:
        self._state.settle()

    def close(self) -> None:
        if self._segment is not None:
            self._mark(form.CLOSED)
            self._state.keep = True
            files.open_recorders.discard(self)

    def leave(self, failed: bool) -> None:
        """The program is at its end, after an uncaught error where it `failed`."""
        if self._state.pid == os.getpid():
            if not failed:
                self._mark(form.LEFT)
            if self.events is not None:  # the file is taken away by who writes the timeline
                self._state.keep = True
            self._state.leave(failed)

    def dump(self, directory: str | os.PathLike[str]) -> Path:
        target = Path(directory, os.path.basename(self._segment.path))
        try:
            os.makedirs(directory, 0o700, exist_ok=True)
            files.replace(target, self._memory)
        except OSError as error:
            raise ResourceError(f"the trace cannot be copied to {target}: {error.strerror}") from error
        return target

    def _mark(self, state: int) -> None:
        if self._long[form.STATE // 8] == form.AT_WORK:
            self._long[form.STATE_NS // 8] = time.monotonic_ns()
            self._long[form.STATE // 8] = state

    def _put_text(self, at: int, room: int, text: str) -> None:
        data = text.encode(errors="replace")[: room - 4]
        self._memory[at + 4 : at + 4 + len(data)] = data
        self._memory[at : at + 4] = struct.pack("<I", len(data))


class _State:
    """Whether a file stays; apart from its recorder, which it outlives."""

    def __init__(self, path: str, keep: bool) -> None:
        self.path, self.keep, self.pid = path, keep, os.getpid()

    def settle(self) -> None:
        """Take the file away, unless it is to stay; nothing in a forked child."""
        if not self.keep and self.pid == os.getpid():
            files.remove(self.path)

    def leave(self, failed: bool) -> None:
        if not failed and not self.keep:
            files.remove_at_end(self.path)
        self.keep = True
