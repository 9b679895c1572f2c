"""How to cut the ranks of nodes into groups of equal size so that few groups cross from node to node.

Draw an edge from a group to every node on which it has a member.  A group on k nodes crosses k - 1
boundaries, so that all together cross edges - groups boundaries.  A connected part of that picture with n
nodes and g groups has at least n + g - 1 edges, so with C connected parts no fewer than

    crossings >= nodes - C

The nodes of a connected part hold a multiple of the group size together, and filling groups along its nodes
one after the other reaches its minimum.  So the least crossings come from the partition of the nodes into
as many sets as possible, each of which holds a multiple of the group size; `parts` finds it.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import lru_cache

EXACT = 12  # with more nodes left over, sets are taken shortest first


def parts(counts: Sequence[int], size: int) -> list[list[int]]:
    """Indices of `counts` in as many sets as possible, each with a sum that `size` divides.

    Sets come in order of their first index, indices ascending.  The sum of all is a multiple of `size`.  A
    count that `size` divides stands alone; two that complete each other belong together in some best
    partition (the sets that they are in can be exchanged for the pair and all the rest).  What is left is
    searched exhaustively up to `EXACT` counts, beyond that the shortest sets are taken first.
    """
    left: dict[int, list[int]] = {}
    found: list[list[int]] = []
    for place, count in enumerate(counts):
        rest = count % size
        partners = left.get(size - rest, [])
        if rest == 0:
            found.append([place])
        elif partners:
            found.append([partners.pop(0), place])
        else:
            left.setdefault(rest, []).append(place)
    for rests in _of_rests(tuple(sorted(rest for rest, places in left.items() for _ in places)), size):
        found.append(sorted(left[rest].pop(0) for rest in rests))
    return sorted(found)


def _of_rests(rests: tuple[int, ...], size: int) -> tuple[tuple[int, ...], ...]:
    sets: list[tuple[int, ...]] = []
    while len(rests) > EXACT:
        shortest = _shortest(rests, size)
        sets.append(shortest)
        rests = _without(rests, shortest)
    return (*sets, *_best(rests, size))


@lru_cache(maxsize=4096)
def _best(rests: tuple[int, ...], size: int) -> tuple[tuple[int, ...], ...]:
    """Exhaustive: the first rest is in some set, which is any of the least ones that have it."""
    if not rests:
        return ()
    best: tuple[tuple[int, ...], ...] = (rests,)
    for chosen in _least_sets(rests[1:], size - rests[0], size):
        one = (rests[0], *chosen)
        others = _best(_without(rests, one), size)
        if len(others) + 1 > len(best):
            best = (one, *others)
    return best


def _least_sets(rests: tuple[int, ...], missing: int, size: int) -> set[tuple[int, ...]]:
    """The sub-multisets of which the sum is `missing` modulo `size`, and no beginning's is."""
    found: set[tuple[int, ...]] = set()

    def choose(begin: int, chosen: tuple[int, ...], missing: int) -> None:
        if missing % size == 0:
            found.add(chosen)
            return
        for place in range(begin, len(rests)):
            if place == begin or rests[place] != rests[place - 1]:
                choose(place + 1, (*chosen, rests[place]), missing - rests[place])

    choose(0, (), missing)
    return found


def _shortest(rests: tuple[int, ...], size: int) -> tuple[int, ...]:
    """A shortest non-empty sub-multiset of which `size` divides the sum."""
    reached: dict[int, tuple[int, ...]] = {}  # by sum modulo size, of the rests looked at so far
    for rest in rests:
        empty: tuple[int, tuple[int, ...]] = (0, ())
        for total, chosen in [empty, *((total, one) for total, one in reached.items() if total)]:
            following = (total + rest) % size
            if following not in reached or len(chosen) + 1 < len(reached[following]):
                reached[following] = (*chosen, rest)
    return reached[0]


def _without(rests: tuple[int, ...], taken: Sequence[int]) -> tuple[int, ...]:
    left = list(rests)
    for one in taken:
        left.remove(one)
    return tuple(left)
