"""Derived datatypes, absolute addresses, operators on whole items."""

from __future__ import annotations

import gc
from collections.abc import Callable, Iterator
from contextlib import suppress
from typing import Any

import numpy as np
import pytest
from mpi4py import MPI

from hpccoll import calls
from hpccoll.arrays import derived
from hpccoll.arrays import reading as arrays
from hpccoll.arrays.datatypes import OwnDatatype
from hpccoll.calls import Where
from hpccoll.errors import UsageError, UsageTypeError
from hpccoll.ops.table import operator_of
from tests.support.carry import only, prepared, together

SUM = operator_of(MPI.SUM)
Make = Callable[[MPI.Datatype], MPI.Datatype]


@pytest.fixture
def own() -> Iterator[Make]:
    """Commits a datatype for the time of the test."""
    made: list[MPI.Datatype] = []

    def commit(datatype: MPI.Datatype) -> MPI.Datatype:
        made.append(datatype.Commit())
        return datatype

    yield commit
    for datatype in made:
        datatype.Free()


@pytest.fixture
def column(own: Make) -> MPI.Datatype:
    """A column of a matrix of 4 rows and 5 columns, as long as a number: the next begins right of it."""
    return own(own(MPI.DOUBLE.Create_vector(4, 1, 5)).Create_resized(0, 8))


def test_the_elements_are_those_that_the_datatype_is_made_of(own: Make) -> None:
    """So that ranks with basic types of the same elements meet it."""
    nested = own(own(MPI.INT.Create_vector(2, 1, 2)).Create_contiguous(3))
    memory = np.arange(11, dtype="i")
    call = calls.broadcast(Where(0, 2), [memory, 1, nested], 0)
    assert (call.dtype, call.count) == (np.dtype("i"), 6)
    assert call.give.tolist() == [0, 2, 3, 5, 6, 8]
    mixed = own(MPI.Datatype.Create_struct([1, 1], [0, 8], [MPI.INT, MPI.DOUBLE]))
    call = calls.broadcast(Where(0, 2), [np.zeros(4), 2, mixed], 0)
    assert (call.dtype, call.count) == (np.dtype("u1"), 24)


def test_reductions_with_a_datatype_on_one_rank(column: MPI.Datatype) -> None:
    matrices = [np.arange(20.0).reshape(4, 5) * (rank + 1) for rank in range(2)]
    total = np.full((4, 5), -1.0)
    together(
        calls.allreduce,
        [[matrices[0], 2, column], matrices[1][:, :2].T.reshape(-1)],
        [[total, 2, column], np.empty(8)],
        SUM,
    )
    assert np.array_equal(total[:, :2], matrices[0][:, :2] * 3)
    assert (total[:, 2:] == -1).all()
    before = matrices[0].copy()
    together(calls.allreduce, MPI.IN_PLACE, [[matrices[0], (1, 3), column], np.ones(4)], SUM)
    before[:, 3] += 1
    assert np.array_equal(matrices[0], before)


def test_columns_gathered_and_scattered(column: MPI.Datatype) -> None:
    """Blocks that lie within each other: one column for each rank."""
    size = 5
    columns = [np.arange(4.0) + 10 * rank for rank in range(size)]
    matrix = np.zeros((4, 5))
    together(calls.gather, columns, only(2, size, [matrix, 1, column]), 2)
    assert np.array_equal(matrix, np.array(columns).T)
    got = [np.zeros(4) for _ in range(size)]
    together(calls.scatter, only(2, size, [matrix, 1, column]), got, 2)
    assert all(map(np.array_equal, got, columns))
    matrix[...] = -1
    counts = (2, 0, 1)
    sends = [np.arange(4.0 * count) for count in counts]
    called = together(calls.gatherv, sends, only(0, 3, [matrix, (counts, [3, 0, 1]), column]), 0)
    assert called[0].takes == (8, 0, 4)
    assert np.array_equal(matrix[:, 3:].T.reshape(-1), sends[0])
    assert np.array_equal(matrix[:, 1], sends[2])
    assert (matrix[:, [0, 2]] == -1).all()
    matrices = [np.arange(20.0).reshape(4, 5) + 100 * rank for rank in range(5)]
    turned = [np.zeros((4, 5)) for _ in range(5)]
    together(calls.alltoall, [[one, 1, column] for one in matrices], [[one, 1, column] for one in turned])
    for rank in range(5):
        assert np.array_equal(turned[rank], np.array([one[:, rank] for one in matrices]).T)
    together(calls.alltoall, MPI.IN_PLACE, [[one, 1, column] for one in turned])
    assert all(map(np.array_equal, turned, matrices))


def test_counts_of_a_reduce_scatter_are_items(own: Make) -> None:
    pair = own(MPI.DOUBLE.Create_contiguous(2))
    give = [np.arange(8.0) * (rank + 1) for rank in range(2)]
    take = [np.zeros(6), np.zeros(2)]
    called = together(
        calls.reduce_scatter,
        [[one, pair] for one in give],
        [[one, pair] for one in take],
        (3, 1),
        SUM,
    )
    assert called[0].gives == (6, 2)
    assert np.array_equal(np.concatenate(take), 3 * np.arange(8.0))


def test_absolute_addresses(own: Make) -> None:
    """The datatype holds where the elements are; the two arrays may lie in any order, far apart."""
    first, second, got = np.arange(3.0), np.arange(3.0) + 10, np.zeros(6)
    places = own(MPI.DOUBLE.Create_hindexed([3, 2], [MPI.Get_address(first), MPI.Get_address(second)]))
    together(calls.broadcast, [(MPI.BOTTOM, 1, places), got[:5]], 0)
    assert got.tolist() == [0, 1, 2, 10, 11, 0]
    together(calls.broadcast, [got[:5] * 2, [MPI.BOTTOM, 1, places]], 0)
    assert (first.tolist(), second.tolist()) == ([0, 2, 4], [20, 22, 12])
    together(calls.allreduce, MPI.IN_PLACE, [[MPI.BOTTOM, 1, places], np.ones(5)], SUM)
    assert (first.tolist(), second.tolist()) == ([1, 3, 5], [21, 23, 12])
    for nowhere in (MPI.BOTTOM, None):
        address = MPI.Get_address(got)
        displs = [address + 40, address]
        together(
            calls.alltoallv,
            [np.arange(9, dtype=np.uint8)] * 1,
            [[nowhere, ([9], [address]), MPI.BYTE]],
        )
        assert got.view(np.uint8)[:9].tolist() == list(range(9))
        call = calls.alltoallv(Where(0, 2), [nowhere, ([8, 40], displs), "B"], [got, [8, 40], "B"])
        assert call.give.tobytes() == got.tobytes()[40:] + got.tobytes()[:40]


def test_addresses_that_are_none() -> None:
    with pytest.raises(
        UsageError, match=r"buf is MPI.BOTTOM with 1 items at address 0: displacements must be"
    ):
        calls.broadcast(Where(0, 2), [MPI.BOTTOM, 1, MPI.DOUBLE], 0)
    with pytest.raises(UsageError, match=r"recvbuf is MPI.BOTTOM with 3 items at address 24"):
        calls.allgatherv(Where(0, 2), np.zeros(3), [None, ([3, 1], [3, 100]), "d"])


def test_datatypes_may_be_freed_once_the_call_has_begun() -> None:
    memory, got = np.arange(6.0), np.zeros(6)
    strided = MPI.DOUBLE.Create_vector(3, 1, 2).Commit()
    called = prepared(calls.broadcast, [[memory, 1, strided], [got, 1, strided]], 0)
    op = MPI.Op.Create(added, commute=True)
    summed = prepared(calls.allreduce, MPI.IN_PLACE, [[memory, 1, strided]], operator_of(op))
    strided.Free()
    take = called[1].take
    assert take is not None
    take.flat[...] = called[0].give
    take.unpack()
    assert got.tolist() == [0, 0, 2, 0, 4, 0]
    memory[:] = 7
    called[0].refill()
    assert called[0].give.tolist() == [7, 7, 7]
    how = summed[0].arithmetic
    assert how is not None
    one = summed[0].give
    how.combine(one, one, one)
    assert one.view(float).tolist() == [0, 4, 8]
    op.Free()


def test_our_datatypes_are_freed(monkeypatch: pytest.MonkeyPatch, column: MPI.Datatype) -> None:
    made, freed = [], []

    class Counted(OwnDatatype):
        def __init__(self, datatype: MPI.Datatype) -> None:
            made.append(self.handle)

        def Free(self) -> None:  # noqa: N802  MPI's name
            freed.append(self.handle)
            super().Free()

    for module in (arrays, derived):
        monkeypatch.setattr(module, "OwnDatatype", Counted)
    matrix = np.zeros((4, 5))
    op = MPI.Op.Create(added)
    for prepare in (
        lambda: calls.broadcast(Where(0, 2), [matrix, 1, column], 0),
        lambda: calls.alltoallv(Where(0, 1), [matrix, 1, column], [matrix, 1, 2, column]),
        lambda: calls.alltoallw(Where(0, 1), MPI.IN_PLACE, [matrix, [column]]),
        lambda: calls.allreduce(Where(0, 1), MPI.IN_PLACE, [matrix, 1, column], operator_of(op)),
        lambda: calls.allreduce(Where(0, 1), [matrix, 2, column], [matrix, 1, column], SUM),
    ):
        before = len(made)
        with suppress(UsageError):
            prepare()
        gc.collect()
        assert sorted(made) == sorted(freed)
        assert len(made) > before
    op.Free()


def added(one: Any, other: Any, datatype: MPI.Datatype) -> None:
    """Adds doubles; the memory between items, which belongs to none, must be there and not be relied upon."""
    left, right = np.frombuffer(one), np.frombuffer(other)
    assert datatype.extent * (left.size * 8 // datatype.extent) == left.size * 8
    right += left


@pytest.mark.parametrize("commute", [True, False])
def test_user_operators_get_whole_items(own: Make, commute: bool) -> None:
    op = MPI.Op.Create(added, commute=commute)
    try:
        item = own(own(MPI.DOUBLE.Create_vector(2, 1, 2)).Create_resized(0, 32))
        memory = [np.arange(12.0) * (rank + 1) for rank in range(3)]
        got = [np.full(12, -1.0) for _ in range(3)]
        called = together(
            calls.allreduce,
            [[one, 3, item] for one in memory],
            [[one, 3, item] for one in got],
            operator_of(op),
        )
        assert (called[0].count, called[0].dtype) == (3, np.dtype("V16"))
        for one in got:
            assert one[::2].tolist() == (6 * np.arange(0, 12, 2.0)).tolist()
            assert (one[1::2] == -1).all()
        before = [one.copy() for one in memory]
        together(calls.scan, MPI.IN_PLACE, [[one, 3, item] for one in memory], operator_of(op))
        assert memory[2][::2].tolist() == (6 * np.arange(0, 12, 2.0)).tolist()
        assert np.array_equal(memory[2][1::2], before[2][1::2])
        called = together(
            calls.reduce_scatter,
            [[one, 3, item] for one in before],
            [[one, count, item] for one, count in zip(got, (1, 2, 0), strict=True)],
            (1, 2, 0),
            operator_of(op),
        )
        assert called[0].gives == (1, 2, 0)
        assert got[1][:8:2].tolist() == (6 * np.array([4, 6, 8, 10.0])).tolist()
    finally:
        op.Free()


def test_the_operators_of_mpi_need_elements_of_one_type(own: Make) -> None:
    mixed = own(MPI.Datatype.Create_struct([1, 1], [0, 8], [MPI.INT, MPI.DOUBLE]))
    with pytest.raises(
        UsageTypeError, match=r"recvbuf has a datatype of elements of different types: MPI.SUM is"
    ):
        calls.allreduce(Where(0, 2), MPI.IN_PLACE, [np.zeros(2), 1, mixed], SUM)


def test_pairs_lose_the_gaps_that_mpi_does_not_pack(own: Make) -> None:
    """MPI.DOUBLE_INT has 12 bytes of 16, and NumPy's dtype of it all 16."""
    pairs = np.zeros(6, "d,i").astype(np.dtype("d,i", align=True))
    pairs["f0"], pairs["f1"] = np.arange(6.0), range(6)
    every_second = own(MPI.DOUBLE_INT.Create_vector(3, 1, 2))
    call = calls.broadcast(Where(0, 2), [pairs, 1, every_second], 0)
    assert call.dtype == pairs.dtype
    assert call.give.tolist() == [(0, 0), (2, 2), (4, 4)]
    got = np.zeros(6, pairs.dtype)
    minimum = operator_of(MPI.MINLOC)
    together(
        calls.allreduce,
        [[pairs, 1, every_second], np.array([(1.0, 9), (2.0, 0), (3.0, 7)], pairs.dtype)],
        [[got, 1, every_second], [np.zeros(3, pairs.dtype), MPI.DOUBLE_INT]],
        minimum,
    )
    assert got.tolist() == [(0, 0), (0, 0), (2, 0), (0, 0), (3, 7), (0, 0)]


def test_types_that_numpy_does_not_have_can_be_moved() -> None:
    assert calls.broadcast(Where(0, 2), [np.zeros(4, "i"), MPI.WCHAR], 0).count == 4
    pair = calls.broadcast(Where(0, 2), [bytearray(64), MPI.LONG_DOUBLE_INT], 0)
    assert (pair.count, pair.dtype.itemsize) == (2, 32)


def test_datatypes_that_do_not_fit(own: Make, column: MPI.Datatype) -> None:
    matrix = np.zeros((4, 5))
    with pytest.raises(
        UsageError, match=r"buf has 3 items of a datatype of extent 8 from byte 24.* to byte 168, but"
    ):
        calls.broadcast(Where(0, 2), [matrix, (3, 3), column], 0)
    backwards = own(MPI.DOUBLE.Create_hindexed([1], [-8]))
    with pytest.raises(UsageError, match=r"from byte -8 to byte 0, but the buffer holds 160 bytes"):
        calls.broadcast(Where(0, 2), [matrix, 1, backwards], 0)
    call = calls.alltoallv(Where(0, 1), [matrix, ([2], [1]), backwards], np.zeros(2))
    assert call.give.size == 2
    odd = own(MPI.DOUBLE.Create_contiguous(3))
    with pytest.raises(UsageError, match="buf holds 160 bytes: not a multiple of the 24 of its type"):
        calls.broadcast(Where(0, 2), [matrix, odd], 0)
    twice = own(MPI.DOUBLE.Create_resized(0, 4))
    with pytest.raises(UsageError, match="buf has items that share memory: blocks to receive must lie apart"):
        calls.broadcast(Where(1, 2), [matrix, 2, twice], 0)
    with pytest.raises(UsageError, match="buf is read-only"):
        calls.broadcast(Where(1, 2), [bytes(160), 1, column], 0)
