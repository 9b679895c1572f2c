"""Splits, devices, threads, memory."""

from __future__ import annotations

import threading

import numpy as np
from cuda.core import Device
from nccl import core
from nccl.bindings import nccl as low
from nccl.core import Communicator, NCCLConfig

from tests.emulation.nccl_programs.support import (
    ARGUMENT,
    MAX,
    RANK,
    SIZE,
    USAGE,
    Array,
    communicator,
    open_device,
    opened,
    program,
    ramp,
    same,
    status,
)


@program
def splits() -> None:
    """Colours, keys, no colour; children work at once; a child inherits or has its own configuration."""
    with opened() as (comm, stream):
        half = comm.split(RANK % 2, -RANK)
        members = [rank for rank in range(SIZE - 1, -1, -1) if rank % 2 == RANK % 2]
        assert (half.nranks, half.rank) == (len(members), members.index(RANK)), half
        value = Array(np.array([float(RANK)]))
        result = Array(np.zeros(1))
        half.allreduce(value, result, core.SUM, stream=stream)
        comm.allreduce(value, value, core.SUM, stream=stream)
        stream.sync()
        same(result.get(), [sum(members)])
        same(value.get(), [sum(range(SIZE))])
        only = comm.split(None if RANK == 0 else 7, 0)
        assert only.is_valid == (RANK != 0)
        if RANK:
            assert (only.nranks, only.rank) == (SIZE - 1, RANK - 1)
            only.destroy()
        assert status(lambda: comm.split(-5))[0] == ARGUMENT
        again = comm.split(0, 0, NCCLConfig(comm_name="again"))
        again.finalize()
        code, text = status(lambda: again.allreduce(value, value, core.SUM, stream=stream))
        assert code == USAGE, (code, text)
        again.destroy()
        half.destroy()


@program
def one_device() -> None:
    """All ranks on device 0."""
    stream = open_device(0)
    code, text = status(lambda: communicator())
    assert code == USAGE, (code, text)
    assert "Multiple Ranks are using the same GPU/Partition" in text
    stream.sync()


@program
def one_device_allowed() -> None:
    stream = open_device(0)
    comm = communicator()
    value = Array(np.ones(10))
    comm.allreduce(value, value, core.SUM, stream=stream)
    stream.sync()
    same(value.get(), np.full(10, SIZE))
    comm.destroy()


@program
def device_order() -> None:
    """The communicator belongs to the device that is current when it is made, whatever its number."""
    stream = open_device(3 - RANK)
    comm = communicator()
    assert comm.device.device_id == 3 - RANK
    value = Array(np.ones(10))
    comm.allreduce(value, value, core.SUM, stream=stream)
    stream.sync()
    same(value.get(), np.full(10, SIZE))
    comm.destroy()


@program
def threads() -> None:
    """Four devices of one process: operations of all ranks in one group, in one thread."""
    devices = 4
    comms = Communicator.init_all(list(range(devices)))
    streams, values = [], []
    for number in range(devices):
        streams.append(open_device(number))
        values.append(Array(ramp(30000, number)))
    for _ in range(3):
        with core.group():
            for comm, stream, value in zip(comms, streams, values, strict=True):
                comm.allreduce(value, value, core.MAX, stream=stream)
    with core.group():
        for number, comm in enumerate(comms):
            Device(number).set_current()
            comm.allreduce(values[number], values[number], core.SUM, stream=streams[number])
    for number, stream in enumerate(streams):
        stream.sync()
        Device(number).set_current()
        same(values[number].get(), devices * ramp(30000, devices - 1))
    for comm in comms:  # one after the other, as programs do
        comm.destroy()
    with core.group():
        pass


@program
def memory() -> None:
    """Memory from NCCL, registration, memory that is freed before its operation runs."""
    with opened() as (comm, stream):
        buffer = core.mem_alloc(4096)
        registered = comm.register_buffer(buffer)
        low.all_reduce(int(buffer.handle), int(buffer.handle), 512, 8, MAX, comm._comm, int(stream.handle))
        stream.sync()
        registered.close()
        core.mem_free(buffer)


@program
def windows() -> None:
    """All ranks register buffers of one size; each lets go of its own."""
    with opened() as (comm, stream):
        for _ in range(2):
            buffer = core.mem_alloc(4096)
            window = comm.register_window(buffer, core.WindowFlag.COLL_SYMMETRIC)
            assert window.handle
            low.all_reduce(
                int(buffer.handle), int(buffer.handle), 512, 8, MAX, comm._comm, int(stream.handle)
            )
            stream.sync()
            if RANK == 0:
                window.close()
        large, small = core.mem_alloc(8192), core.mem_alloc(4096)
        code, text = status(lambda: comm.register_window(large if RANK == 0 else small))
        assert code == ARGUMENT, (code, text)


@program
def info_lines() -> None:
    with opened():
        pass


@program
def ranks_of_threads() -> None:
    """Four threads of one process are the ranks: each initialises, works and destroys on its own."""
    unique = core.get_unique_id()
    errors: list[BaseException] = []

    def rank(number: int) -> None:
        try:
            stream = open_device(number)
            comm = Communicator.init(4, number, unique)
            value = Array(ramp(5000, number))
            for _ in range(5):
                comm.allreduce(value, value, core.MAX, stream=stream)
            child = comm.split(number // 2, 0)
            child.allreduce(value, value, core.SUM, stream=stream)
            stream.sync()
            same(value.get(), 2 * ramp(5000, 3))
            child.destroy()
            comm.destroy()
        except BaseException as error:
            errors.append(error)

    workers = [threading.Thread(target=rank, args=(number,)) for number in range(4)]
    for worker in workers:
        worker.start()
    for worker in workers:
        worker.join()
    if errors:
        raise errors[0]
