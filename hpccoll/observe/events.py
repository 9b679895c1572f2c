"""The ring of events in a rank's file (form.py): what its timeline is made of, beside the calls.

Where the extension is used, its ring writes them, from C and from Python alike; else `PythonEvents` does.
"""

from __future__ import annotations

import struct
import threading
import time
from collections.abc import Callable, Mapping
from types import TracebackType
from typing import TYPE_CHECKING

from hpccoll.observe import form

if TYPE_CHECKING:
    from hpccoll.observe.recorder import Silent


class PythonEvents:
    """Writes events as `_core.Ring` does.  `begin`: where the first one lies, of `count`."""

    def __init__(self, memory: memoryview, begin: int, count: int) -> None:
        self._memory = memory
        self._written = memory[form.EVENTS_WRITTEN : form.EVENTS_WRITTEN + 8].cast("q")
        self._begin, self._count = begin, count
        self._lock = threading.Lock()

    def put(
        self,
        kind: int,
        begin_ns: int,
        end_ns: int,
        sequence: int,
        text: int,
        step: int,
        peer: int,
        nbytes: int,
        /,
    ) -> None:
        """Write one, of this thread; `text`: a number of the table."""
        with self._lock:
            number = self._written[0] + 1
            at = self._begin + (number - 1) % self._count * form.EVENT_BYTES
            whole = form.EVENT.pack(
                number,
                begin_ns,
                end_ns,
                sequence,
                nbytes,
                text,
                kind,
                step,
                peer,
                threading.get_ident(),
                number,
            )
            self._memory[at : at + 8] = whole[:8]
            self._memory[at + 8 : at + form.EVENT_BYTES] = whole[8:]
            self._written[0] = number


class Part:
    """A part of the user's program, inside a `with` block."""

    __slots__ = ("_begin_ns", "_put", "_text")

    def __init__(self, put: Callable[..., None], text: int) -> None:
        self._put, self._text = put, text
        self._begin_ns = 0

    def __enter__(self) -> None:
        self._begin_ns = time.monotonic_ns()

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._put(form.SPAN, self._begin_ns, time.monotonic_ns(), -1, self._text, -1, -1, 0)


def note_step(
    recorder: Silent,
    step: int,
    flights: Mapping[int, tuple[float, float]],
    waited: tuple[float, float],
    label: Callable[[int], str],
) -> None:
    """The buckets of a step: when each was under way, and when the program waited, by time.perf_counter."""
    events = recorder.events
    if events is None:
        return
    begin, end = map(_perf_ns, waited)
    for number, flight in flights.items():
        began, ended = map(_perf_ns, flight)
        # What is done with the results belongs to the wait, not to the bucket.
        events.put(
            form.BUCKET, began, max(began, min(ended, end)), step, recorder.text(label(number)), -1, -1, 0
        )
    events.put(form.STEP_WAITED, begin, end, step, recorder.text("wait for buckets"), -1, -1, 0)


def _perf_ns(seconds: float) -> int:
    """A time of time.perf_counter as one of time.monotonic_ns, which on Linux is the same clock."""
    return round(1e9 * seconds)


def compact(memory: memoryview, most_bytes: int) -> bytes:
    """A file as it is, without the room in it that is not used; of events the last ones that fit."""
    header = bytearray(memory[: form.PAGE])
    magic, records, table, _, written, used, *times = form.FIXED.unpack_from(header)
    events, events_written = struct.unpack_from("<2q", header, form.EVENTS)
    kept = max(1, min(written, records))
    left = most_bytes - form.table_at(kept, 0) - used
    kept_events = max(0, min(events_written, events, left // form.EVENT_BYTES))
    new_table = form.table_at(kept, kept_events)
    form.FIXED.pack_into(header, 0, magic, kept, new_table, new_table + used, written, used, *times)
    struct.pack_into("<2q", header, form.EVENTS, kept_events, events_written)
    first = form.events_at(records)
    places = [number % events for number in range(events_written - kept_events, events_written)]
    at, last = (first + place * form.EVENT_BYTES for place in (places[0], places[-1])) if places else (0, 0)
    end = last + form.EVENT_BYTES
    rings = (
        [memory[at:end]] if at <= last else [memory[at : form.table_at(records, events)], memory[first:end]]
    )
    whole = [
        header,
        memory[form.PAGE : form.events_at(kept)],
        *(rings if places else ()),
        memory[table : table + used],
    ]
    return b"".join(whole)
