"""What callers pass to a collective, and where results land: arrays, numbers, in place, roots; no list."""

from __future__ import annotations

import array
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from mpi4py import MPI

import hpccoll
from hpccoll import calls
from hpccoll.calls import Where
from hpccoll.errors import UsageTypeError
from hpccoll.ops.table import operator_of
from tests.support.carry import carry, only, prepared, together

SUM = operator_of(MPI.SUM)
SIZES = pytest.mark.parametrize("size", [1, 2, 3, 5])
COUNTS = pytest.mark.parametrize("count", [0, 1, 6])
IN_PLACE = pytest.mark.parametrize("word", [MPI.IN_PLACE, None])


def numbers(size: int, count: int, salt: int = 0) -> list[Any]:
    """Elements of each rank, all different."""
    return [np.arange(count) + 1000 * rank + 100_000 * salt + 1 for rank in range(size)]


def filled(size: int, shape: Any, order: Any = "C") -> list[Any]:
    return [np.full(shape, -1, order=order) for _ in range(size)]


def same(got: list[Any], wanted: Any) -> bool:
    return len(got) == len(wanted) and all(map(np.array_equal, got, wanted))


@SIZES
@COUNTS
def test_reductions(size: int, count: int) -> None:
    give, take = numbers(size, count), filled(size, count)
    together(calls.allreduce, give, take, SUM)
    assert same(take, [sum(give)] * size)
    together(calls.scan, give, take, SUM)
    assert same(take, [sum(give[: rank + 1]) for rank in range(size)])
    take[0][:] = -1
    together(calls.exscan, give, take, SUM)
    assert (take[0] == -1).all()
    assert same(take[1:], [sum(give[:rank]) for rank in range(1, size)])
    for root in range(size):
        result = np.full(count, -1)
        together(calls.reduce, give, only(root, size, result), SUM, root)
        assert np.array_equal(result, sum(give))
    assert same(give, numbers(size, count))


@SIZES
@COUNTS
@IN_PLACE
def test_reductions_in_place(size: int, count: int, word: Any) -> None:
    before, mine = numbers(size, count), numbers(size, count)
    together(calls.allreduce, word, mine, SUM)
    assert same(mine, [sum(before)] * size)
    mine = numbers(size, count)
    together(calls.exscan, word, mine, SUM)
    assert same(mine, [before[0]] + [sum(before[:rank]) for rank in range(1, size)])
    for root in range(size):
        mine = numbers(size, count)
        send = [word if rank == root else mine[rank] for rank in range(size)]
        together(calls.reduce, send, only(root, size, mine[root]), SUM, root)
        assert same(mine, [sum(before) if rank == root else before[rank] for rank in range(size)])


@SIZES
@COUNTS
def test_reduce_scatter(size: int, count: int) -> None:
    give, take = numbers(size, size * count), filled(size, count)
    total = sum(give).reshape(size, count) if count else np.empty((size, 0), int)
    together(calls.reduce_scatter_block, give, take, SUM)
    assert same(take, total)
    mine = numbers(size, size * count)
    together(calls.reduce_scatter_block, MPI.IN_PLACE, mine, SUM)
    assert same([one[:count] for one in mine], total)
    assert same([one[count:] for one in mine], [one[count:] for one in give])


@SIZES
@pytest.mark.parametrize("counts", [(3, 0, 1, 5, 2), (0, 0, 0, 0, 0), (1, 1, 1, 1, 1)])
def test_reduce_scatter_of_unequal_blocks(size: int, counts: tuple[int, ...]) -> None:
    counts = counts[:size]
    give = numbers(size, sum(counts))
    total = np.split(sum(give), np.cumsum(counts)[:-1])
    for given in (counts, np.array(counts), array.array("q", counts), None):
        take = [np.full(count, -1) for count in counts]
        called = prepared(calls.reduce_scatter, give, take, given, SUM)
        if given is None:
            assert called[0].gives is None
            for call in called:
                call.complete([one.take.count for one in called if one.take is not None])
        assert all((call.gives, call.count, call.ragged) == (counts, 0, True) for call in called)
        carry(called)
        assert same(take, total)
    mine = numbers(size, sum(counts))
    together(calls.reduce_scatter, MPI.IN_PLACE, mine, counts, SUM)
    for rank, count in enumerate(counts):
        assert np.array_equal(mine[rank][:count], total[rank])
        assert np.array_equal(mine[rank][count:], give[rank][count:])


@SIZES
@COUNTS
def test_movements(size: int, count: int) -> None:
    give = numbers(size, count)
    everything = np.concatenate(give).reshape(size, count)
    for root in range(size):
        got = numbers(size, count)
        together(calls.broadcast, got, root)
        assert same(got, [give[root]] * size)
        whole, parts = np.zeros((size, count), int), filled(size, count)
        together(calls.gather, give, only(root, size, whole), root)
        assert np.array_equal(whole, everything)
        together(calls.scatter, only(root, size, everything), parts, root)
        assert same(parts, give)
    wholes = filled(size, size * count)
    together(calls.allgather, give, wholes)
    assert same(wholes, [everything.reshape(-1)] * size)
    rows, got = numbers(size, size * count), filled(size, (size, count))
    together(calls.alltoall, rows, got)
    table = np.array(rows).reshape(size, size, count)
    assert same(got, table.swapaxes(0, 1))


def strided(values: Any, step: int) -> Any:
    memory = np.full(step * values.size, -7)
    memory[::step] = values
    return memory[::step]


@SIZES
@IN_PLACE
@pytest.mark.parametrize("step", [1, 2])
def test_movements_in_place(size: int, word: Any, step: int) -> None:
    """Also in every second element, so that a copy is read and brought back."""
    count = 3
    give = numbers(size, count)
    everything = np.concatenate(give)
    owner = np.arange(size * count) // count
    wholes = [strided(np.where(owner == rank, everything, -1), step) for rank in range(size)]
    for root in range(size):
        whole = wholes[root].copy() if step == 1 else strided(wholes[root], step)
        send = [word if rank == root else give[rank] for rank in range(size)]
        together(calls.gather, send, only(root, size, whole), root)
        assert np.array_equal(whole, everything)
        whole, parts = strided(everything, step), filled(size, count)
        receive = [word if rank == root else parts[rank] for rank in range(size)]
        together(calls.scatter, only(root, size, whole), receive, root)
        assert np.array_equal(whole, everything)
        assert (parts[root] == -1).all()
        parts[root] = give[root]
        assert same(parts, give)
    together(calls.allgather, word, wholes)
    assert same(wholes, [everything] * size)
    rows = [strided(row, step) for row in numbers(size, size * count)]
    table = np.array(rows).reshape(size, size, count)
    together(calls.alltoall, word, rows)
    assert same(rows, table.swapaxes(0, 1).reshape(size, -1))
    assert step == 1 or all((row.base[1::2] == -7).all() for row in rows)


def test_own_memory_is_used_where_it_is_contiguous() -> None:
    at = Where(1, 3)
    mine, all_of_us = np.arange(4.0), np.arange(12.0)
    assert np.shares_memory(calls.allreduce(at, mine, np.empty(4), SUM).give, mine)
    call = calls.allgather(at, MPI.IN_PLACE, all_of_us)
    assert np.shares_memory(call.give, all_of_us[4:8])
    assert call.take is not None
    assert np.shares_memory(call.take.flat, all_of_us)
    assert np.shares_memory(calls.gather(at, MPI.IN_PLACE, all_of_us, 1).give, all_of_us[4:8])
    assert np.shares_memory(calls.scatter(at, all_of_us.reshape(3, 4), mine, 1).give, all_of_us)
    in_place = calls.alltoall(at, MPI.IN_PLACE, all_of_us)
    assert not np.shares_memory(in_place.give, all_of_us)
    assert in_place.take is not None
    assert np.shares_memory(in_place.take.flat, all_of_us)


def test_memory_that_changes_between_starts_is_read_again() -> None:
    """What a persistent call does: the same `Call`, other elements."""
    size, count = 2, 3
    memory = [np.zeros(2 * size * count, int) for _ in range(size)]
    every_second = [one[::2] for one in memory]
    got = [one[::2] for one in filled(size, 2 * size * count)]
    lists = [[one, ([count, count], [0, 2 * count])] for one in memory]
    attempts: list[tuple[Callable[..., calls.Call], list[Any]]] = [
        (calls.alltoall, [every_second, got]),
        (calls.alltoall, [MPI.IN_PLACE, every_second]),
        (calls.alltoallv, [lists, got]),
        (calls.allreduce, [MPI.IN_PLACE, every_second, SUM]),
        (calls.reduce_scatter_block, [MPI.IN_PLACE, every_second, SUM]),
        (calls.allreduce, [memory, filled(size, 2 * size * count), SUM]),
    ]
    for collective, arguments in attempts:
        called = prepared(collective, *arguments)
        for salt in (1, 2):
            for rank, values in enumerate(numbers(size, 2 * size * count, salt)):
                memory[rank][:] = values
            for call in called:
                call.refill()
            fresh = prepared(collective, *arguments)
            assert same([call.give for call in called], [call.give for call in fresh])
            assert called[0].give.size >= size * count


def test_empty_arrays() -> None:
    size = 3
    for shape in ((0,), (1, 0, 2)):
        nothing = [np.empty(shape) for _ in range(size)]
        wholes = [np.empty((size, *shape)) for _ in range(size)]
        for op in map(operator_of, (MPI.SUM, MPI.MAX, hpccoll.AVG)):
            together(calls.allreduce, nothing, [np.empty(shape)] * size, op)
            together(calls.reduce_scatter_block, nothing, [np.empty(shape)] * size, op)
        together(calls.allgather, nothing, wholes)
        together(calls.alltoall, [np.empty((size, *shape))] * size, wholes)
        together(calls.gatherv, nothing, wholes, 1)
        called = together(calls.alltoallv, nothing, wholes)
        assert called[0].gives == called[0].takes == (0, 0, 0)


def test_arrays_without_dimensions_and_numbers() -> None:
    size = 3
    for number in (2.0, 2, True, np.float64(2), np.array(2.0)):
        got = [np.zeros(()) for _ in range(size)]
        together(calls.allreduce, number, got, SUM)
        assert same(got, [size * float(number)] * size)
        whole = np.zeros(size)
        together(calls.gather, [float(number)] * size, only(0, size, whole), 0)
        assert (whole == float(number)).all()


@pytest.mark.parametrize("shape", [(2, 3), (4, 3, 2)])
def test_fortran_order(shape: tuple[int, ...]) -> None:
    """By index, also where one rank's array is transposed; blocks lie along the last axis of such arrays."""
    size = 3
    block = [np.arange(np.prod(shape)).reshape(shape) + 100 * rank for rank in range(size)]
    mixed = [np.asarray(one, order="F") if rank == 1 else one for rank, one in enumerate(block)]
    for axis in (0, -1):
        whole = np.moveaxis(np.zeros((size, *shape), int), 0, axis)
        if axis == -1:
            whole = np.zeros((*shape, size), int, order="F")
        parts = np.moveaxis(whole, axis, 0)
        for collective in (calls.gather, calls.gatherv):
            whole[...] = 0
            together(collective, mixed, only(1, size, whole), 1)
            assert same(list(parts), block)
        for collective in (calls.scatter, calls.scatterv):
            got = filled(size, shape, "F")
            together(collective, only(1, size, whole), got, 1)
            assert same(got, block)
        totals = filled(size, shape, "F")
        together(calls.reduce_scatter_block, [whole] * size, totals, SUM)
        assert same(totals, [size * one for one in block])
        for collective in (calls.alltoall, calls.alltoallv):
            exchanged = filled(size, (*shape, size), "F")
            together(collective, [whole] * size, exchanged)
            assert all(
                np.array_equal(exchanged[rank][..., other], block[rank])
                for rank in range(size)
                for other in range(size)
            )


def test_rows_of_numbers_lie_in_a_fortran_ordered_array_as_in_its_memory() -> None:
    rows, whole = numbers(3, 8), np.zeros((4, 2, 3), int, order="F")
    for collective in (calls.gather, calls.gatherv):
        whole[...] = 0
        together(collective, rows, only(0, 3, whole), 0)
        assert np.array_equal(whole.reshape(-1, order="F"), np.concatenate(rows))
    got = filled(3, 8)
    together(calls.scatter, only(0, 3, whole), got, 0)
    assert same(got, rows)


class TestBytesInOtherOrder:
    """mpi4py/mpi4py#528 and #177: a KeyError for formats that say their byte order."""

    def test_little_endian_is_native(self) -> None:
        mine = np.array([1.0, 2.0], "<f8")
        call = calls.allreduce(Where(0, 1), mine, np.empty(2), SUM)
        assert call.dtype == np.dtype(float)

    def test_big_endian_adds_up_in_its_own_dtype(self) -> None:
        mine = [np.array([1.0, 2.0], ">f8")] * 2
        got = [np.empty(2, ">f8") for _ in range(2)]
        together(calls.allreduce, mine, got, SUM)
        assert all(one.dtype == np.dtype(">f8") and one.tolist() == [2, 4] for one in got)
        together(calls.allreduce, [memoryview(one) for one in mine], [memoryview(one) for one in got], SUM)
        assert got[1].tolist() == [2, 4]

    def test_both_in_one_call_are_refused_by_name(self) -> None:
        with pytest.raises(UsageTypeError, match=r"sendbuf has dtype float64, recvbuf >f8: must be the same"):
            calls.allreduce(Where(0, 1), np.zeros(2), np.zeros(2, ">f8"), SUM)


class TestAccumulation:
    """NVIDIA/nccl#422: 120 + 100 in 8 bits."""

    def test_wraps_in_its_own_dtype(self) -> None:
        give = [np.array([120], np.int8), np.array([100], np.int8)]
        got = [np.zeros(1, np.int8) for _ in range(2)]
        together(calls.allreduce, give, got, SUM)
        assert same(got, [[-36], [-36]])

    def test_in_another_dtype(self) -> None:
        op = hpccoll.accumulate(MPI.SUM, "int32")
        give = [np.array([120], np.int8), np.array([100], np.int16)]
        got = [np.zeros(1, np.int32) for _ in range(2)]
        together(calls.allreduce, give, got, op)
        assert same(got, [[220], [220]])
        together(calls.scan, give, got, op)
        assert same(got, [[120], [220]])
        together(calls.reduce, give, only(0, 2, got[0]), op, 0)
        assert got[0] == 220
        got = [np.full(1, 120, np.int32) for _ in range(2)]
        together(calls.allreduce, MPI.IN_PLACE, got, op)
        assert same(got, [[240], [240]])

    def test_refusals(self) -> None:
        op = hpccoll.accumulate(MPI.SUM, "int32")
        at = Where(0, 2)
        with pytest.raises(UsageTypeError, match=r"recvbuf has dtype int8, results of .* int32: must be the"):
            calls.allreduce(at, np.zeros(1, np.int8), np.zeros(1, np.int8), op)
        with pytest.raises(UsageTypeError, match="int32 cannot hold all elements of dtype int64"):
            calls.reduce(at, np.zeros(1, np.int64), None, op, 1)
        with pytest.raises(UsageTypeError, match="recvbuf has dtype int8"):
            calls.allreduce(at, MPI.IN_PLACE, np.zeros(1, np.int8), op)
