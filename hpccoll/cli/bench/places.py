"""A rank's place in one call, as numbers: whose elements it gives and gets, how long each block is."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

# Ragged collectives: 2, 1, 0, 2, 1, 0 ... counts, so that neighbours differ and every third block is empty.
# Between two ranks it is by the sum of their numbers, so that both ways are alike, as in place demands.
# (Not 1, 2, 0: Reduce_scatter in place of MPICH 5.0 aborts where a block is longer than all before it.)
SHARES = 3


@dataclass(frozen=True)
class Place:
    """A rank's place in one call.

    `count`: elements of the buffer, or of each rank's block; in `ragged` calls rank r's block is
    2 - r % 3 times as long, and that between ranks r and q of an all-to-all 2 - (r + q) % 3 times.
    """

    rank: int
    size: int
    root: int
    count: int
    ragged: bool = False

    @property
    def is_root(self) -> bool:
        """Whether this rank is the root."""
        return self.rank == self.root

    @property
    def everyone(self) -> tuple[int, ...]:
        """All ranks."""
        return tuple(range(self.size))

    @property
    def blocks(self) -> tuple[int, ...]:
        """How many elements each rank's block has."""
        return tuple(self._block(rank) for rank in range(self.size))

    def exchanged(self, rank: int) -> tuple[int, ...]:
        """How many elements `rank` sends to each rank of an all-to-all, and receives from it."""
        return tuple(self._block(rank + peer) for peer in range(self.size))

    def _block(self, index: int) -> int:
        return self.count * (SHARES - 1 - index % SHARES) if self.ragged else self.count


@dataclass(frozen=True)
class Piece:
    """`length` elements of a result: those from `start` on of what `ranks` gave, combined where several.

    Without ranks it is not defined what stands there, as on rank 0 after an exclusive scan.
    """

    ranks: tuple[int, ...]
    start: int
    length: int


@dataclass(frozen=True, eq=False)
class Blocks:
    """An array with the elements of each rank, one block after the other."""

    array: Any
    counts: tuple[int, ...]


# --- what each rank gives -----------------------------------------------------------------------


def whole(place: Place) -> int:
    """The whole buffer."""
    return place.count


def own_block(place: Place) -> int:
    """One block."""
    return place.blocks[place.rank]


def all_blocks(place: Place) -> int:
    """A block for every rank."""
    return sum(place.blocks)


def all_blocks_at_root(place: Place) -> int:
    """A block for every rank, on the root alone."""
    return all_blocks(place) if place.is_root else 0


def whole_at_root(place: Place) -> int:
    """The whole buffer, on the root alone."""
    return place.count if place.is_root else 0


def exchange(place: Place) -> int:
    """A block for every rank of an all-to-all."""
    return sum(place.exchanged(place.rank))


# --- what comes of it ---------------------------------------------------------------------------


def combined(place: Place) -> tuple[Piece, ...]:
    """All ranks' elements, combined."""
    return (Piece(place.everyone, 0, place.count),)


def combined_at_root(place: Place) -> tuple[Piece, ...]:
    """The same on the root alone."""
    return combined(place) if place.is_root else ()


def combined_block(place: Place) -> tuple[Piece, ...]:
    """The own block of all ranks' elements, combined."""
    blocks = place.blocks
    return (Piece(place.everyone, sum(blocks[: place.rank]), blocks[place.rank]),)


def combined_up_to_here(place: Place) -> tuple[Piece, ...]:
    """The elements of this rank and those before it, combined."""
    return (Piece(tuple(range(place.rank + 1)), 0, place.count),)


def combined_before(place: Place) -> tuple[Piece, ...]:
    """The elements of the ranks before this one, combined."""
    return (Piece(tuple(range(place.rank)), 0, place.count),)


def from_root(place: Place) -> tuple[Piece, ...]:
    """The root's buffer."""
    return (Piece((place.root,), 0, place.count),)


def block_from_root(place: Place) -> tuple[Piece, ...]:
    """The own block of the root's buffer."""
    blocks = place.blocks
    return (Piece((place.root,), sum(blocks[: place.rank]), blocks[place.rank]),)


def block_of_each(place: Place) -> tuple[Piece, ...]:
    """Every rank's block."""
    return tuple(Piece((rank,), 0, length) for rank, length in enumerate(place.blocks))


def blocks_at_root(place: Place) -> tuple[Piece, ...]:
    """The same on the root alone."""
    return block_of_each(place) if place.is_root else ()


def exchanged_with_each(place: Place) -> tuple[Piece, ...]:
    """What every rank has for this one."""
    # Rows of blocks repeat.
    rows = [place.exchanged(rank) for rank in range(min(place.size, SHARES))]
    starts = [sum(row[: place.rank]) for row in rows]
    return tuple(
        Piece((rank,), starts[rank % SHARES], rows[rank % SHARES][place.rank]) for rank in place.everyone
    )


def nothing(place: Place) -> tuple[Piece, ...]:
    """No elements."""
    return ()
