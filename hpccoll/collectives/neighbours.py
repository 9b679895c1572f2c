"""Calls between neighbours in a topology: MPI's own methods, which also take arrays on devices."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial, wraps
from typing import TYPE_CHECKING, Any

from mpi4py import MPI
from numpy import ndarray

from hpccoll.calls.messages import (
    Argument,
    blocks_to_receive,
    blocks_to_send,
    message_to_send,
    ragged_to_receive,
    ragged_to_send,
    typed_to_receive,
    typed_to_send,
)
from hpccoll.collectives.point_to_point import PointToPoint, is_on_device

if TYPE_CHECKING:
    _Topocomm = MPI.Topocomm
else:
    _Topocomm = object

_MPI = MPI.Topocomm
# What reads the two buffers of a call, told the numbers of neighbours that it sends to and receives from.
_Readers = tuple[Callable[..., Any], Callable[..., Any]]
_GATHER: _Readers = (lambda spec, what, blocks: message_to_send(spec, what), blocks_to_receive)
_GATHERV: _Readers = (lambda spec, what, blocks: message_to_send(spec, what), ragged_to_receive)
_BLOCKS: _Readers = (blocks_to_send, blocks_to_receive)
_RAGGED: _Readers = (ragged_to_send, ragged_to_receive)
_TYPED: _Readers = (typed_to_send, typed_to_receive)


def _on_host(sendbuf: Any, recvbuf: Any) -> bool:
    return (type(sendbuf) is ndarray or not is_on_device(sendbuf)) and (
        type(recvbuf) is ndarray or not is_on_device(recvbuf)
    )


def _blocking(mpi: Callable[..., None], readers: _Readers) -> Callable[..., None]:
    @wraps(mpi)
    def call(self: Neighbours, sendbuf: Any, recvbuf: Any) -> None:
        if _on_host(sendbuf, recvbuf):
            return mpi(self, sendbuf, recvbuf)
        self._messages.run(partial(mpi, self), self._arguments(sendbuf, recvbuf, readers), None)

    return call


def _starting(mpi: Callable[..., MPI.Request], readers: _Readers) -> Callable[..., MPI.Request]:
    @wraps(mpi)
    def start(self: Neighbours, sendbuf: Any, recvbuf: Any) -> MPI.Request:
        if _on_host(sendbuf, recvbuf):
            return mpi(self, sendbuf, recvbuf)
        arguments = self._arguments(sendbuf, recvbuf, readers)
        return self._messages.start(partial(mpi, self), arguments, message=False)

    return start


def _binding(mpi: Callable[..., MPI.Prequest], readers: _Readers) -> Callable[..., MPI.Prequest]:
    @wraps(mpi)
    def bind(self: Neighbours, sendbuf: Any, recvbuf: Any, info: MPI.Info = MPI.INFO_NULL) -> MPI.Prequest:
        if _on_host(sendbuf, recvbuf):
            return mpi(self, sendbuf, recvbuf, info)
        arguments = self._arguments(sendbuf, recvbuf, readers)
        return self._messages.bind(lambda give, take: mpi(self, give, take, info), arguments, message=False)

    return bind


class Neighbours(PointToPoint, _Topocomm):
    """Calls between neighbours; arguments and results are mpi4py's, and arrays may be on a device.

    Such arrays, and what is raised, are as in `PointToPoint`.
    """

    def _arguments(self, sendbuf: Any, recvbuf: Any, readers: _Readers) -> list[Argument]:
        sources, destinations = self.inoutedges
        give, take = readers
        return [
            Argument(sendbuf, "sendbuf", partial(give, blocks=len(destinations)), sends=True),
            # The block of a neighbour that does not exist stays as it is: it is copied there and back.
            Argument(
                recvbuf,
                "recvbuf",
                partial(take, blocks=len(sources)),
                sends=MPI.PROC_NULL in sources,
                receives=True,
            ),
        ]

    Neighbor_allgather = _blocking(_MPI.Neighbor_allgather, _GATHER)
    Neighbor_allgatherv = _blocking(_MPI.Neighbor_allgatherv, _GATHERV)
    Neighbor_alltoall = _blocking(_MPI.Neighbor_alltoall, _BLOCKS)
    Neighbor_alltoallv = _blocking(_MPI.Neighbor_alltoallv, _RAGGED)
    Neighbor_alltoallw = _blocking(_MPI.Neighbor_alltoallw, _TYPED)
    Ineighbor_allgather = _starting(_MPI.Ineighbor_allgather, _GATHER)
    Ineighbor_allgatherv = _starting(_MPI.Ineighbor_allgatherv, _GATHERV)
    Ineighbor_alltoall = _starting(_MPI.Ineighbor_alltoall, _BLOCKS)
    Ineighbor_alltoallv = _starting(_MPI.Ineighbor_alltoallv, _RAGGED)
    Ineighbor_alltoallw = _starting(_MPI.Ineighbor_alltoallw, _TYPED)
    Neighbor_allgather_init = _binding(_MPI.Neighbor_allgather_init, _GATHER)
    Neighbor_allgatherv_init = _binding(_MPI.Neighbor_allgatherv_init, _GATHERV)
    Neighbor_alltoall_init = _binding(_MPI.Neighbor_alltoall_init, _BLOCKS)
    Neighbor_alltoallv_init = _binding(_MPI.Neighbor_alltoallv_init, _RAGGED)
    Neighbor_alltoallw_init = _binding(_MPI.Neighbor_alltoallw_init, _TYPED)
