"""The calls of a communicator that C makes, and what becomes of those that it leaves to Python.

`again` and `start` are `Repeats`'s (runtime/repeats.py).  What they have begun and not ended goes on here as
the stages of a call like any other, with deadline, words for errors and, where nobody waits, the worker.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Generator, Iterable
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

from hpccoll.calls import Call
from hpccoll.errors import UsageError
from hpccoll.observe.metrics import Timing
from hpccoll.observe.snapshot import BLOCKING, STARTED
from hpccoll.runtime.agreement import arrival_number
from hpccoll.runtime.control import Control
from hpccoll.runtime.engine import halves
from hpccoll.runtime.movement import Movement, travelling
from hpccoll.runtime.opening import fingerprint_of
from hpccoll.runtime.planning import Planned
from hpccoll.runtime.progress import PROGRESS, Running
from hpccoll.runtime.repeats import Given, Repeats, never, possible
from hpccoll.runtime.wait import Waits

if TYPE_CHECKING:
    from hpccoll._native import _core
    from hpccoll.runtime.context import Context

LONG_S = 10e-3  # what was started so long ago is not left to C any more


class KnownCalls:
    """Those of one communicator; none where the extension cannot make them."""

    again: Callable[[str, Given], Any]
    """Makes a call that is known from before."""
    start: Callable[[str, Given, Callable[[], Call]], Any]
    """Begins one for a caller who does other things."""

    def __init__(
        self, context: Context, control: Control, movement: Movement, channel: int, spin_s: float
    ) -> None:
        self._context = context
        self._control = control
        self._movement = movement
        self._process = os.getpid()
        self._repeats: Repeats | None = None
        self.again = self.start = never
        network, _ = movement.native
        if network is not None and possible():
            self._repeats = Repeats(
                control,
                context.layout,
                context.rank,
                context.counts,
                PROGRESS.number,
                context.in_use,
                network,
                channel,
                spin_s,
                context.config.checks == "on",
                context.recorder,
            )
            self.again, self.start = self._repeats.again, self._repeats.start

    def note(self, given: Given, call: Call, planned: Planned) -> None:
        """A call has been made, and may be made again."""
        if self._repeats is not None:
            fingerprint, group = fingerprint_of(call, 0, planned.code), self._movement.native[1]
            metrics = self._context.metrics
            metered = None if metrics is None else metrics.metered(call, planned)
            self._repeats.note(given, call, planned, fingerprint, group, metered)

    @contextmanager
    def forced(self, algorithm: str) -> Generator[None, None, None]:
        """Inside, those that take this plan are known apart; none is started."""
        before = self.again, self.start
        self.start = never
        if self._repeats is not None:
            self.again = self._repeats.again_by(algorithm)
        try:
            yield
        finally:
            self.again, self.start = before

    def calls(self) -> Iterable[tuple[tuple[str, str], int]]:
        """How many ended well, by collective and plan; a pair may come several times."""
        return () if self._repeats is None else self._repeats.calls()

    def forget(self) -> None:
        """None is known any more."""
        if self._repeats is not None:
            self._repeats.forget()

    # --- what `again` has begun -----------------------------------------------------------------

    def go_on(
        self, collective: str, prepare: Callable[[], Call], begun: _core.Execution | _core.Spread | None
    ) -> None:
        """The rest of a call.  Raises as `Context.run`.

        `prepare` makes the call of the same arguments once more.
        """
        context = self._context
        sequence = context.counts.last
        try:
            timing = None
            if context.metrics is not None and self._repeats is not None:
                timing = context.metrics.begin(BLOCKING, *self._repeats.began)
            stages = self._rest(prepare, begun, sequence, context.planner.forced_name, timing)
            context.wait(stages, collective, sequence, None)
        finally:
            context.in_use.release()

    def broke_off(self, collective: str, error: BaseException) -> None:
        """Note an error that was raised in the middle of a call."""
        context = self._context
        context.failed(error, collective, context.counts.last, None)
        context.in_use.release()

    def _rest(
        self,
        prepare: Callable[[], Call],
        begun: _core.Execution | _core.Spread | None,
        sequence: int,
        asked: str,
        timing: Timing | None,
        arrived: bool = True,
    ) -> Waits:
        context = self._context
        try:
            call = prepare()
            call.asked = asked
        except UsageError as error:
            raise RuntimeError(f"the arguments have changed while the call was made: {error}") from error
        execution, spread = halves(begun)
        if execution is None:
            yield from context.steps(call, sequence, arrived=arrived, spread=spread, timing=timing)
            return
        planned = context.planner.plan(call)
        context.recorder.moves(sequence, planned, travelling(call).itemsize)
        if planned.schedule is not None:
            note = self._control.note_step
            yield from self._movement.go_on(call, planned.schedule, execution, sequence, note)
        context.count(call, planned, timing)

    # --- what `start` has begun -----------------------------------------------------------------

    def move_started(self) -> bool:
        """Move on what was started, as far as it goes; False when there is none any more."""
        if self._repeats is None:
            return False
        seconds = self._repeats.move()
        if seconds > LONG_S:
            self.take_over()
        return 0 <= seconds <= LONG_S

    def await_started(self, seconds: float) -> None:
        """Until one of them can be moved on, or one is started that can, at most so long."""
        if self._repeats is not None:
            self._repeats.await_started(seconds)

    def take_over(self) -> None:
        """Go on here with what was started and is not complete."""
        if self._repeats is None:
            return
        metrics = self._context.metrics
        with PROGRESS.lock:
            for one in self._repeats.take_over():
                if one.arrived:
                    self._control.has_arrived(arrival_number(one.sequence))
                timing = None
                if metrics is not None:
                    timing = metrics.begin(STARTED, round(1e9 * one.began_s), one.agreed_ns)
                stages = self._rest(one.prepare, one.begun, one.sequence, "", timing, bool(one.arrived))
                running = self._context.running(stages, one.collective, one.sequence)
                running.timing = timing
                one.go_on_as(running)
                PROGRESS.add(running)

    def taken_over(self, known: _core.Started) -> Running | None:
        """What goes on with a call that was started, from now on or before; None where it is complete.

        Raises: UsageError in a forked child; AbortedError where the communicator was given up.
        """
        if self._process != os.getpid():
            raise UsageError(f"this request belongs to process {self._process}: a forked child cannot use it")
        self.take_over()
        with PROGRESS.lock:  # another thread may be about to do it
            running: Running | None = known.running
        if running is None and not known.done:
            self._context.number()
            raise RuntimeError("a started call was lost")
        return running
