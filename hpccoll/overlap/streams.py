"""Order between the streams on which the arrays of a bucket are computed, and that of its call.

Programs that compute on one stream, as most do, need no event.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from hpccoll.arrays.device import Home
    from hpccoll.runtime.streams import Device


class Streams:
    """Of memory of one bucket, made, and to be let go, in the order of the stream of its `home`."""

    def __init__(self, home: Home) -> None:
        self._home = home
        self._made: Device | None = None
        self._last: int | None = None
        self._marks: list[Any] = []
        self._results = {home.stream}
        self._entered: set[int] = set()  # since the results came

    @property
    def _device(self) -> Device:
        if self._made is None:
            from hpccoll.runtime.streams import Device

            self._made = Device(self._home.device)
        return self._made

    def enter(self, stream: int) -> None:
        """An array is ready on a stream, on which its elements are about to be taken.

        That is behind whatever was done with the results of the step before, on any of their streams.
        """
        if stream not in self._entered:
            self._entered.add(stream)
            others = self._results - {stream}
            if others:
                with self._device as device:
                    for before in sorted(others):
                        device.behind(stream, before)
        if self._last is not None and self._last != stream:
            with self._device as device:
                self._marks.append(device.mark(self._last))
        self._last = stream

    def gather(self, stream: int) -> None:
        """What comes on a stream from now on is behind all arrays that are ready."""
        self.enter(stream)
        for event in self._marks:
            with self._device as device:
                device.follow(stream, event)
            self._device.give_back(event)
        self._marks.clear()
        self._last = None

    def scatter(self, stream: int, others: Iterable[int]) -> None:
        """What comes on other streams is behind what is on one, which has the results."""
        self._results = {stream, *others}
        self._entered.clear()
        if len(self._results) > 1:
            with self._device as device:
                for other in sorted(self._results - {stream}):
                    device.behind(other, stream)

    def close(self) -> None:
        """Let go of the events; the memory may be let go then."""
        self.gather(self._home.stream)
        made, self._made = self._made, None
        if made is not None:
            made.close()
