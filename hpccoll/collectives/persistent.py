"""The persistent collectives: bound once, started many times."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from mpi4py import MPI

from hpccoll import calls
from hpccoll.collectives.base import Base, Operation
from hpccoll.ops.table import operator_of
from hpccoll.runtime.request import PersistentRequest


class Persistent(Base):
    """Collectives that return a `PersistentRequest`, to be started again and again on the same buffers.

    Arguments are those of the blocking method, and `info`, of which nothing is used.  Making one is
    collective: all ranks agree on the call, and wrong arguments on one raise on all.

    Of device arrays that NCCL takes, `Start` enqueues the call as the blocking method does, on `stream` or
    the current one, and may be captured in a CUDA graph; see `hpccoll.runtime.enqueued`.
    """

    def Allreduce_init(
        self,
        sendbuf: Any,
        recvbuf: Any,
        op: Operation = MPI.SUM,
        info: MPI.Info = MPI.INFO_NULL,
        *,
        stream: Any = None,
    ) -> PersistentRequest:
        """Bind `Allreduce`."""
        return self._bind(
            "allreduce",
            lambda where: calls.allreduce(where, sendbuf, recvbuf, operator_of(op)),
            (sendbuf, recvbuf, op, 0),
            stream=stream,
        )

    def Reduce_init(
        self,
        sendbuf: Any,
        recvbuf: Any,
        op: Operation = MPI.SUM,
        root: int = 0,
        info: MPI.Info = MPI.INFO_NULL,
        *,
        stream: Any = None,
    ) -> PersistentRequest:
        """Bind `Reduce`."""
        return self._bind(
            "reduce",
            lambda where: calls.reduce(where, sendbuf, recvbuf, operator_of(op), root),
            (sendbuf, recvbuf, op, root),
            stream=stream,
        )

    def Scan_init(
        self, sendbuf: Any, recvbuf: Any, op: Operation = MPI.SUM, info: MPI.Info = MPI.INFO_NULL
    ) -> PersistentRequest:
        """Bind `Scan`."""
        return self._bind(
            "scan",
            lambda where: calls.scan(where, sendbuf, recvbuf, operator_of(op)),
            (sendbuf, recvbuf, op, 0),
        )

    def Exscan_init(
        self, sendbuf: Any, recvbuf: Any, op: Operation = MPI.SUM, info: MPI.Info = MPI.INFO_NULL
    ) -> PersistentRequest:
        """Bind `Exscan`."""
        return self._bind(
            "exscan",
            lambda where: calls.exscan(where, sendbuf, recvbuf, operator_of(op)),
            (sendbuf, recvbuf, op, 0),
        )

    def Reduce_scatter_block_init(
        self,
        sendbuf: Any,
        recvbuf: Any,
        op: Operation = MPI.SUM,
        info: MPI.Info = MPI.INFO_NULL,
        *,
        stream: Any = None,
    ) -> PersistentRequest:
        """Bind `Reduce_scatter_block`."""
        return self._bind(
            "reduce_scatter",
            lambda where: calls.reduce_scatter_block(where, sendbuf, recvbuf, operator_of(op)),
            (sendbuf, recvbuf, op, 0),
            stream=stream,
        )

    def Reduce_scatter_init(
        self,
        sendbuf: Any,
        recvbuf: Any,
        recvcounts: Sequence[int] | None = None,
        op: Operation = MPI.SUM,
        info: MPI.Info = MPI.INFO_NULL,
    ) -> PersistentRequest:
        """Bind `Reduce_scatter`."""
        return self._bind(
            "reduce_scatter",
            lambda where: calls.reduce_scatter(where, sendbuf, recvbuf, recvcounts, operator_of(op)),
        )

    def Bcast_init(
        self, buf: Any, root: int = 0, info: MPI.Info = MPI.INFO_NULL, *, stream: Any = None
    ) -> PersistentRequest:
        """Bind `Bcast`."""
        return self._bind(
            "broadcast",
            lambda where: calls.broadcast(where, buf, root),
            (buf, None, None, root),
            stream=stream,
        )

    def Gather_init(
        self, sendbuf: Any, recvbuf: Any, root: int = 0, info: MPI.Info = MPI.INFO_NULL, *, stream: Any = None
    ) -> PersistentRequest:
        """Bind `Gather`."""
        return self._bind(
            "gather",
            lambda where: calls.gather(where, sendbuf, recvbuf, root),
            (sendbuf, recvbuf, None, root),
            stream=stream,
        )

    def Gatherv_init(
        self, sendbuf: Any, recvbuf: Any, root: int = 0, info: MPI.Info = MPI.INFO_NULL
    ) -> PersistentRequest:
        """Bind `Gatherv`."""
        return self._bind("gather", lambda where: calls.gatherv(where, sendbuf, recvbuf, root))

    def Scatter_init(
        self, sendbuf: Any, recvbuf: Any, root: int = 0, info: MPI.Info = MPI.INFO_NULL, *, stream: Any = None
    ) -> PersistentRequest:
        """Bind `Scatter`."""
        return self._bind(
            "scatter",
            lambda where: calls.scatter(where, sendbuf, recvbuf, root),
            (sendbuf, recvbuf, None, root),
            stream=stream,
        )

    def Scatterv_init(
        self, sendbuf: Any, recvbuf: Any, root: int = 0, info: MPI.Info = MPI.INFO_NULL
    ) -> PersistentRequest:
        """Bind `Scatterv`."""
        return self._bind("scatter", lambda where: calls.scatterv(where, sendbuf, recvbuf, root))

    def Allgather_init(
        self, sendbuf: Any, recvbuf: Any, info: MPI.Info = MPI.INFO_NULL, *, stream: Any = None
    ) -> PersistentRequest:
        """Bind `Allgather`."""
        return self._bind(
            "allgather",
            lambda where: calls.allgather(where, sendbuf, recvbuf),
            (sendbuf, recvbuf, None, 0),
            stream=stream,
        )

    def Allgatherv_init(
        self, sendbuf: Any, recvbuf: Any, info: MPI.Info = MPI.INFO_NULL
    ) -> PersistentRequest:
        """Bind `Allgatherv`."""
        return self._bind("allgather", lambda where: calls.allgatherv(where, sendbuf, recvbuf))

    def Alltoall_init(
        self, sendbuf: Any, recvbuf: Any, info: MPI.Info = MPI.INFO_NULL, *, stream: Any = None
    ) -> PersistentRequest:
        """Bind `Alltoall`."""
        return self._bind(
            "alltoall",
            lambda where: calls.alltoall(where, sendbuf, recvbuf),
            (sendbuf, recvbuf, None, 0),
            stream=stream,
        )

    def Alltoallv_init(self, sendbuf: Any, recvbuf: Any, info: MPI.Info = MPI.INFO_NULL) -> PersistentRequest:
        """Bind `Alltoallv`."""
        return self._bind("alltoall", lambda where: calls.alltoallv(where, sendbuf, recvbuf))

    def Alltoallw_init(self, sendbuf: Any, recvbuf: Any, info: MPI.Info = MPI.INFO_NULL) -> PersistentRequest:
        """Bind `Alltoallw`."""
        return self._bind("alltoall", lambda where: calls.alltoallw(where, sendbuf, recvbuf))

    def Barrier_init(self, info: MPI.Info = MPI.INFO_NULL) -> PersistentRequest:
        """Bind `Barrier`."""
        return self._bind("barrier", lambda where: calls.barrier(where), (None, None, None, 0))
