"""The non-blocking collectives: each returns a request at once, and goes on while the caller computes."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from mpi4py import MPI

from hpccoll import calls
from hpccoll.collectives.base import Base, Operation
from hpccoll.ops.table import operator_of
from hpccoll.runtime.request import Request


class NonBlocking(Base):
    """Collectives that return a `Request`.

    Arguments are those of the blocking method.  The buffers belong to the call until the request is complete.
    All ranks start the calls of a communicator in one order, and may wait for them in any.  Wrong arguments
    raise here on the rank that passes them, and where the other ranks wait; all other errors where one
    waits.
    """

    def Iallreduce(self, sendbuf: Any, recvbuf: Any, op: Operation = MPI.SUM) -> Request:
        """Start `Allreduce`."""
        return self._start(
            "allreduce",
            lambda where: calls.allreduce(where, sendbuf, recvbuf, operator_of(op)),
            (sendbuf, recvbuf, op, 0),
        )

    def Ireduce(self, sendbuf: Any, recvbuf: Any, op: Operation = MPI.SUM, root: int = 0) -> Request:
        """Start `Reduce`."""
        return self._start(
            "reduce",
            lambda where: calls.reduce(where, sendbuf, recvbuf, operator_of(op), root),
            (sendbuf, recvbuf, op, root),
        )

    def Iscan(self, sendbuf: Any, recvbuf: Any, op: Operation = MPI.SUM) -> Request:
        """Start `Scan`."""
        return self._start(
            "scan",
            lambda where: calls.scan(where, sendbuf, recvbuf, operator_of(op)),
            (sendbuf, recvbuf, op, 0),
        )

    def Iexscan(self, sendbuf: Any, recvbuf: Any, op: Operation = MPI.SUM) -> Request:
        """Start `Exscan`."""
        return self._start(
            "exscan",
            lambda where: calls.exscan(where, sendbuf, recvbuf, operator_of(op)),
            (sendbuf, recvbuf, op, 0),
        )

    def Ireduce_scatter_block(self, sendbuf: Any, recvbuf: Any, op: Operation = MPI.SUM) -> Request:
        """Start `Reduce_scatter_block`."""
        return self._start(
            "reduce_scatter",
            lambda where: calls.reduce_scatter_block(where, sendbuf, recvbuf, operator_of(op)),
            (sendbuf, recvbuf, op, 0),
        )

    def Ireduce_scatter(
        self, sendbuf: Any, recvbuf: Any, recvcounts: Sequence[int] | None = None, op: Operation = MPI.SUM
    ) -> Request:
        """Start `Reduce_scatter`."""
        return self._start(
            "reduce_scatter",
            lambda where: calls.reduce_scatter(where, sendbuf, recvbuf, recvcounts, operator_of(op)),
        )

    def Ibcast(self, buf: Any, root: int = 0) -> Request:
        """Start `Bcast`."""
        return self._start(
            "broadcast", lambda where: calls.broadcast(where, buf, root), (buf, None, None, root)
        )

    def Igather(self, sendbuf: Any, recvbuf: Any, root: int = 0) -> Request:
        """Start `Gather`."""
        return self._start(
            "gather",
            lambda where: calls.gather(where, sendbuf, recvbuf, root),
            (sendbuf, recvbuf, None, root),
        )

    def Igatherv(self, sendbuf: Any, recvbuf: Any, root: int = 0) -> Request:
        """Start `Gatherv`."""
        return self._start("gather", lambda where: calls.gatherv(where, sendbuf, recvbuf, root))

    def Iscatter(self, sendbuf: Any, recvbuf: Any, root: int = 0) -> Request:
        """Start `Scatter`."""
        return self._start(
            "scatter",
            lambda where: calls.scatter(where, sendbuf, recvbuf, root),
            (sendbuf, recvbuf, None, root),
        )

    def Iscatterv(self, sendbuf: Any, recvbuf: Any, root: int = 0) -> Request:
        """Start `Scatterv`."""
        return self._start("scatter", lambda where: calls.scatterv(where, sendbuf, recvbuf, root))

    def Iallgather(self, sendbuf: Any, recvbuf: Any) -> Request:
        """Start `Allgather`."""
        return self._start(
            "allgather", lambda where: calls.allgather(where, sendbuf, recvbuf), (sendbuf, recvbuf, None, 0)
        )

    def Iallgatherv(self, sendbuf: Any, recvbuf: Any) -> Request:
        """Start `Allgatherv`."""
        return self._start("allgather", lambda where: calls.allgatherv(where, sendbuf, recvbuf))

    def Ialltoall(self, sendbuf: Any, recvbuf: Any) -> Request:
        """Start `Alltoall`."""
        return self._start(
            "alltoall", lambda where: calls.alltoall(where, sendbuf, recvbuf), (sendbuf, recvbuf, None, 0)
        )

    def Ialltoallv(self, sendbuf: Any, recvbuf: Any) -> Request:
        """Start `Alltoallv`."""
        return self._start("alltoall", lambda where: calls.alltoallv(where, sendbuf, recvbuf))

    def Ialltoallw(self, sendbuf: Any, recvbuf: Any) -> Request:
        """Start `Alltoallw`."""
        return self._start("alltoall", lambda where: calls.alltoallw(where, sendbuf, recvbuf))

    def Ibarrier(self) -> Request:
        """Start `Barrier`."""
        return self._start("barrier", lambda where: calls.barrier(where), (None, None, None, 0))
