"""Calls on a device in the timeline: when the host enqueued each, and when the device did it.

A timed event before a call on its stream and one behind it say how long after a first event they were; that
one is timed by the host, which waits for it once, before the first call.  Nothing else waits: times are read
when events are found reached.  Streams that are captured get no events, so that graphs stay as they are.
"""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Callable
from typing import TYPE_CHECKING, Any, NamedTuple

from hpccoll.memory.device import is_captured
from hpccoll.observe import form

if TYPE_CHECKING:
    from hpccoll._native import _core
    from hpccoll.observe.events import PythonEvents
    from hpccoll.observe.recorder import Silent
    from hpccoll.runtime.streams import Device
    from hpccoll.runtime.tape import Tape

TRIES = 5  # to time the first event
MOST_PENDING = 4096  # calls whose times are not known yet; of more the oldest are given up
BASE_S, FLUSH_S = 1.0, 1.0  # so long the first event, and at the end the last ones, are waited for
REBASE_NS = 10_000_000_000  # so far from the first event a time, a float of milliseconds, has 1 us


class _Pending(NamedTuple):
    text: int
    nbytes: int
    begin: Any
    end: Any


class DeviceTimes:
    """Those of one communicator.  `stream`: one of its own, on which nothing is under way yet."""

    def __init__(
        self, recorder: Silent, events: PythonEvents | _core.Ring, device: Device, stream: int
    ) -> None:
        self._text, self._put, self._device = recorder.text, events.put, device
        self._pending: deque[_Pending] = deque()
        self._free: list[Any] = []
        self._base, self._base_ns, error_ns = self._first(stream)
        self._error_us = -(-error_ns // 1000)

    def _first(self, stream: int) -> tuple[Any, int, int]:
        """An event, its time and by how much that may be wrong; None where the device does not come to it.

        Of some the one between whose begin and end, as the host sees them, is least time.
        """
        found: tuple[Any, int, int] = (None, 0, -1)
        for _ in range(TRIES):
            with self._device:
                before = time.monotonic_ns()
                event = self._mark(stream)
            while not self._device.reached(event):
                if time.monotonic_ns() - before > BASE_S * 1e9:
                    return found
            after = time.monotonic_ns()
            if found[0] is None or (after - before) // 2 < found[2]:
                found = event, (before + after) // 2, (after - before) // 2
        return found

    def _mark(self, stream: int) -> Any:
        event = self._free.pop() if self._free else self._device.timer()
        self._device.record(event, stream)
        return event

    def timed(self, label: str, nbytes: int, stream: int, enqueue: Callable[[], None]) -> None:
        """Enqueue a call on a stream, and note when.  Raises what `enqueue` does."""
        text, begin, end = self._text(label), None, None
        with self._device:
            marks = self._base is not None and not is_captured(stream)
            if marks:
                begin = self._mark(stream)
        begin_ns = time.monotonic_ns()
        enqueue()
        self._put(form.ENQUEUED, begin_ns, time.monotonic_ns(), -1, text, -1, -1, nbytes)
        if marks:
            with self._device:
                end = self._mark(stream)
            self._pending.append(_Pending(text, nbytes, begin, end))
            if len(self._pending) > MOST_PENDING:
                self._pending.popleft()  # its events are under way: they go with it
            self.look()

    def look(self) -> bool:
        """Note the times of calls that are complete; whether all are."""
        while self._pending and self._device.reached(self._pending[0].end):
            one = self._pending.popleft()
            begin_ns = self._base_ns + self._device.elapsed_ns(self._base, one.begin)
            end_ns = begin_ns + self._device.elapsed_ns(one.begin, one.end)
            self._put(form.ON_DEVICE, begin_ns, end_ns, -1, one.text, self._error_us, -1, one.nbytes)
            self._free.append(one.end)
            if begin_ns - self._base_ns > REBASE_NS:
                self._free.append(self._base)
                self._base, self._base_ns = one.begin, begin_ns
            else:
                self._free.append(one.begin)
        return not self._pending

    def flush(self) -> None:
        """Note the times of the last calls, if the device is through with them soon."""
        deadline = time.monotonic() + FLUSH_S
        while not self.look() and time.monotonic() < deadline:
            time.sleep(1e-4)

    def close(self) -> None:
        """Nothing is timed any more: the device gets the events, whose end it sees to."""
        while self._free:
            self._device.give_back(self._free.pop())


class TimedTape:
    """A tape that is timed whenever it is played."""

    def __init__(self, tape: Tape, times: DeviceTimes, label: str, nbytes: int) -> None:
        self._tape, self._times, self._label, self._nbytes = tape, times, label, nbytes

    def play(self, stream: int) -> None:
        """Enqueue all of it."""
        self._times.timed(self._label, self._nbytes, stream, lambda: self._tape.play(stream))

    def drop(self) -> None:
        """It is not played again."""
        self._tape.drop()
