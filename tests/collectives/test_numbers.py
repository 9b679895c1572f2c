"""All number types under all operators; averages, NaN and overflow, with answers known beforehand."""

from __future__ import annotations

import itertools
from typing import Any

import ml_dtypes
import numpy as np
import pytest
from mpi4py import MPI

import hpccoll
from tests.collectives.conftest import Make
from tests.support.layouts import layouts, on_layouts
from tests.support.oracle import (
    BOOL,
    COMPLEX,
    INTEGERS,
    NUMBERS,
    OPERATORS,
    REDUCTIONS,
    Job,
    operator,
    operators,
    perform,
    perform_all,
)

# Plans that travel with the agreement, through shared memory, as messages, in two levels, and by MPI.
SOME_LAYOUTS = layouts({"": (1, 2), "2+1": (3,)})


def allreduced(comm: hpccoll.Communicator, values: Any, op: Any = MPI.SUM) -> Any:
    send = np.asarray(values)
    receive = np.empty_like(send)
    comm.Allreduce(send, receive, op=op)
    return receive


@pytest.mark.parametrize("dtype", [*NUMBERS, BOOL], ids=str)
@SOME_LAYOUTS
def test_every_operator_of_a_type(communicator: Make, layout: str, dtype: np.dtype[Any]) -> None:
    comm = communicator(layout=layout)
    for k, op in enumerate(operators(dtype)):
        perform_all(comm, [Job("allreduce", 37, dtype, op, salt=k, in_place=k % 2 == 0)])
        perform(comm, Job("reduce", 37, dtype, op, root=comm.size - 1, in_place=k % 2 == 1))
        perform(comm, Job("reduce_scatter", 19, dtype, op, in_place=k % 2 == 0))


@pytest.mark.parametrize("dtype", [*NUMBERS, BOOL], ids=str)
@SOME_LAYOUTS
def test_a_type_moves_bit_by_bit(communicator: Make, layout: str, dtype: np.dtype[Any]) -> None:
    perform_all(
        communicator(layout=layout), [Job("broadcast", 41, dtype), Job("allgather", 41, dtype, in_place=True)]
    )


@pytest.mark.parametrize(
    "dtype", ["S5", "U3", "V24", "M8[s]", "m8[ns]", [("a", "<i2"), ("b", "<f8")], ">f8"], ids=str
)
@SOME_LAYOUTS
def test_other_types_move_but_are_not_reduced(communicator: Make, layout: str, dtype: Any) -> None:
    comm = communicator(layout=layout)
    kind = np.dtype(dtype)
    for count in (3, 20_000):
        perform_all(comm, [Job("broadcast", count, kind), Job("allgather", count, kind)])
    if kind != np.dtype(">f8"):
        with pytest.raises(TypeError, match="not defined for dtype"):
            comm.Allreduce(np.zeros(3, kind), np.zeros(3, kind))


@SOME_LAYOUTS
def test_numbers_of_the_other_byte_order(communicator: Make, layout: str) -> None:
    comm = communicator(layout=layout)
    for op in ("SUM", "MAX", "AVG"):
        for dtype in (">f8", ">i4", ">f2", ">c16"):
            if not (op == "MAX" and dtype == ">c16"):
                perform_all(comm, [Job("allreduce", 70, np.dtype(dtype), op)])


@pytest.mark.parametrize("op", ["SUM", "PROD", "AVG"])
@on_layouts(4, 5)
def test_16_bit_floats_on_layouts(communicator: Make, layout: str, op: str) -> None:
    comm = communicator(layout=layout)
    for k, dtype in enumerate((np.dtype(np.float16), np.dtype(ml_dtypes.bfloat16))):
        jobs = [Job(REDUCTIONS[(k + len(op)) % 3], 600, dtype, op), Job("allreduce", 5, dtype, op)]
        for job in jobs:
            perform(comm, job)


@on_layouts(4)
def test_a_nan_anywhere_is_the_maximum_and_the_minimum(communicator: Make, layout: str) -> None:
    """As reported in ml-explore/mlx#4072: the answer depended on which rank held the NaN."""
    comm = communicator(layout=layout)
    placements = np.array(list(itertools.permutations([2, np.nan, 5, 7])), np.float32)
    for name in comm.algorithms("allreduce"):
        with comm.forced(name):
            for op in (MPI.MAX, MPI.MIN):
                found = allreduced(comm, placements[:, comm.rank], op)
                assert np.isnan(found).all(), f"rank {comm.rank}: {name}"
            one = allreduced(comm, placements[comm.rank, comm.rank : comm.rank + 1], MPI.MAX)
            wanted = np.max(np.diagonal(placements[:4]))
            assert np.array_equal(one, [wanted], equal_nan=True), f"rank {comm.rank}: {name}"


@pytest.mark.ranks(2, 3, 4)
def test_infinities_of_both_signs_sum_to_nan(communicator: Make) -> None:
    comm = communicator()
    sign = -1 if comm.rank == comm.size - 1 else 1
    for dtype in (np.float16, np.float32, np.float64, ml_dtypes.bfloat16):
        assert np.isnan(allreduced(comm, np.full(3, sign * np.inf, dtype))).all()


@pytest.mark.ranks(4)
@pytest.mark.parametrize("layout", ["", "3+1"])
def test_an_average_is_not_one_of_averages(communicator: Make, layout: str) -> None:
    """As asked in ROCm/rocm-systems PR#7851: averaged inside the node and again between nodes this is 2."""
    comm = communicator(layout=layout)
    for name in comm.algorithms("allreduce"):
        with comm.forced(name):
            assert allreduced(comm, [0.0, 0.0, 0.0, 4.0][comm.rank], hpccoll.AVG) == 1.0, name


@pytest.mark.ranks(2)
def test_an_average_is_over_ranks_not_over_elements(communicator: Make) -> None:
    """As reported in meta-pytorch/torchcomms PR#287."""
    comm = communicator()
    assert allreduced(comm, [[1, 2, 3], [3, 4, 5]][comm.rank], hpccoll.AVG).tolist() == [2, 3, 4]


@pytest.mark.ranks(4)
@pytest.mark.parametrize("layout", ["", "2+2", "3+1"])
@pytest.mark.parametrize("dtype", INTEGERS, ids=str)
def test_averages_of_integers_are_rounded_once_toward_zero(
    communicator: Make, layout: str, dtype: np.dtype[Any]
) -> None:
    """As reported in InfiniTensor/InfiniCCL PR#37: a product with the reciprocal as an integer gave 0."""
    comm = communicator(layout=layout)
    columns = [[3, 2, 3, 0], [1, 2, 3, 4], [100, 100, 100, 100]]
    wanted = [2, 2, 100]
    if dtype.kind == "i":
        columns += [[-3, 0, 0, 0], [-5, 0, -2, 0], [-100, -100, -100, -100]]
        wanted += [0, -1, -100]
    mine = np.array([column[comm.rank] for column in columns], dtype)
    assert allreduced(comm, mine, hpccoll.AVG).tolist() == wanted
    long = np.repeat(mine, 3000)
    assert allreduced(comm, long, hpccoll.AVG).tolist() == np.repeat(wanted, 3000).tolist()


@pytest.mark.ranks(4)
@pytest.mark.parametrize("layout", ["", "2+2"])
def test_an_average_does_not_overflow_where_the_sum_does(communicator: Make, layout: str) -> None:
    """As reported in horovod/horovod#1699: the sum reached infinity before the division."""
    comm = communicator(layout=layout)
    for count in (4, 9000):
        large, tiny = np.full(count, 30000, np.float16), np.full(count, 6e-8, np.float16)
        assert (allreduced(comm, large, hpccoll.AVG) == 30000).all()
        assert np.isposinf(allreduced(comm, large)).all()
        assert (allreduced(comm, tiny, hpccoll.AVG) == tiny).all()
        assert tiny[0] > 0


@pytest.mark.ranks(2, 3, 5)
def test_averages_of_complex_numbers_are_divided_part_by_part(communicator: Make) -> None:
    comm = communicator()
    whole = np.arange(1, 500) * (1 - 2j)
    assert np.array_equal(allreduced(comm, whole, hpccoll.AVG), whole)
    assert allreduced(comm, complex(np.inf, 1), hpccoll.AVG) == complex(np.inf, 1)


@pytest.mark.ranks(3)
@pytest.mark.parametrize("layout", ["", "2+1"])
def test_complex_numbers(communicator: Make, layout: str) -> None:
    """As reported in pytorch/pytorch#71613 and cupy/cupy#7981; a product of the parts would be 6."""
    comm = communicator(layout=layout)
    for dtype in (np.complex64, np.complex128):
        mine = np.array([(comm.rank + 1) + 1j * comm.rank], dtype)
        assert allreduced(comm, mine) == 6 + 3j
        assert allreduced(comm, mine, MPI.PROD) == 4 + 7j
        assert allreduced(comm, mine, hpccoll.AVG) == 2 + 1j
        for op in (MPI.MAX, MPI.MIN):
            with pytest.raises(TypeError, match=f"{mine.dtype}.*it takes int8"):
                allreduced(comm, mine, op)
        gathered = np.empty(3, dtype)
        comm.Allgather(mine, gathered)
        assert gathered.tolist() == [1, 2 + 1j, 3 + 2j]
        comm.Bcast(mine, root=2)
        assert mine == 3 + 2j


@pytest.mark.ranks(4)
@pytest.mark.parametrize("layout", ["", "2+2"])
def test_bfloat16_is_a_number(communicator: Make, layout: str) -> None:
    """As reported in pytorch/pytorch#170073; the sum of the bits as integers would be something else."""
    comm = communicator(layout=layout)
    for count in (1, 5000):
        found = allreduced(comm, np.full(count, comm.rank + 1, ml_dtypes.bfloat16))
        assert found.dtype == ml_dtypes.bfloat16
        assert (found == 10).all()


@pytest.mark.ranks(3)
def test_long_sums_of_16_bit_floats_are_rounded_once(communicator: Make) -> None:
    comm = communicator()
    # In bfloat16, 256 + 1 is 256: summed step by step the ones would be lost.
    mine = np.full(4, [256, 1, 1][comm.rank], ml_dtypes.bfloat16)
    assert (allreduced(comm, mine) == 258).all()


@pytest.mark.ranks(4)
@pytest.mark.parametrize("layout", ["", "2+2", "1+1+1+1"])
def test_bits_of_nan_and_zero_survive_a_move(communicator: Make, layout: str) -> None:
    """As reported in pytorch/pytorch#139178 for 16-bit floats."""
    comm = communicator(layout=layout)
    bits = np.array([0x8000, 0x7E01, 0xFE55, 0x0001, 0x7C00, comm.rank], np.uint16)
    for kind in (np.float16, ml_dtypes.bfloat16):
        gathered = np.empty((4, 6), kind)
        comm.Allgather(bits.view(kind), gathered)
        everyones = np.tile(bits, (4, 1))
        everyones[:, 5] = range(4)
        assert np.array_equal(gathered.view(np.uint16), everyones)
        moved = bits.copy().view(kind)
        comm.Bcast(moved, root=3)
        assert np.array_equal(moved.view(np.uint16), everyones[3])


@pytest.mark.ranks(2)
def test_small_integers_wrap_as_in_numpy(communicator: Make) -> None:
    """As asked in NVIDIA/nccl#422."""
    comm = communicator()
    assert allreduced(comm, np.array([[120], [100]], np.int8)[comm.rank]).tolist() == [-36]
    assert allreduced(comm, np.array([[200], [100]], np.uint8)[comm.rank]).tolist() == [44]


@pytest.mark.ranks(3)
@pytest.mark.parametrize("dtype", [BOOL, *COMPLEX], ids=str)
def test_operators_that_a_type_has_not(communicator: Make, dtype: np.dtype[Any]) -> None:
    comm = communicator()
    refused = set(OPERATORS) - set(operators(dtype))
    assert refused
    for op in sorted(refused):
        receive = np.ones(2, dtype)
        with pytest.raises(hpccoll.UsageTypeError, match=rf"{op}.* is not defined for dtype {dtype}"):
            comm.Allreduce(np.zeros(2, dtype), receive, op=operator(op))
        assert receive.all(), op
