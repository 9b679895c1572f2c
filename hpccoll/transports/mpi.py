"""Messages between ranks by MPI, and MPI's own collectives.

Everything runs on the private duplicate of the user's communicator, so that it never meets the user's
messages; everything is started non-blocking and tested.
"""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np
from mpi4py import MPI

from hpccoll.memory.checksums import Checksum
from hpccoll.transports.base import Array, Combine, GroupTransport, Network, Work
from hpccoll.transports.corrupted import MESSAGE, Corrupted


class MpiWork(Work):
    """An MPI request; keeps the memory alive that MPI works on."""

    __slots__ = ("_memory", "_request")

    def __init__(self, request: MPI.Request, memory: object) -> None:
        self._request = request
        self._memory = memory

    def test(self) -> bool:
        return self._request.Test()


class MpiNetwork(Network):
    """Point-to-point messages on a private communicator; the channel is the MPI tag."""

    def __init__(self, private: MPI.Intracomm) -> None:
        self._private = private

    def send(self, peer: int, data: Array, channel: int) -> Work:
        memory = data.view(np.uint8)
        return MpiWork(self._private.Isend([memory, MPI.BYTE], peer, channel), memory)

    def receive(self, peer: int, data: Array, channel: int) -> Work:
        memory = data.view(np.uint8)
        return MpiWork(self._private.Irecv([memory, MPI.BYTE], peer, channel), memory)

    def receive_message(self, peer: int, channel: int) -> Message:
        """Receive a message whose length the sender decides."""
        return MpiMessage(self._private, peer, channel)


class CheckedNetwork(MpiNetwork):
    """Each message is followed, on its channel, by its checksum, which takes in the channel.

    What is received is complete when both have come and agree; else `test` raises Corrupted.
    """

    def __init__(self, private: MPI.Intracomm, checksum: Checksum) -> None:
        super().__init__(private)
        self._checksum = checksum

    def send(self, peer: int, data: Array, channel: int) -> Work:
        message = super().send(peer, data, channel)  # which is on its way while its checksum is computed
        word = np.array([self._checksum(data, channel)], np.uint32)
        return _Sent(message, super().send(peer, word, channel))

    def receive(self, peer: int, data: Array, channel: int) -> Work:
        return _Received(super().receive(peer, data, channel), data, self._word(peer, channel))

    def receive_message(self, peer: int, channel: int) -> Message:
        return _ReceivedMessage(super().receive_message(peer, channel), lambda: self._word(peer, channel))

    def _word(self, peer: int, channel: int) -> _Word:
        word = np.empty(1, np.uint32)
        return _Word(super().receive(peer, word, channel), word, self._checksum, peer, channel)


class _Sent(Work):
    """A message and its checksum."""

    def __init__(self, message: Work, word: Work) -> None:
        self._left = [message, word]

    def test(self) -> bool:
        self._left = [one for one in self._left if not one.test()]
        return not self._left


@dataclass
class _Word:
    """The checksum that follows a message."""

    work: Work
    word: Array
    checksum: Checksum
    peer: int
    channel: int

    def check(self, data: Array) -> None:
        told, found = int(self.word[0]), self.checksum(data, self.channel)
        if told != found:
            raise Corrupted(self.peer, data.nbytes, told, found, MESSAGE)


class _Received(Work):
    """A message that is complete once its checksum has come and is right."""

    def __init__(self, message: Work, data: Array, word: _Word) -> None:
        self._data, self._word = data, word
        self._both = _Sent(message, word.work)
        self._checked = False

    def test(self) -> bool:
        if not self._checked and self._both.test():
            self._word.check(self._data)
            self._checked = True
        return self._checked


class Message(Work):
    """A message of any length; `data` has it once it is complete."""

    @property
    @abstractmethod
    def data(self) -> bytes:
        """What was sent."""


class MpiMessage(Message):
    """One of MPI's."""

    def __init__(self, private: MPI.Intracomm, peer: int, channel: int) -> None:
        self._private = private
        self._peer = peer
        self._channel = channel
        self._request: MPI.Request | None = None
        self._memory = np.empty(0, np.uint8)

    def test(self) -> bool:
        if self._request is None:
            status = MPI.Status()
            message = self._private.Improbe(self._peer, self._channel, status)
            if message is None:
                return False
            self._memory = np.empty(status.Get_count(MPI.BYTE), np.uint8)
            self._request = message.Irecv([self._memory, MPI.BYTE])
        return self._request.Test()

    @property
    def data(self) -> bytes:
        return self._memory.tobytes()


class _ReceivedMessage(Message):
    """A message of any length, complete once its checksum has come and is right."""

    def __init__(self, message: Message, follows: Callable[[], _Word]) -> None:
        self._message, self._follows = message, follows
        self._word: _Word | None = None

    def test(self) -> bool:
        if self._word is None:
            if not self._message.test():
                return False
            self._word = self._follows()
        if not self._word.work.test():
            return False
        self._word.check(np.frombuffer(self._message.data, np.uint8))
        return True

    @property
    def data(self) -> bytes:
        return self._message.data


class MpiGroup(GroupTransport):
    """MPI's own collectives over all ranks of the private communicator.

    `operator` is MPI's for the reductions; the caller makes sure that it gives the same answer as our table
    for the dtype (ops/table.py).  What nothing is combined of comes as bytes.
    """

    def __init__(self, private: MPI.Intracomm, operator: MPI.Op) -> None:
        self._private = private
        self._operator = operator

    def reserve(self) -> int:
        return 0

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
        give = source[0] if source else None
        take = target[0] if target else None
        if kind in _COMBINING:
            request = self._combining(kind, root, give, take, counts)
        else:
            request = self._moving(kind, root, give, take, counts)
        return MpiWork(request, (give, take))

    def _combining(
        self, kind: str, root: int, give: Array | None, take: Array | None, counts: Sequence[int]
    ) -> MPI.Request:
        comm, operator = self._private, self._operator
        if kind == "allreduce":
            return comm.Iallreduce(_unless_same(give, take), take, operator)
        if kind == "reduce":
            return comm.Ireduce(_unless_same(give, take), take, operator, root)
        if kind == "scan":
            return comm.Iscan(give, take, operator)
        if kind == "exscan":
            # The first rank gets nothing, but MPI wants memory that it may write to.
            return comm.Iexscan(give, take if take is not None or give is None else give.copy(), operator)
        if len(set(counts)) > 1:
            # MPI looks at the address even of nothing, which must not be that of what is given.
            nothing = np.empty(0, give.dtype if give is not None else np.uint8)
            return comm.Ireduce_scatter(give, nothing if take is None else take, list(counts), operator)
        return comm.Ireduce_scatter_block(give, take, operator)

    def _moving(
        self, kind: str, root: int, give: Array | None, take: Array | None, counts: Sequence[int]
    ) -> MPI.Request:
        comm = self._private
        if kind == "broadcast":
            return comm.Ibcast(_bytes(take if give is None else give), root)
        if kind == "allgather" and len(set(counts)) > 1:
            whole = None if take is None else [_bytes_of(take), (list(counts), None), MPI.BYTE]
            return comm.Iallgatherv(_unless_inside(give if give is not None else _NOTHING, take), whole)
        if kind == "allgather":
            return comm.Iallgather(_unless_inside(give, take), _bytes(take))
        if kind == "gather":
            return comm.Igather(_unless_inside(give, take), _bytes(take), root)
        if kind == "scatter":
            return comm.Iscatter(_bytes(give), _bytes(take), root)
        if kind == "alltoall":
            return comm.Ialltoall(_bytes(give), _bytes(take))
        raise ValueError(f"MPI has no collective {kind!r}")


_COMBINING = frozenset({"allreduce", "reduce", "reduce_scatter", "scan", "exscan"})
_NOTHING: Array = np.empty(0, np.uint8)

# Most elements, and most bytes, in one call of MPI: what every MPI can count.
COUNT_LIMIT = 2**31 - 1


def _bytes_of(data: Array) -> Array:
    return data.view(np.uint8)


def _bytes(data: Array | None) -> object:
    return None if data is None else [_bytes_of(data), MPI.BYTE]


def _unless_same(give: Array | None, take: Array | None) -> object:
    """The send buffer, or MPI.IN_PLACE when it is the receive buffer."""
    if give is not None and take is not None and give.ctypes.data == take.ctypes.data:
        return MPI.IN_PLACE
    return give


def _unless_inside(give: Array | None, take: Array | None) -> object:
    if give is not None and take is not None and np.may_share_memory(give, take):
        return MPI.IN_PLACE
    return _bytes(give)
