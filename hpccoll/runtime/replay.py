"""Calls made again on the same device memory, which is what a training loop does: enqueued without any check.

All that was found out of a call the first time holds as long as its arrays are at the same addresses, of the
same shapes and types: those, with operator, root and plan, are the key.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import TYPE_CHECKING, Any, NamedTuple

from mpi4py import MPI

from hpccoll.arrays.device import glance, stream_handle
from hpccoll.calls import Call
from hpccoll.observe.snapshot import BLOCKING

if TYPE_CHECKING:
    from hpccoll.runtime.context import Context
    from hpccoll.runtime.device_side import ByNccl
    from hpccoll.runtime.device_times import TimedTape
    from hpccoll.runtime.tape import Tape

IN_PLACE = MPI.IN_PLACE
MOST = 1024
Key = tuple[object, ...]


def give_up(context: Context, error: BaseException, collective: str) -> None:
    """A call could not be enqueued, which breaks the communicator.  Raises errors of NCCL as ours."""
    from hpccoll.transports.nccl import told

    ours = context.on_devices.why_nccl_failed(told(error))
    context.failed(ours, collective, -1, None)
    if ours is not error:
        raise ours from error


class Known(NamedTuple):
    """A call as it is played.

    What it counts as (collective, plan), the number of its kind, its tape, and what measures it.
    """

    counted: tuple[str, str]
    code: int
    tape: Tape | TimedTape
    measure: Callable[[], None] | None


class Replays:
    """The calls of one communicator that can be enqueued again."""

    def __init__(self, context: Context) -> None:
        self._context = context
        self._checks = context.on_devices.checks
        self._only = partial(context.planner.only_now, on_device=True)
        self._lock = context.in_use
        self._tally = context.tally
        self._known: dict[Key, Known] = {}

    def again(self, collective: str, given: tuple[Any, ...], stream: Any) -> bool:
        """Enqueue a call made before; False when it was not, or must be looked at.

        `given`: the buffers, then operator and root.
        """
        key, found = self._key(collective, given)
        known = self._known.get(key)
        if known is None or self._checks.made >= self._checks.next:
            return False  # the ranks agree on this one first
        if stream is not None and stream_handle(stream) != found:
            return False  # that stream must first wait for the arrays'
        if not self._lock.acquire(False):
            return False  # two threads in one communicator, of which the other way tells
        try:
            if self._context.broken is not None:
                return False
            self.play(known, found)
        finally:
            self._lock.release()
        return True

    def play(self, known: Known, stream: int) -> None:
        """Enqueue a call; the communicator is this thread's."""
        try:
            known.tape.play(stream)
        except BaseException as error:
            give_up(self._context, error, known.counted[0])
            raise
        self._checks.enqueued(known.code)
        self._tally[known.counted] += 1
        if known.measure is not None:
            known.measure()

    def note(self, collective: str, given: tuple[Any, ...], call: Call, kind: ByNccl) -> None:
        """A call that was just enqueued: keep it, if its tape is all there is to it."""
        key, _ = self._key(collective, given)
        if key and (known := self.known(call, kind)) is not None:
            if len(self._known) >= MOST:
                self.forget()
            self._known[key] = known

    def known(self, call: Call, kind: ByNccl, form: str = BLOCKING) -> Known | None:
        """A call as its tape, if that is all there is to it; `form`: how it is made again."""
        side = self._context.on_devices.side
        if side.elsewhere.are_needed(call) or not kind.repeats(call):
            return None
        tape, metrics, name = side.written(kind, call), self._context.metrics, kind.program.name
        measure = None if metrics is None else metrics.on_device(call, name, form)
        timed = self._context.on_devices.timed_tape(tape, call, name)
        return Known((call.collective, name), kind.code, timed, measure)

    def forget(self) -> None:
        """Let go of all of them."""
        for known in self._known.values():
            known.tape.drop()
        self._known.clear()

    def _key(self, collective: str, given: tuple[Any, ...]) -> tuple[Key, int]:
        """What tells calls apart, and the stream of their arrays; an empty key for what is not to be kept."""
        *buffers, operator, root = given
        key: list[object] = [collective, root, getattr(operator, "handle", operator), self._only(collective)]
        stream = 0
        for buffer in buffers:
            if buffer is None or buffer is IN_PLACE:
                key.append(None)
                continue
            try:
                seen, current = glance(buffer)
            except (AttributeError, TypeError, RuntimeError):
                return (), 0
            key.append(seen)
            if stream and current != stream:
                return (), 0
            stream = current
        return tuple(key), stream
