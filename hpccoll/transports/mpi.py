"""Messages between ranks by MPI, and MPI's own collectives.

Everything runs on the private duplicate of the user's communicator, so that it never meets the user's
messages; everything is started non-blocking and tested.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from mpi4py import MPI

from hpccoll.transports.base import Array, Combine, GroupTransport, Network, Work


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

    def receive_message(self, peer: int, channel: int) -> MpiMessage:
        """Receive a message whose length the sender decides."""
        return MpiMessage(self._private, peer, channel)


class MpiMessage(Work):
    """A message of any length; `data` has it once it is complete."""

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


class MpiGroup(GroupTransport):
    """MPI's own collectives over all ranks of the private communicator.

    `operator` is the MPI operator of the reductions to come; the caller makes sure that it gives the
    same answer as our table for the dtype (ops.py).
    """

    def __init__(self, private: MPI.Intracomm) -> None:
        self._private = private
        self.operator: MPI.Op = MPI.SUM

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
        comm, operator = self._private, self.operator
        if kind == "allreduce":
            request = comm.Iallreduce(_unless_same(give, take), take, operator)
        elif kind == "reduce":
            request = comm.Ireduce(_unless_same(give, take), take, operator, root)
        elif kind == "broadcast":
            data = take if give is None else give
            request = comm.Ibcast(_bytes(data), root)
        elif kind == "allgather":
            request = comm.Iallgather(_unless_inside(give, take), _bytes(take))
        elif kind == "reduce_scatter":
            request = comm.Ireduce_scatter_block(give, take, operator)
        else:
            raise ValueError(f"MPI has no collective {kind!r}")
        return MpiWork(request, (give, take))


def _bytes(data: Array | None) -> object:
    return None if data is None else [data.view(np.uint8), MPI.BYTE]


def _unless_same(give: Array | None, take: Array | None) -> object:
    """The send buffer, or MPI.IN_PLACE when it is the receive buffer."""
    if give is not None and take is not None and give.ctypes.data == take.ctypes.data:
        return MPI.IN_PLACE
    return give


def _unless_inside(give: Array | None, take: Array | None) -> object:
    if give is not None and take is not None and np.may_share_memory(give, take):
        return MPI.IN_PLACE
    return _bytes(give)
