"""Operators and element types between ranks: a sample of the table, with every plan."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import reduce as fold
from typing import Any

import ml_dtypes
import numpy as np
import pytest
from mpi4py import MPI

import hpccoll
from hpccoll.errors import MismatchError, UsageTypeError
from tests.collectives.conftest import Make
from tests.support.arithmetic import SMALL_FLOATS, Array, numpys, op_of, same
from tests.support.layouts import layouts, on_layouts

SOME_LAYOUTS = layouts({"": (1, 2, 3), "2+1": (3,), "3+1": (4,), "cyclic:2+2": (4,)})
SMALL, LONG = 3, 6000  # elements: with the agreement check, and on a plan


def every_plan(comm: hpccoll.Communicator, collective: str) -> Iterator[str]:
    """Each plan that exists, which calls take while the loop stands at it."""
    for name in comm.algorithms(collective):
        with comm.forced(name):
            yield f"rank {comm.rank} of {comm.size}, {name} on {comm.machine.layout}"


def reduced(comm: hpccoll.Communicator, send: Any, receive: Any, op: Any, wanted: Array) -> None:
    """All-reduce, reduce to the last rank and reduce-scatter, with every plan, all against `wanted`.

    `send` and `receive` give the buffers to pass for an array.
    """
    size, rank, root = comm.size, comm.rank, comm.size - 1
    block = wanted.size // size

    def check(found: Array, part: Array, what: str) -> None:
        assert same(found, part), f"{what}: {found[:5]}, wanted {part[:5]}"

    for what in every_plan(comm, "allreduce"):
        out = np.zeros_like(wanted)
        comm.Allreduce(send, receive(out), op=op)
        check(out, wanted, what)
    for what in every_plan(comm, "reduce"):
        out = np.zeros_like(wanted)
        comm.Reduce(send, receive(out) if rank == root else None, op=op, root=root)
        check(out, wanted if rank == root else np.zeros_like(wanted), what)
    if block * size == wanted.size:
        for what in every_plan(comm, "reduce_scatter"):
            out = np.zeros_like(wanted[:block])
            comm.Reduce_scatter_block(send, receive(out), op=op)
            check(out, wanted[rank * block : (rank + 1) * block], what)


def as_it_is(array: Array) -> Array:
    return array


@contextmanager
def made(function: Callable[[Any, Any, MPI.Datatype], None], commute: bool) -> Iterator[MPI.Op]:
    op = MPI.Op.Create(function, commute)
    try:
        yield op
    finally:
        op.Free()


# --- small floats ---------------------------------------------------------------------------------------


@pytest.mark.parametrize("dtype", SMALL_FLOATS, ids=str)
@SOME_LAYOUTS
def test_8_and_16_bit_floats(communicator: Make, layout: str, dtype: np.dtype[Any]) -> None:
    comm = communicator(layout=layout)
    for count in (SMALL * comm.size, LONG * comm.size):
        parts = [(np.arange(count) * (rank + 2) % 7 - 3).astype(dtype) for rank in range(comm.size)]
        for name in ("SUM", "MAX", "AVG") if count < LONG else ("AVG",):
            reduced(comm, parts[comm.rank], as_it_is, op_of(name), numpys(name, parts))


@pytest.mark.ranks(4)
@pytest.mark.parametrize("layout", ["", "2+2"])
def test_float16_sums_and_moves(communicator: Make, layout: str) -> None:
    """As reported in pytorch/pytorch#139178."""
    comm = communicator(layout=layout)
    out = np.empty(2, np.float16)
    comm.Allreduce(np.array([comm.rank + 1, 0.5], np.float16), out)
    assert out.tolist() == [10, 2]
    # A zero with a sign, NaN of both signs with payloads, the smallest number, infinity.
    bits = np.array([0x8000, 0x7E01, 0xFE55, 0x7D01, 0x0001, 0x7C00], np.uint16)
    mine = np.concatenate([bits, [comm.rank]]).astype(np.uint16)
    everyones = np.array([[*bits, rank] for rank in range(4)], np.uint16)
    for kind in SMALL_FLOATS:
        per_rank = mine.nbytes // kind.itemsize
        gathered, exchanged, moved = np.empty((4, per_rank), kind), np.empty((4, per_rank), kind), mine.copy()
        comm.Allgather(mine.view(kind), gathered)
        comm.Alltoall(np.tile(mine, 4).view(kind), exchanged)
        comm.Bcast(moved.view(kind), root=2)
        for found, wanted in ((gathered, everyones), (exchanged, everyones), (moved, everyones[2])):
            assert np.array_equal(found.view(np.uint16), wanted), f"rank {comm.rank}: {kind}"


# --- value and index --------------------------------------------------------------------------------------


@SOME_LAYOUTS
def test_where_the_minimum_and_the_maximum_are(communicator: Make, layout: str) -> None:
    comm = communicator(layout=layout)
    kinds = (
        (MPI.SHORT_INT, "i2"),
        (MPI.INT_INT, "i4"),
        (MPI.FLOAT_INT, "f4"),
        (MPI.DOUBLE_INT, "f8"),
        (MPI.LONG_DOUBLE_INT, "g"),
    )
    for k, (datatype, value) in enumerate(kinds):
        count = (SMALL if k % 2 else 300) * comm.size
        dtype = np.dtype([("f0", value), ("f1", "i4")], align=True)
        # Few values, so that there are ties, which the lowest rank wins.
        values = np.array([(np.arange(count) * (3 * rank + 1) + rank) % 5 for rank in range(comm.size)])
        mine = np.zeros(count, dtype)
        mine["f0"], mine["f1"] = values[comm.rank], comm.rank
        for op, find, extreme in ((MPI.MINLOC, np.argmin, np.min), (MPI.MAXLOC, np.argmax, np.max)):
            wanted = np.zeros(count, dtype)
            wanted["f0"], wanted["f1"] = extreme(values, axis=0), find(values, axis=0)
            if op == MPI.MINLOC:
                reduced(comm, [mine, datatype], lambda out, kind=datatype: [out, kind], op, wanted)
            else:
                reduced(comm, mine, as_it_is, op, wanted)


@on_layouts(4)
def test_nan_wins_wherever_it_is(communicator: Make, layout: str) -> None:
    comm = communicator(layout=layout)
    dtype = np.dtype([("value", "f4"), ("index", "i8")])
    placements = np.array(list(itertools.permutations([2, np.nan, 5, np.nan])), np.float32)
    mine = np.zeros(len(placements), dtype)
    mine["value"], mine["index"] = placements[:, comm.rank], 10 * comm.rank
    for op in (MPI.MINLOC, MPI.MAXLOC):
        for what in every_plan(comm, "allreduce"):
            found = np.zeros_like(mine)
            comm.Allreduce(mine, found, op=op)
            assert np.isnan(found["value"]).all(), what
            assert np.array_equal(found["index"], 10 * np.argmax(np.isnan(placements), axis=1)), what


# --- scaled sums and accumulation -----------------------------------------------------------------------


@pytest.mark.parametrize("dtype", ["i4", "f2", "f4", "f8", "c8"])
@SOME_LAYOUTS
def test_every_rank_has_a_factor_of_its_own(communicator: Make, layout: str, dtype: str) -> None:
    comm = communicator(layout=layout)
    for count in (SMALL * comm.size, LONG * comm.size):
        parts = [np.arange(count) % 11 + rank for rank in range(comm.size)]
        factors = [rank - 1 if dtype == "i4" else (rank - 1) / 4 for rank in range(comm.size)]
        wanted = fold(np.add, [part * factor for part, factor in zip(parts, factors, strict=True)])
        mine = parts[comm.rank].astype(dtype)
        kept = mine.copy()
        op = hpccoll.scaled_sum(factors[comm.rank])
        reduced(comm, mine, as_it_is, op, wanted.astype(dtype))
        assert np.array_equal(mine, kept), "the send buffer was written to"
        comm.Allreduce(MPI.IN_PLACE, mine, op=op)
        assert same(mine, wanted.astype(dtype)), "in place"


@pytest.mark.ranks(3)
@pytest.mark.parametrize("layout", ["", "2+1"])
def test_a_factor_that_one_rank_cannot_apply_is_refused_on_all(communicator: Make, layout: str) -> None:
    comm = communicator(layout=layout)
    out = np.full(3, -7)
    with pytest.raises(UsageTypeError, match=r"rank 1: hpccoll.scaled_sum\(0.5\).*int64.*nothing was moved"):
        comm.Allreduce(np.arange(3), out, op=hpccoll.scaled_sum(0.5 if comm.rank == 1 else 2))
    assert (out == -7).all()


@SOME_LAYOUTS
def test_accumulating_in_a_wider_type(communicator: Make, layout: str) -> None:
    """As asked in NVIDIA/nccl#422: 120 + 100 in int8."""
    comm = communicator(layout=layout)
    for count in (SMALL * comm.size, LONG * comm.size):
        parts = [np.full(count, 120 - 20 * (rank % 2), np.int8) for rank in range(comm.size)]
        wanted = fold(np.add, [part.astype(np.int32) for part in parts])
        assert comm.size == 1 or wanted[0] >= 220
        reduced(comm, parts[comm.rank], as_it_is, hpccoll.accumulate(MPI.SUM, "int32"), wanted)
        means = fold(np.add, [part.astype(float) for part in parts]) / comm.size
        reduced(comm, parts[comm.rank], as_it_is, hpccoll.accumulate(hpccoll.AVG, float), means)
        whole = parts[comm.rank].astype(np.int32)
        comm.Allreduce(MPI.IN_PLACE, whole, op=hpccoll.accumulate(MPI.SUM, "int32"))
        assert same(whole, wanted)


@pytest.mark.ranks(3)
def test_ranks_may_accumulate_from_different_types(communicator: Make) -> None:
    comm = communicator()
    mine = np.full(4, 100, [np.int8, np.uint16, np.int32][comm.rank])
    out = np.empty(4, np.int32)
    comm.Allreduce(mine, out, op=hpccoll.accumulate(MPI.SUM, "int32"))
    assert out.tolist() == [300] * 4


@pytest.mark.ranks(2)
def test_what_does_not_fit_into_the_wider_type(communicator: Make) -> None:
    comm = communicator()
    op = hpccoll.accumulate(MPI.SUM, "int32")
    out = np.full(3, -7, np.int32)
    with pytest.raises(UsageTypeError, match=r"rank 1: .*int32 cannot hold all elements of dtype int64"):
        comm.Allreduce(np.ones(3, np.int64 if comm.rank == 1 else np.int8), out, op=op)
    with pytest.raises(UsageTypeError, match=r"recvbuf has dtype int64.*accumulate.*int32"):
        comm.Allreduce(np.ones(3, np.int8), np.empty(3, np.int64), op=op)
    assert (out == -7).all()


# --- operators of the caller ------------------------------------------------------------------------------


def largest_magnitude(one: Any, other: Any, datatype: MPI.Datatype) -> None:
    ours, theirs = np.frombuffer(one, "f8"), np.frombuffer(other, "f8")
    theirs[...] = np.where(np.abs(ours) > np.abs(theirs), ours, theirs)


def matrix_product(one: Any, other: Any, datatype: MPI.Datatype) -> None:
    ours, theirs = np.frombuffer(one, "i8").reshape(-1, 2, 2), np.frombuffer(other, "i8").reshape(-1, 2, 2)
    theirs[...] = ours @ theirs


@SOME_LAYOUTS
def test_a_user_operator_that_commutes(communicator: Make, layout: str) -> None:
    comm = communicator(layout=layout)
    for count in (SMALL * comm.size, LONG * comm.size):
        parts = np.array(
            [(np.arange(count) * (rank + 3) % 13 - 6.25) * (rank + 1) for rank in range(comm.size)]
        )
        wanted = parts[np.argmax(np.abs(parts), axis=0), np.arange(count)]
        with made(largest_magnitude, commute=True) as op:
            reduced(comm, parts[comm.rank], as_it_is, op, wanted)


@on_layouts(1, 2, 3, 4, 5)
def test_a_user_operator_that_does_not_commute_is_applied_in_rank_order(
    communicator: Make, layout: str
) -> None:
    comm = communicator(layout=layout)
    matrix = MPI.INT64_T.Create_contiguous(4).Commit()
    for count in (comm.size, 700 * comm.size):
        random = np.random.default_rng(count)
        parts = random.integers(-2, 3, (comm.size, count, 2, 2))
        wanted = fold(np.matmul, parts).reshape(-1)
        given = np.ascontiguousarray(parts[comm.rank])
        with made(matrix_product, commute=False) as op:
            for what in every_plan(comm, "allreduce"):
                found = np.zeros_like(given)
                comm.Allreduce([given, count, matrix], [found, count, matrix], op=op)
                assert np.array_equal(found.reshape(-1), wanted), what
            for root in {0, comm.size // 2, comm.size - 1}:
                for what in every_plan(comm, "reduce"):
                    found = np.zeros_like(given)
                    receive = [found, count, matrix] if comm.rank == root else None
                    comm.Reduce([given, count, matrix], receive, op=op, root=root)
                    assert comm.rank != root or np.array_equal(found.reshape(-1), wanted), what
            block = count // comm.size
            for what in every_plan(comm, "reduce_scatter"):
                found = np.zeros((block, 2, 2), np.int64)
                comm.Reduce_scatter_block([given, block, matrix], [found, block, matrix], op=op)
                mine = wanted.reshape(-1, block * 4)[comm.rank]
                assert np.array_equal(found.reshape(-1), mine), what
    matrix.Free()


@pytest.mark.ranks(3)
def test_a_user_operator_on_what_mpi_has_no_type_for_is_refused_on_all(communicator: Make) -> None:
    comm = communicator()
    with made(largest_magnitude, commute=True) as op:
        for dtype in (ml_dtypes.bfloat16, ">f8", "M8[s]"):
            out = np.ones(3, dtype)
            with pytest.raises(UsageTypeError, match="MPI has no type for dtype"):
                comm.Allreduce(np.zeros(3, dtype), out, op=op)
            assert (out == np.ones(3, dtype)).all()


# --- disagreement and byte order ------------------------------------------------------------------------


@pytest.mark.ranks(3)
@pytest.mark.parametrize("layout", ["", "2+1"])
def test_different_operators_on_ranks_are_found_and_named(communicator: Make, layout: str) -> None:
    comm = communicator(layout=layout)
    with made(largest_magnitude, commute=True) as op, made(largest_magnitude, commute=False) as in_order:
        for ours, theirs, said in (
            (MPI.SUM, hpccoll.scaled_sum(2), "SUM on .*scaled_sum on rank 2"),
            (MPI.MAX, op, "MAX on .*user operator on rank 2"),
            (op, in_order, r"user operator on .*user operator \(not commutative\) on rank 2"),
        ):
            out = np.full(3, -7.0)
            with pytest.raises(MismatchError, match=said):
                comm.Allreduce(np.ones(3), out, op=theirs if comm.rank == 2 else ours)
            assert (out == -7).all()


@pytest.mark.ranks(2)
def test_byte_order_and_objects(communicator: Make) -> None:
    """As reported in mpi4py/mpi4py#528 and mpi4py/mpi4py#177."""
    comm = communicator()
    for dtype in ("<f8", ">f8"):
        out = np.empty(2, dtype)
        comm.Allreduce(np.array([1, 2], dtype), out)
        assert out.tolist() == [2, 4]
        assert out.dtype == np.dtype(dtype)
    mixed = np.ones(2, "<f8" if comm.rank == 0 else ">f8")
    with pytest.raises(MismatchError, match=r"dtype: float64 on rank 0, >f8 on rank 1"):
        comm.Allreduce(mixed, np.empty_like(mixed))
    for call in (comm.Allreduce, comm.Allgather):
        with pytest.raises(TypeError, match="Python objects cannot be moved"):
            call(np.array([1, None]), np.empty(4, object))
