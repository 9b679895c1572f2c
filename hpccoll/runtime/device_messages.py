"""Messages of arrays on devices: as they are where MPI can take them, else through pinned memory.

What is sent is on the host when MPI gets it, so that messages keep the order in which they were sent; what is
received is copied behind what is on the array's stream.  Blocking calls work on that stream, and leave the
last copy to it; started ones on a stream of their own, and end when the array is complete.  Whatever one rank
does, others need not know: a message is a message of MPI, and may come from, or go to, an array on the host.
"""

from __future__ import annotations

import math
import threading
import time
from collections.abc import Callable, Generator, Sequence
from contextlib import contextmanager
from functools import cache
from typing import Any, Protocol, TypeVar

import numpy as np
from cuda.bindings import driver
from mpi4py import MPI

from hpccoll.arrays.device import current_stream, device_array
from hpccoll.arrays.foreign import on_device
from hpccoll.calls.messages import Argument
from hpccoll.config import Config
from hpccoll.errors import CollectiveTimeoutError, UsageError
from hpccoll.memory.device import is_captured
from hpccoll.runtime import cuda_aware
from hpccoll.runtime.progress import PROGRESS, Running
from hpccoll.runtime.request import MessageRequest, PersistentMessage
from hpccoll.runtime.streams import Device, Kept, Pinned, PinnedPool, to_device, to_host
from hpccoll.runtime.wait import Waits, drive

T = TypeVar("T")


class Staging:
    """Pinned memory, events and streams of one device, for all messages and threads of this process."""

    def __init__(self, ordinal: int) -> None:
        self.device = Device(ordinal)
        self._streams: list[int] = []
        self._kept = Kept(self.device)
        self._pinned = PinnedPool()
        self._lock = threading.RLock()

    @contextmanager
    def alone(self) -> Generator[Device, None, None]:
        """The device, current in this thread, while no other thread is here."""
        with self._lock, self.device:
            yield self.device

    def take_stream(self) -> int:
        """A stream for one call, which does not wait for what others wait for."""
        with self.alone() as device:
            return self._streams.pop() if self._streams else device.stream()

    def give_back_stream(self, stream: int) -> None:
        self._streams.append(stream)

    def take(self, nbytes: int) -> Pinned:
        with self.alone():
            return self._pinned.take(nbytes)

    def give_back(self, room: Pinned) -> None:
        with self._lock:
            self._pinned.give_back(room)

    def give_back_behind(self, stream: int, room: Pinned) -> None:
        """Once all that is on a stream by now is done."""
        with self.alone():
            self._kept.until_now(stream, room, self._pinned.give_back)

    def follow(self, stream: int, before: int) -> None:
        """What comes on a stream waits for all that is on another by now."""
        with self.alone() as device:
            device.behind(stream, before)

    def through(self, stream: int) -> Waits:
        """Until all that is on a stream by now is done."""
        with self.alone() as device:
            event = device.mark(stream)
        while not self.device.reached(event):
            yield None
        with self.alone() as device:
            device.give_back(event)


@cache
def staging_of(ordinal: int) -> Staging:
    """The one of a device."""
    return Staging(ordinal)


class Side(Protocol):
    """A buffer of a call: `spec` is what MPI gets.

    `status`, after the call: of the one message that was received; None for a call of neighbours.
    """

    spec: Any

    def prepare(self) -> Waits:
        """Before MPI gets it, each time."""

    def land(self, status: MPI.Status | None) -> None:
        """After a blocking call: what arrived goes to the array, in the order of its stream."""

    def finish(self, status: MPI.Status | None) -> Waits:
        """As `land`, until the array is complete."""

    def release(self) -> None:
        """No call will use it any more."""


class OnHost:
    """A buffer on the host, as the caller passed it."""

    def __init__(self, spec: Any) -> None:
        self.spec = spec

    def prepare(self) -> Waits:
        yield from ()

    def land(self, status: MPI.Status | None) -> None:
        """MPI has written it."""

    def finish(self, status: MPI.Status | None) -> Waits:
        yield from ()

    def release(self) -> None:
        """It is the caller's."""


class OnDevice:
    """A buffer on a device.

    `started`: for a call that goes on while the caller does other things, and perhaps again and again.
    `mpi_takes`: whether MPI takes what is at an address of a device.
    """

    def __init__(
        self, argument: Argument, mpi_takes: Callable[[int, int], bool], *, started: bool, persistent: bool
    ) -> None:
        spec, what = argument.spec, argument.what
        in_list = isinstance(spec, (list, tuple))
        seen = device_array(spec[0] if in_list else spec, what)
        home = seen.home
        self._room: Pinned | None = None
        self._home, self._started = home, started
        self._sends, self._receives = argument.sends, argument.receives
        self._staging = staging = staging_of(home.device)
        with staging.device:
            if is_captured(home.stream):
                raise UsageError(f"{what}: a CUDA graph cannot capture messages of MPI")
            self._stream = staging.take_stream() if started else home.stream
            staging.follow(self._stream, home.stream)
            seen.home = home._replace(stream=self._stream)
            try:
                message = argument.read([seen, *spec[1:]] if in_list else seen, what)
            except BaseException:
                self.release()
                raise
        self._buffer, self._arrived = message.buffer, message.arrived
        self._flat = flat = message.buffer.flat
        self._persistent = persistent
        stays = bool(flat.size) and not message.buffer.packed and not argument.copied
        if stays and mpi_takes(home.device, flat.ctypes.data):
            memory = flat.view(np.uint8).view(np.ndarray)
        else:
            self._room = staging.take(flat.nbytes)
            memory = self._room.bytes()[: flat.nbytes]
        self.spec = message.spec(memory)

    def prepare(self) -> Waits:
        flat, staging = self._flat, self._staging
        if self._persistent:  # other things may be on the stream since, or another be the current one
            staging.follow(self._stream, current_stream(self._home.owner, self._home.stream))
            if self._sends:
                with staging.device:
                    self._buffer.refill()
        if self._room is None:
            yield from staging.through(self._stream)
        elif self._sends and flat.nbytes:
            with staging.device:
                to_host(self._room.address, flat.ctypes.data, flat.nbytes, self._stream)
            yield from staging.through(self._stream)

    def land(self, status: MPI.Status | None) -> None:
        room = self._bring(status)
        if room is not None:
            self._room = None
            self._staging.give_back_behind(self._stream, room)

    def finish(self, status: MPI.Status | None) -> Waits:
        if self._bring(status) is not None:
            yield from self._staging.through(self._stream)

    def _bring(self, status: MPI.Status | None) -> Pinned | None:
        """Enqueue what takes those elements that arrived to the array; returns the memory they are in."""
        nbytes = self._flat.nbytes
        if status is not None and self._arrived is not None:
            nbytes = min(nbytes, self._arrived(status))
        if not self._receives or self._room is None or nbytes <= 0:
            return None
        with self._staging.device:
            if nbytes < self._flat.nbytes:
                self._buffer.refill()
            to_device(self._flat.ctypes.data, self._room.address, nbytes, self._stream)
            self._buffer.unpack()
        return self._room

    def release(self) -> None:
        with self._staging.device:  # which the worker's thread has not: a packed copy is let go of here
            for name in ("_buffer", "_flat"):
                vars(self).pop(name, None)
        room, self._room = self._room, None
        if room is not None:
            self._staging.give_back(room)
        if self._started:
            self._started = False
            self._staging.give_back_stream(self._stream)


class Messages:
    """The messages of one communicator with arrays on devices."""

    def __init__(self, comm: MPI.Intracomm, config: Config) -> None:
        self._comm = comm
        self._config = config
        self.path = ""

    def _sides(self, arguments: Sequence[Argument], *, started: bool, persistent: bool = False) -> list[Side]:
        sides: list[Side] = []
        try:
            for one in arguments:
                if on_device(one.spec[0] if isinstance(one.spec, (list, tuple)) else one.spec):
                    takes = self._mpi_takes
                    sides.append(OnDevice(one, takes, started=started, persistent=persistent))
                else:
                    sides.append(OnHost(one.spec))
        except BaseException:
            _release(sides)
            raise
        return sides

    def _mpi_takes(self, ordinal: int, address: int) -> bool:
        wanted = self._config.device_messages
        reason = {"mpi": "", "host": "device_messages is host"}.get(wanted)
        if reason is None:
            reason = cuda_aware.why_not(ordinal)
        self.path = f"host: {reason}" if reason else "mpi"
        return not reason and (wanted == "mpi" or _shared_by_ipc(address))

    # --- three ways to make a call ----------------------------------------------------------------

    def run(
        self, call: Callable[..., object], arguments: Sequence[Argument], status: MPI.Status | None = None
    ) -> None:
        """Make a blocking call of MPI, on what stands for the arguments.

        `status`: what the call fills in, when it receives one message.  Raises: UsageError, UsageTypeError
        for what is no buffer, and where a graph is captured; MPI.Exception; CollectiveTimeoutError when a
        device does not come to an array.
        """
        sides = self._sides(arguments, started=False)
        self._prepare(sides)
        try:
            call(*(side.spec for side in sides))
            for side in sides:
                side.land(status)
        finally:
            _release(sides)

    def start(
        self,
        call: Callable[..., MPI.Request | list[MPI.Request]],
        arguments: Sequence[Argument],
        *,
        message: bool = True,
    ) -> MessageRequest:
        """Start a non-blocking one, or several; the status is that of the first.

        `message`: it receives one message at most.  Raises as `run`.
        """
        sides = self._sides(arguments, started=True)
        self._prepare(sides)
        made = _called(call, sides)
        inner = made if isinstance(made, list) else [made]
        return MessageRequest.of(self._begin(inner, sides, message=message, last=True), inner)

    def bind(
        self, call: Callable[..., MPI.Prequest], arguments: Sequence[Argument], *, message: bool = True
    ) -> PersistentMessage:
        """A persistent one.  Raises as `run`."""
        sides = self._sides(arguments, started=True, persistent=True)
        inner = _called(call, sides)

        def start() -> Running:
            self._prepare(sides)
            inner.Start()
            return self._begin([inner], sides, message=message, last=False)

        def over() -> None:
            inner.Free()
            _release(sides)

        return PersistentMessage.of(start, inner, over)

    def _begin(
        self, inner: Sequence[MPI.Request], sides: Sequence[Side], *, message: bool, last: bool
    ) -> Running:
        status = MPI.Status()

        def stages() -> Waits:
            failed = None
            for one in inner:
                try:
                    while not one.Test(status if one is inner[0] else None):
                        yield None
                except MPI.Exception as error:  # of the others MPI still has the buffers
                    failed = failed or error
            if failed is not None:
                raise failed
            if not status.Is_cancelled():
                for side in sides:
                    yield from side.finish(status if message else None)

        def ended(error: BaseException | None) -> BaseException | None:
            if last:
                _release(sides)
            return error

        running = Running(
            stages(),
            aborted=_pass,
            late=_never,
            progress=_pass,
            ended=ended,
            timeout_s=math.inf,  # a message of MPI has no deadline
            owner=self,
        )
        running.status = status if message else None
        PROGRESS.add(running)
        return running

    def _prepare(self, sides: Sequence[Side]) -> None:
        """Until MPI may have the buffers."""
        timeout_s = self._config.timeout_s

        def late(over: float) -> CollectiveTimeoutError:
            return CollectiveTimeoutError(
                f"a message on rank {self._comm.rank} is not sent after {timeout_s:g} s: "
                "what is on the stream of its array is not complete",
                rank=self._comm.rank,
            )

        for side in sides:
            drive(side.prepare(), time.monotonic() + timeout_s, _pass, self._let_others_move, late)

    def _let_others_move(self) -> None:
        self._comm.Iprobe()
        PROGRESS.turn()


def _called(call: Callable[..., T], sides: Sequence[Side]) -> T:
    """MPI's request, which has the buffers until it is complete; where MPI refuses, nobody has."""
    try:
        return call(*(side.spec for side in sides))
    except BaseException:
        _release(sides)
        raise


def _release(sides: Sequence[Side]) -> None:
    for side in sides:
        side.release()


def _pass() -> None:
    """MPI looks after its messages."""


def _never(over: float) -> Exception:
    raise RuntimeError("a message without a deadline came to its end")


def _shared_by_ipc(address: int) -> bool:
    """Whether memory is of the kind that the trial was made with; not that of pools, which MPIs know less."""
    attribute = driver.CUpointer_attribute.CU_POINTER_ATTRIBUTE_IS_LEGACY_CUDA_IPC_CAPABLE
    answer, capable = driver.cuPointerGetAttribute(attribute, address)
    return bool(answer == driver.CUresult.CUDA_SUCCESS and capable)
