"""Cartesian grids of ranks: which rank gets which cell, so that neighbours share nodes.

A halo exchange sends as much over each face between two cells, so what leaves the nodes is the faces
between cells of different nodes: a node of 4 ranks has the fewest as a tile of 2 x 2 cells.

W. D. Gropp, "Using node information to implement MPI Cartesian topologies", EuroMPI 2018.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from itertools import permutations, product
from math import prod
from typing import Any

import numpy as np
from numpy.typing import NDArray

from hpccoll.errors import UsageError
from hpccoll.parallel.dimensions import divisors
from hpccoll.parallel.placement import fast_places
from hpccoll.topology.layout import Layout

Cells = NDArray[np.int64]  # something of every cell of a grid, by its coordinates

ALL_TILES = 256  # cells; of a larger grid, tiles are tried of which the sides divide those of the grid
EXCHANGED = 128  # cells; in a larger grid cells are not exchanged one by one


def place_grid(
    layout: Layout,
    shape: Sequence[int],
    periods: Sequence[bool] | None = None,
    weights: Sequence[float] | None = None,
) -> tuple[int, ...]:
    """The rank of every cell, in row-major order, which is that of MPI's Cartesian communicators.

    Nodes (NVLink domains where these are larger) are filled along tiles of every shape, and cells then
    exchanged one by one while that leaves fewer faces between nodes.  Never worse than ranks in their own
    order, which is what MPI_Cart_create gives without `reorder`.

    Args:
        layout: where the ranks are.
        shape: cells along each axis.
        periods: of each axis, whether its ends are neighbours; unset: none.
        weights: bytes that travel over a face across each axis; unset: all alike.

    Raises:
        UsageError: the shape does not have as many cells as there are ranks.

    """
    if prod(shape) != layout.size or min(shape, default=1) < 1:
        raise UsageError(f"a grid of {' x '.join(map(str, shape))} has not {layout.size} cells")
    own = np.array(fast_places(layout))
    best = own.reshape(shape)
    least = cut(best, periods, weights)
    changed = False
    for order in _traversals(tuple(shape), max(np.bincount(own))):
        nodes = _filled(own, order, shape)
        crossing = cut(nodes, periods, weights)
        if crossing < least:
            best, least, changed = nodes, crossing, True
    if least and layout.size <= EXCHANGED:
        exchanged = _exchange(best.copy(), periods, weights)
        if cut(exchanged, periods, weights) < least:
            best, changed = exchanged, True
    if not changed:
        return tuple(range(layout.size))
    waiting = {place: iter(np.flatnonzero(own == place).tolist()) for place in set(own.tolist())}
    return tuple(next(waiting[place]) for place in best.reshape(-1).tolist())


def cut(nodes: Cells, periods: Sequence[bool] | None = None, weights: Sequence[float] | None = None) -> float:
    """The faces between cells of different nodes, each counted with the weight of its axis.

    `nodes`: of each cell.  A periodic axis of two cells has two faces between them, one of length 1 none.
    """
    total = 0.0
    for axis, length in enumerate(nodes.shape):
        faces = np.take(nodes, range(length - 1), axis) != np.take(nodes, range(1, length), axis)
        crossing = int(faces.sum())
        if periods is not None and periods[axis]:
            crossing += int((np.take(nodes, -1, axis) != np.take(nodes, 0, axis)).sum())
        total += crossing * (1.0 if weights is None else weights[axis])
    return total


def nodes_of(layout: Layout, line: Sequence[int], shape: Sequence[int]) -> Cells:
    """The node (NVLink domain where that is larger) of every cell."""
    return np.array(fast_places(layout))[list(line)].reshape(shape)


def _traversals(shape: tuple[int, ...], most: int) -> Iterator[list[int]]:
    """Orders of the cells, as row-major indices: tile after tile, to and fro."""
    sides = [range(1, length + 1) if prod(shape) <= ALL_TILES else divisors(length) for length in shape]
    tiles = [tile for tile in product(*sides) if prod(tile) <= most]
    coordinates = np.indices(shape).reshape(len(shape), -1)
    for tile in tiles:
        width = np.array(tile)[:, None]
        for axes in permutations(range(len(shape))):
            parts = (coordinates // width, coordinates % width)  # which tile, and where in it
            yield _sorted_by([key for part in parts for key in _to_and_fro(part, axes)])
            yield _sorted_by([key for part in parts for key in part[list(axes)]])


def _to_and_fro(coordinates: Cells, axes: Sequence[int]) -> list[Cells]:
    """Keys by which an axis is run backwards every other time."""
    keys: list[Cells] = []
    passed = np.zeros(coordinates.shape[1], np.int64)
    for axis in axes:
        along = coordinates[axis]
        keys.append(np.where(passed % 2 == 0, along, -along))
        passed = passed + along
    return keys


def _sorted_by(keys: Sequence[Cells]) -> list[int]:
    order: list[int] = np.lexsort(keys[::-1]).tolist()
    return order


def _filled(own: Cells, order: Sequence[int], shape: Sequence[int]) -> Cells:
    """Nodes filled along an order of the cells, one after the other."""
    nodes = np.empty_like(own)
    nodes[list(order)] = np.sort(own, kind="stable")
    return nodes.reshape(shape)


def _exchange(nodes: Cells, periods: Sequence[bool] | None, weights: Sequence[float] | None) -> Cells:
    """Exchange two cells' nodes while that helps."""
    flat = nodes.reshape(-1)
    neighbours = _neighbours(nodes.shape, periods, weights)

    def outside(cell: int) -> float:
        return sum(weight for other, weight in neighbours[cell] if flat[other] != flat[cell])

    helped = True
    while helped:
        helped = False
        for one in range(flat.size):
            for other in range(one) if outside(one) else ():
                if flat[one] == flat[other]:
                    continue
                before = outside(one) + outside(other)
                flat[one], flat[other] = flat[other], flat[one]
                if outside(one) + outside(other) < before:
                    helped = True
                else:
                    flat[one], flat[other] = flat[other], flat[one]
    return nodes


def _neighbours(
    shape: tuple[int, ...], periods: Sequence[bool] | None, weights: Sequence[float] | None
) -> list[list[tuple[int, float]]]:
    number = np.arange(prod(shape)).reshape(shape)
    found: list[list[tuple[int, float]]] = [[] for _ in range(number.size)]
    for axis, length in enumerate(shape):
        weight = 1.0 if weights is None else weights[axis]
        ends = periods is not None and bool(periods[axis])
        lower: Any = number if ends else np.take(number, range(length - 1), axis)
        upper: Any = np.roll(number, -1, axis) if ends else np.take(number, range(1, length), axis)
        for one, other in zip(lower.reshape(-1).tolist(), upper.reshape(-1).tolist(), strict=True):
            if one != other:
                found[one].append((other, weight))
                found[other].append((one, weight))
    return found
