"""The interface of transports: start something, test whether it is done.

Nothing here waits.  Who waits (a blocking call, a request, the progress worker, a test) calls `test`
again and again between looks at the deadline, the abort flag and the peers.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Generator, Sequence
from typing import Any

import numpy as np

Array = np.ndarray[Any, np.dtype[Any]]
# target[...] = left (op) right, element by element; target may be left or right.
Combine = Callable[[Array, Array, Array], None]


class Work(ABC):
    """Something that was started."""

    @abstractmethod
    def test(self) -> bool:
        """Move it on as far as it goes without waiting; True once it is complete."""


class Stages(Work):
    """Work written as a generator: it yields wherever it would have to wait."""

    def __init__(self, stages: Generator[None, None, None]) -> None:
        self._stages = stages
        self._complete = False

    def test(self) -> bool:
        if not self._complete:
            self._complete = next(self._stages, self) is self
        return self._complete


class Network(ABC):
    """Messages between ranks.  Two messages of one channel between two ranks keep their order."""

    @abstractmethod
    def send(self, peer: int, data: Array, channel: int) -> Work:
        """Send contiguous elements to a rank; they stay unchanged until the work is complete."""

    @abstractmethod
    def receive(self, peer: int, data: Array, channel: int) -> Work:
        """Receive exactly as many elements as `data` has."""


class GroupTransport(ABC):
    """What the members of one group do together.  All members make the group's calls in one order.

    The order is that of `reserve`, which a member calls, in the same order as the others, for every
    call it will start; a call waits for those reserved before it.
    """

    @abstractmethod
    def reserve(self) -> int:
        """A ticket for a call to come."""

    @abstractmethod
    def start(
        self,
        ticket: int,
        kind: str,
        root: int,
        source: Sequence[Array],
        target: Sequence[Array],
        counts: Sequence[int],
        combine: Combine,
    ) -> Work:
        """Start an action (plans/steps.py has the kinds).

        `source` and `target` are one stream of elements each, in pieces; `counts` are the elements of
        each member's part where the kind has one for each member.
        """
