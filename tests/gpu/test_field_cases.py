"""What went wrong in the field for others, on arrays of CuPy: types, memory orders, in place, staging."""

from __future__ import annotations

from typing import Any

import cupy
import ml_dtypes
import numpy as np
import pytest
from mpi4py import MPI

import hpccoll
from tests.collectives.conftest import Make
from tests.gpu.memory import mirror, perform
from tests.support.layouts import layouts
from tests.support.oracle import COLLECTIVES, Job


def reduced(comm: Any, values: Any, op: Any = MPI.SUM, dtype: Any = None) -> Any:
    """The all-reduce of CuPy's arrays, on the host."""
    send = cupy.asarray(np.asarray(values, dtype))
    receive = cupy.zeros_like(send)
    comm.Allreduce(send, receive, op)
    return receive.get()


@layouts({"2+2": (4,), "": (4,)})
def test_averages_of_integers(communicator: Make, layout: str, device: int) -> None:
    comm = communicator(layout=layout)
    for given, wanted in (((3, 2, 3, 0), 2), ((-3, 0, 0, 0), 0), ((1, 2, 3, 4), 2), ((-5, -4, 0, 0), -2)):
        on_host = np.zeros(1, "i4")
        comm.Allreduce(np.array([given[comm.rank]], "i4"), on_host, hpccoll.AVG)
        assert reduced(comm, [given[comm.rank]], hpccoll.AVG, "i4") == on_host == wanted


@layouts({"": (2,)})
def test_small_integers_wrap(communicator: Make, layout: str, device: int) -> None:
    comm = communicator(layout=layout)
    given = [(120, 100)[comm.rank]]
    assert reduced(comm, given, dtype="i1") == -36
    wide = cupy.zeros(1, "i4")
    comm.Allreduce(cupy.asarray(np.array(given, "i1")), wide, hpccoll.accumulate(MPI.SUM, "i4"))
    assert wide.get() == 220


@layouts({"": (3,)})
def test_complex_numbers(communicator: Make, layout: str, device: int) -> None:
    comm = communicator(layout=layout)
    given = [comm.rank + 1 + 1j * comm.rank]
    for op, wanted in ((MPI.SUM, 6 + 3j), (MPI.PROD, 1 * (2 + 1j) * (3 + 2j)), (hpccoll.AVG, 2 + 1j)):
        assert reduced(comm, given, op, "c8") == wanted
    for op in (MPI.MAX, MPI.MIN):
        with pytest.raises(TypeError):
            reduced(comm, given, op, "c8")
    every = cupy.zeros(3, "c16")
    comm.Allgather(cupy.asarray(given), every)
    assert (every.get() == [1, 2 + 1j, 3 + 2j]).all()


@layouts({"": (4,), "2+2": (4,)})
def test_halves(communicator: Make, layout: str, device: int, stream: int) -> None:
    comm = communicator(layout=layout)
    assert (reduced(comm, [30_000], hpccoll.AVG, "f2") == 30_000).all()
    assert np.isinf(reduced(comm, [30_000], MPI.SUM, "f2"))
    assert (reduced(comm, [6e-8], hpccoll.AVG, "f2") == np.float16(6e-8)).all()
    receive = mirror(np.zeros(2), stream, ml_dtypes.bfloat16)
    comm.Allreduce(mirror([comm.rank + 1, 0.5], stream, ml_dtypes.bfloat16), receive)
    assert (receive.download() == np.array([10, 2])).all()
    special = np.array([0x7E01, 0x8000, 0xFC00, 0x0001], "u2").view("f2")  # NaN with a payload, -0, -inf
    every = cupy.zeros((4, 4), "f2")
    comm.Allgather(cupy.asarray(special), every)
    assert (every.get().view("u2") == special.view("u2")).all()


@layouts({"": (2,)})
def test_different_memory_orders(communicator: Make, layout: str, device: int) -> None:
    comm = communicator(layout=layout)
    order = "CF"[comm.rank]
    send = cupy.asarray(np.arange(6.0).reshape(2, 3), order=order)
    receive = cupy.zeros((2, 3), order=order)
    comm.Allreduce(send, receive)
    assert (receive.get() == 2 * np.arange(6.0).reshape(2, 3)).all()
    buffer = send if comm.rank == 1 else cupy.zeros((2, 3))
    comm.Bcast(buffer, root=1)
    assert (buffer.get() == np.arange(6.0).reshape(2, 3)).all()


@layouts({"": (2, 3), "2+2": (4,)})
def test_in_place_as_on_the_host(communicator: Make, layout: str, device: int) -> None:
    comm = communicator(layout=layout)
    size, rank = comm.size, comm.rank

    def calls(make: Any) -> list[Any]:
        every = make(np.full(size, -1.0))
        every[rank] = rank
        comm.Allgather(MPI.IN_PLACE, every)
        gathered = make(np.full(size, -1.0))
        gathered[rank] = rank
        if rank == 1:
            comm.Gather(MPI.IN_PLACE, gathered, root=1)
        else:
            comm.Gather(gathered[rank : rank + 1], None, root=1)
        scattered = make(np.arange(float(sum(range(1, size + 1)))) + rank)
        comm.Reduce_scatter(MPI.IN_PLACE, scattered, list(range(1, size + 1)))
        even = make(np.arange(2.0 * size) + rank)
        comm.Reduce_scatter_block(MPI.IN_PLACE, even)
        return [every, gathered, scattered, even]

    for found, wanted in zip(calls(cupy.asarray), calls(np.array), strict=True):
        assert (found.get() == wanted).all()


@layouts({"": (1,), "2+2": (4,), "3+1": (4,)})
def test_in_place_at_every_root(communicator: Make, layout: str, device: int) -> None:
    comm = communicator(layout=layout)
    for root in range(comm.size):
        array = cupy.asarray([comm.rank + 1.0])
        if comm.rank == root:
            comm.Reduce(MPI.IN_PLACE, array, root=root)
            assert array.get() == sum(range(1, comm.size + 1))
        else:
            comm.Reduce(array, None, root=root)
            assert array.get() == comm.rank + 1
    if comm.size > 1:
        with pytest.raises(hpccoll.UsageError, match="IN_PLACE on rank 1"):
            comm.Reduce(MPI.IN_PLACE, cupy.zeros(5), root=0)


@layouts({"": (2,)})
def test_staged_in_all_sizes(communicator: Make, layout: str, stream: int) -> None:
    """Without NCCL, and with an MPI that cannot take an address of a device."""
    comm = communicator(layout=layout, device_path="host", device_messages="host")
    for collective in COLLECTIVES:
        for nbytes in (8, 4096, 65_536, 1 << 20):
            perform(comm, Job(collective, nbytes // 8), stream)
    for collective in ("allreduce", "broadcast", "alltoall"):
        perform(comm, Job(collective, (64 << 20) // 8, np.dtype("f8")), stream)
    array, other = mirror(np.full(1 << 20, comm.rank), stream), mirror(np.zeros(1 << 20, int), stream)
    comm.Sendrecv(array, 1 - comm.rank, recvbuf=other, source=1 - comm.rank)
    assert (other.download() == 1 - comm.rank).all()
