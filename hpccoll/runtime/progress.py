"""Moves started calls on while their callers do other things: one worker for the whole process.

Whoever waits in hpccoll moves all started calls on; while nobody does, the worker does, a thread that is made
with the first of them.  It needs MPI.THREAD_MULTIPLE; below that, started calls move on only while some
call of hpccoll waits, or tests.

All turns are taken under one lock, so that what a communicator shares between its calls needs none.  Waits
are outside it.
"""

from __future__ import annotations

import atexit
import gc
import math
import os
import threading
import time
from array import array
from collections.abc import Callable, Generator, Sequence
from contextlib import closing
from typing import TYPE_CHECKING, Any, Protocol, TypeVar

from mpi4py import MPI

from hpccoll.errors import UsageError
from hpccoll.observe import form
from hpccoll.observe.metrics import Timing
from hpccoll.runtime import engine
from hpccoll.runtime.threads import started_thread
from hpccoll.runtime.wait import MOVED, Hint, Waits, drive

if TYPE_CHECKING:
    from hpccoll._native import _core
    from hpccoll.observe.events import PythonEvents

T = TypeVar("T")

# How long the worker sleeps when nothing moves: shortest, longest, and while somebody else waits in hpccoll.
SLEEP_S = 30e-6
LONGEST_SLEEP_S = 1e-3
STAND_BACK_S = 2e-3
HINT_S = 2e-3
# What the engine has it moves on so long at once; then all calls have a turn.
TOGETHER_S = 10e-3
# The worker's sleep between looks where its core is wanted by who computes.
TURN_S = 500e-6
# So long the worker looks after what C has alone; so long, while nothing is under way, it expects more.
WATCH_S = 1e-3
LINGER_S = 20e-3


class Running:
    """A started call.  `error` is what it ended with, once `done`; `sequence`: its number, -1 for none."""

    def __init__(
        self,
        stages: Waits,
        *,
        aborted: Callable[[], None],
        late: Callable[[float], BaseException | None],
        progress: Callable[[], None],
        ended: Callable[[BaseException | None], BaseException | None],
        timeout_s: float,
        owner: object,
        sequence: int = -1,
    ) -> None:
        self._stages = stages
        self._aborted = aborted
        self._late = late
        self._progress = progress
        self._ended = ended
        self._timeout_s = timeout_s
        self._deadline = time.monotonic() + timeout_s
        self._turns = 0
        self._process = os.getpid()
        self.owner = owner
        self.sequence = sequence
        self.hint: Hint | None = None  # of the last turn
        self.done = False
        self.error: BaseException | None = None
        self.event: Any = None  # of a call that a device does: complete when it is
        self.block: Callable[[int | None], None] | None = None
        self.status: MPI.Status | None = None  # of a message
        self.timing: Timing | None = None  # where calls are measured
        self.events: PythonEvents | _core.Ring | None = None  # where a timeline is wanted
        self._when_done: list[Callable[[], None]] = []

    def check_process(self) -> None:
        """Raises UsageError in a forked child of the process that started the call."""
        if self._process != os.getpid():
            raise UsageError(f"this request belongs to process {self._process}: a forked child cannot use it")

    def extend(self) -> None:
        """Somebody waits from now on: the time that the call may take counts from here."""
        self._deadline = max(self._deadline, time.monotonic() + self._timeout_s)

    def turn(self) -> Hint | None:
        """Move on as far as it goes without waiting; MOVED when it is complete."""
        try:
            if not self._turns:
                self._aborted()  # what others gave up before it was started is not to be completed
            hint = self.hint = next(self._stages)
            self._turns += 1
            if self._turns % 16 == 0 or hint is not None:
                self._aborted()
                self._progress()
                over = time.monotonic() - self._deadline
                if over > 0 and (error := self._late(over)) is not None:
                    raise error
            return hint
        except StopIteration:
            self._end(None)
        except Exception as error:
            self._end(error)
        return MOVED

    def _end(self, error: BaseException | None) -> None:
        self.error = self._ended(error)
        self.done = True
        self._stages = _over()  # lets go of the caller's buffers
        self.hint = None
        self.block = None  # and so does this
        self._tell_all()

    def tell(self, action: Callable[[], None]) -> None:
        """Do something, once, when the call is complete; now if it is."""
        self._when_done.append(action)
        if self.done:
            self._tell_all()

    def _tell_all(self) -> None:
        while self._when_done:
            try:
                action = self._when_done.pop()
            except IndexError:  # the other thread has it
                return
            action()


class Watched(Protocol):
    """Started calls that C has."""

    def move_started(self) -> bool:
        """Move them on as far as they go without waiting; False when there are none any more."""

    def await_started(self, seconds: float) -> None:
        """Without the GIL, until any of them can be moved on, or one is started that can; at most so long."""


class _TurnLock:
    """Held during turns; meanwhile no garbage is collected.

    A finalizer may wait for a device (to free memory is such a wait), and the device for a turn.
    """

    def __init__(self) -> None:
        self._lock = threading.RLock()
        self._collected: list[bool] = []

    def __enter__(self) -> None:
        self._lock.acquire()
        self._collected.append(gc.isenabled())
        gc.disable()

    def __exit__(self, *error: object) -> None:
        if self._collected.pop():
            gc.enable()
        self._lock.release()


class Progress:
    """The started calls of this process."""

    def __init__(self) -> None:
        self.number = array("q", [0])  # of calls that are pending, for repeats.c
        self._reset()

    def _reset(self) -> None:
        self._pending: list[Running] = []
        self.number[0] = 0
        self._watched: set[Watched] = set()
        self._watched_last: Watched | None = None
        self._watched_at = 0.0
        self._asleep = False
        self._all_at = 0.0
        self.lock = _TurnLock()
        self._turning = False
        self._turns = 0
        self._waiting: set[object] = set()  # who waits in hpccoll
        self._wake = threading.Event()
        self._bell: _core.Bell | None = None  # rung when there is more for the worker, or less
        self._stopped = False
        self._worker: threading.Thread | None = None

    def add(self, running: Running) -> None:
        """Take a started call: it has its first turn here."""
        with self.lock:
            self._pending.append(running)
            self.number[0] = len(self._pending)
            self.turn(None if self._worker is None else [running])
            if self._pending:
                self._have_worker()
        self._wake.set()
        self._ring()

    def watch(self, calls: Watched) -> None:
        """Move started calls on that C has, until there are none."""
        self._watched.add(calls)
        self._watched_last, self._watched_at = calls, time.monotonic()
        if self._worker is None:
            with self.lock:
                self._have_worker()
        if self._asleep:
            self._wake.set()

    def unwatch(self, calls: Watched) -> None:
        """Those are given up."""
        self._watched.discard(calls)
        if self._watched_last is calls:
            self._watched_last = None

    def _ring(self) -> None:
        if self._bell is not None:
            self._bell.ring()

    def _have_worker(self) -> None:
        if self._worker is None and MPI.Query_thread() == MPI.THREAD_MULTIPLE:
            self._worker = started_thread(self._work, "hpccoll-progress")

    def forget(self, owner: object) -> None:
        """No turns any more for the calls of a communicator that is given up."""
        with self.lock:
            self._pending = [one for one in self._pending if one.owner is not owner]
            self.number[0] = len(self._pending)

    def pending_of(self, owner: object) -> int:
        """How many calls of a communicator are not complete."""
        with self.lock:
            return sum(one.owner is owner for one in self._pending)

    def first_pending_of(self, owner: object) -> int | None:
        """The sequence number of the first call of a communicator that is not complete."""
        with self.lock:
            return min(
                (one.sequence for one in self._pending if one.owner is owner and one.sequence >= 0),
                default=None,
            )

    def turn(self, among: Sequence[Running] | None = None) -> Hint | None:
        """A turn for every started call, or for some.  Returns MOVED, or what may be waited for, or None."""
        over = self._watched and self._move_watched()
        if not self._pending:
            return MOVED if over else None
        with self.lock:
            if self._turning:  # by this very thread: a call's own stages asked for it
                return None
            self._turning = True
            self._turns += 1
            try:
                found: Hint | None = MOVED if over else None
                for running in list(self._pending if among is None else among):
                    hint = MOVED if running.done else running.turn()  # another thread's turn was the last
                    if found is not MOVED and hint is not None:
                        found = hint
                self._pending = [one for one in self._pending if not one.done]
                self.number[0] = len(self._pending)
                return found
            finally:
                self._turning = False

    def _move_watched(self) -> bool:
        """Move on started calls that C has; whether all of a communicator are over."""
        over = False
        for one in tuple(self._watched):
            self._watched.discard(one)  # before: whoever starts a call meanwhile adds it again
            if one.move_started():
                self._watched.add(one)
            else:
                over = True
        return over

    def guarded(self, stages: Generator[Hint | None, None, T]) -> Generator[Hint | None, None, T]:
        """The stages of a blocking call, each under the lock when the worker may be at work too."""
        me = object()
        self._waiting.add(me)
        self._ring()
        try:
            while True:
                try:
                    if self._worker is None:
                        hint = next(stages)
                    else:
                        with self.lock:
                            hint = next(stages)
                except StopIteration as end:
                    result: T = end.value
                    return result
                yield hint
        finally:
            self._waiting.discard(me)

    def wait(self, running: Running, spin_s: float = 0.0) -> None:
        """Until a started call is complete."""
        if running.done:
            return
        running.extend()
        noted = running.timing is not None or running.events is not None
        began_ns = time.monotonic_ns() if noted else 0
        with closing(self._until(running)) as stages:
            drive(stages, math.inf, _nothing, _nothing, _never, spin_s=spin_s)
        if running.timing is not None:
            running.timing.waited(time.monotonic_ns() - began_ns)
        if running.events is not None:
            ended_ns = time.monotonic_ns()
            running.events.put(form.WAITED, began_ns, ended_ns, running.sequence, 0, -1, -1, 0)

    def _until(self, running: Running) -> Waits:
        me = object()
        self._waiting.add(me)
        self._ring()
        try:
            while not running.done:
                yield self.turn()
        finally:
            self._waiting.discard(me)

    def _work(self) -> None:
        """The worker."""
        engine.sleep_in_turns(TURN_S)
        sleep_s = SLEEP_S
        while not self._stopped:
            if not self._pending:
                self._look_after_watched()
                continue
            if self._waiting:
                turns = self._turns
                time.sleep(STAND_BACK_S)
                if self._turns != turns:
                    continue  # who waits has moved them on, and is not held up itself, by a finalizer say
            hint = self.turn(self._due())
            if hint is MOVED or self._work_together():
                sleep_s = SLEEP_S
            elif hint is not None:
                hint(HINT_S)
            else:
                time.sleep(sleep_s)
                sleep_s = min(2 * sleep_s, LONGEST_SLEEP_S)
            del hint  # it keeps the buffers of its call

    def _due(self) -> Sequence[Running] | None:
        """Whose turn it is: now and then all have one, in between those that the engine has nothing of."""
        now = time.monotonic()
        if now - self._all_at >= TOGETHER_S:
            self._all_at = now
            return None
        with self.lock:
            return [one for one in self._pending if not _at_work(one.hint)]

    def _work_together(self) -> bool:
        """The worker, without the GIL: all that the engine has moves on until some of it is over.

        False where the engine has nothing.
        """
        with self.lock:
            hints = [one.hint for one in self._pending]
        works = [hint for hint in hints if isinstance(hint, engine.Work)]
        if not works:
            return False
        if self._bell is None:
            self._bell = engine.new_bell()
        seconds = TOGETHER_S if len(works) == len(hints) else HINT_S
        spin_s = max(work.spin_s for work in works)
        engine.run_all([work.execution for work in works], seconds, self._bell, spin_s=spin_s)
        return True

    def _look_after_watched(self) -> None:
        """The worker, where C has all that is under way, or nothing is."""
        watched = tuple(self._watched)
        if not watched:
            self._doze()
            return
        if len(watched) == 1:
            watched[0].await_started(WATCH_S)
        if self.turn() is None:
            time.sleep(SLEEP_S)

    def _doze(self) -> None:
        """Nothing is under way: the worker sleeps, lightly at first."""
        self._wake.clear()
        last = self._watched_last
        if last is not None and time.monotonic() - self._watched_at < LINGER_S:
            last.await_started(WATCH_S)
            return
        self._watched_last = None
        self._asleep = True
        if not self._pending and not self._watched:
            self._wake.wait()
        self._asleep = False

    def stop(self) -> None:
        """End the worker: MPI is about to be finalised."""
        self._stopped = True
        self._wake.set()
        if self._worker is not None:
            self._worker.join(1.0)


def _at_work(hint: Hint | None) -> bool:
    return isinstance(hint, engine.Work) and not hint.execution.over


def _over() -> Waits:
    yield from ()


def _nothing() -> None:
    """Running.turn looks for aborts and lets MPI move."""


def _never(over: float) -> Exception:
    raise RuntimeError("a wait without a deadline came to its end")


PROGRESS = Progress()
atexit.register(PROGRESS.stop)
os.register_at_fork(after_in_child=PROGRESS._reset)  # a forked child has none of its parent's calls
