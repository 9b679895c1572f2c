"""What non-blocking and persistent calls return.

Both stand on MPI's generalised requests, so that MPI.Request.Waitall, Testany and the like take them among
requests of messages.  MPI's own waits spin and tell of an error only that there was one; those here yield
the core, keep the deadline and raise our errors, and `comm.last_error` has what went wrong in either case.
"""

from __future__ import annotations

import ctypes
from collections.abc import Callable, Sequence
from contextlib import suppress
from typing import TYPE_CHECKING, Any, Literal, TypeVar

from mpi4py import MPI

from hpccoll.arrays.device import stream_handle
from hpccoll.errors import UsageError
from hpccoll.runtime.progress import PROGRESS, Running
from hpccoll.runtime.repeats import PATIENCE_S
from hpccoll.runtime.wait import Waits, drive

if TYPE_CHECKING:
    from hpccoll._native._core import Started
    from hpccoll.runtime.known_calls import KnownCalls

T = TypeVar("T")
Self = TypeVar("Self", bound="PersistentRequest")

_HANDLE_BYTES = MPI._sizeof(MPI.Request)


class _Waiting(MPI.Request):
    """What both kinds share: waiting for the call behind the handle, and MPI's calls on several requests.

    The call is `_running`, or `_known`, which C has.
    """

    _running: Running | None = None
    _known: Started | None = None
    _calls: KnownCalls | None = None  # of its communicator, where it is known

    def Wait(self, status: MPI.Status | None = None) -> Literal[True]:
        """Return once the call is complete.  Raises the call's errors, as the blocking method does."""
        if self._ended_in_c():
            return super().Wait(status)
        running = self._running
        if running is not None:
            running.check_process()
            PROGRESS.wait(running)
        self._running = None
        return self._release(running, status)

    def Test(self, status: MPI.Status | None = None) -> bool:
        """Move started calls on; True once this one is complete.  Raises the call's errors."""
        known = self._known
        if known is not None:
            PROGRESS.turn()
            over = known.test()
            if not over and known.running is None and known.seconds < PATIENCE_S:
                return False
            if self._completed(over):
                return super().Wait(status)
        running = self._running
        if running is not None:
            running.check_process()
            PROGRESS.turn()
            if not running.done:
                return False
        self._running = None
        return self._release(running, status)

    def _ended_in_c(self) -> bool:
        """Wait for a known call: whether it is complete; False where there is none, or Python has it now."""
        return self._known is not None and self._completed(self._known.wait())

    def _completed(self, over: bool) -> bool:
        """Whether a known call is over; else Python has it from now on, as `_running`."""
        known, self._known = self._known, None
        if not over and known is not None and self._calls is not None:
            self._running = self._calls.taken_over(known)
        return self._running is None

    def _release(self, running: Running | None, status: MPI.Status | None) -> Literal[True]:
        """Give the handle back to MPI and raise what the call ended with."""
        if running is None or running.error is None:
            complete = super().Wait(status)
            if status is not None and running is not None:
                _fill_in(status, running.status)  # MPICH does not take over that it was cancelled
            return complete
        with suppress(MPI.Exception):  # MPI says no more than that there was an error
            super().Wait(status)
        raise running.error

    def block_stream(self, stream: Any = None) -> None:
        """A CUDA stream (by default the current one) waits for the call; the host does not.

        Where the call does not run on a device alone, the host waits.  `stream`: of CuPy, torch or
        cuda.core, anything with `__cuda_stream__`, or a handle.
        """
        if self._ended_in_c():
            return
        running = self._running
        if running is None:
            return
        running.check_process()
        block = running.block  # the worker takes it away once the call is complete
        if block is None:
            PROGRESS.wait(running)
        else:
            block(None if stream is None else stream_handle(stream))

    @property
    def _hidden(self) -> bool:
        """Whether it is under way and MPI does not know."""
        return False

    def _arrive(self) -> None:
        """Wait, and leave the handle to MPI."""
        if self._ended_in_c():
            return
        if self._running is not None:
            PROGRESS.wait(self._running)

    def wait(self, status: MPI.Status | None = None) -> Any:
        self.Wait(status)

    def test(self, status: MPI.Status | None = None) -> tuple[bool, Any]:
        return self.Test(status), None

    def Get_status(self, status: MPI.Status | None = None) -> bool:
        PROGRESS.turn()
        return super().Get_status(status)

    @classmethod
    def Waitall(
        cls, requests: Sequence[MPI.Request], statuses: list[MPI.Status] | None = None
    ) -> Literal[True]:
        """Return once all are complete, ours and MPI's.  Raises the first error of ours, after all."""
        for request in requests:
            if isinstance(request, _Waiting):
                request._arrive()
        return _with_our_error(requests, lambda: MPI.Request.Waitall(requests, statuses))

    @classmethod
    def Waitany(cls, requests: Sequence[MPI.Request], status: MPI.Status | None = None) -> int:
        """The index of one that is complete, once there is one; MPI.UNDEFINED when none is active."""
        found = [MPI.UNDEFINED]

        def until() -> Waits:
            while True:
                found[0], done = cls.Testany(requests, status)
                if done:
                    return
                yield None

        _drive(until())
        return found[0]

    @classmethod
    def Waitsome(
        cls, requests: Sequence[MPI.Request], statuses: list[MPI.Status] | None = None
    ) -> list[int] | None:
        """The indices of those that are complete, once there is one; None when none is active."""
        found: list[list[int] | None] = [None]

        def until() -> Waits:
            while True:
                found[0] = cls.Testsome(requests, statuses)
                if found[0] is None or found[0]:
                    return
                yield None

        _drive(until())
        return found[0]

    @classmethod
    def Testall(cls, requests: Sequence[MPI.Request], statuses: list[MPI.Status] | None = None) -> bool:
        PROGRESS.turn()
        if not all(requests[index].Test() for index in _hidden(requests)):
            return False
        return _with_our_error(requests, lambda: MPI.Request.Testall(requests, statuses))

    @classmethod
    def Testany(cls, requests: Sequence[MPI.Request], status: MPI.Status | None = None) -> tuple[int, bool]:
        PROGRESS.turn()
        hidden = _hidden(requests)
        for index in hidden:
            if requests[index].Test(status):
                return index, True
        found, done = _with_our_error(requests, lambda: MPI.Request.Testany(requests, status))
        return found, done and not (found == MPI.UNDEFINED and hidden)

    @classmethod
    def Testsome(
        cls, requests: Sequence[MPI.Request], statuses: list[MPI.Status] | None = None
    ) -> list[int] | None:
        PROGRESS.turn()
        hidden = _hidden(requests)
        ready = [index for index in hidden if requests[index].Test()]
        found = _with_our_error(requests, lambda: MPI.Request.Testsome(requests, statuses))
        return found if not hidden else sorted([*ready, *(found or ())])


class Request(_Waiting, MPI.Grequest):
    """A non-blocking call.  Its buffers belong to it until it is complete."""

    @classmethod
    def _of(cls, running: Running) -> Request:
        handle = _handle_for(running)
        request = cls(handle)
        request._running = running
        return request

    @classmethod
    def _of_known(cls, known: Started, calls: KnownCalls) -> Request:
        request = cls(_handle_for_known(known, calls))
        request._known, request._calls = known, calls
        return request

    def Cancel(self) -> None:
        """A collective cannot be taken back.  Raises UsageError."""
        raise UsageError("a non-blocking collective cannot be cancelled")


class PersistentRequest(_Waiting, MPI.Prequest):
    """A call that can be started again and again on the same buffers.

    `MPI.Prequest.Startall` refuses generalised requests: use `PersistentRequest.Startall`.
    """

    _at: int  # where MPI looks for the handle
    _start: Callable[[], Running] | None = None
    _start_known: Callable[[], tuple[Started, KnownCalls] | None] | None = None
    _when_over: Callable[[], None] | None = None
    """Done each time that the call is complete, by whichever thread has moved it on."""

    @classmethod
    def _of(
        cls: type[Self],
        start: Callable[[], Running],
        start_known: Callable[[], tuple[Started, KnownCalls] | None] | None = None,
    ) -> Self:
        """`start_known`: begins the call where it is known; else `start` does."""
        request = cls()
        request._start, request._start_known = start, start_known
        request._at = MPI._addressof(request)
        return request

    def Start(self) -> None:
        """Begin the call.  Raises UsageError while it is under way, and when it was freed."""
        if self._start is None:
            raise UsageError("this persistent request was freed")
        over = self == MPI.REQUEST_NULL and (self._running is None or self._running.done)
        if not over and (self._known is not None or self._running is not None):
            raise UsageError("this persistent request is started already: wait for it first")
        known = None if self._start_known is None else self._start_known()
        if known is not None:
            self._running, (self._known, self._calls) = None, known
            handle = _handle_for_known(*known, self._when_over)
        else:
            self._known, self._running = None, self._start()
            handle = _handle_for(self._running)
            if self._when_over is not None:
                self._running.tell(self._when_over)
        # mpi4py sets handles of its own objects only: the generalised request's goes where MPI looks for it.
        ctypes.memmove(self._at, MPI._addressof(handle), _HANDLE_BYTES)

    @classmethod
    def Startall(cls, requests: Sequence[MPI.Prequest]) -> None:
        """Start all, ours and MPI's, in their order."""
        for request in requests:
            request.Start()

    def Free(self) -> None:
        """Let go of the buffers.  A call under way is waited for."""
        if self._known is not None or self._running is not None:
            self.Wait()
        self._start = self._start_known = None


class MessageRequest(Request):
    """A message that MPI has under way, and what remains to be done here once it is there."""

    _inner: Sequence[MPI.Request]

    @classmethod
    def of(cls, running: Running, inner: Sequence[MPI.Request]) -> MessageRequest:
        """`inner`: MPI's own requests."""
        request = cls(_handle_for(running))
        request._running, request._inner = running, inner
        return request

    def Cancel(self) -> None:
        """Ask MPI to take the message back; Wait then says by its status whether it did."""
        if self._running is not None:
            for one in self._inner:
                one.Cancel()


class PersistentMessage(PersistentRequest):
    """A message that can be started again and again."""

    _inner: MPI.Prequest
    _over: Callable[[], None]

    @classmethod
    def of(
        cls, start: Callable[[], Running], inner: MPI.Prequest, over: Callable[[], None]
    ) -> PersistentMessage:
        """`inner`: MPI's own request; `over` is called when this one is freed."""
        request = super()._of(start)
        request._inner, request._over = inner, over
        return request

    def Cancel(self) -> None:
        """As `MessageRequest.Cancel`."""
        if self._running is not None:
            self._inner.Cancel()

    def Free(self) -> None:
        """Let go of the buffers.  A message under way is waited for."""
        started = self._start
        super().Free()
        if started is not None:
            self._over()


def _handle_for(running: Running) -> MPI.Grequest:
    """MPI's request that becomes complete with the call."""
    handle = MPI.Grequest.Start(_query, None, None, (running,))
    running.tell(handle.Complete)
    return handle


def _query(status: MPI.Status, running: Running) -> None:
    """What MPI is told of a call that is complete."""
    _fill_in(status, running.status)
    if isinstance(running.error, MPI.Exception):
        raise running.error
    if running.error is not None:
        raise MPI.Exception(MPI.ERR_OTHER)


def _handle_for_known(
    known: Started, calls: KnownCalls, when_over: Callable[[], None] | None = None
) -> MPI.Grequest:
    """The same of a call that C has, which keeps one action."""
    handle = MPI.Grequest.Start(_query_known, None, None, (known,))

    def over() -> None:
        if when_over is not None:  # first: who waits for the handle may go on at once
            when_over()
        handle.Complete()

    known.tell(handle.Complete if when_over is None else over)
    if not known.done:
        PROGRESS.watch(calls)
    return handle


def _query_known(status: MPI.Status, known: Started) -> None:
    if known.running is not None:
        _query(status, known.running)


def _hidden(requests: Sequence[MPI.Request]) -> list[int]:
    return [i for i, request in enumerate(requests) if isinstance(request, _Waiting) and request._hidden]


def _fill_in(status: MPI.Status, message: MPI.Status | None) -> None:
    """What MPI says of a message; of a collective nothing."""
    status.Set_elements(MPI.BYTE, 0 if message is None else max(0, message.Get_elements(MPI.BYTE)))
    status.Set_cancelled(message is not None and message.Is_cancelled())
    if message is not None:
        status.source, status.tag = message.source, message.tag


def _with_our_error(requests: Sequence[MPI.Request], action: Callable[[], T]) -> T:
    """MPI's call on several requests; what one of ours ended with in place of MPI's word for it."""
    ours = [request for request in requests if isinstance(request, _Waiting)]
    try:
        result = action()
    except MPI.Exception:
        for request in ours:
            running = request._running if request._known is None else request._known.running
            if running is not None and running.done and running.error is not None:
                request._running = request._known = None
                raise running.error from None
        raise
    for request in ours:
        if request == MPI.REQUEST_NULL:
            request._running = request._known = None
    return result


def _drive(stages: Waits) -> None:
    drive(stages, float("inf"), lambda: None, lambda: None, lambda over: RuntimeError("no deadline"))
