"""Arrays on another device than the communicator's: their elements visit it, and the results go back.

A communicator has one device on each rank, that of the first array.  A call on arrays of another one is made
on copies of them, on the communicator's own stream; all streams involved are ordered by events.  Nobody
waits, and the other ranks need not know.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from cuda.bindings import driver

from hpccoll.arrays.buffer import Buffer
from hpccoll.arrays.device import Home, home_of
from hpccoll.calls import Call
from hpccoll.memory import device as memory
from hpccoll.runtime.streams import Device, checked
from hpccoll.transports.base import Array

_DEFAULT_STREAMS = 2  # handles up to this one


class Elsewhere:
    """The other devices that this rank has arrays on.  `stream`: of `device`, where copies are made."""

    def __init__(self, device: Device, stream: int) -> None:
        self._device = device
        self._stream = stream
        self._others: dict[int, Device] = {}

    def are_needed(self, call: Call, stream: int | None = None) -> bool:
        """Whether a call has elements on other devices, or streams of them."""
        if any(home_of(array).device != self._device.ordinal for array in _arrays(call)):
            return True
        # Those of empty arrays too.
        streams = {home_of(array).stream for array in call.arrays} if stream is None else {stream}
        return any(self._of(one, self._device.ordinal) is not self._device for one in streams)

    def visit(self, call: Call, stream: int | None = None) -> Call:
        """The same call on copies, which are in order on the communicator's stream.

        `stream`: given with the call.
        """
        for one, ordinal in _streams(call, stream):
            self._ours_behind(one, ordinal)
        take = call.take
        if take is not None and take.count:
            take = Landing(self, take)
        return replace(call, give=self.copy(call.give), take=take, reads=())

    def leave(self, call: Call, stream: int | None = None) -> None:
        """The streams of the caller's arrays wait for what was made of a call that has visited."""
        for one, ordinal in _streams(call, stream):
            self._theirs_behind(one, ordinal)

    def follow(self, call: Call, stream: int, event: Any) -> None:
        """A stream of the device that a call's arrays are on waits for an event."""
        for array in _arrays(call)[:1]:
            with self._of(stream, home_of(array).device) as other:
                other.follow(stream, event)

    def copy(self, array: Array) -> Array:
        """The elements of a contiguous array, here."""
        made = memory.empty(array.size, array.dtype, Home(self._device.ordinal, self._stream, None))
        if array.size:
            self._carry(made, self._device, array, self._other(home_of(array).device))
        return made

    def bring_back(self, flat: Array, take: Buffer) -> None:
        """Elements here to the caller's buffer on another device, in the order of both streams."""
        home = home_of(take.flat)
        other = self._other(home.device)
        self._carry(take.flat, other, flat, self._device)
        if take.packed:
            self._theirs_behind(home.stream, home.device)
            with other:
                take.unpack()
            self._ours_behind(home.stream, home.device)

    def close(self) -> None:
        """Let go of the other devices."""
        while self._others:
            self._others.popitem()[1].close()

    def _other(self, ordinal: int) -> Device:
        if ordinal == self._device.ordinal:
            return self._device
        if ordinal not in self._others:
            self._others[ordinal] = Device(ordinal)
        return self._others[ordinal]

    def _of(self, stream: int, ordinal: int) -> Device:
        """The device that a stream is of; `ordinal`: for the default streams, which every device has."""
        if stream > _DEFAULT_STREAMS:
            with self._device:  # the worker's thread has none
                context = checked(driver.cuStreamGetCtx(stream), "cuStreamGetCtx")
                if int(context) == int(self._device.context):
                    return self._device
                checked(driver.cuCtxPushCurrent(context), "cuCtxPushCurrent")
                ordinal = int(checked(driver.cuCtxGetDevice(), "cuCtxGetDevice"))
                checked(driver.cuCtxPopCurrent(), "cuCtxPopCurrent")
        return self._other(ordinal)

    def _carry(self, to: Array, to_device: Device, source: Array, source_device: Device) -> None:
        answer = driver.cuMemcpyPeerAsync(
            to.ctypes.data, to_device.context, source.ctypes.data, source_device.context, to.nbytes,
            self._stream,
        )  # fmt: skip
        checked(answer, "a copy between devices")

    def _ours_behind(self, stream: int, ordinal: int) -> None:
        with self._of(stream, ordinal) as other:
            event = other.mark(stream)
        with self._device as device:
            device.follow(self._stream, event)
        other.give_back(event)

    def _theirs_behind(self, stream: int, ordinal: int) -> None:
        with self._device as device:
            event = device.mark(self._stream)
        with self._of(stream, ordinal) as other:
            other.follow(stream, event)
        device.give_back(event)


class Landing(Buffer):
    """Results here, which `unpack` brings to the caller's buffer; what the call leaves as it is stays so."""

    __slots__ = ("_elsewhere", "_take")

    def __init__(self, elsewhere: Elsewhere, take: Buffer) -> None:
        super().__init__(elsewhere.copy(take.flat), None, packed=True, datatype=take.datatype)
        self._elsewhere, self._take = elsewhere, take

    @property
    def of_item(self) -> int:
        return self._take.of_item

    def unpack(self, stream: int | None = None) -> None:
        self._elsewhere.bring_back(self.flat, self._take)


def ordinals(call: Call) -> list[int]:
    """The devices on which a call's elements are: of those it gives, and of its results."""
    return [home_of(array).device for array in _arrays(call)]


def _streams(call: Call, given: int | None) -> list[tuple[int, int]]:
    """The streams that a call is in order with, each with the device of its arrays."""
    homes = [home_of(array) for array in _arrays(call)]
    found = [(home.stream, home.device) for home in homes]
    return found if given is None else [*found, *((given, home.device) for home in homes[:1])]


def _arrays(call: Call) -> list[Array]:
    """Those that have elements."""
    return [array for array in call.arrays if array.size]
