"""Arrays that say CUDA: on a device or on the host after all, and empty ones, which are nowhere."""

from __future__ import annotations

from typing import Any

import cupy
import numpy as np
import pytest
from mpi4py import MPI

import hpccoll
from hpccoll.arrays.device import device_array, home_of
from hpccoll.arrays.foreign import on_device
from tests.collectives.conftest import Make
from tests.support.layouts import layouts


class Shown:
    """Doubles at an address, of a library that nobody knows."""

    def __init__(self, address: int, count: int, keep: Any = None) -> None:
        self.keep = keep
        self.__cuda_array_interface__ = {
            "version": 3, "shape": (count,), "typestr": "<f8", "data": (address, False), "strides": None,
        }  # fmt: skip


def test_the_driver_knows_what_is_on_a_device(device: int) -> None:
    array, host = cupy.zeros(64), np.zeros(64)
    end = array.data.ptr + array.nbytes
    for address, count, wanted in (
        (array.data.ptr, 64, True),
        (array.data.ptr + 8, 0, True),
        (end, 0, True),  # an empty slice just behind its memory
        (host.ctypes.data, 64, False),
        (host.ctypes.data, 0, False),
        (0, 0, False),
    ):
        assert on_device(Shown(address, count)) is wanted, (address, count)
    assert on_device(cupy.zeros(0))
    assert home_of(device_array(Shown(end, 0), "buf")).device == device
    assert home_of(device_array(Shown(0, 0), "buf")).device == device


@pytest.mark.ranks(2)
@pytest.mark.parametrize("count", [0, 3])
def test_memory_of_the_host_that_says_cuda(world: MPI.Intracomm, device: int, count: int) -> None:
    with hpccoll.Communicator(world) as comm:
        values = np.full(count, comm.rank + 1.0)
        comm.Allreduce(MPI.IN_PLACE, Shown(values.ctypes.data, count, values))
        assert (values == 3).all()
        # Of one rank nothing comes, from no place at all, as of an empty array.array.
        empty = Shown(0, 0)
        counts = [count, 0]
        every = np.zeros(count)
        give = Shown(values.ctypes.data, count) if comm.rank == 0 else empty
        comm.Gatherv(give, [Shown(every.ctypes.data, count), counts] if comm.rank == 0 else None)
        assert (every == (3 if comm.rank == 0 else 0)).all()
        assert comm.device_path == ""


@pytest.mark.ranks(2)
def test_the_first_array_of_all_is_empty(world: MPI.Intracomm, device: int) -> None:
    with hpccoll.Communicator(world) as comm:
        for array in (Shown(cupy.zeros(8).data.ptr + 8, 0), cupy.zeros(0)):
            comm.Allreduce(MPI.IN_PLACE, array)
        array = cupy.ones(4)
        comm.Allreduce(MPI.IN_PLACE, array)
        assert (array.get() == comm.size).all()
        assert comm.device_path == "nccl"


@pytest.mark.ranks(2)
def test_an_empty_array_goes_with_the_other_one(world: MPI.Intracomm, device: int) -> None:
    with hpccoll.Communicator(world) as comm:
        counts = [0, 2]
        every = cupy.zeros(2)
        give = np.zeros(0) if comm.rank == 0 else cupy.ones(2)
        comm.Allgatherv(give, [every, counts])
        assert every.get().tolist() == [1, 1]
        comm.Scatterv([every, counts] if comm.rank == 1 else None, cupy.zeros(2 * comm.rank), root=1)
        with pytest.raises(hpccoll.UsageError, match="sendbuf is on the host, recvbuf on a device"):
            comm.Allreduce(np.ones(2), every)


@layouts({"": (2,), "2+2": (4,)})
@pytest.mark.parametrize("memory", ["pool", "asynchronous pool", "managed", "none of a pool"])
def test_memory_of_every_allocator_of_cupy(
    communicator: Make, layout: str, device: int, stream: int, memory: str
) -> None:
    allocators = {
        "pool": cupy.cuda.MemoryPool().malloc,
        "asynchronous pool": cupy.cuda.malloc_async,
        "managed": cupy.cuda.MemoryPool(cupy.cuda.malloc_managed).malloc,
        "none of a pool": cupy.cuda.memory._malloc,
    }
    comm = communicator(layout=layout)
    with cupy.cuda.using_allocator(allocators[memory]):
        for op in (MPI.SUM, MPI.MAX):  # by NCCL, and by a kernel
            send, receive = cupy.full((4, 6), comm.rank, "f8"), cupy.zeros((4, 6))
            comm.Allreduce(send[:, ::2], receive[::-1, :3], op)
            ranks = range(comm.size)
            assert (receive[:, :3].get() == (sum(ranks) if op == MPI.SUM else max(ranks))).all()
            assert (receive[:, 3:].get() == 0).all()
        comm.Sendrecv(send, (comm.rank + 1) % comm.size, recvbuf=receive, source=(comm.rank - 1) % comm.size)
        assert (receive.get() == (comm.rank - 1) % comm.size).all()
