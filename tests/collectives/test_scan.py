"""Scans: each rank has what the ranks before it make together, in rank order."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from mpi4py import MPI

from tests.collectives.conftest import Make
from tests.support.layouts import layouts, on_layouts
from tests.support.oracle import BOOL, NUMBERS, Job, operators, perform, perform_all

SCANS = ("scan", "exscan")
LAYOUTS = layouts({"": (1, 2, 3), "2+1": (3,), "3+1": (4,), "cyclic:2+2": (4,)})


@pytest.mark.parametrize("collective", SCANS)
@on_layouts(1, 2, 3, 4, 5)
def test_sums_of_ranks(communicator: Make, layout: str, collective: str) -> None:
    comm = communicator(layout=layout)
    rank = comm.rank
    before = rank * (rank + 1) // 2  # the sum of 1 to rank
    for count in (1, 3001):
        for name in comm.algorithms(collective):
            got = np.full(count, -9)
            with comm.forced(name):
                (comm.Scan if collective == "scan" else comm.Exscan)(np.full(count, rank + 1), got)
            wanted = before + rank + 1 if collective == "scan" else before if rank else -9
            assert got.tolist() == [wanted] * count, f"rank {rank}: {name}"


@pytest.mark.parametrize("in_place", [False, True])
@on_layouts(1, 2, 4)
def test_the_first_rank_of_an_exscan_keeps_its_buffer(
    communicator: Make, layout: str, in_place: bool
) -> None:
    comm = communicator(layout=layout)
    for count in (1, 4, 5000):
        mine = np.arange(count) + comm.rank
        got = mine if in_place else np.full(count, -9)
        before = got.copy()
        comm.Exscan(MPI.IN_PLACE if in_place else mine, got)
        if comm.rank == 0:
            assert np.array_equal(got, before)
        else:
            ranks = comm.rank * (comm.rank - 1) // 2
            assert np.array_equal(got, comm.rank * np.arange(count) + ranks), f"rank {comm.rank}"


@pytest.mark.parametrize("dtype", [*NUMBERS, BOOL], ids=str)
@LAYOUTS
def test_every_operator_of_a_type(communicator: Make, layout: str, dtype: np.dtype[Any]) -> None:
    comm = communicator(layout=layout)
    for k, op in enumerate(one for one in operators(dtype) if one != "AVG"):
        perform_all(comm, [Job(SCANS[k % 2], 37, dtype, op, salt=k, in_place=k % 4 > 1)])
        perform(comm, Job(SCANS[1 - k % 2], 700, dtype, op, salt=k))


@pytest.mark.parametrize("dtype", ["i4", "f2", "f8", "c8"])
@layouts({"": (2,), "2+1": (3,)})
def test_the_average_is_over_the_ranks_so_far(communicator: Make, layout: str, dtype: str) -> None:
    comm = communicator(layout=layout)
    for collective in SCANS:
        perform_all(comm, [Job(collective, count, np.dtype(dtype), "AVG") for count in (37, 700)])


@pytest.mark.parametrize("collective", SCANS)
@LAYOUTS
def test_an_operator_whose_sides_matter(communicator: Make, layout: str, collective: str) -> None:
    """Each element is a number in base 16, to which the operator appends its right side's digits."""

    def append(left: Any, right: Any, datatype: MPI.Datatype) -> None:
        one, other = np.frombuffer(left, np.int64), np.frombuffer(right, np.int64)
        shifts = 4 * ((64 - _leading(other)) // 4)
        other[:] = (one << shifts) | other

    comm = communicator(layout=layout)
    digits = [int("".join(f"{k + 1:x}" for k in range(rank + 1)), 16) for rank in range(comm.size)]
    operator = MPI.Op.Create(append, commute=False)
    try:
        for count in (1, 600):
            for name in comm.algorithms(collective):
                got = np.full(count, -9)
                with comm.forced(name):
                    call = comm.Scan if collective == "scan" else comm.Exscan
                    call(np.full(count, comm.rank + 1), got, operator)
                wanted = digits[comm.rank] if collective == "scan" else [-9, *digits][comm.rank]
                assert got.tolist() == [wanted] * count, f"rank {comm.rank}: {name}"
    finally:
        operator.Free()


def _leading(numbers: Any) -> Any:
    """The zero bits before the highest hexadecimal digit that is not 0."""
    digits = np.zeros(numbers.size, np.int64)
    rest = numbers.copy()
    while rest.any():
        digits += rest != 0
        rest >>= 4
    return 64 - 4 * digits


@pytest.mark.parametrize("collective", SCANS)
@layouts({"": (2, 3), "2+1": (3,)})
def test_nan_and_infinity_reach_the_ranks_after(communicator: Make, layout: str, collective: str) -> None:
    comm = communicator(layout=layout)
    first = 1 if collective == "exscan" else 0
    for place in range(comm.size):
        for op in (MPI.MAX, MPI.MIN, MPI.SUM, MPI.PROD):
            mine = np.full(5, np.nan if comm.rank == place else 1.0)
            got = np.full(5, 2.0)
            (comm.Scan if collective == "scan" else comm.Exscan)(mine, got, op)
            reached = comm.rank >= place + first
            assert np.isnan(got).all() == reached, f"rank {comm.rank}, NaN of {place}"
            assert np.isnan(got).any() == reached, f"rank {comm.rank}, NaN of {place}"


@layouts({"": (2, 3), "2+1": (3,)})
def test_sixteen_bit_sums_are_rounded_once(communicator: Make, layout: str) -> None:
    """2048 + 1 + 1 is 2050, though in float16 2048 + 1 is 2048."""
    comm = communicator(layout=layout)
    mine = np.array([2048 if comm.rank == 0 else 1], np.float16)
    got = np.zeros(1, np.float16)
    comm.Scan(mine, got)
    assert got.tolist() == [np.float16(2048 + comm.rank)], f"rank {comm.rank}"
