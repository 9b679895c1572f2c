"""A mesh: the ranks of a communicator in named dimensions, laid on the machine.

::

    with hpccoll.parallel.Mesh(comm, data=-1, tensor=2, pipeline=2) as mesh:
        mesh.tensor.Allreduce(...)   # the ranks that have my coordinates in all other dimensions
        mesh.coordinates             # {"tensor": 0, "context": 0, "expert": 0, "data": 1, "pipeline": 0}
"""

from __future__ import annotations

import warnings
from collections.abc import Sequence
from types import TracebackType
from typing import TypeVar

import numpy as np
from mpi4py import MPI

from hpccoll.communicator import CartCommunicator, Communicator
from hpccoll.errors import HpccollError, MismatchError, UsageError
from hpccoll.parallel.arguments import Asked, agreed, in_sides, read
from hpccoll.parallel.counted import CountedCommunicator
from hpccoll.parallel.dimensions import settle
from hpccoll.parallel.grid import place_grid
from hpccoll.parallel.placement import Placement, fast_places, place
from hpccoll.parallel.traffic import NETWORK, Bytes, Forecast, Use, check_uses
from hpccoll.plans.text import bytes_text
from hpccoll.topology.notation import format_ranks

Self = TypeVar("Self", bound="Mesh")
# What a warning speaks of where nothing is known of the traffic.
SAMPLE_BYTES = 1 << 20


class Mesh:
    """Ranks in named dimensions, with a communicator of ours for each group.

    Collective over `comm`: all ranks pass the same arguments.  The communicators of the groups are made
    later, all of them at the first use of any (`tensor`, `data`, ... or `group`), in one order; that is
    collective over `comm`, too.  Ranks are laid on the machine by `placement.place`: groups of the
    dimension that is first in `order` cross as few nodes as possible.

    Args:
        comm: an intracommunicator, ours or MPI's; it stays open when the mesh is closed.
        data, tensor, pipeline, context, expert: sizes of the dimensions; their product is the number of
            ranks.  One may be -1: what the others leave.
        grid: instead of these, cells along each axis of a Cartesian grid of ranks (one may be -1), such as
            (2, 4); `mesh.cart` is then its communicator, in which neighbours share nodes.
        periods: of each axis of `grid`, whether its ends are neighbours; unset: none.
        order: dimensions, that with the heaviest traffic first; those not named follow in the order of
            `dimensions.HEAVIEST_FIRST`.
        uses: what the program will do in a step; then `forecast` says how many bytes cross each level, and
            so does the warning when tensor groups cross nodes.
        counted: communicators count the bytes that they carry (`traffic`).

    Raises:
        UsageError: on all ranks: sizes that do not fit (the message has those that do), an order or a use
            that names other dimensions; on any rank, a wrong kind of argument.
        MismatchError: the ranks passed different sizes, order or periods.

    Warns (rank 0): tensor groups cross nodes; with the bytes a step that cross each level.

    """

    def __init__(
        self,
        comm: MPI.Intracomm,
        *,
        data: int = 1,
        tensor: int = 1,
        pipeline: int = 1,
        context: int = 1,
        expert: int = 1,
        grid: Sequence[int] | None = None,
        periods: Sequence[bool] | None = None,
        order: Sequence[str] | None = None,
        uses: Sequence[Use] = (),
        counted: bool = False,
    ) -> None:
        self._own: Communicator | None = None
        if not isinstance(comm, Communicator):
            comm = self._own = Communicator(comm, **getattr(comm, "_options", {}))
        self._comm: Communicator = comm
        self._kind = CountedCommunicator if counted else Communicator
        self._groups: dict[tuple[str, ...], Communicator] = {}
        self._cart: CartCommunicator | None = None
        self._closed = False
        sizes = {"data": data, "tensor": tensor, "pipeline": pipeline, "context": context, "expert": expert}
        self.grid: tuple[int, ...] = ()
        self._periods: tuple[bool, ...] = ()
        try:
            asked = agreed(self._comm, read(sizes, grid, periods, order, uses))
            self.placement: Placement = self._place(asked)
        except HpccollError:  # the same on all ranks
            if self._own is not None:
                self._own.close()
            raise
        self.uses = tuple(uses)
        if not self.grid:
            self._warn_of_tensor_groups()

    def _place(self, asked: Asked) -> Placement:
        layout = self._comm.machine.layout
        if not asked.grid:
            names, found = asked.order, settle(asked.sizes, layout.size)
            return place(layout, names, [found[name] for name in names])
        axes = settle({f"axis {at}": length for at, length in enumerate(asked.grid)}, layout.size)
        self.grid, self._periods = tuple(axes.values()), asked.periods
        line = place_grid(layout, self.grid, asked.periods)
        # Of a placement the first dimension runs fastest, of a grid the last axis.
        return Placement(layout, tuple(reversed(axes)), tuple(reversed(self.grid)), line)

    # --- where this rank is ----------------------------------------------------------------------

    @property
    def comm(self) -> Communicator:
        """The communicator of all ranks."""
        return self._comm

    @property
    def sizes(self) -> dict[str, int]:
        """The size of every dimension, the heaviest first; of a grid, of its axes."""
        return dict(zip(self.placement.names, self.placement.sizes, strict=True))

    @property
    def coordinates(self) -> dict[str, int]:
        """The place of this rank in every dimension, which is its rank in the group's communicator."""
        return self.placement.coordinates(self._comm.rank)

    def rank_at(self, **coordinates: int) -> int:
        """The rank in `comm` with these coordinates; 0 where none is given.  Local.  Raises: UsageError."""
        return self.placement.rank_at(**coordinates)

    # --- its groups ------------------------------------------------------------------------------

    @property
    def tensor(self) -> Communicator:
        """My tensor group.  Collective over the mesh at first use of any group, like those below."""
        return self.group("tensor")

    @property
    def data(self) -> Communicator:
        """My data-parallel group."""
        return self.group("data")

    @property
    def pipeline(self) -> Communicator:
        """My pipeline; ranks are its stages."""
        return self.group("pipeline")

    @property
    def context(self) -> Communicator:
        """My context-parallel group."""
        return self.group("context")

    @property
    def expert(self) -> Communicator:
        """My expert-parallel group."""
        return self.group("expert")

    def group(self, *names: str) -> Communicator:
        """The communicator of the ranks that differ from me in these dimensions alone.

        Of one dimension, all are made at the first use of any.  Of several dimensions, each when first
        asked for.  In both cases that is collective over the mesh's communicator: all ranks ask for the
        same.  Ranks are in order of their coordinates, of which the heaviest dimension's runs fastest.

        Raises:
            UsageError: no dimension of that name, a grid's or a closed mesh; before any group has been made,
                on all ranks.
            MismatchError: on all ranks, when they ask for different groups.

        """
        if self._closed:
            raise UsageError("this mesh is closed")
        if self.grid:
            raise UsageError(
                "the mesh is a grid, which has no named groups: cart.Sub makes those of its axes"
            )
        known = self.placement.names
        chosen = tuple(name for name in known if name in names)
        if len(chosen) != len(names) or not names:
            if not self._groups:  # else others may have what they ask for, and say nothing
                self._check_alike(())
            raise UsageError(
                f"no group of dimensions {', '.join(names) or 'none'}; there are {', '.join(known)}"
            )
        if chosen not in self._groups:
            self._check_alike(chosen)
            wanted = [(name,) for name in known] if len(chosen) == 1 else [chosen]
            for one in wanted:
                self._groups[one] = self._make_group(one)
        return self._groups[chosen]

    @property
    def cart(self) -> CartCommunicator:
        """The communicator of a grid, with MPI's Cartesian methods (`Shift`, `Sub`, ...).

        Collective at first use.  Its ranks are cells in row-major order.  Raises: UsageError where there is
        no grid.
        """
        if self._closed:
            raise UsageError("this mesh is closed")
        if not self.grid:
            raise UsageError("the mesh has no grid: Mesh(comm, grid=(2, 4)) makes one")
        if self._cart is None:
            self._check_alike(self.placement.names)
            place_of = {rank: place for place, rank in enumerate(self.placement.line)}
            ordered = _split(self._comm, 0, place_of[self._comm.rank])
            cart = MPI.Intracomm.Create_cart(ordered, self.grid, self._periods, reorder=False)
            ordered.Free()
            self._cart = CartCommunicator(cart, **self._comm._options)
        return self._cart

    def _make_group(self, names: tuple[str, ...]) -> Communicator:
        rank = self._comm.rank
        groups = self.placement.groups(*names)
        mine = next(number for number, group in enumerate(groups) if rank in group)
        if len(groups[mine]) == 1:
            return self._kind(MPI.COMM_SELF, **self._comm._options)
        raw = _split(self._comm, mine, groups[mine].index(rank))
        raw.Set_name("x".join(names))
        return self._kind(raw, **self._comm._options)

    def _check_alike(self, names: tuple[str, ...]) -> None:
        """Whether all ranks ask for the same; what follows has no deadline of its own.

        `names`: none where what this rank asks for is wrong.
        """
        known = self.placement.names
        code = sum(1 << known.index(name) for name in names)
        codes = np.empty(self._comm.size, np.int64)
        self._comm.Allgather(np.array([code], np.int64), codes)
        if (codes != codes[0]).any():
            asked = [[name for at, name in enumerate(known) if one >> at & 1] for one in codes.tolist()]
            words = [" x ".join(one) or "none that there is" for one in asked]
            raise MismatchError(in_sides("ranks ask for groups of different dimensions", words))

    # --- traffic ---------------------------------------------------------------------------------

    def forecast(self, *, uses: Sequence[Use] | None = None) -> dict[str, Bytes]:
        """Bytes a step by dimension and level, of all groups, by the plans that calls will take.  Local.

        Plans are chosen by price: where `hpccoll tune` has measured some for the layout of a group, its calls
        may take others.  `uses`: by default those of the mesh.
        """
        look = Forecast(self.placement.layout, self._comm.config)
        found: dict[str, Bytes] = {}
        for use in self.uses if uses is None else check_uses(uses, self.placement.names):
            groups = [
                group
                for group in self.placement.groups(*use.names)
                if all(self.placement.coordinates(group[0])[name] == at for name, at in use.at.items())
            ]
            total = found.setdefault(" x ".join(use.names), Bytes())
            total.update(look.of(use, tuple(groups)))
        return {name: +total for name, total in found.items()}

    def traffic(self) -> dict[str, Bytes]:
        """Bytes that all groups have carried, by dimension and level, as `CountedCommunicator` counts them.

        Collective over the mesh's communicator.  Raises: UsageError for a mesh that does not count.
        """
        if self._kind is not CountedCommunicator:
            raise UsageError("this mesh does not count: Mesh(..., counted=True) does")
        levels = ("NVLINK", "NODE", NETWORK)
        found = {}
        for names, comm in self._groups.items():
            if not isinstance(comm, CountedCommunicator):
                continue
            once = comm.collected if comm.rank == 0 else Bytes()
            mine = np.array([once[level] + comm.sent[level] for level in levels], np.int64)
            self._comm.Allreduce(MPI.IN_PLACE, mine)
            found[" x ".join(names)] = +Bytes(dict(zip(levels, mine.tolist(), strict=True)))
        return found

    def _warn_of_tensor_groups(self) -> None:
        if not self.placement.crossings("tensor") or self._comm.rank:
            return
        uses = [use for use in self.uses if use.names == ("tensor",)]
        when = "in a step"
        if not uses:
            uses = [Use("tensor", "allreduce", SAMPLE_BYTES)]
            when = f"where each of them all-reduces {bytes_text(SAMPLE_BYTES)}"
        fast, groups = fast_places(self.placement.layout), self.placement.groups("tensor")
        crossing = [group for group in groups if len({fast[rank] for rank in group}) > 1]
        nodes = sorted({self.placement.layout.node(rank) for rank in crossing[0]})
        figures = ", ".join(
            f"{level} {bytes_text(count)} ({count} bytes)"
            for level, count in sorted(self.forecast(uses=uses)["tensor"].items())
        )
        warnings.warn(
            f"{len(crossing)} of {len(groups)} tensor groups lie on several nodes (the first: "
            f"{format_ranks(crossing[0])} on nodes {', '.join(map(str, nodes))}); "
            f"bytes of all tensor groups {when}: {figures}",
            RuntimeWarning,
            stacklevel=3,
        )

    # --- life ------------------------------------------------------------------------------------

    def close(self) -> None:
        """Free the groups' communicators.  Collective over the mesh's communicator; twice is no harm."""
        for comm in self._all():
            if comm == MPI.COMM_SELF:  # of groups of one rank
                comm.close()
            else:
                comm.Free()
        self._forget()
        if self._own is not None:
            self._own.close()

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
            return
        for comm in [*self._all(), *([self._own] if self._own is not None else [])]:
            comm.__exit__(kind, error, traceback)
        self._forget()

    def _all(self) -> list[Communicator | CartCommunicator]:
        return [*self._groups.values(), *([self._cart] if self._cart is not None else [])]

    def _forget(self) -> None:
        self._groups, self._cart, self._closed = {}, None, True

    def __repr__(self) -> str:
        shape = ", ".join(f"{name}={size}" for name, size in self.sizes.items() if size > 1)
        return f"<Mesh {shape or 'of one rank'} on {self.placement.layout.describe()}>"


def _split(comm: Communicator, color: int, key: int) -> MPI.Intracomm:
    """MPI's communicator, which is then made one of the kind that is wanted."""
    raw = MPI.Intracomm.Split(comm, color, key)
    assert isinstance(raw, MPI.Intracomm)
    return raw
