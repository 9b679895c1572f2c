"""Ranks that call different things."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
from cuda.core import Device
from nccl import core
from nccl.bindings import nccl as low
from nccl.core import Communicator

from tests.emulation.nccl_programs.support import (
    MAX,
    RANK,
    SIZE,
    SUCCESS,
    SUM,
    USAGE,
    WORLD,
    Array,
    communicator,
    first_operation,
    open_device,
    pending,
    program,
    state,
    status,
)


def _mismatch(call: Callable[[Communicator, Any, Array, Array], None]) -> None:
    stream = open_device()
    comm = communicator()
    a, b = Array(np.ones(1000)), Array(np.zeros(1000))
    first_operation(comm, stream, a)
    code, _ = status(lambda: call(comm, stream, a, b))  # another rank may have found it already
    assert code in (SUCCESS, USAGE), code
    stream.sync()
    assert state(comm) == USAGE, state(comm)
    WORLD.Barrier()
    comm.abort()


@program
def mismatch_count() -> None:
    _mismatch(
        lambda comm, s, a, b: low.all_reduce(
            a.address, b.address, 500 + RANK, 8, SUM, comm._comm, int(s.handle)
        )
    )


@program
def mismatch_type() -> None:
    _mismatch(
        lambda comm, s, a, b: low.all_reduce(
            a.address, b.address, 500, 8 if RANK else 4, SUM, comm._comm, int(s.handle)
        )
    )


@program
def mismatch_op() -> None:
    _mismatch(
        lambda comm, s, a, b: low.all_reduce(
            a.address, b.address, 500, 8, MAX if RANK else SUM, comm._comm, int(s.handle)
        )
    )


@program
def mismatch_root() -> None:
    _mismatch(
        lambda comm, s, a, b: low.broadcast(a.address, b.address, 500, 8, RANK, comm._comm, int(s.handle))
    )


@program
def mismatch_collective() -> None:
    def call(comm: Communicator, s: Any, a: Array, b: Array) -> None:
        if RANK:
            low.all_gather(a.address, b.address, 100, 8, comm._comm, int(s.handle))
        else:
            low.all_reduce(a.address, b.address, 100, 8, SUM, comm._comm, int(s.handle))

    _mismatch(call)


@program
def mismatch_order() -> None:
    """Two communicators, on a stream each, the other way round on rank 1."""
    stream, other = open_device(), Device(RANK).create_stream()
    one, two = communicator(), communicator()
    value, second = Array(np.ones(10)), Array(np.ones(10))
    first_operation(one, stream, value)
    first_operation(two, stream, second)
    work = [(one, stream, value), (two, other, second)]
    for comm, s, array in work if RANK != 1 else reversed(work):
        code, _ = status(lambda comm=comm, s=s, array=array: comm.allreduce(array, array, core.SUM, stream=s))
        assert code in (SUCCESS, USAGE)
    stream.sync()
    other.sync()
    assert USAGE in (state(one), state(two))
    WORLD.Barrier()
    one.abort()
    two.abort()


@program
def mismatch_unchecked() -> None:
    """Without checks: no error, but a wrong result or none."""
    stream = open_device()
    comm = communicator()
    a, b = Array(np.ones(20000)), Array(np.zeros(20000))
    first_operation(comm, stream, a)
    count = 20000 if RANK == 0 else 12000
    low.all_reduce(a.address, b.address, count, 8, SUM, comm._comm, int(stream.handle))
    wrong = pending(stream, 0.5)
    if not wrong:
        wrong = not np.array_equal(b.get()[:count], np.full(count, SIZE))
    assert state(comm) == SUCCESS
    assert any(WORLD.allgather(wrong))
    comm.abort()
    stream.sync()
