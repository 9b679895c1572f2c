"""A method for every collective that runs on plans; all others are MPI's own, inherited."""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping
from contextlib import AbstractContextManager
from types import TracebackType
from typing import TYPE_CHECKING, Any, TypeVar, cast

from mpi4py import MPI

from hpccoll import calls
from hpccoll.calls import Call
from hpccoll.config import Config, load
from hpccoll.errors import UsageError, UsageTypeError
from hpccoll.ops import Operator, arithmetic, operator_of
from hpccoll.plans.catalogue import RECIPES, names
from hpccoll.runtime.context import Context
from hpccoll.runtime.planning import Explanation
from hpccoll.topology.machine import Machine

if TYPE_CHECKING:
    from numpy.typing import DTypeLike

    _Intracomm = MPI.Intracomm
else:
    _Intracomm = object

Operation = MPI.Op | Operator
Self = TypeVar("Self", bound="Collectives")


class Collectives(_Intracomm):
    """Collectives in levels, for a subclass of an MPI intracommunicator.

    The first use of a collective (or of `machine` and what is read from it) sets up the communicator and is
    itself collective.  Instances that MPI made without `__init__` (Dup, unpickling) work alike.
    """

    _options: Mapping[str, Any] = {}
    _context: Context | None = None
    _process: int | None = None
    _closed = False

    # --- collectives ----------------------------------------------------------------------------

    def Allreduce(self, sendbuf: Any, recvbuf: Any, op: Operation = MPI.SUM) -> None:
        """Combine all ranks' elements; every rank gets the result, with the same bits.

        All ranks call it with arrays of one count and dtype, in any strides, taken by index.
        `sendbuf` is only read; `MPI.IN_PLACE` takes the elements from `recvbuf`.

        Args:
            sendbuf: array of any shape, number, or mpi4py's buffer list.
            recvbuf: array of as many elements and the same dtype.
            op: an MPI operator or `hpccoll.AVG`; operators outside the table (ops.py) go to MPI's own call.

        Raises:
            UsageError: wrong arguments on any rank, on every rank; nothing has moved.
            MismatchError: the ranks called different things, on every rank; nothing has moved.
            CollectiveTimeoutError: not complete within `timeout_s`; the communicator is broken then.
            AbortedError: another rank of the node gave up, or the communicator was broken before.

        Bytes that leave a node with N nodes: 2 (N-1)/N of the buffer by the two-level plans.

        """
        if (rule := self._operator("allreduce", op)) is None:
            return super().Allreduce(sendbuf, recvbuf, cast(MPI.Op, op))
        self._collective("allreduce", lambda: calls.allreduce(sendbuf, recvbuf, rule))
        return None

    def Reduce(self, sendbuf: Any, recvbuf: Any, op: Operation = MPI.SUM, root: int = 0) -> None:
        """Combine all ranks' elements; the root gets the result, no other buffer changes.

        As `Allreduce`; `recvbuf` counts on the root only (None elsewhere), and only the root may pass
        `MPI.IN_PLACE`.  Raises as `Allreduce`, UsageError also for a root that is no rank.
        """
        if (rule := self._operator("reduce", op)) is None:
            return super().Reduce(sendbuf, recvbuf, cast(MPI.Op, op), root)
        self._collective("reduce", lambda: calls.reduce(sendbuf, recvbuf, rule, root, self.rank, self.size))
        return None

    def Bcast(self, buf: Any, root: int = 0) -> None:
        """Copy the root's elements to every rank, by index.

        All ranks pass as many elements of one dtype.  The root's buffer is only read.  Raises as
        `Allreduce`.
        """
        self._collective("broadcast", lambda: calls.broadcast(buf, root, self.rank, self.size))

    def Allgather(self, sendbuf: Any, recvbuf: Any) -> None:
        """Every rank gets all ranks' blocks, in rank order.

        `recvbuf` holds size x count elements.  `MPI.IN_PLACE`: the own block is at rank x count of
        `recvbuf`.  Blocks lie one after the other in C order, in a Fortran-ordered `recvbuf` along the
        last axis.  Raises as `Allreduce`.
        """
        self._collective("allgather", lambda: calls.allgather(sendbuf, recvbuf, self.rank, self.size))

    def Reduce_scatter_block(self, sendbuf: Any, recvbuf: Any, op: Operation = MPI.SUM) -> None:
        """Combine all ranks' elements; rank r gets block r of the result.

        `sendbuf` holds size x count elements, `recvbuf` count.  `MPI.IN_PLACE`: the elements are taken
        from `recvbuf`, which holds size x count; the result is its first block, the rest is unchanged.
        Raises as `Allreduce`.
        """
        if (rule := self._operator("reduce_scatter", op)) is None:
            return super().Reduce_scatter_block(sendbuf, recvbuf, cast(MPI.Op, op))
        self._collective(
            "reduce_scatter", lambda: calls.reduce_scatter_block(sendbuf, recvbuf, rule, self.size)
        )
        return None

    def Barrier(self) -> None:
        """Return once every rank has come.  Raises as `Allreduce`."""
        self._collective("barrier", calls.barrier)

    # --- what plans there are -------------------------------------------------------------------

    def algorithms(self, collective: str) -> tuple[str, ...]:
        """The names of the plans that exist for a collective on this layout.

        `collective`: allreduce, reduce, broadcast, allgather, reduce_scatter, barrier.
        Raises: UsageError for another name.  Collective at first use.
        """
        if collective not in RECIPES:
            raise UsageError(f"no collective {collective!r}; there are {', '.join(RECIPES)}")
        return names(collective, self._used().layout)

    def explain(
        self,
        collective: str,
        nbytes: int,
        *,
        dtype: DTypeLike = "float32",
        op: Operation = MPI.SUM,
        root: int = 0,
    ) -> Explanation:
        """Which plan a call would take and what each candidate would cost.

        `nbytes`: the size as nccl-tests counts it (of all blocks for allgather and reduce_scatter).
        Raises: UsageError for an unknown collective or operator.  Collective at first use.
        """
        import numpy as np

        kind = np.dtype(dtype)
        rule = operator_of(op)
        native, itemsize = True, kind.itemsize
        if collective in ("allreduce", "reduce", "reduce_scatter"):
            if rule is None:
                raise UsageError(f"{op!r} is not in the table of operators: MPI's own call is taken")
            how = arithmetic(rule, kind)
            native, itemsize = how.mpi is not None, how.working.itemsize
        return self._used().planner.explain(collective, nbytes, kind.itemsize, itemsize, root, native)

    def forced(self, algorithm: str) -> AbstractContextManager[None]:
        """Inside `with comm.forced("ring"):` the collectives that have a plan of this name take it.

        The same on all ranks.  A plan that cannot do a call (one_shot for a long message) is not taken.
        Raises: UsageError for a name that no collective has on this layout.
        """
        return self._used().planner.forced(algorithm)

    # --- where the ranks are --------------------------------------------------------------------

    @property
    def machine(self) -> Machine:
        """Nodes, groups and levels.  Collective at first use."""
        return self._used().machine

    @property
    def node(self) -> int:
        """The node of this rank, 0 to node_count - 1.  Collective at first use."""
        return self.machine.node

    @property
    def node_count(self) -> int:
        """How many nodes the ranks are on.  Collective at first use."""
        return self.machine.node_count

    @property
    def local_rank(self) -> int:
        """The place of this rank among those on its node.  Collective at first use."""
        return self.machine.local_rank

    @property
    def local_size(self) -> int:
        """How many ranks are on this node.  Collective at first use."""
        return self.machine.local_size

    @property
    def is_uniform(self) -> bool:
        """Every node has as many ranks.  Collective at first use."""
        return self.machine.is_uniform

    @property
    def config(self) -> Config:
        """The settings, from keywords and the environment."""
        return self._context.config if self._context is not None else load(self._options)

    # --- life -----------------------------------------------------------------------------------

    def close(self) -> None:
        """Free what is private to this object; the MPI communicator stays.  Collective; twice is no harm.

        Afterwards collectives raise UsageError.
        """
        context, self._context = self._context, None
        if context is not None and self._process == os.getpid():
            context.close()
        self._closed = True

    def Free(self) -> None:
        """Close, then free the MPI communicator, which the object it was made from also refers to."""
        self.close()
        super().Free()

    def Disconnect(self) -> None:
        """Close, then disconnect the MPI communicator, as with `Free`."""
        self.close()
        super().Disconnect()

    def __enter__(self: Self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        """Close; after an error only this rank's memory is let go, since the others may not come."""
        if error is None:
            self.close()
        elif self._context is not None:
            self._context.release()
            self._context, self._closed = None, True

    # --- inside ---------------------------------------------------------------------------------

    def _used(self) -> Context:
        """The working state, made at first use."""
        if self._context is None:
            self._check_usable()
            self._process = os.getpid()
            self._context = Context(self, load(self._options))
        elif self._process != os.getpid():
            raise UsageError(
                f"this communicator belongs to process {self._process}: a forked child cannot use it"
            )
        return self._context

    def _check_usable(self) -> None:
        if self._closed:
            raise UsageError("this communicator is closed")
        if self == MPI.COMM_NULL:
            raise UsageError("this communicator is MPI.COMM_NULL, or was freed")

    def _operator(self, collective: str, op: Operation) -> Operator | None:
        context = self._used()  # also where MPI's own call follows: it may be closed, or this a forked child
        try:
            return operator_of(op)
        except UsageTypeError as error:
            context.refuse(collective, error)
            raise

    def _collective(self, name: str, prepare: Callable[[], Call]) -> None:
        """Check the arguments and carry the call out; what is wrong on this rank, all ranks learn."""
        context = self._used()
        try:
            call = prepare()
        except Exception as error:
            # Whatever the caller's objects do when they are read: the other ranks are waiting.
            refusal = error if isinstance(error, UsageError) else _refusal(error)
            context.refuse(name, refusal)
            raise
        context.run(call)


def _refusal(error: Exception) -> UsageError:
    kind = UsageTypeError if isinstance(error, TypeError) else UsageError
    return kind(f"an argument cannot be read: {type(error).__name__}: {error}")
