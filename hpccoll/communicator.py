"""The communicators: a program's own, with collectives that know the machine.

::

    comm = hpccoll.Communicator(MPI.COMM_WORLD)

An alias of the communicator given (the same MPI handle): attributes and everything not mentioned in
collectives/ are MPI's.  What returns a communicator returns one of ours, with the
same options.
"""

from __future__ import annotations

import os
from collections.abc import Sequence
from typing import Any, TypeVar

from mpi4py import MPI

from hpccoll.collectives import Collectives, Neighbours
from hpccoll.config import load
from hpccoll.errors import UsageError, UsageTypeError
from hpccoll.runtime.ending import why_no_shrink

C = TypeVar("C", bound=MPI.Intracomm)


class _Ours(Collectives):
    """What all our communicators share: how they are made, and how they make others."""

    def __new__(cls, comm: MPI.Intracomm | None = None, **options: Any) -> _Ours:
        return super().__new__(cls, comm if isinstance(comm, MPI.Intracomm) else None)

    def __init__(self, comm: MPI.Intracomm, **options: Any) -> None:
        """Give a communicator collectives that know the machine.  Local: nothing is exchanged yet.

        Args:
            comm: an intracommunicator; this object is another name for it.
            **options: fields of `hpccoll.config.Config`, the same on every rank.

        Raises:
            UsageTypeError: `comm` is no intracommunicator, or an intercommunicator.
            UsageError: it is MPI.COMM_NULL or was freed; an option is unknown or wrong.

        """
        if isinstance(comm, MPI.Intercomm):
            raise UsageTypeError(
                "comm is an intercommunicator: only intracommunicators have levels; Merge() makes one"
            )
        if not isinstance(comm, MPI.Comm):
            raise UsageTypeError(f"comm is {comm!r}: must be an mpi4py intracommunicator")
        if comm == MPI.COMM_NULL:
            raise UsageError("comm is MPI.COMM_NULL, or was freed")
        load(options)
        self._options = options

    def _make(self, kind: type[C], comm: MPI.Comm) -> C:
        """One of ours over a communicator that MPI made from this one; MPI.COMM_NULL as it is."""
        if comm == MPI.COMM_NULL:
            return comm  # type: ignore[return-value]
        made = kind.__new__(kind, comm)
        made._options = self._options  # type: ignore[attr-defined]
        return made

    def Dup(self, info: MPI.Info | None = None) -> Any:
        return self._make(type(self), super().Dup(info))

    def Dup_with_info(self, info: MPI.Info) -> Any:
        return self._make(type(self), super().Dup_with_info(info))

    def Clone(self) -> Any:
        return self._make(type(self), super().Clone())

    def Idup(self, info: MPI.Info | None = None) -> tuple[Any, MPI.Request]:
        comm, request = super().Idup(info)
        comm._options = self._options  # MPI fills in the handle of this very object later
        return comm, request

    def Idup_with_info(self, info: MPI.Info) -> tuple[Any, MPI.Request]:
        comm, request = super().Idup_with_info(info)
        comm._options = self._options
        return comm, request

    def Split(self, color: int = 0, key: int = 0) -> Any:
        return self._make(Communicator, super().Split(color, key))

    def Split_type(self, split_type: int, key: int = 0, info: MPI.Info = MPI.INFO_NULL) -> Any:
        return self._make(Communicator, super().Split_type(split_type, key, info))

    def Create(self, group: MPI.Group) -> Any:
        return self._make(Communicator, super().Create(group))

    def Create_group(self, group: MPI.Group, tag: int = 0) -> Any:
        return self._make(Communicator, super().Create_group(group, tag))

    def Create_cart(
        self, dims: Sequence[int], periods: Sequence[bool] | None = None, reorder: bool = False
    ) -> Any:
        return self._make(CartCommunicator, super().Create_cart(dims, periods, reorder))

    def Create_graph(self, index: Sequence[int], edges: Sequence[int], reorder: bool = False) -> Any:
        return self._make(GraphCommunicator, super().Create_graph(index, edges, reorder))

    def Create_dist_graph(self, *args: Any, **kwargs: Any) -> Any:
        return self._make(DistgraphCommunicator, super().Create_dist_graph(*args, **kwargs))

    def Create_dist_graph_adjacent(self, *args: Any, **kwargs: Any) -> Any:
        return self._make(DistgraphCommunicator, super().Create_dist_graph_adjacent(*args, **kwargs))

    def Ishrink(self) -> tuple[Any, MPI.Request]:
        """As `Shrink`, which see; the communicator may be used once the request is complete."""
        self._check_can_shrink()
        comm, request = super().Ishrink()
        return self._make(Communicator, comm), request

    def Shrink(self) -> Any:
        """A communicator of ours of the ranks that are left after a loss, with the same options.

        All ranks that are left call it, and keep their order.  This one stays broken, and is to be closed.
        Raises: UsageError where a rank was lost and this MPI cannot go on without it, on each rank that
        calls it (docs/reliability.md).
        Source: MPI_Comm_shrink of the MPI Forum's user-level failure mitigation.
        """
        self._check_can_shrink()
        return self._make(Communicator, super().Shrink())

    def _check_can_shrink(self) -> None:
        broken = None if self._context is None else self._context.broken
        if broken is not None and (why := why_no_shrink(os.environ, MPI.Get_library_version())):
            raise UsageError(f"{why}, after: {broken}")


class Communicator(_Ours, MPI.Intracomm):
    """An intracommunicator whose collectives run in levels.  See `Collectives` for the methods."""

    @classmethod
    def Create_from_group(
        cls,
        group: MPI.Group,
        stringtag: str = "org.mpi4py",
        info: MPI.Info = MPI.INFO_NULL,
        errhandler: MPI.Errhandler | None = None,
    ) -> Any:
        made = MPI.Intracomm.Create_from_group(group, stringtag, info, errhandler)
        return made if made == MPI.COMM_NULL else cls(made)


class CartCommunicator(_Ours, Neighbours, MPI.Cartcomm):
    """A Cartesian communicator whose collectives run in levels."""

    def Sub(self, remain_dims: Sequence[bool]) -> Any:
        return self._make(CartCommunicator, MPI.Cartcomm.Sub(self, remain_dims))


class GraphCommunicator(_Ours, Neighbours, MPI.Graphcomm):
    """A graph communicator whose collectives run in levels."""


class DistgraphCommunicator(_Ours, Neighbours, MPI.Distgraphcomm):
    """A distributed graph communicator whose collectives run in levels."""
