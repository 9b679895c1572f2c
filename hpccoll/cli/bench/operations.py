"""The collectives that can be measured, one row each: who gives what, what comes of it, which bytes count.

Sizes are those of nccl-tests (doc/PERFORMANCE.md) where it has the collective, bandwidths those of
plans/bandwidth.py.  A ragged collective has the factor of the one with equal blocks, and its size is that of
the longest buffer of any rank, as in alltoallv_perf.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any

from hpccoll.cli.bench import places
from hpccoll.cli.bench.places import SHARES, Blocks, Piece, Place
from hpccoll.errors import UsageError
from hpccoll.plans.bandwidth import FACTORS, Factor, bandwidths

# Equal blocks of ranks are a multiple of so many bytes, as in nccl-tests.
BLOCK_BYTES = 16

Form = Callable[[Any, Any, Place, Any], tuple[Any, ...]]
Counts = Callable[[Place], tuple[int, ...]]


@dataclass(frozen=True)
class Operation:
    """A collective.

    `name` is taken on the command line, besides `other_names` and nccl-tests' name.
    `method`: of an mpi4py communicator, and of ours.  `factor`: busbw / algbw for a number of ranks above 1.
    `form`: the positional arguments, from (send, take, place, in-place marker or None).  `gives`: elements
    that a rank gives.  `result`: what its receive buffer then holds, from the first element on.
    `blocked`: the count is that of one rank's block, and the size that of all blocks; `paired`: every rank
    has such blocks for all others.  `own_block`: in place, what a rank gives is its block of the receive
    buffer.  `sized`: it moves elements.  `collective`: the name in `comm.explain(name, ...)` where it is
    another.  Ragged ones say of which buffer there are counts, and which: `give_counts`, `take_counts`.
    """

    name: str
    method: str
    factor: Factor
    form: Form
    gives: Callable[[Place], int]
    result: Callable[[Place], tuple[Piece, ...]]
    blocked: bool = False
    paired: bool = False
    reduces: bool = False
    rooted: bool = False
    own_block: bool = False
    sized: bool = True
    other_names: tuple[str, ...] = ()
    collective: str = ""
    ragged: bool = False
    give_counts: Counts | None = None
    take_counts: Counts | None = None

    @property
    def explained_as(self) -> str:
        """The name for `comm.explain` and `comm.algorithms`."""
        return self.collective or self.name

    def place(self, rank: int, size: int, root: int, count: int) -> Place:
        """A rank's place in a call."""
        return Place(rank, size, root, count, self.ragged)

    def units(self, size: int) -> int:
        """How many counts the longest buffer of any rank holds."""
        if not self.blocked:
            return 1
        one = self.place(0, size, 0, 1)
        rows = [one.exchanged(rank) for rank in range(min(size, SHARES))] if self.paired else [one.blocks]
        return max(sum(row) for row in rows)

    def count(self, nbytes: int, itemsize: int, size: int) -> int:
        """Elements of the buffer, or of a block, for a size in bytes: rounded down as in nccl-tests."""
        if not self.sized:
            return 0
        unit = max(1, BLOCK_BYTES // itemsize) if self.blocked and not self.ragged else 1
        return nbytes // itemsize // self.units(size) // unit * unit

    def nbytes(self, count: int, itemsize: int, size: int) -> int:
        """The size column, which is also what algbw counts."""
        return count * itemsize * self.units(size)

    def in_place_start(self, place: Place) -> int:
        """Where in the receive buffer the elements lie that a rank gives in place."""
        return sum(place.blocks[: place.rank]) if self.own_block else 0

    def arguments(self, send: Any, take: Any, place: Place, marker: Any) -> tuple[Any, ...]:
        """The positional arguments: arrays, `Blocks` of them, None, the marker, and tuples of counts."""
        if self.give_counts is not None:
            send = Blocks(send, self.give_counts(place))
        if self.take_counts is not None:
            take = Blocks(take, self.take_counts(place))
        return self.form(send, take, place, marker)

    def bandwidth(self, nbytes: int, time_s: float, size: int) -> tuple[float, float]:
        """The algbw and busbw in 1e9 bytes a second; a rank alone has no bus, and no time no bandwidth."""
        return bandwidths(nbytes, time_s, self.factor, size)


# --- the positional arguments -------------------------------------------------------------------


def _send_and_take(send: Any, take: Any, place: Place, marker: Any) -> tuple[Any, ...]:
    return (send if marker is None else marker, take)


def _take_at_root(send: Any, take: Any, place: Place, marker: Any) -> tuple[Any, ...]:
    return _send_and_take(send, take, place, marker) if place.is_root else (send, None)


def _send_at_root(send: Any, take: Any, place: Place, marker: Any) -> tuple[Any, ...]:
    """In place, the root's own block stays where it is."""
    return (send, take if marker is None else marker) if place.is_root else (None, take)


def _one_buffer(send: Any, take: Any, place: Place, marker: Any) -> tuple[Any, ...]:
    """Out of place, the root's elements are in another buffer than those that the others receive."""
    return (send,) if place.is_root and marker is None else (take,)


def _with_counts(send: Any, take: Any, place: Place, marker: Any) -> tuple[Any, ...]:
    return (*_send_and_take(send, take, place, marker), place.blocks)


def _nothing(send: Any, take: Any, place: Place, marker: Any) -> tuple[Any, ...]:
    return ()


# --- counts of ragged calls ---------------------------------------------------------------------


def _blocks(place: Place) -> tuple[int, ...]:
    return place.blocks


def _exchanged(place: Place) -> tuple[int, ...]:
    return place.exchanged(place.rank)


# --- the rows -----------------------------------------------------------------------------------

_ALLREDUCE = Operation(
    "allreduce",
    "Allreduce",
    FACTORS["allreduce"],
    _send_and_take,
    places.whole,
    places.combined,
    reduces=True,
)
_REDUCE = Operation(
    "reduce",
    "Reduce",
    FACTORS["reduce"],
    _take_at_root,
    places.whole,
    places.combined_at_root,
    reduces=True,
    rooted=True,
)
_BROADCAST = Operation(
    "broadcast",
    "Bcast",
    FACTORS["broadcast"],
    _one_buffer,
    places.whole_at_root,
    places.from_root,
    rooted=True,
    other_names=("bcast",),
)
_ALLGATHER = Operation(
    "allgather",
    "Allgather",
    FACTORS["allgather"],
    _send_and_take,
    places.own_block,
    places.block_of_each,
    blocked=True,
    own_block=True,
)
_REDUCE_SCATTER = Operation(
    "reduce_scatter",
    "Reduce_scatter_block",
    FACTORS["reduce_scatter"],
    _send_and_take,
    places.all_blocks,
    places.combined_block,
    blocked=True,
    reduces=True,
    other_names=("reduce_scatter_block",),
)
_GATHER = Operation(
    "gather",
    "Gather",
    FACTORS["gather"],
    _take_at_root,
    places.own_block,
    places.blocks_at_root,
    blocked=True,
    rooted=True,
    own_block=True,
)
_SCATTER = Operation(
    "scatter",
    "Scatter",
    FACTORS["scatter"],
    _send_at_root,
    places.all_blocks_at_root,
    places.block_from_root,
    blocked=True,
    rooted=True,
)
_ALLTOALL = Operation(
    "alltoall",
    "Alltoall",
    FACTORS["alltoall"],
    _send_and_take,
    places.exchange,
    places.exchanged_with_each,
    blocked=True,
    paired=True,
)
_SCAN = Operation(
    "scan", "Scan", FACTORS["scan"], _send_and_take, places.whole, places.combined_up_to_here, reduces=True
)
_EXSCAN = replace(_SCAN, name="exscan", method="Exscan", result=places.combined_before)
_BARRIER = Operation(
    "barrier", "Barrier", FACTORS["barrier"], _nothing, lambda place: 0, places.nothing, sized=False
)


def _ragged(row: Operation, name: str, method: str, **changes: Any) -> Operation:
    return replace(row, name=name, method=method, collective=row.name, ragged=True, other_names=(), **changes)


OPERATIONS: dict[str, Operation] = {
    row.name: row
    for row in (
        _ALLREDUCE,
        _REDUCE,
        _BROADCAST,
        _ALLGATHER,
        _REDUCE_SCATTER,
        _GATHER,
        _SCATTER,
        _ALLTOALL,
        _SCAN,
        _EXSCAN,
        _BARRIER,
        _ragged(_ALLGATHER, "allgatherv", "Allgatherv", take_counts=_blocks),
        # Reduce_scatter in MPI; that name is nccl-tests' for equal blocks.
        _ragged(_REDUCE_SCATTER, "reduce_scatterv", "Reduce_scatter", form=_with_counts),
        _ragged(_GATHER, "gatherv", "Gatherv", take_counts=_blocks),
        _ragged(_SCATTER, "scatterv", "Scatterv", give_counts=_blocks),
        _ragged(_ALLTOALL, "alltoallv", "Alltoallv", give_counts=_exchanged, take_counts=_exchanged),
        _ragged(_ALLTOALL, "alltoallw", "Alltoallw", give_counts=_exchanged, take_counts=_exchanged),
    )
}


def operation_of(text: str) -> Operation:
    """The row that a name means: ours, MPI's, or nccl-tests' (`all_reduce_perf`).

    Raises: UsageError for any other, naming those there are.
    """
    wanted = _plain(text)
    for row in OPERATIONS.values():
        if wanted in {_plain(name) for name in (row.name, *row.other_names)}:
            return row
    raise UsageError(f"OP is {text!r}: must be one of {', '.join(OPERATIONS)}")


def _plain(name: str) -> str:
    return name.lower().removesuffix("_perf").replace("_", "").replace("-", "")
