"""Every collective, in place and out of place."""

from __future__ import annotations

from typing import Any

import numpy as np
from nccl import core
from nccl.bindings import nccl as low
from nccl.core import Communicator

from tests.emulation.nccl_programs.support import (
    RANK,
    SIZE,
    SUM,
    Array,
    opened,
    program,
    ramp,
    same,
    total,
)


@program
def collectives() -> None:
    """Every collective at sizes below, at and above what the FIFOs hold, with 1 and more roots."""
    with opened() as (comm, stream):
        for count in (1, 5, 1000, 70001):
            for check in (
                all_reduce,
                all_gather,
                reduce_scatter,
                broadcast,
                reduce,
                all_to_all,
                gather_scatter,
            ):
                check(comm, stream, count)
        empty = Array(np.zeros(4))
        comm.allreduce(empty, empty, core.SUM, stream=stream)
        low.all_reduce(
            0, 0, 0, 8, SUM, comm._comm, int(stream.handle)
        )  # nothing to do: no pointer is looked at


def all_reduce(comm: Communicator, stream: Any, count: int) -> None:
    send, recv = Array(ramp(count, RANK)), Array(np.full(count, -1.0))
    comm.allreduce(send, recv, core.SUM, stream=stream)
    comm.allreduce(send, send, core.MAX, stream=stream)
    stream.sync()
    same(recv.get(), total(count), "all-reduce")
    same(send.get(), ramp(count, SIZE - 1), "all-reduce in place")


def all_gather(comm: Communicator, stream: Any, count: int) -> None:
    wanted = np.concatenate([ramp(count, rank) for rank in range(SIZE)])
    send, recv = Array(ramp(count, RANK)), Array(np.full(SIZE * count, -1.0))
    comm.allgather(send, recv, stream=stream)
    own = np.full((SIZE, count), -1.0)
    own[RANK] = ramp(count, RANK)
    inside = Array(own.ravel())
    low.all_gather(inside.at(RANK * count), inside.address, count, 8, comm._comm, int(stream.handle))
    stream.sync()
    same(recv.get(), wanted, "all-gather")
    same(inside.get(), wanted, "all-gather in place")


def reduce_scatter(comm: Communicator, stream: Any, count: int) -> None:
    wanted = total(SIZE * count).reshape(SIZE, count)[RANK]
    send, recv = Array(ramp(SIZE * count, RANK)), Array(np.full(count, -1.0))
    comm.reduce_scatter(send, recv, core.SUM, stream=stream)
    stream.sync()
    same(recv.get(), wanted, "reduce-scatter")
    low.reduce_scatter(send.address, send.at(RANK * count), count, 8, SUM, comm._comm, int(stream.handle))
    stream.sync()
    after = ramp(SIZE * count, RANK).reshape(SIZE, count)
    after[RANK] = wanted
    same(send.get(), after.ravel(), "reduce-scatter in place")


def broadcast(comm: Communicator, stream: Any, count: int) -> None:
    for root in range(SIZE):
        send, recv = Array(ramp(count, RANK)), Array(np.full(count, -1.0))
        comm.broadcast(send, recv, root, stream=stream)
        low.bcast(send.address, count, 8, root, comm._comm, int(stream.handle))
        stream.sync()
        same(recv.get(), ramp(count, root), "broadcast")
        same(send.get(), ramp(count, root), "bcast")


def reduce(comm: Communicator, stream: Any, count: int) -> None:
    for root in range(SIZE):
        send, recv = Array(ramp(count, RANK)), Array(np.full(count, -1.0))
        comm.reduce(send, recv if root == RANK else None, core.SUM, root=root, stream=stream)
        stream.sync()
        same(recv.get(), total(count) if root == RANK else np.full(count, -1.0), "reduce")


def all_to_all(comm: Communicator, stream: Any, count: int) -> None:
    send, recv = Array(ramp(SIZE * count, RANK)), Array(np.full(SIZE * count, -1.0))
    comm.alltoall(send, recv, stream=stream)
    stream.sync()
    blocks = [ramp(SIZE * count, rank).reshape(SIZE, count)[RANK] for rank in range(SIZE)]
    same(recv.get(), np.concatenate(blocks), "all-to-all")


def gather_scatter(comm: Communicator, stream: Any, count: int) -> None:
    for root in range(SIZE):
        mine, whole = Array(ramp(count, RANK)), Array(np.full(SIZE * count, -1.0))
        comm.gather(mine, whole, root, stream=stream)
        stream.sync()
        everything = np.concatenate([ramp(count, rank) for rank in range(SIZE)])
        same(whole.get(), everything if root == RANK else np.full(SIZE * count, -1.0), "gather")
        back = Array(np.full(count, -1.0))
        comm.scatter(whole, back, root, stream=stream)
        stream.sync()
        same(back.get(), ramp(count, RANK), "scatter")
