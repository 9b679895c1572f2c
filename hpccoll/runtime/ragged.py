"""Collectives with blocks of unequal length of which no rank knows all: gather, scatter, all-to-all.

What one rank gives and another takes must be as long, for every pair.  Each rank adds up a number drawn from
(giver, taker, length) for what it gives, and takes away the same for what it takes; over all ranks the sum
is 0 when all pairs agree (and, but for 1 in 2^64, only then).  Two integers per rank, whatever the number
of ranks; they travel with the agreement check.  Who disagrees with whom is looked for only when it is not 0.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator, Sequence
from functools import cache

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


def vectors(call: Call, rank: int, size: int) -> Array:
    """How many elements this rank gives to each (first row), and takes from each (second)."""
    both = np.zeros((2, size), np.int64)
    if call.collective == "gather":
        both[0, call.root] = call.give.size
        if call.takes is not None:
            both[1] = call.takes
    elif call.collective == "scatter":
        both[1, call.root] = call.take.count if call.take is not None else 0
        if call.gives is not None:
            both[0] = call.gives
    else:
        both[0], both[1] = call.gives or (), call.takes or ()
    return both


def balance(both: Array, rank: int) -> Array:
    """What one rank adds to the sum over all pairs, and how many elements it gives."""
    given, taken = _drawn(both, rank).sum(axis=1).tolist()
    return np.array([(given - taken) % 2**64, both[0].sum()], np.uint64).view(np.int64)


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


def _drawn(both: Array, rank: int) -> Array:
    """A number for each (giver, taker, length), as if drawn by chance (the finalizer of splitmix64)."""
    x: Array = both.view(np.uint64) * np.uint64(0x165667B19E3779F9)
    x += _of_pairs(rank, both.shape[1])
    x ^= x >> np.uint64(30)
    x *= np.uint64(0xBF58476D1CE4E5B9)
    x ^= x >> np.uint64(27)
    x *= np.uint64(0x94D049BB133111EB)
    x ^= x >> np.uint64(31)
    return x


@cache
def _of_pairs(rank: int, size: int) -> Array:
    """What (giver, taker) adds to the number: where the rank gives, and where it takes."""
    numbers = np.arange(size, dtype=np.uint64)
    own = np.full(size, rank, np.uint64)
    givers, takers = np.stack([own, numbers]), np.stack([numbers, own])
    added: Array = givers * np.uint64(0x9E3779B97F4A7C15) + takers * np.uint64(0xC2B2AE3D27D4EB4F)
    return added
