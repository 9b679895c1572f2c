"""Non-blocking communicators, abort, faults, ranks that do not come."""

from __future__ import annotations

import time

import numpy as np
from cuda.bindings import driver
from cuda.core import Device
from nccl import core
from nccl.bindings import nccl as low
from nccl.core import Communicator, NCCLConfig

from tests.emulation.nccl_programs.support import (
    ARGUMENT,
    PROGRESS,
    RANK,
    REMOTE,
    SIZE,
    SUCCESS,
    SUM,
    SYSTEM_ERROR,
    WORLD,
    Array,
    agreed_id,
    checked,
    communicator,
    first_operation,
    open_device,
    opened,
    pending,
    program,
    same,
    settled,
    state,
    status,
    wait,
)


@program
def nonblocking() -> None:
    """Calls return at once while other ranks are not there; the state says when they are done."""
    stream = open_device()
    unique = agreed_id()
    if RANK == 1:
        time.sleep(0.5)
    begin = time.monotonic()
    comm = Communicator.init(SIZE, RANK, unique, NCCLConfig(blocking=False))
    assert time.monotonic() - begin < 0.3
    if RANK == 0:
        assert state(comm) == PROGRESS
        value = Array(np.ones(4))
        code, text = status(lambda: comm.allreduce(value, value, core.SUM, stream=stream))
        assert code == ARGUMENT, (code, text)
        assert "before the previous operation" in text
    assert settled(comm) == SUCCESS
    WORLD.Barrier()
    if RANK == 1:
        time.sleep(0.5)
    value = Array(np.ones(4))
    comm.allreduce(value, value, core.SUM, stream=stream)  # the first one makes connections
    if RANK == 0:
        assert state(comm) == PROGRESS
    assert settled(comm) == SUCCESS
    comm.allreduce(value, value, core.SUM, stream=stream)
    assert state(comm) == SUCCESS
    stream.sync()
    same(value.get(), np.full(4, SIZE**2))
    child = comm.split(0, 0)
    assert settled(comm) == SUCCESS
    assert child.is_valid
    assert settled(child) == SUCCESS
    assert child.nranks == SIZE
    child.finalize()
    assert settled(child) == SUCCESS
    child.destroy()
    comm.finalize()
    assert settled(comm) == SUCCESS
    comm.destroy()


@program
def nobody_comes() -> None:
    """Only rank 0 initialises: without end, until it gives up."""
    open_device()
    unique = agreed_id()
    if RANK == 0:
        comm = Communicator.init(SIZE, RANK, unique, NCCLConfig(blocking=False))
        assert not wait(lambda: state(comm) != PROGRESS, 1.0)
        begin = time.monotonic()
        comm.abort()
        assert time.monotonic() - begin < 1.0
    WORLD.Barrier()


@program
def abort_reaches_peers() -> None:
    """Rank 1 aborts instead of coming to the second operation: those of the others end with an error."""
    stream = open_device()
    comm = communicator()
    value = Array(np.ones(100000))
    first_operation(comm, stream, value)
    if RANK == 1:
        time.sleep(0.3)
        comm.abort()
    else:
        comm.allreduce(value, value, core.SUM, stream=stream)
        begin = time.monotonic()
        stream.sync()
        assert time.monotonic() - begin < 5
        assert state(comm) == REMOTE
        assert status(lambda: comm.allreduce(value, value, core.SUM, stream=stream))[0] == REMOTE
        comm.abort()
    WORLD.Barrier()


@program
def abort_reaches_nobody() -> None:
    """As inside a node: the others' operations go on waiting, without an error, until they abort as well."""
    stream = open_device()
    comm = communicator()
    value = Array(np.ones(100000))
    first_operation(comm, stream, value)
    if RANK == 1:
        comm.abort()
    else:
        comm.allreduce(value, value, core.SUM, stream=stream)
        comm.allreduce(value, value, core.SUM, stream=stream)
        assert pending(stream, 1.0)
        assert state(comm) == SUCCESS
        comm.abort()
        stream.sync()
    WORLD.Barrier()


@program
def fault_async() -> None:
    """STANDIN_NCCL_FAULT=async:1:2"""
    stream = open_device()
    comm = communicator()
    value = Array(np.ones(10))
    first_operation(comm, stream, value)
    assert state(comm) == SUCCESS
    comm.allreduce(value, value, core.SUM, stream=stream)
    assert pending(stream)
    if RANK == 1:
        assert state(comm) == REMOTE
    WORLD.Barrier()
    comm.abort()
    stream.sync()


@program
def fault_absent() -> None:
    """STANDIN_NCCL_FAULT=absent:0:2@named: all wait, nobody has an error; other communicators work."""
    stream = open_device()
    comm, other = communicator(comm_name="named"), communicator(comm_name="other")
    value = Array(np.ones(10))
    first_operation(comm, stream, value)
    for _ in range(3):
        first_operation(other, stream, value)
    comm.allreduce(value, value, core.SUM, stream=stream)
    assert pending(stream, 0.5)
    assert state(comm) == SUCCESS
    WORLD.Barrier()
    comm.abort()
    stream.sync()
    other.destroy()


@program
def fault_init() -> None:
    """STANDIN_NCCL_FAULT=init:1: that rank has an error, the others wait."""
    open_device()
    unique = agreed_id()
    config = NCCLConfig(blocking=False)
    comm = Communicator.init(SIZE, RANK, unique, config)
    if RANK == 1:
        assert settled(comm) == SYSTEM_ERROR
    else:
        assert not wait(lambda: state(comm) != PROGRESS, 0.7)
    comm.abort()
    WORLD.Barrier()


@program
def fault_late() -> None:
    """STANDIN_NCCL_FAULT=late:1:300"""
    with opened() as (comm, stream):
        value = Array(np.ones(10))
        begin = time.monotonic()
        comm.allreduce(value, value, core.SUM, stream=stream)
        stream.sync()
        assert time.monotonic() - begin > 0.28
        same(value.get(), np.full(10, SIZE))


@program
def first_use_waits() -> None:
    """The first message between two ranks makes a connection: the sender's call waits for the receiver's."""
    with opened() as (comm, stream):
        value = Array(np.ones(10))
        WORLD.Barrier()
        begin = time.monotonic()
        if RANK == 0:
            comm.send(value, 1, stream=stream)
            assert time.monotonic() - begin > 0.4
        elif RANK == 1:
            time.sleep(0.5)
            comm.recv(value, 0, stream=stream)
        stream.sync()
        WORLD.Barrier()
        begin = time.monotonic()
        if RANK == 0:
            comm.send(value, 1, stream=stream)
            assert time.monotonic() - begin < 0.4
        elif RANK == 1:
            time.sleep(0.5)
            comm.recv(value, 0, stream=stream)


@program
def timeout() -> None:
    """STANDIN_NCCL_TIMEOUT_S=1: an operation that nobody joins ends with an error."""
    stream = open_device()
    comm = communicator()
    value = Array(np.ones(10))
    first_operation(comm, stream, value)
    if RANK == 0:
        comm.allreduce(value, value, core.SUM, stream=stream)
        stream.sync()
        assert state(comm) == REMOTE
    WORLD.Barrier()
    comm.abort()


@program
def destroy_waits() -> None:
    """ncclCommDestroy is a call of all processes, without ncclCommFinalize before it as well."""
    open_device()
    comm = communicator()
    WORLD.Barrier()
    begin = time.monotonic()
    if RANK == 1:
        time.sleep(0.6)
    comm.destroy()
    assert time.monotonic() - begin > 0.5


@program
def freed_memory() -> None:
    """Memory that is freed before its operation runs: an illegal address, and a broken context."""
    stream, other = open_device(), Device(RANK).create_stream()
    comm = communicator()
    address = int(checked(driver.cuMemAllocAsync(800, int(stream.handle))))
    stream.sync()
    low.all_reduce(address, address, 100, 8, SUM, comm._comm, int(stream.handle))
    checked(driver.cuMemFreeAsync(address, int(other.handle)))
    driver.cuStreamSynchronize(int(other.handle))
    (result,) = driver.cuStreamSynchronize(int(stream.handle))
    assert result == driver.CUresult.CUDA_ERROR_ILLEGAL_ADDRESS, result
