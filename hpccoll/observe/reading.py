"""Reads trace files, of live processes and of dead ones.

Nothing in a file is believed: every number is looked at before something is read or made by it, and what
makes no sense is left out.
"""

from __future__ import annotations

import errno
import json
import os
import stat
import struct
from bisect import bisect_right
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any, NamedTuple

from hpccoll.memory.segments import TRACE, lives, pid_space
from hpccoll.observe import form
from hpccoll.runtime.fingerprint import Fingerprint

MOST_BYTES = 2**30  # of a file
MOST_FILES = 100_000
MOST_RANKS = 2**24
DEEPEST = 2  # folders below the one that is read: one for each host, say


@dataclass(frozen=True)
class Place:
    """A line of the program that called."""

    file: str
    function: str
    line: int

    def __str__(self) -> str:
        return f"{self.file}:{self.line} in {self.function}"


@dataclass(frozen=True)
class Call:
    """One call of one rank.  Times are in ns of the rank's monotonic clock; 0: not come to that.

    `peer`: the rank that is waited for, -1 for a group or nobody; `chunk`: -1 where none is known.
    """

    sequence: int
    collective: str
    called: Fingerprint | None
    state: int
    entered_ns: int
    agreed_ns: int
    ended_ns: int
    step: int
    steps: int
    chunk: int
    chunks: int
    peer: int
    family: str
    bytes_done: int
    bytes_total: int
    place: Place | None
    thread: int
    plan: str
    error: str
    how: int = form.BLOCKING

    @property
    def waits(self) -> bool:
        """It was not over when the file was read."""
        return self.state in (form.ENTERED, form.AGREED, form.MOVING)

    def __str__(self) -> str:
        return f"{self.collective} #{self.sequence}"


class Event(NamedTuple):
    """What happened on one rank beside the calls as such; `kind` as form.py has it.

    Times are in ns of the rank's monotonic clock.  `sequence`: of the call, or the number of a step; `text`:
    words, or of an operation the description of its plan's steps.
    """

    kind: int
    begin_ns: int
    end_ns: int
    sequence: int
    text: str
    step: int
    peer: int
    nbytes: int
    thread: int


class Measurement(NamedTuple):
    """Rank 0's clock is `offset_ns` ahead of this rank's, within `error_ns`; measured from begin to end."""

    begin_ns: int
    end_ns: int
    offset_ns: int
    error_ns: int


@dataclass
class RankTrace:
    """What one rank has recorded of one communicator; `calls` in their order, by sequence number.

    `torn`: records and events that were being written.  `state`: form.AT_WORK, CLOSED (after an error), LEFT
    (its program has come to its end) or OVER (closed, all well).  `lost`, `lost_events`: how many there were
    before those that are here.
    """

    path: str
    communicator: str
    rank: int
    size: int
    node: int
    name: str
    host: str
    pid: int
    start: int
    pid_space: str
    program: str
    state: int
    state_ns: int
    error: str
    monotonic_ns: int
    wall_ns: int
    torn: int = 0
    calls: dict[int, Call] = field(default_factory=dict)
    world_rank: int = -1
    measurements: list[Measurement] = field(default_factory=list)
    events: list[Event] = field(default_factory=list)
    lost: int = 0
    lost_events: int = 0

    @property
    def last(self) -> Call | None:
        """The call that began last."""
        return self.calls[max(self.calls)] if self.calls else None

    @property
    def process_key(self) -> tuple[str, str, int, int]:
        """The process, which may have other communicators."""
        return self.host, self.pid_space, self.pid, self.start

    @property
    def clock(self) -> str:
        """The clock that is measured for it, which all processes of its host share."""
        return f"{self.host} {self.pid_space.split('.')[0]}"

    def process(self) -> str:
        """alive, gone, or unknown: this is not the machine where it ran."""
        if self.pid_space == "unknown" or self.pid_space != pid_space():
            return "unknown"
        return "alive" if lives(self.pid, self.start) else "gone"


def read_directory(directory: str) -> tuple[list[RankTrace], list[str]]:
    """All trace files in a directory and the folders in it, and what is wrong with those that cannot be read.

    Of two files of one rank and communicator the one with the later calls is taken.
    Raises: OSError when the directory cannot be read.
    """
    os.listdir(directory)
    found: dict[tuple[str, int], RankTrace] = {}
    problems = []
    for path in _paths(directory, DEEPEST):
        try:
            trace = read_file(path)
        except (OSError, ValueError) as error:
            problems.append(f"{path}: {error}")
            continue
        key = (trace.communicator, trace.rank)
        if key not in found or max(trace.calls, default=-1) > max(found[key].calls, default=-1):
            found[key] = trace
    return sorted(found.values(), key=lambda one: (one.wall_ns, one.communicator, one.rank)), problems


def _paths(directory: str, depth: int) -> Iterator[str]:
    count = 0
    try:
        entries = sorted(os.scandir(directory), key=lambda one: one.name)
    except OSError:
        return
    for entry in entries:
        if entry.is_dir(follow_symlinks=False) and depth:
            yield from _paths(entry.path, depth - 1)
        elif entry.name.startswith("hpccoll-") and f"-{TRACE}" in entry.name and count < MOST_FILES:
            count += 1
            if not entry.name.endswith(".part"):
                yield entry.path


def read_file(path: str) -> RankTrace:
    """One trace file.  Raises: OSError; ValueError when it is none."""
    return parse(*_contents(path), path)


def _contents(path: str) -> tuple[bytes, bytes]:
    """The file, read twice: what changed between began to be written while it was read."""
    descriptor = os.open(path, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC)
    try:
        found = os.fstat(descriptor)
        if not stat.S_ISREG(found.st_mode):
            raise OSError(errno.EINVAL, "not a regular file")
        if not form.PAGE <= found.st_size <= MOST_BYTES:
            raise ValueError(f"not a trace file: {found.st_size} bytes")
        first, second = (os.pread(descriptor, found.st_size, 0) for _ in range(2))
        return first, second
    finally:
        os.close(descriptor)


def parse(data: bytes, again: bytes, path: str) -> RankTrace:
    """The contents of a trace file, read twice.  Raises: ValueError when they are none."""
    if len(data) < form.PAGE:
        raise ValueError("not a trace file: shorter than its header")
    magic, count, table, total, written, used, monotonic_ns, wall_ns = form.FIXED.unpack_from(data, 0)
    if magic != form.MAGIC:
        raise ValueError("not a trace file of this version of hpccoll")
    events, events_written = struct.unpack_from("<2q", data, form.EVENTS)
    if (
        total != len(data)
        or not 1 <= count <= total
        or not 0 <= events <= total
        or table != form.table_at(count, events)
        or table > total
        or written < 0
        or events_written < 0
    ):
        raise ValueError("not a whole trace file: its sizes do not fit")
    about = _about(_text(data, form.ABOUT, form.ABOUT_BYTES))
    state, state_ns = (int.from_bytes(data[at : at + 8], "little") for at in (form.STATE, form.STATE_NS))
    trace = RankTrace(
        path=path, state=state, state_ns=state_ns, error=_text(data, form.ERROR, form.ERROR_BYTES),
        monotonic_ns=monotonic_ns, wall_ns=wall_ns, **about,
    )  # fmt: skip
    (origin,) = struct.unpack_from("<q", data, form.ORIGIN)
    names = _Table(data, table, min(max(used, 0), total - table), origin)
    for index in range(min(written, count)):
        at = form.PAGE + index * form.RECORD_BYTES
        call = _call(data[at : at + form.RECORD_BYTES], names)
        if call is None or data[at : at + 8] != again[at : at + 8]:
            trace.torn += 1
        else:
            trace.calls[call.sequence] = call
    trace.calls = dict(sorted(trace.calls.items()))
    trace.lost, trace.lost_events = max(0, written - count), max(0, events_written - events)
    trace.measurements = _measurements(data)
    begin, kept = form.events_at(count), min(events_written, events)
    size = kept * form.EVENT_BYTES
    trace.events = list(_events(data[begin : begin + size], again[begin : begin + size], names))
    trace.torn += kept - len(trace.events)
    return trace


def _measurements(data: bytes) -> list[Measurement]:
    count = int.from_bytes(data[form.CLOCK : form.CLOCK + 8], "little")
    most = (form.CLOCK_BYTES - 8) // form.MEASUREMENT.size
    ends = [form.CLOCK + 8 + number * form.MEASUREMENT.size for number in range(min(count, most))]
    return [Measurement(*form.MEASUREMENT.unpack_from(data, at)) for at in ends]


def _events(data: bytes, again: bytes, names: _Table) -> Iterator[Event]:
    """Those that are whole, in the order in which they ended."""
    found = []
    texts: dict[int, str] = {}
    later = (number for number, *_ in form.EVENT.iter_unpack(again))
    for one, number in zip(form.EVENT.iter_unpack(data), later, strict=True):
        before, begin_ns, end_ns, sequence, nbytes, text, kind, step, peer, thread, after = one
        if before == after == number and before and 0 < begin_ns <= end_ns:
            if text not in texts:
                texts[text] = names.text(text)
            event = Event(kind, begin_ns, end_ns, sequence, texts[text], step, peer, nbytes, thread)
            found.append((number, event))
    return (event for _, event in sorted(found))


def _about(text: str) -> dict[str, Any]:
    kinds = {
        "communicator": str, "rank": int, "size": int, "node": int, "name": str, "host": str, "pid": int,
        "start": int, "pid_space": str, "program": str, "world_rank": int,
    }  # fmt: skip
    try:
        found = json.loads(text)
    except (ValueError, RecursionError):
        found = None
    if not isinstance(found, dict) or any(type(found.get(name)) is not kind for name, kind in kinds.items()):
        raise ValueError("not a whole trace file: it does not say who wrote it")
    if not 0 <= found["rank"] < found["size"] <= MOST_RANKS or not 0 < found["pid"] < 2**31:
        raise ValueError("not a trace file: there is no such rank, or process")
    return {name: found[name] for name in kinds}


def _text(data: bytes, at: int, room: int) -> str:
    length = int.from_bytes(data[at : at + 4], "little")
    return data[at + 4 : at + 4 + min(length, room - 4)].decode(errors="replace")


def _call(record: bytes, names: _Table) -> Call | None:
    (
        before, called, entered_ns, agreed_ns, ended_ns, state, how, step, chunk, chunks, peer, family, done,
        total, code, instruction, thread, plan, steps, error, collective, after,
    ) = form.RECORD.unpack(record)  # fmt: skip
    if before != after or not before or not form.ENTERED <= state <= form.REFUSED:
        return None
    fingerprint = _fingerprint(called)
    name = fingerprint.collective if fingerprint is not None else names.text(collective)
    sequence = int.from_bytes(called[:8], "little", signed=True)
    return Call(
        sequence=sequence,
        collective=name or "a call",
        called=fingerprint,
        state=state,
        entered_ns=entered_ns,
        agreed_ns=agreed_ns,
        ended_ns=ended_ns,
        step=step,
        steps=steps,
        chunk=chunk,
        chunks=chunks,
        peer=peer,
        family=form.FAMILIES[family] if 0 <= family < len(form.FAMILIES) else "",
        bytes_done=done,
        bytes_total=total,
        place=names.place(code, instruction),
        thread=thread,
        plan=names.text(plan),
        error=names.text(error),
        how=how,
    )


def _fingerprint(data: bytes) -> Fingerprint | None:
    if not any(data[8:]):
        return None  # not told yet
    try:
        found = Fingerprint.unpack(data)
        found.fields()
    except (IndexError, KeyError, ValueError):
        return None
    return found


class _Table:
    """The table of a file; entries that are not inside it are not there."""

    def __init__(self, data: bytes, begin: int, length: int, origin: int) -> None:
        self._data = data
        self._moved = begin - origin
        self._begin, self._end = begin, begin + length
        self._codes: dict[int, tuple[str, str, int, list[tuple[int, int]]] | None] = {}

    def text(self, number: int) -> str:
        """Words by their number; "" where there are none."""
        body = self._entry(number, form.TEXT)
        return "" if body is None else body.decode(errors="replace")

    def place(self, number: int, instruction: int) -> Place | None:
        """Where an instruction (-1: the first) of a code object stands in the source."""
        if number not in self._codes:
            self._codes[number] = self._code(number)
        code = self._codes[number]
        if code is None:
            return None
        file, function, first, lines = code
        index = bisect_right(lines, (instruction, 2**32)) - 1 if instruction >= 0 else -1
        return Place(file, function, lines[index][1] if index >= 0 else first)

    def _entry(self, number: int, kind: int) -> bytes | None:
        number += self._moved if number else 0
        if not self._begin <= number <= self._end - form.ENTRY.size or number % 8:
            return None
        found, length = form.ENTRY.unpack_from(self._data, number)
        begin = number + form.ENTRY.size
        return self._data[begin : begin + length] if found == kind and length <= self._end - begin else None

    def _code(self, number: int) -> tuple[str, str, int, list[tuple[int, int]]] | None:
        body = self._entry(number, form.CODE)
        if body is None or len(body) < form.CODE_HEAD.size:
            return None
        first, count, file, function = form.CODE_HEAD.unpack_from(body, 0)
        at = form.CODE_HEAD.size
        if at + file + function + count * form.LINE.size > len(body):
            return None
        names = [body[at : at + file], body[at + file : at + file + function]]
        lines = body[at + file + function :][: count * form.LINE.size]
        words = [name.decode(errors="replace") for name in names]
        return words[0], words[1], first, list(form.LINE.iter_unpack(lines))
