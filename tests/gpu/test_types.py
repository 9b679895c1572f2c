"""Operators and dtypes on devices: the host's answer, by NCCL or over the host."""

from __future__ import annotations

from itertools import permutations

import ml_dtypes
import numpy as np
import pytest
from mpi4py import MPI

import hpccoll
from hpccoll.dtypes import ROWS
from hpccoll.ops.on_device import over_nccl, travel
from hpccoll.ops.table import arithmetic, operator_of
from hpccoll.runtime.device_combining import SHORT_BYTES
from tests.collectives.conftest import Make
from tests.gpu.memory import mirror, perform, perform_all
from tests.support.layouts import layouts
from tests.support.oracle import Job, every_place, every_root
from tests.support.oracle.elements import BOOL, NUMBERS, operators


@layouts({"": (2,), "2+2": (4,), "3+1": (4,)})
@pytest.mark.parametrize("dtype", [*NUMBERS, BOOL], ids=str)
def test_every_operator(communicator: Make, layout: str, stream: int, dtype: np.dtype) -> None:
    comm = communicator(layout=layout)
    for op in operators(dtype):
        reductions = ("allreduce", "reduce", "reduce_scatter", "scan", "exscan")
        perform_all(comm, [Job(collective, 17, dtype, op) for collective in reductions], stream)


@layouts({"": (2,), "2+2": (4,)})
def test_any_dtype_is_moved(communicator: Make, layout: str, stream: int) -> None:
    comm = communicator(layout=layout)
    for code in ("i2", "c8", "M8[s]", "u2,f8", "?", "S3"):
        for collective in ("broadcast", "allgather", "gather", "scatter", "alltoall"):
            perform_all(comm, [Job(collective, 5, np.dtype(code))], stream)


@layouts({"": (4,), "2+2": (4,), "3+1": (4,)})
@pytest.mark.parametrize("dtype", ["f4", "f8", "f2", "bfloat16", "float8_e5m2", "float8_e4m3fn"])
def test_nan_under_max_and_min(communicator: Make, layout: str, stream: int, dtype: str) -> None:
    comm = communicator(layout=layout)
    kind, before = np.dtype(getattr(ml_dtypes, dtype, dtype)), comm.tally()
    for values in permutations((2, np.nan, 5, -7)):
        for op in (MPI.MAX, MPI.MIN):
            send, receive = mirror([values[comm.rank]], stream, kind), mirror([0], stream, kind)
            comm.Allreduce(send, receive, op)
            assert np.isnan(receive.download().astype("f4")).all()
    for op, wanted in ((MPI.MAX, 2), (MPI.MIN, -6)):
        send, receive = mirror([2 - 4.0 * (comm.rank % 3)], stream, kind), mirror([0], stream, kind)
        comm.Allreduce(send, receive, op)
        assert receive.download().astype("f4") == wanted
    assert set(comm.tally() - before) == {("allreduce", "flat")}


@layouts({"": (2, 3), "2+2": (4,), "3+1": (4,)})
def test_kernels_on_short_and_long_buffers(communicator: Make, layout: str, stream: int) -> None:
    comm = communicator(layout=layout)
    reductions = ("allreduce", "reduce", "reduce_scatter", "scan", "exscan")
    for count in (1, 5, SHORT_BYTES // 8 // comm.size + 1):
        for dtype, op in (("f8", "MAX"), ("c16", "PROD"), ("i2", "BXOR"), ("?", "LAND")):
            jobs = [Job(collective, count, np.dtype(dtype), op) for collective in reductions]
            perform_all(comm, every_root(every_place(jobs), comm.size), stream)


@layouts({"": (2,), "2+2": (4,)})
def test_pairs_of_value_and_index(communicator: Make, layout: str, stream: int) -> None:
    comm = communicator(layout=layout)
    for code in ("f4,i4", "f8,i4", "i2,i4", "i8,i4", "f2,i4"):
        dtype = np.dtype(code, align=True)
        send = np.zeros(5, dtype)
        send["f0"] = [comm.rank, -comm.rank, 7, 3, comm.rank == 1]
        send["f1"] = np.arange(5) + 10 * (comm.size - comm.rank)
        for op in (MPI.MINLOC, MPI.MAXLOC):
            on_host, receive = np.zeros(5, dtype), mirror(np.zeros(5, dtype), stream)
            comm.Allreduce(send, on_host, op)
            comm.Allreduce(mirror(send, stream), receive, op)
            assert (receive.download() == on_host).all(), code


@layouts({"": (4,), "2+2": (4,), "3+1": (4,), "cyclic:2+2": (4,)})
def test_reproducible_sums_have_the_bits_of_a_sum_in_rank_order(
    communicator: Make, layout: str, stream: int
) -> None:
    comm = communicator(layout=layout, reproducible=True)
    for dtype in ("f4", "c16"):
        for count in (7, 40_000):
            rows = np.random.default_rng(1).standard_normal((comm.size, count)).astype(dtype)
            receive = mirror(np.zeros(count, dtype), stream)
            comm.Allreduce(mirror(rows[comm.rank], stream), receive)
            wanted = rows[0].copy()
            for row in rows[1:]:
                wanted += row
            assert receive.download().tobytes() == wanted.tobytes()


@layouts({"3+1": (4,), "": (2,)})
def test_average_is_one_division(communicator: Make, layout: str, stream: int) -> None:
    comm = communicator(layout=layout)
    receive = mirror(np.zeros(1), stream)
    comm.Allreduce(mirror([4.0 * (comm.rank == comm.size - 1)], stream), receive, hpccoll.AVG)
    assert receive.download()[0] == 4 / comm.size
    integers = mirror(np.zeros(3, int), stream)
    comm.Allreduce(mirror(np.array([1, 2, 3]) + 2 * comm.rank, stream), integers, hpccoll.AVG)
    wanted = sum(np.array([1, 2, 3]) + 2 * rank for rank in range(comm.size)) // comm.size
    assert (integers.download() == wanted).all()


@layouts({"": (2,), "2+2": (4,)})
def test_scaled_sum_and_accumulate(communicator: Make, layout: str, stream: int) -> None:
    comm = communicator(layout=layout)
    receive = mirror(np.zeros(8, "f4"), stream)
    for name in ("flat", "reduce_ring_broadcast"):
        if name in comm.algorithms("allreduce"):
            with comm.forced(name):
                comm.Allreduce(
                    mirror(np.full(8, 4, "f4"), stream), receive, hpccoll.scaled_sum(0.25 * (comm.rank + 1))
                )
            assert (receive.download() == sum(range(1, comm.size + 1))).all()
    wide = mirror(np.zeros(2, "f8"), stream)
    comm.Allreduce(mirror(np.ones(2, "f4"), stream), wide, hpccoll.accumulate(MPI.SUM, "float64"))
    assert (wide.download() == comm.size).all()


@layouts({"": (4,), "2+2": (4,), "cyclic:2+2": (4,)})
@pytest.mark.parametrize("dtype", ["f4", "f2"])
def test_every_rank_gets_the_same_bits(
    world: MPI.Intracomm, communicator: Make, layout: str, stream: int, dtype: str
) -> None:
    comm = communicator(layout=layout)
    random = np.random.default_rng(comm.rank)
    for count in (1, 7, 10_007):
        receive = mirror(np.zeros(count, dtype), stream)
        comm.Allreduce(mirror(random.standard_normal(count), stream, dtype), receive)
        bits = world.allgather(receive.download().tobytes())
        assert bits == [bits[0]] * comm.size


@pytest.mark.ranks(2)
def test_reproducible_sums_of_halves_go_over_the_host(communicator: Make, stream: int) -> None:
    comm = communicator(reproducible=True, small_bytes=0, algorithm="allreduce:fold")
    perform(comm, Job("allreduce", 33, np.dtype("f2")), stream)
    perform(comm, Job("allreduce", 33, np.dtype("f4")), stream)
    perform(comm, Job("allreduce", 33, np.dtype("i4")), stream)
    assert comm.tally() == {("allreduce", "fold"): 1, ("allreduce", "flat"): 2}


def test_what_goes_over_nccl() -> None:
    known = {
        "float32": "SUM PROD AVG scaled_sum", "bfloat16": "SUM PROD AVG scaled_sum", "complex64": "SUM AVG",
        "int16": "", "int32": "SUM PROD MAX MIN", "uint8": "SUM PROD MAX MIN", "bool": "",
        "float8_e4m3fn": "",
    }  # fmt: skip
    names = ("SUM", "PROD", "AVG", "scaled_sum", "MAX", "MIN", "BAND", "LAND")
    for dtype, wanted in known.items():
        assert " ".join(name for name in names if over_nccl(name, ROWS[dtype])) == wanted
    for swapped in (">f4", ">i8"):
        how = arithmetic(operator_of(MPI.SUM), np.dtype(swapped))
        assert travel(how, np.dtype(swapped)) is None
