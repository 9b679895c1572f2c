"""The blocking collectives: each returns when this rank's part is done."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from mpi4py import MPI

from hpccoll import calls
from hpccoll.collectives.base import Base, Operation
from hpccoll.ops.table import operator_of


class Blocking(Base):
    """Collectives that return when this rank's part is done."""

    def Allreduce(self, sendbuf: Any, recvbuf: Any, op: Operation = MPI.SUM, *, stream: Any = None) -> None:
        """Combine all ranks' elements; every rank gets the result, with the same bits.

        All ranks call it with arrays of one count and dtype, in any strides, taken by index.
        `sendbuf` is only read; `MPI.IN_PLACE` takes the elements from `recvbuf`.

        Args:
            sendbuf: array of any shape, number, or mpi4py's buffer list.
            recvbuf: array of as many elements and the same dtype.
            op: an MPI operator, also one of the caller's, `hpccoll.AVG`, or one that `hpccoll.scaled_sum` or
                `hpccoll.accumulate` made; docs/types.md has the table.
            stream: of device arrays: the CUDA stream to enqueue on, of any library; by default the one that
                is current in the library of the arrays.

        Raises:
            UsageError: wrong arguments on any rank, on every rank; nothing has moved.
            MismatchError: the ranks called different things, on every rank; nothing has moved.
            CollectiveTimeoutError: not complete within `timeout_s`; the communicator is broken then.
            AbortedError: another rank of the node gave up, or the communicator was broken before.

        Bytes that leave a node with N nodes: 2 (N-1)/N of the buffer by the two-level plans.

        """
        self._run(
            "allreduce",
            lambda where: calls.allreduce(where, sendbuf, recvbuf, operator_of(op)),
            (sendbuf, recvbuf, op, 0),
            stream,
        )

    def Reduce(
        self, sendbuf: Any, recvbuf: Any, op: Operation = MPI.SUM, root: int = 0, *, stream: Any = None
    ) -> None:
        """Combine all ranks' elements; the root gets the result, no other buffer changes.

        As `Allreduce`; `recvbuf` counts on the root only (None elsewhere), and only the root may pass
        `MPI.IN_PLACE`.  Raises as `Allreduce`, UsageError also for a root that is no rank.
        """
        self._run(
            "reduce",
            lambda where: calls.reduce(where, sendbuf, recvbuf, operator_of(op), root),
            (sendbuf, recvbuf, op, root),
            stream,
        )

    def Scan(self, sendbuf: Any, recvbuf: Any, op: Operation = MPI.SUM) -> None:
        """Combine the elements of the ranks up to this one, with it, in rank order.

        An average is over those ranks.  Buffers and errors as in `Allreduce`.
        """
        self._run(
            "scan",
            lambda where: calls.scan(where, sendbuf, recvbuf, operator_of(op)),
            (sendbuf, recvbuf, op, 0),
        )

    def Exscan(self, sendbuf: Any, recvbuf: Any, op: Operation = MPI.SUM) -> None:
        """Combine the elements of the ranks before this one, in rank order; rank 0's `recvbuf` stays.

        Buffers and errors as in `Allreduce`.
        """
        self._run(
            "exscan",
            lambda where: calls.exscan(where, sendbuf, recvbuf, operator_of(op)),
            (sendbuf, recvbuf, op, 0),
        )

    def Reduce_scatter_block(
        self, sendbuf: Any, recvbuf: Any, op: Operation = MPI.SUM, *, stream: Any = None
    ) -> None:
        """Combine all ranks' elements; rank r gets block r of the result.

        `sendbuf` holds size x count elements, `recvbuf` count.  `MPI.IN_PLACE`: the elements are taken
        from `recvbuf`, which holds size x count; the result is its first block, the rest is unchanged.
        Raises as `Allreduce`.
        """
        self._run(
            "reduce_scatter",
            lambda where: calls.reduce_scatter_block(where, sendbuf, recvbuf, operator_of(op)),
            (sendbuf, recvbuf, op, 0),
            stream,
        )

    def Reduce_scatter(
        self, sendbuf: Any, recvbuf: Any, recvcounts: Sequence[int] | None = None, op: Operation = MPI.SUM
    ) -> None:
        """As `Reduce_scatter_block` with blocks of different lengths.

        `recvcounts`: elements for each rank, the same on all; without it each rank's is what its `recvbuf`
        holds.
        """
        self._run(
            "reduce_scatter",
            lambda where: calls.reduce_scatter(where, sendbuf, recvbuf, recvcounts, operator_of(op)),
        )

    def Bcast(self, buf: Any, root: int = 0, *, stream: Any = None) -> None:
        """Copy the root's elements to every rank, by index.

        All ranks pass as many elements of one dtype.  The root's buffer is only read.  Raises as
        `Allreduce`.
        """
        self._run(
            "broadcast", lambda where: calls.broadcast(where, buf, root), (buf, None, None, root), stream
        )

    def Gather(self, sendbuf: Any, recvbuf: Any, root: int = 0, *, stream: Any = None) -> None:
        """The root gets all ranks' blocks, in rank order.

        `recvbuf` counts on the root only and holds size x count elements; the root may pass `MPI.IN_PLACE` as
        `sendbuf` when its own block is in its place already.  Raises as `Allreduce`.
        """
        self._run(
            "gather",
            lambda where: calls.gather(where, sendbuf, recvbuf, root),
            (sendbuf, recvbuf, None, root),
            stream,
        )

    def Gatherv(self, sendbuf: Any, recvbuf: Any, root: int = 0) -> None:
        """As `Gather` with blocks of different lengths, anywhere in the root's memory.

        `recvbuf` on the root: (array, counts, displacements, type), where all but the array may be left
        out.  What lies between the blocks stays as it is.  Raises as `Allreduce`; MismatchError names
        the ranks of which the root takes another count than they give.
        """
        self._run("gather", lambda where: calls.gatherv(where, sendbuf, recvbuf, root))

    def Scatter(self, sendbuf: Any, recvbuf: Any, root: int = 0, *, stream: Any = None) -> None:
        """Rank r gets block r of what the root has.

        `sendbuf` counts on the root only; the root may pass `MPI.IN_PLACE` as `recvbuf` and keep its
        block where it is.  Raises as `Allreduce`.
        """
        self._run(
            "scatter",
            lambda where: calls.scatter(where, sendbuf, recvbuf, root),
            (sendbuf, recvbuf, None, root),
            stream,
        )

    def Scatterv(self, sendbuf: Any, recvbuf: Any, root: int = 0) -> None:
        """As `Scatter` with blocks of different lengths, given as in `Gatherv`."""
        self._run("scatter", lambda where: calls.scatterv(where, sendbuf, recvbuf, root))

    def Allgather(self, sendbuf: Any, recvbuf: Any, *, stream: Any = None) -> None:
        """Every rank gets all ranks' blocks, in rank order.

        `recvbuf` holds size x count elements.  `MPI.IN_PLACE`: the own block is at rank x count of
        `recvbuf`.  Blocks lie one after the other in C order, in a Fortran-ordered `recvbuf` along the
        last axis.  Raises as `Allreduce`.
        """
        self._run(
            "allgather",
            lambda where: calls.allgather(where, sendbuf, recvbuf),
            (sendbuf, recvbuf, None, 0),
            stream,
        )

    def Allgatherv(self, sendbuf: Any, recvbuf: Any) -> None:
        """As `Allgather` with blocks of different lengths, given on every rank as in `Gatherv`."""
        self._run("allgather", lambda where: calls.allgatherv(where, sendbuf, recvbuf))

    def Alltoall(self, sendbuf: Any, recvbuf: Any, *, stream: Any = None) -> None:
        """Block s of rank r goes to rank s, which has it as block r.

        Both buffers hold size x count elements; `MPI.IN_PLACE` as `sendbuf` takes them from `recvbuf`.
        Raises as `Allreduce`.

        Messages between N nodes of L ranks: N (N-1) by the `two_level` plan, N (N-1) L by `rail`.
        """
        self._run(
            "alltoall",
            lambda where: calls.alltoall(where, sendbuf, recvbuf),
            (sendbuf, recvbuf, None, 0),
            stream,
        )

    def Alltoallv(self, sendbuf: Any, recvbuf: Any) -> None:
        """As `Alltoall` with blocks of different lengths.

        Both buffers: (array, counts, displacements, type).  Raises as `Allreduce`; MismatchError names the
        pairs of ranks of which one gives another count than the other takes.
        """
        self._run("alltoall", lambda where: calls.alltoallv(where, sendbuf, recvbuf))

    def Alltoallw(self, sendbuf: Any, recvbuf: Any) -> None:
        """As `Alltoallv` with a datatype for each block.

        Both buffers: (array, counts, displacements in bytes, types).
        """
        self._run("alltoall", lambda where: calls.alltoallw(where, sendbuf, recvbuf))

    def Barrier(self) -> None:
        """Return once every rank has come.  Raises as `Allreduce`."""
        self._run("barrier", calls.barrier, (None, None, None, 0))
