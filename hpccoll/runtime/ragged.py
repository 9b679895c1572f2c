"""Collectives with blocks of unequal length of which no rank knows all: gather, scatter, all-to-all.

What one rank gives and another takes must be as long, for every pair.  Each rank adds up a number drawn from
(giver, taker, length) for what it gives, and takes away the same for what it takes; over all ranks the sum
is 0 when all pairs agree (and, but for 1 in 2^64, only then).  Two integers per rank, whatever the number
of ranks; they travel with the agreement check.  Who disagrees with whom is looked for only when it is not 0.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator, Sequence

import numpy as np

from hpccoll.calls import Call
from hpccoll.plans.collective import LOCALLY_RAGGED
from hpccoll.topology.notation import format_ranks
from hpccoll.transports.base import Array

MOST_PAIRS = 6  # that are named


def partly_known(call: Call) -> bool:
    """Whether no rank knows the lengths of all blocks."""
    return call.ragged and call.collective in LOCALLY_RAGGED


def shared_counts(call: Call) -> tuple[int, ...] | None:
    """The lengths of all blocks of a ragged call, where every rank must have the same."""
    if not call.ragged or partly_known(call):
        return None
    return call.takes if call.collective == "allgather" else call.gives


def vectors(call: Call, rank: int, size: int) -> tuple[Array, Array]:
    """How many elements this rank gives to each, and takes from each."""
    gives, takes = np.zeros(size, np.int64), np.zeros(size, np.int64)
    if call.collective == "gather":
        gives[call.root] = call.give.size
        if call.takes is not None:
            takes[:] = call.takes
    elif call.collective == "scatter":
        takes[call.root] = call.take.count if call.take is not None else 0
        if call.gives is not None:
            gives[:] = call.gives
    else:
        gives[:], takes[:] = call.gives or (), call.takes or ()
    return gives, takes


def balance(gives: Array, takes: Array, rank: int) -> Array:
    """What one rank adds to the sum over all pairs, and how many elements it gives."""
    others = np.arange(gives.size, dtype=np.uint64)
    own = np.uint64(rank)
    given, taken = _drawn(own, others, gives), _drawn(others, own, takes)
    with np.errstate(over="ignore"):
        difference = given.sum(dtype=np.uint64) - taken.sum(dtype=np.uint64)
    return np.array([difference, np.uint64(gives.sum())], np.uint64).view(np.int64)


def disagreeing(gives: Array, takes: Array) -> str:
    """In words, the pairs of which giver and taker say different things; `gives[i, j]`, `takes[j, i]`."""
    return "; ".join(_told(gives, takes.T))


def differing(table: Array) -> str:
    """In words, the blocks to which ranks give different lengths; `table[i]` are the lengths of rank i."""
    blocks: list[int] = np.flatnonzero((table != table[0]).any(axis=0)).tolist()
    told = []
    for block in blocks[:MOST_PAIRS]:
        ranks: dict[int, list[int]] = defaultdict(list)
        for rank, count in enumerate(table[:, block].tolist()):
            ranks[count].append(rank)
        sides = (f"{count} on {format_ranks(who)}" for count, who in ranks.items())
        told.append(f"the block of rank {block} has {', '.join(sides)}")
    if len(blocks) > MOST_PAIRS:
        told.append(f"and {len(blocks) - MOST_PAIRS} blocks more")
    return "; ".join(told)


def _told(gives: Array, wanted: Array) -> Iterator[str]:
    pairs: Sequence[Sequence[int]] = np.argwhere(gives != wanted).tolist()
    for giver, taker in pairs[:MOST_PAIRS]:
        yield (
            f"rank {giver} gives {gives[giver, taker]} elements to rank {taker}, "
            f"which takes {wanted[giver, taker]} from it"
        )
    if len(pairs) > MOST_PAIRS:
        yield f"and {len(pairs) - MOST_PAIRS} pairs more"


def _drawn(giver: Array | np.uint64, taker: Array | np.uint64, count: Array) -> Array:
    """A number for each (giver, taker, count), as if drawn by chance (the finalizer of splitmix64)."""
    with np.errstate(over="ignore"):
        x = giver * np.uint64(0x9E3779B97F4A7C15) + taker * np.uint64(0xC2B2AE3D27D4EB4F)
        x = x + count.astype(np.uint64) * np.uint64(0x165667B19E3779F9)
        x = (x ^ (x >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
        x = (x ^ (x >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
        drawn: Array = x ^ (x >> np.uint64(31))
        return drawn
