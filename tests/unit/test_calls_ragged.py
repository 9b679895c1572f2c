"""Blocks of different lengths: where they are read and written, what lies between, what is refused."""

from __future__ import annotations

import array
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from mpi4py import MPI

from hpccoll import calls
from hpccoll.calls import Where
from hpccoll.errors import UsageError
from tests.support.carry import only, together

Array = np.ndarray[Any, np.dtype[Any]]
GAP = -7
COUNTS = (2, 0, 3, 1)


def mine(rank: int, count: int) -> Array:
    return np.arange(count) + 100 * (rank + 1)


def blocks(counts: tuple[int, ...]) -> list[Array]:
    return [mine(rank, count) for rank, count in enumerate(counts)]


def spread(counts: tuple[int, ...], displs: list[int], length: int) -> Array:
    """The blocks at their displacements."""
    memory = np.full(length, GAP)
    for block, displ in zip(blocks(counts), displs, strict=True):
        memory[displ : displ + block.size] = block
    return memory


@st.composite
def placed(draw: st.DrawFn) -> tuple[tuple[int, ...], list[int], int]:
    """Counts, displacements in any order with gaps, and the length of the memory."""
    counts = tuple(draw(st.lists(st.integers(0, 4), min_size=1, max_size=5)))
    order = draw(st.permutations(range(len(counts))))
    gaps = draw(st.lists(st.integers(0, 2), min_size=len(counts) + 1, max_size=len(counts) + 1))
    displs, end = [0] * len(counts), gaps[-1]
    for rank, gap in zip(order, gaps, strict=False):
        displs[rank] = end
        end += counts[rank] + gap
    return counts, displs, end


@given(placed(), st.data())
def test_blocks_anywhere_and_gaps_stay(
    where: tuple[tuple[int, ...], list[int], int], data: st.DataObject
) -> None:
    counts, displs, length = where
    size = len(counts)
    root = data.draw(st.integers(0, size - 1))
    wanted = spread(counts, displs, length)
    whole = np.full(length, GAP)
    together(calls.gatherv, blocks(counts), only(root, size, [whole, (counts, displs)]), root)
    assert np.array_equal(whole, wanted)
    whole[displs[root] : displs[root] + counts[root]] = mine(root, counts[root])
    sends = [MPI.IN_PLACE if rank == root else block for rank, block in enumerate(blocks(counts))]
    together(calls.gatherv, sends, only(root, size, [whole, (counts, displs)]), root)
    assert np.array_equal(whole, wanted)
    wholes = [np.full(length, GAP) for _ in range(size)]
    together(calls.allgatherv, blocks(counts), [[one, (counts, displs)] for one in wholes])
    assert all(np.array_equal(one, wanted) for one in wholes)
    parts = [np.full(count, GAP) for count in counts]
    together(calls.scatterv, only(root, size, [wanted, (counts, displs)]), parts, root)
    assert all(map(np.array_equal, parts, blocks(counts)))
    received = [MPI.IN_PLACE if rank == root else part for rank, part in enumerate(parts)]
    together(calls.scatterv, only(root, size, [wanted, (counts, displs)]), received, root)
    assert np.array_equal(wanted, spread(counts, displs, length))


@given(
    st.integers(1, 4).flatmap(lambda n: st.lists(st.integers(0, 3), min_size=n * n, max_size=n * n)),
    st.booleans(),
)
def test_exchanges(table: list[int], backwards: bool) -> None:
    size = int(len(table) ** 0.5)
    counts = np.array(table).reshape(size, size)
    step = -1 if backwards else 1
    displs = (np.arange(size)[::step] * 4).tolist()
    memory = [np.arange(4 * size) + 1000 * (rank + 1) for rank in range(size)]
    got = [np.full(4 * size, GAP) for _ in range(size)]
    sends = [(one, (counts[rank], displs)) for rank, one in enumerate(memory)]
    receives = [(one, (counts[:, rank].tolist(), 4)) for rank, one in enumerate(got)]
    called = together(calls.alltoallv, sends, receives)
    assert [call.gives for call in called] == [tuple(row) for row in counts]
    for rank in range(size):
        wanted = np.full(4 * size, GAP)
        for other in range(size):
            count, start = counts[other, rank], displs[rank]
            wanted[4 * other : 4 * other + count] = memory[other][start : start + count]
        assert np.array_equal(got[rank], wanted)
    both = np.minimum(counts, counts.T)
    before = [one.copy() for one in memory]
    together(calls.alltoallv, MPI.IN_PLACE, [(one, (both[rank], 4)) for rank, one in enumerate(memory)])
    for rank in range(size):
        for other in range(size):
            count = both[rank, other]
            block = memory[rank][4 * other : 4 * other + 4]
            assert np.array_equal(block[:count], before[other][4 * rank : 4 * rank + count])
            assert np.array_equal(block[count:], before[rank][4 * other + count : 4 * other + 4])


def test_memory_without_gaps_is_used_as_it_is() -> None:
    at, memory = Where(2, 4), np.arange(8)
    counts = list(COUNTS)
    views = [
        calls.scatterv(at, [memory, counts], np.empty(3, int), 2).give,
        calls.scatterv(at, [memory, (COUNTS, [2, 7, 4, 7])], np.empty(3, int), 2).give,
        calls.allgatherv(at, MPI.IN_PLACE, [memory, counts]).give,
    ]
    assert all(np.shares_memory(view, memory) for view in views)
    assert views[1].tolist() == [2, 3, 4, 5, 6, 7]
    take = calls.allgatherv(at, np.arange(3), [memory, (COUNTS, [1, 0, 3, 6])]).take
    assert take is not None
    assert np.shares_memory(take.flat, memory)
    # The empty block of rank 1 may be said to lie anywhere; those of 0 and 2 do not follow each other here.
    assert not np.shares_memory(
        calls.scatterv(at, [memory, (COUNTS, [0, 0, 3, 6])], np.empty(3, int), 2).give, memory
    )


def test_a_buffer_without_counts_is_dealt_out() -> None:
    size = 3
    whole = np.full(8, GAP)
    called = together(calls.gatherv, blocks((3, 3, 2)), only(0, size, whole), 0)
    assert called[0].takes == (3, 3, 2)
    assert np.array_equal(whole, np.concatenate(blocks((3, 3, 2))))
    parts = [np.full(count, GAP) for count in (3, 3, 2)]
    together(calls.scatterv, only(1, size, [whole, "l"]), parts, 1)
    assert all(map(np.array_equal, parts, blocks((3, 3, 2))))


@pytest.mark.parametrize("order", ["C", "F"])
def test_strided_arrays_without_counts(order: Any) -> None:
    memory = np.full((4, 12), GAP)
    view = memory[::2, ::3] if order == "C" else memory.T[::3, ::2].T
    together(calls.gatherv, blocks((3, 3, 2)), only(2, 3, view), 2)
    assert view.reshape(-1).tolist() == np.concatenate(blocks((3, 3, 2))).tolist()
    assert (memory[1::2] == GAP).all()


def test_columns_of_different_widths() -> None:
    """Blocks of whole columns of a Fortran-ordered matrix, by index whatever the order of a rank's part."""
    widths, height = (2, 1, 3), 4
    parts = [
        np.arange(height * width).reshape(height, width) + 100 * rank for rank, width in enumerate(widths)
    ]
    counts = tuple(height * width for width in widths)
    matrix = np.zeros((height, 7), int, order="F")
    sends = [np.asarray(part, order="F") if rank == 1 else part for rank, part in enumerate(parts)]
    for spec in ([matrix[:, :6], list(counts)], [matrix[:, :6], (counts, [0, 8, 12]), "l"]):
        matrix[...] = 0
        together(calls.gatherv, sends, only(0, 3, spec), 0)
        assert np.array_equal(matrix[:, :6], np.hstack(parts))
        assert (matrix[:, 6] == 0).all()
    every = [np.zeros((height, 6), int, order="F") for _ in widths]
    together(calls.allgatherv, sends, [[one, list(counts)] for one in every])
    assert all(np.array_equal(one, np.hstack(parts)) for one in every)
    got = [np.zeros((height, width), int) for width in widths]
    together(calls.scatterv, only(0, 3, [matrix[:, :6], list(counts)]), got, 0)
    assert all(map(np.array_equal, got, parts))
    matrix[...] = 0
    together(calls.gatherv, sends, only(0, 3, [matrix, (counts, [4, 0, 16])]), 0)
    assert np.array_equal(matrix, np.hstack([parts[1], parts[0], np.zeros((4, 1), int), parts[2]]))


def test_unaligned_memory() -> None:
    raw = np.zeros(1 + 8 * 6, np.uint8)
    odd = raw[1:].view(np.int64)
    wholes = [odd, np.empty(6, int), np.empty(6, int)]
    together(calls.allgatherv, blocks((1, 2, 3)), [[whole, [1, 2, 3]] for whole in wholes])
    assert odd.tolist() == np.concatenate(blocks((1, 2, 3))).tolist()


@pytest.mark.parametrize(
    "count_type", [list, lambda values: (values, None), np.array, lambda values: array.array("q", values)]
)
def test_counts_come_in_many_kinds(count_type: Callable[[tuple[int, ...]], Any]) -> None:
    call = calls.scatterv(Where(0, 4), [np.arange(6), count_type(COUNTS)], np.empty(2, int), 0)
    assert call.gives == COUNTS
    assert all(type(count) is int for count in call.gives or ())


AT, TEN = Where(1, 3), np.zeros(10)
READ_ONLY = np.frombuffer(bytes(80))
REFUSED: list[tuple[Callable[..., Any], tuple[Any, ...], str]] = [
    (
        calls.allgatherv,
        (TEN[:2], [TEN.copy(), [2, 2]]),
        "recvbuf has 2 counts: must be one for each of the 3",
    ),
    (
        calls.allgatherv,
        (TEN[:2], [TEN.copy(), ([2] * 3, [0])]),
        "recvbuf has 1 displacements: must be one for",
    ),
    (
        calls.allgatherv,
        (TEN[:2], [TEN.copy(), [2, 3, 2]]),
        "sendbuf holds 2 elements, recvbuf has room for 3 of",
    ),
    (
        calls.allgatherv,
        (TEN[:2], [TEN.copy(), [2, -2, 2]]),
        "recvbuf has count -2 for rank 1: must not be neg",
    ),
    (
        calls.allgatherv,
        (TEN[:2], [TEN.copy(), [2, 2, 7]]),
        "recvbuf has count 7 and displacement 4 for rank 2, but the buffer holds 10 elements",
    ),
    (
        calls.allgatherv,
        (TEN[:2], [TEN.copy(), ([2, 2, 2], [4, -1, 0])]),
        "recvbuf has count 2 and displacement -1 for rank 1, but the buffer holds 10 elements",
    ),
    (
        calls.allgatherv,
        (TEN[:2], [TEN.copy(), ([2, 2, 2], [4, 5, 0])]),
        "recvbuf has displacement 5 for rank 1, where the block of rank 0 lies, which ends at 6: blocks to",
    ),
    (
        calls.allgatherv,
        (TEN[:2], [TEN.copy(), (2, 2, 2)]),
        "recvbuf has counts (2, 2, 2): a tuple of them must be (counts, displacements)",
    ),
    (
        calls.allgatherv,
        (TEN[:2], [TEN.copy(), 2.0]),
        "recvbuf has counts 2.0: must be an integer or one for each",
    ),
    (calls.allgatherv, (TEN[:2], [TEN.copy(), [2, 2.5, 2]]), "recvbuf has count 2.5: must be an integer"),
    (calls.allgatherv, (TEN[:2], [READ_ONLY, [2, 2, 2]]), "recvbuf is read-only"),
    (
        calls.allgatherv,
        (TEN[:2], [TEN.copy(), (1, 2, 3), "d", 0]),
        "recvbuf has type 0: must be an MPI datatype",
    ),
    (
        calls.gatherv,
        (TEN[:2], [TEN.copy()[::2], [2, 2, 1]], 1),
        "recvbuf is given by count or type and not cont",
    ),
    (calls.gatherv, (TEN[:2], None, 1), "recvbuf is None: must be an array or a buffer"),
    (
        calls.scatterv,
        ([TEN, [2, 3, 2]], np.zeros(2), 1),
        "recvbuf holds 2 elements, sendbuf 3 for rank 1: must",
    ),
    (
        calls.scatterv,
        ([TEN, [2, 3, 2]], np.zeros(3, int), 1),
        "sendbuf has dtype float64, recvbuf int64: must be",
    ),
    (
        calls.alltoallv,
        ([TEN, [2, 1, 0]], [TEN.copy(), [2, 3, 1]]),
        "sendbuf has 1 elements for this rank itself",
    ),
    (
        calls.alltoallv,
        ([TEN, [2, 1, 0]], [TEN, [2, 1, 0]]),
        "sendbuf and recvbuf are the same memory; pass MPI",
    ),
    (calls.alltoallv, ([TEN, [2, 1, 0]], [TEN[2:], [2, 1, 0]]), "sendbuf and recvbuf overlap in part"),
    (calls.allgatherv, (TEN[1:3], [TEN, [2, 2, 2]]), "sendbuf and recvbuf overlap in part"),
    (calls.scatterv, ([TEN, [2, 2, 2]], TEN[1:3], 1), "sendbuf and recvbuf overlap in part"),
]


@pytest.mark.parametrize(("collective", "arguments", "says"), REFUSED)
def test_what_is_refused(collective: Callable[..., Any], arguments: tuple[Any, ...], says: str) -> None:
    with pytest.raises(UsageError) as caught:
        collective(AT, *arguments)
    assert says in str(caught.value)


def test_blocks_to_send_may_share_memory() -> None:
    got = [np.zeros(2) for _ in range(3)]
    together(calls.scatterv, only(0, 3, [np.arange(4.0), ([2, 2, 2], [0, 1, 2])]), got, 0)
    assert [one.tolist() for one in got] == [[0, 1], [1, 2], [2, 3]]


def test_halves_of_one_array() -> None:
    both = [np.arange(12.0) + 100 * rank for rank in range(3)]
    together(
        calls.alltoallv,
        [[one, (2, [0, 2, 4])] for one in both],
        [[one, (2, [6, 8, 10])] for one in both],
    )
    assert both[1][6:].tolist() == [2, 3, 102, 103, 202, 203]
    calls.allgatherv(Where(1, 3), both[0][2:4], [both[0], [2, 2, 2]])
    calls.scatterv(Where(1, 3), [both[0], [2, 2, 2]], both[0][2:4], 1)
