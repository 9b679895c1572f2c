"""Cells of Cartesian grids: every rank has one, and as few faces as possible lie between nodes."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from math import prod

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from hpccoll.errors import UsageError
from hpccoll.parallel.grid import cut, nodes_of, place_grid
from hpccoll.topology.layout import Layout


def arrangements(counts: Sequence[int]) -> Iterator[tuple[int, ...]]:
    """Every way to give cells to nodes."""
    if not any(counts):
        yield ()
        return
    for node, count in enumerate(counts):
        if count:
            rest = [*counts[:node], count - 1, *counts[node + 1 :]]
            for others in arrangements(rest):
                yield (node, *others)


def faces(nodes: np.ndarray, periods: Sequence[bool]) -> int:
    """Between nodes, counted cell by cell."""
    found = 0
    for cell in np.ndindex(nodes.shape):
        for axis, length in enumerate(nodes.shape):
            other = list(cell)
            other[axis] += 1
            if other[axis] == length:
                if not periods[axis]:
                    continue
                other[axis] = 0
            found += bool(nodes[cell] != nodes[tuple(other)])
    return found


@given(
    st.lists(st.integers(1, 3), min_size=1, max_size=3),
    st.randoms(use_true_random=False),
)
def test_every_rank_has_a_cell_and_the_cut_is_never_worse(shape: list[int], chance: object) -> None:
    size = prod(shape)
    layout = Layout.from_keys([chance.randrange(1 + size // 3) for _ in range(size)])  # type: ignore[attr-defined]
    periods = [chance.random() < 0.5 for _ in shape]  # type: ignore[attr-defined]
    line = place_grid(layout, shape, periods)
    assert sorted(line) == list(range(size))
    ours, plain = nodes_of(layout, line, shape), nodes_of(layout, range(size), shape)
    assert cut(ours, periods) == faces(ours, periods)
    assert cut(ours, periods) <= cut(plain, periods)


@pytest.mark.parametrize("text", ["4+4", "2+2+2+2", "3+3+2", "5+3", "cyclic:4+4", "6+2", "7+1", "1+4+3"])
@pytest.mark.parametrize("shape", [(2, 4), (8,), (2, 2, 2), (4, 2)])
@pytest.mark.parametrize("ends", [False, True])
def test_the_cut_is_the_least_there_is(text: str, shape: tuple[int, ...], ends: bool) -> None:
    layout, periods = Layout.parse(text), [ends] * len(shape)
    least = min(cut(np.array(one).reshape(shape), periods) for one in arrangements(layout.counts))
    assert cut(nodes_of(layout, place_grid(layout, shape, periods), shape), periods) == least


@pytest.mark.parametrize(
    ("text", "shape", "plain", "ours"),
    [
        ("4x4", (4, 4), 12, 8),
        ("cyclic:4x4", (4, 4), 12, 8),
        ("8x8", (8, 8), 56, 32),
        ("64x8", (16, 32), 528, 336),
        ("8x8", (4, 4, 4), 64, 48),
    ],
)
def test_nodes_are_tiles(text: str, shape: tuple[int, ...], plain: int, ours: int) -> None:
    """Row-major order is what MPI_Cart_create gives without reorder; compact tiles have the least cut."""
    layout = Layout.parse(text)
    assert cut(nodes_of(layout, range(layout.size), shape)) == plain
    assert cut(nodes_of(layout, place_grid(layout, shape), shape)) == ours


def test_heavier_faces_stay_inside() -> None:
    layout = Layout.parse("4+4+4+4")
    for weights, tile in (((10.0, 1.0), (4, 1)), ((1.0, 10.0), (1, 4)), ((1.0, 1.0), (2, 2))):
        nodes = nodes_of(layout, place_grid(layout, (4, 4), weights=weights), (4, 4))
        for node in range(4):
            rows, columns = np.nonzero(nodes == node)
            assert (len(set(rows.tolist())), len(set(columns.tolist()))) == tile


def test_a_wrong_shape() -> None:
    with pytest.raises(UsageError, match="a grid of 3 x 3 has not 8 cells"):
        place_grid(Layout.parse("4+4"), (3, 3))
