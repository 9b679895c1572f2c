"""The collectives that can be measured, one row each: who gives what, what comes of it, which bytes count.

The factors and sizes are those of nccl-tests (doc/PERFORMANCE.md): algbw = size / time,
busbw = algbw x factor.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from hpccoll.errors import UsageError

# Blocks of ranks are a multiple of so many bytes, as in nccl-tests.
BLOCK_BYTES = 16


@dataclass(frozen=True)
class Place:
    """A rank's place in one call: `count` elements of the buffer, or of each rank's block."""

    rank: int
    size: int
    root: int
    count: int

    @property
    def is_root(self) -> bool:
        """Whether this rank is the root."""
        return self.rank == self.root


@dataclass(frozen=True)
class Piece:
    """`length` elements of a result: those from `start` on of what `ranks` gave, combined where several."""

    ranks: tuple[int, ...]
    start: int
    length: int


Form = Callable[[Any, Any, Place, Any], tuple[Any, ...]]


@dataclass(frozen=True)
class Operation:
    """A collective.

    `name` is that of `comm.explain(name, ...)`; `other_names` are taken besides it and nccl-tests' name.
    `method`: of an mpi4py communicator, and of ours.  `factor`: busbw / algbw for a number of ranks above 1.
    `form`: the positional arguments, from (send, take, place, in-place marker or None).  `gives`: elements
    that a rank gives.  `result`: what its receive buffer then holds, from the first element on.
    `blocked`: the count is that of one rank's block, and the size that of all blocks.  `own_block`: in place,
    what a rank gives lies at rank x count of its receive buffer.  `sized`: it moves elements.
    """

    name: str
    method: str
    factor: Callable[[int], float]
    form: Form
    gives: Callable[[Place], int]
    result: Callable[[Place], tuple[Piece, ...]]
    blocked: bool = False
    reduces: bool = False
    rooted: bool = False
    own_block: bool = False
    sized: bool = True
    other_names: tuple[str, ...] = ()

    def count(self, nbytes: int, itemsize: int, size: int) -> int:
        """Elements of the buffer, or of a block, for a size in bytes: rounded down as in nccl-tests."""
        if not self.sized:
            return 0
        if not self.blocked:
            return nbytes // itemsize
        unit = max(1, BLOCK_BYTES // itemsize)
        return nbytes // itemsize // size // unit * unit

    def nbytes(self, count: int, itemsize: int, size: int) -> int:
        """The size column, which is also what algbw counts."""
        return count * itemsize * (size if self.blocked else 1)

    def longest(self, place: Place) -> int:
        """Elements of the longest buffer of any rank."""
        return place.count * (place.size if self.blocked else 1)

    def in_place_start(self, place: Place) -> int:
        """Where in the receive buffer the elements lie that a rank gives in place."""
        return place.rank * place.count if self.own_block else 0

    def bandwidth(self, nbytes: int, time_s: float, size: int) -> tuple[float, float]:
        """The algbw and busbw in 1e9 bytes a second; a rank alone has no bus, and no time no bandwidth."""
        if time_s <= 0.0:
            return 0.0, 0.0
        algbw = nbytes / 1e9 / time_s
        return algbw, algbw * self.factor(size) if size > 1 else 0.0


def _send_and_take(send: Any, take: Any, place: Place, marker: Any) -> tuple[Any, ...]:
    return (send if marker is None else marker, take)


def _take_at_root(send: Any, take: Any, place: Place, marker: Any) -> tuple[Any, ...]:
    return _send_and_take(send, take, place, marker) if place.is_root else (send, None)


def _one_buffer(send: Any, take: Any, place: Place, marker: Any) -> tuple[Any, ...]:
    """Out of place, the root's elements are in another buffer than those that the others receive."""
    return (send,) if place.is_root and marker is None else (take,)


def _nothing(send: Any, take: Any, place: Place, marker: Any) -> tuple[Any, ...]:
    return ()


def _whole(place: Place) -> int:
    return place.count


def _all_blocks(place: Place) -> int:
    return place.count * place.size


def _whole_at_root(place: Place) -> int:
    return place.count if place.is_root else 0


def _everyone(place: Place) -> tuple[int, ...]:
    return tuple(range(place.size))


def _combined(place: Place) -> tuple[Piece, ...]:
    return (Piece(_everyone(place), 0, place.count),)


def _combined_at_root(place: Place) -> tuple[Piece, ...]:
    return _combined(place) if place.is_root else ()


def _combined_block(place: Place) -> tuple[Piece, ...]:
    return (Piece(_everyone(place), place.rank * place.count, place.count),)


def _from_root(place: Place) -> tuple[Piece, ...]:
    return (Piece((place.root,), 0, place.count),)


def _block_of_each(place: Place) -> tuple[Piece, ...]:
    return tuple(Piece((rank,), 0, place.count) for rank in range(place.size))


def _one(size: int) -> float:
    return 1.0


def _others(size: int) -> float:
    return (size - 1) / size


def _twice_others(size: int) -> float:
    return 2 * (size - 1) / size


OPERATIONS: dict[str, Operation] = {
    row.name: row
    for row in (
        Operation("allreduce", "Allreduce", _twice_others, _send_and_take, _whole, _combined, reduces=True),
        Operation(
            "reduce", "Reduce", _one, _take_at_root, _whole, _combined_at_root, reduces=True, rooted=True
        ),
        Operation(
            "broadcast",
            "Bcast",
            _one,
            _one_buffer,
            _whole_at_root,
            _from_root,
            rooted=True,
            other_names=("bcast",),
        ),
        Operation(
            "allgather",
            "Allgather",
            _others,
            _send_and_take,
            _whole,
            _block_of_each,
            blocked=True,
            own_block=True,
        ),
        Operation(
            "reduce_scatter",
            "Reduce_scatter_block",
            _others,
            _send_and_take,
            _all_blocks,
            _combined_block,
            blocked=True,
            reduces=True,
            other_names=("reduce_scatter_block",),
        ),
        Operation("barrier", "Barrier", _one, _nothing, lambda place: 0, lambda place: (), sized=False),
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
