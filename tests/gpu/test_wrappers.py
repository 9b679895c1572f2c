"""What wrappers written by hand around NCCL get wrong, on arrays of CuPy.

Complex numbers as pairs of reals, counts of 0, buffers as long as the world's, the default stream,
communicators that nobody frees, and a rank that raises before the call of the others.
"""

from __future__ import annotations

import gc
import os
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import cupy
import numpy as np
import pytest
from mpi4py import MPI

import hpccoll
from tests.collectives.conftest import Make
from tests.support.launch import run_ranks
from tests.support.layouts import layouts


@layouts({"": (2, 3), "2+1": (3,)})
@pytest.mark.parametrize("dtype", ["c8", "c16"])
def test_complex_numbers_are_not_pairs(communicator: Make, layout: str, device: int, dtype: str) -> None:
    # As reported in pytorch/pytorch#71613, NVIDIA/nccl#539 and cupy/cupy#7981.
    comm = communicator(layout=layout)
    values = [complex(rank + 1, rank) for rank in range(comm.size)]
    send, receive = cupy.full(5, values[comm.rank], dtype), cupy.zeros(5, dtype)
    for op, wanted in (
        (MPI.SUM, sum(values)),
        (MPI.PROD, np.prod(values)),
        (hpccoll.AVG, sum(values) / comm.size),
    ):
        comm.Allreduce(send, receive, op)
        assert (receive.get() == np.array(wanted, dtype)).all()
    for op in (MPI.MAX, MPI.MIN):
        with pytest.raises(TypeError, match="complex"):
            comm.Allreduce(send, receive, op)
    comm.Bcast(send, root=1)
    assert (send.get() == values[1]).all()


Call = Callable[[hpccoll.Communicator, int, int], Any]
# With n elements in each block.
CALLS: dict[str, Call] = {
    "Allreduce": lambda comm, n, size: comm.Allreduce(cupy.ones(n), cupy.empty(n)),
    "Reduce": lambda comm, n, size: comm.Reduce(cupy.ones(n), cupy.empty(n), root=1),
    "Bcast": lambda comm, n, size: comm.Bcast(cupy.ones(n), root=1),
    "Gather": lambda comm, n, size: comm.Gather(cupy.ones(n), cupy.empty((size, n)), root=1),
    "Scatter": lambda comm, n, size: comm.Scatter(cupy.ones((size, n)), cupy.empty(n), root=1),
    "Allgather": lambda comm, n, size: comm.Allgather(cupy.ones(n), cupy.empty((size, n))),
    "Alltoall": lambda comm, n, size: comm.Alltoall(cupy.ones((size, n)), cupy.empty((size, n))),
    "Reduce_scatter_block": lambda comm, n, size: comm.Reduce_scatter_block(
        cupy.ones((size, n)), cupy.empty(n)
    ),
    "Scan": lambda comm, n, size: comm.Scan(cupy.ones(n), cupy.empty(n)),
    "Allgatherv": lambda comm, n, size: comm.Allgatherv(cupy.ones(n), [cupy.empty(size * n), [n] * size]),
}


@layouts({"": (2,), "2+2": (4,)})
@pytest.mark.parametrize("name", CALLS)
def test_nothing_to_do_is_no_error(world: MPI.Intracomm, layout: str, device: int, name: str) -> None:
    # As reported in pytorch/pytorch#85234; also as the first call of a communicator.
    with hpccoll.Communicator(world, layout=layout) as comm:
        for count in (0, 3, 0):
            CALLS[name](comm, count, comm.size)
        receive = cupy.zeros(2)
        comm.Allreduce(cupy.ones(2), receive)
        assert (receive.get() == comm.size).all()


@pytest.mark.ranks(2, 4)
def test_buffers_and_roots_are_those_of_a_part_of_the_world(world: MPI.Intracomm, device: int) -> None:
    # As reported in PyLops/pylops-mpi PR#142 and ValeevGroup/tiledarray PR#571.
    with hpccoll.Communicator(world.Split(world.rank % 2)) as half:
        members = list(range(world.rank % 2, world.size, 2))
        own, every = cupy.array([world.rank]), cupy.full((half.size, 1), -1)
        half.Allgather(own, every)
        assert every.get().tolist() == [[member] for member in members]
        with pytest.raises(hpccoll.UsageError, match="recvbuf"):
            half.Allgather(own, cupy.zeros((world.size, 1), int))
        half.Bcast(own, root=half.size - 1)
        assert own.get() == members[-1]
        with pytest.raises(hpccoll.UsageError, match=f"root is {half.size}"):
            half.Bcast(own, root=half.size)


@layouts({"": (2,), "2+2": (4,)})
@pytest.mark.parametrize("dtype", ["f8", "i2"])
def test_the_default_stream_of_cupy(communicator: Make, layout: str, device: int, dtype: str) -> None:
    comm = communicator(layout=layout)
    ranks = sum(range(comm.size))
    send, receive = cupy.zeros(10_000, dtype), cupy.zeros(10_000, dtype)
    for turn in range(10):
        send[...] = turn + comm.rank  # a kernel, as is what comes after the call
        comm.Allreduce(send, receive, stream=cupy.cuda.Stream.null if turn % 2 else None)
        twice = receive * 2
        assert (twice.get() == 2 * (turn * comm.size + ranks)).all()


@pytest.mark.ranks(2, 4)
def test_communicators_that_are_closed_leave_nothing(world: MPI.Intracomm, device: int) -> None:
    send, receive = cupy.ones(100), cupy.zeros(100)

    def use(times: int) -> tuple[int, int, int]:
        """Files, pieces of shared memory and threads of this process, after communicators were used."""
        for _ in range(times):
            with hpccoll.Communicator(world) as comm:
                comm.Allreduce(send, receive)
                assert (receive.get() == comm.size).all()
                assert comm.device_path == "nccl"
        gc.collect()
        shared = [line for line in Path("/proc/self/maps").read_text().splitlines() if "/dev/shm/" in line]
        return (
            len(list(Path("/proc/self/fd").iterdir())),
            len(shared),
            len(list(Path("/proc/self/task").iterdir())),
        )

    before, after = use(2), use(15)
    more = [then - first for first, then in zip(before, after, strict=True)]
    assert max(more) < 15, more  # a thread that does other things may have come or gone


PROGRAM = """
import sys
import cupy
from mpi4py import MPI
import hpccoll
how, turn = sys.argv[1:]
world = MPI.COMM_WORLD
try:
    with hpccoll.Communicator(world, timeout_s=3, init_timeout_s=10) as comm:
        cupy.cuda.Device(comm.device).use()
        send, receive = cupy.ones(1000), cupy.zeros(1000)
        if turn != "first":
            comm.Allreduce(send, receive)
            assert (receive.get() == comm.size).all()
        if comm.rank == 0:
            raise ValueError("of rank 0's own")
        if how == "started":
            comm.Iallreduce(send, receive).Wait()
        else:
            comm.Allreduce(send, receive)
            receive.get()
except Exception as error:
    sys.stdout.write(f"rank {world.rank}: {type(error).__name__}: {error}\\n")
    sys.stdout.flush()
"""


@pytest.mark.skipif("STANDIN_FOLDER" not in os.environ, reason="real hardware fails when it wants to")
@pytest.mark.parametrize(
    ("how", "turn"),
    [
        ("started", "first"),
        ("started", "second"),
        ("enqueued", "first"),
        ("enqueued", "second"),
        ("enqueued", "later"),
    ],
)
def test_an_exception_on_one_rank_does_not_hang_the_others(how: str, turn: str) -> None:
    # Where streams are eager, what hangs would do so in the call itself.
    env = {"STANDIN_MODE": "lazy"}
    if turn == "later":  # of calls that the ranks do not agree on again
        env["HPCCOLL_DEVICE_CHECKS_FIRST"] = "0"
    result = run_ranks(2, ["-c", PROGRAM, how, turn], timeout_s=30, env=env)
    assert not result.timed_out, result.stdout
    assert result.returncode == 0, result.stderr
    said = sorted(line for line in result.stdout.splitlines() if line.startswith("rank "))
    assert said[0] == "rank 0: ValueError: of rank 0's own"
    why = "ValueError in its with block: of rank 0's own"
    wanted = {
        "first": f"PeerLostError: allreduce #1 .*: rank 0 has left after 1 calls: {why}",
        "second": f"PeerLostError: allreduce #2 .*: rank 0 has left after 2 calls: {why}",
        # CuPy waits for its stream, and raises nothing when it goes on with wrong results; `close` does.
        "later": f"AbortedError: .*: rank 0 has left after 1 calls on devices, of 2 here: {why}",
    }
    assert re.match(f"rank 1: {wanted[turn]}", said[1]), said
