"""Persistent calls on device arrays that NCCL does: `Start` enqueues, on a stream, as the blocking call does.

A stream keeps what is enqueued on it in order, so a call may be started again before it is complete, and a
CUDA graph can capture `Start`.
"""

from __future__ import annotations

import os
from collections.abc import Callable
from typing import TYPE_CHECKING, Any, Literal

from mpi4py import MPI

from hpccoll.arrays.buffer import DerivedBuffer
from hpccoll.arrays.device import current_stream, home_of, stream_finder, stream_handle
from hpccoll.calls import Call
from hpccoll.errors import UsageError
from hpccoll.memory.device import is_captured
from hpccoll.observe.snapshot import STARTED
from hpccoll.runtime.replay import give_up
from hpccoll.runtime.request import PersistentRequest
from hpccoll.runtime.wait import Waits

if TYPE_CHECKING:
    from hpccoll.runtime.context import Context
    from hpccoll.runtime.device_side import ByNccl


class _Process:
    """Which process this is: to ask the system at every call costs more."""

    def __init__(self) -> None:
        self.look()

    def look(self) -> None:
        self.id = os.getpid()


_PROCESS = _Process()
os.register_at_fork(after_in_child=_PROCESS.look)


class EnqueuedRequest(PersistentRequest):
    """A persistent call on device arrays.

    It is complete when its stream is through: `Wait` waits for that, and so do the waits of `hpccoll.Request`
    for several requests.  MPI's own do not know of it, and return at once.
    """

    _bound: Bound | None = None
    _used: Callable[[], Context]
    _active = False
    _event: Any = None

    @classmethod
    def _for(cls, bound: Bound, used: Callable[[], Context]) -> EnqueuedRequest:
        """`used`: gives the state of the communicator, and raises when it must not be used."""
        request = cls()
        request._bound, request._used = bound, used
        return request

    def Start(self) -> None:
        """Enqueue the call.  Raises UsageError when it was freed, and what the blocking call does."""
        bound = self._bound
        if bound is None:
            raise UsageError("this persistent request was freed")
        if self._event is not None:
            self._forget_event()
        bound.start(self._used)
        self._active = True

    def Wait(self, status: MPI.Status | None = None) -> Literal[True]:
        """Return once the call is complete.  Raises its errors."""
        if self._active and self._bound is not None:
            self._bound.wait()
        self._forget_event()
        self._active = False
        return super().Wait(status)

    def Test(self, status: MPI.Status | None = None) -> bool:
        """True once the call is complete.  Raises its errors."""
        if self._active and self._bound is not None:
            if self._event is None:
                self._event = self._bound.end()
            if not self._bound.complete(self._event):
                return False
        return self.Wait(status)

    def Get_status(self, status: MPI.Status | None = None) -> bool:
        return self.Test(status)

    def _forget_event(self) -> None:
        if self._event is not None and self._bound is not None:
            self._bound.give_back(self._event)
        self._event = None

    def block_stream(self, stream: Any = None) -> None:
        if self._active and self._bound is not None:
            self._bound.block(None if stream is None else stream_handle(stream))

    @property
    def _hidden(self) -> bool:
        return self._active

    def _arrive(self) -> None:
        self.Wait()

    def Free(self) -> None:
        """Let go of the buffers.  A call under way is waited for."""
        self.Wait()
        if self._bound is not None:
            self._bound.release()
        self._bound = None


class Bound:
    """What a persistent request is bound to.

    `stream`: on which it is enqueued, None for the one that is current in the library of the arrays.
    """

    def __init__(self, context: Context, call: Call, kind: ByNccl, stream: int | None) -> None:
        self._context = context
        self._call = call
        self._kind = kind
        self._stream = stream
        home = home_of(call.give if call.take is None else call.take.flat)
        self._owner, self._own_stream = home.owner, home.stream
        self._find = stream_finder(self._owner)
        self._derived = any(isinstance(buffer, DerivedBuffer) for buffer in (*call.reads, call.take))
        replays = context.on_devices.replays
        assert replays is not None
        self._known = replays.known(call, kind, STARTED)
        self._play = None if self._known is None else self._known.tape.play
        self._measure = None if self._known is None else self._known.measure
        self._counted = (call.collective, kind.program.name)
        self._checks = context.on_devices.checks
        self._lock, self._tally, self._process = context.in_use, context.tally, _PROCESS.id
        self._on = 0

    def start(self, used: Callable[[], Context]) -> None:
        """Enqueue the call; `used` as in `EnqueuedRequest._for`."""
        current = self._find(self._owner) or self._own_stream
        self._on = stream = current if self._stream is None else self._stream
        if (
            self._play is None
            or stream != current
            or self._context.broken is not None
            or self._checks.made >= self._checks.next
            or self._process != _PROCESS.id
            or not self._lock.acquire(False)
        ):
            used()
            self._start_with_care(current, stream)
            return
        try:
            self._context.check_usable()
            self._play(stream)
            self._checks.enqueued(self._kind.code)
            self._tally[self._counted] += 1
            if self._measure is not None:
                self._measure()
        except BaseException as error:
            give_up(self._context, error, self._call.collective)
            raise
        finally:
            self._lock.release()

    def _start_with_care(self, current: int, stream: int) -> None:
        if self._derived:  # whose copies take memory of CuPy's pool, which a graph would not keep
            self._context.on_devices.refuse_in_graph(self._call, stream, "has items of derived datatypes")
        with self._context.on_devices.side.device as device:
            device.behind(self._own_stream, current)  # where strided arrays are packed
        self._call.refill()
        self._context.repeat_on_device(self._kind, self._call, stream)

    def wait(self) -> None:
        """Until the stream is through; the communicator's deadline holds."""

        def stages() -> Waits:
            event = self.end()
            while not self.complete(event):
                yield None
            self.give_back(event)

        self._context.wait(stages(), self._call.collective, -1, None)

    def end(self) -> Any:
        """An event that is reached with the end of the last call.

        Raises: UsageError while the stream is captured.
        """
        device = self._context.on_devices.side.device
        with device:
            if is_captured(self._on):
                raise UsageError(
                    "the stream is being captured: a captured call is complete when its graph is"
                )
            return device.mark(self._on)

    def complete(self, event: Any) -> bool:
        """Raises AbortedError when NCCL or MPI has failed: what that ends is complete too, and wrong."""
        on_devices = self._context.on_devices
        reached = on_devices.side.device.reached(event)
        on_devices.look(self._kind)
        if self._context.broken is not None:
            self._context.number()
        return reached

    def release(self) -> None:
        """It is not started again."""
        if self._known is not None:
            self._known.tape.drop()

    def give_back(self, event: Any) -> None:
        self._context.on_devices.side.device.give_back(event)

    def block(self, stream: int | None) -> None:
        """A stream, by default the current one, waits for the last call."""
        if stream is None:
            stream = current_stream(self._owner, self._own_stream)
        with self._context.on_devices.side.device as device:
            device.behind(stream, self._on)
