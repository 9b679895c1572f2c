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
from tests.gpu.memory import Mirror, mirror, perform_all
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


SMALL_FLOATS = [np.dtype(getattr(ml_dtypes, name, name)) for name in (
    "float16", "bfloat16", "float8_e5m2", "float8_e4m3fn",
)]  # fmt: skip


@layouts({"": (3,), "2+2": (4,)})
@pytest.mark.parametrize("dtype", SMALL_FLOATS, ids=str)
def test_small_floats_are_combined_in_float32(
    communicator: Make, layout: str, stream: int, dtype: np.dtype
) -> None:
    """Every pattern of bits that there is, rounded once: ties, numbers below normal ones, NaN, infinity."""
    comm = communicator(layout=layout, reproducible=True)
    patterns = np.arange(1 << 8 * dtype.itemsize, dtype=f"u{dtype.itemsize}")
    rows = [np.random.default_rng(rank).permutation(patterns).view(dtype) for rank in range(comm.size)]
    for op in (MPI.SUM, MPI.PROD, hpccoll.AVG):
        receive = mirror(np.zeros(patterns.size, dtype), stream)
        comm.Allreduce(mirror(rows[comm.rank], stream), receive, op)
        with np.errstate(all="ignore"):
            wanted = rows[0].astype("f4")
            for row in rows[1:]:
                wanted = wanted * row.astype("f4") if op == MPI.PROD else wanted + row.astype("f4")
            wanted = (wanted / np.float32(comm.size) if op is hpccoll.AVG else wanted).astype(dtype)
        found = receive.download()
        same = (found == wanted) | (np.isnan(found.astype("f4")) & np.isnan(wanted.astype("f4")))
        assert same.all(), (op, rows[0][~same][:3], rows[1][~same][:3], found[~same][:3], wanted[~same][:3])
    assert set(comm.tally()) == {("allreduce", "flat")}


@layouts({"": (3,), "2+2": (4,)})
def test_accumulate_in_a_larger_dtype(communicator: Make, layout: str, stream: int) -> None:
    """Each rank may give elements of another dtype; all their values arrive."""
    comm = communicator(layout=layout)
    comm.Allreduce(mirror([1.0], stream), mirror([1.0], stream))
    before = set(comm._context.on_devices._kinds)
    plain = [np.dtype(code) for code in "?bhilBHILfdFD"]
    for into in map(np.dtype, ("i8", "f4", "f8", "c16")):
        fitting = [dtype for dtype in (*plain, *SMALL_FLOATS) if np.can_cast(dtype, into, "safe")]
        fitting += [dtype.newbyteorder(">") for dtype in plain if np.can_cast(dtype, into, "safe")]
        for turn in range(len(fitting)):
            dtype = fitting[(turn + comm.rank) % len(fitting)]
            values = np.array([0, 1, 1, 0, 1], "i1")
            send = (values * (1 + 2j) if dtype.kind == "c" else values).astype(dtype)
            for op in (MPI.SUM, hpccoll.AVG, hpccoll.scaled_sum(2)):
                rule = hpccoll.accumulate(op, into)
                on_host, receive = np.zeros(5, into), mirror(np.zeros(5, into), stream)
                comm.Allreduce(send, on_host, rule)
                comm.Allreduce(mirror(send, stream), receive, rule)
                assert (receive.download() == on_host).all(), (dtype, into, op)
    over_host = [key for key, kind in comm._context.on_devices._kinds.items() if kind is None]
    assert {key[1] for key in over_host if key not in before} <= {
        np.dtype("i8"),
        np.dtype("c16"),
    }  # scaled sums


@layouts({"": (2,), "2+2": (4,)})
@pytest.mark.parametrize("collective", ["allreduce", "reduce", "reduce_scatter", "scan", "exscan"])
def test_accumulate_in_every_reduction(communicator: Make, layout: str, stream: int, collective: str) -> None:
    comm = communicator(layout=layout)
    count, name = 6, {"reduce_scatter": "Reduce_scatter_block"}.get(collective, collective.capitalize())
    given = count * (comm.size if collective == "reduce_scatter" else 1)
    memory = np.zeros(2 * given + 1, np.uint8)
    askew = memory[1:].view(ml_dtypes.bfloat16)
    askew[...] = np.arange(given) * (comm.rank + 1)
    for send in (askew.copy(), askew):
        on_host, receive = np.zeros(count, "f4"), mirror(np.zeros(count, "f4"), stream)
        rule = hpccoll.accumulate(MPI.SUM, "f4")
        getattr(comm, name)(send, on_host, rule)
        getattr(comm, name)(Mirror(send, stream), receive, rule)
        assert (receive.download() == on_host).all()
    over_host = [key for key, kind in comm._context.on_devices._kinds.items() if kind is None]
    assert not [key for key in over_host if key[0] == collective and key[1] == np.float32]


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
