"""Ranks that call different things, come late or not at all: an error on every rank, in bounded time."""

from __future__ import annotations

import hashlib
import re
import time

import numpy as np
import pytest
from mpi4py import MPI

import hpccoll

LAYOUTS = {2: ["", "1+1"], 3: ["", "2+1"], 4: ["", "2+2", "3+1", "cyclic:2+2"], 5: ["4+1"]}


def layouts(world) -> list[str]:
    return LAYOUTS[world.size]


def each(world, communicator, **options):
    return [communicator(layout=layout, timeout_s=20, **options) for layout in layouts(world)]


def allreduce(comm, dtype="f8", count=4, op=MPI.SUM):
    comm.Allreduce(np.ones(count, dtype), np.empty(count, dtype), op)


ODD_ONE_OUT = {
    "dtype": (lambda comm: allreduce(comm, "f4"), ["dtype", "float32 on rank", "float64 on rank"]),
    "count": (lambda comm: allreduce(comm, count=5), ["count", "4 on rank", "5 on rank"]),
    "operator": (lambda comm: allreduce(comm, op=MPI.MAX), ["operator", "MAX on rank", "SUM on rank"]),
    "collective": (lambda comm: comm.Barrier(), ["collective", "barrier on rank", "allreduce on rank"]),
    "same bytes": (lambda comm: allreduce(comm, "i8"), ["dtype", "int64 on rank", "float64 on rank"]),
}


@pytest.mark.ranks(2, 3, 4)
@pytest.mark.parametrize("what", ODD_ONE_OUT)
@pytest.mark.parametrize("odd", [0, -1])
def test_one_rank_that_calls_another_thing_is_named_on_all(world, communicator, what, odd):
    call, words = ODD_ONE_OUT[what]
    odd %= world.size
    for comm in each(world, communicator):
        start = time.monotonic()
        with pytest.raises(hpccoll.MismatchError) as caught:
            call(comm) if world.rank == odd else allreduce(comm)
        assert time.monotonic() - start < 10
        for word in words:
            assert word in str(caught.value)
        if world.size > 2:
            assert caught.value.suspects == (odd,)
        allreduce(comm)


@pytest.mark.ranks(2, 4)
def test_different_roots(world, communicator):
    for comm in each(world, communicator):
        with pytest.raises(hpccoll.MismatchError, match="root: 0 on rank"):
            comm.Bcast(np.ones(9000), root=0 if world.rank == 0 else 1)
        allreduce(comm)


OPERATIONS = {
    "reduce": lambda comm, dtype, count, op: comm.Reduce(np.ones(count, dtype), np.empty(count, dtype), op),
    "broadcast": lambda comm, dtype, count, op: comm.Bcast(np.ones(count, dtype)),
    "allgather": lambda comm, dtype, count, op: comm.Allgather(
        np.ones(count, dtype), np.empty(count * comm.size, dtype)
    ),
    "gather": lambda comm, dtype, count, op: comm.Gather(
        np.ones(count, dtype), np.empty(count * comm.size, dtype)
    ),
    "scatter": lambda comm, dtype, count, op: comm.Scatter(
        np.ones(count * comm.size, dtype), np.empty(count, dtype)
    ),
    "alltoall": lambda comm, dtype, count, op: comm.Alltoall(
        np.ones(count * comm.size, dtype), np.empty(count * comm.size, dtype)
    ),
    "reduce_scatter": lambda comm, dtype, count, op: comm.Reduce_scatter_block(
        np.ones(count * comm.size, dtype), np.empty(count, dtype), op
    ),
    "scan": lambda comm, dtype, count, op: comm.Scan(np.ones(count, dtype), np.empty(count, dtype), op),
    "exscan": lambda comm, dtype, count, op: comm.Exscan(np.ones(count, dtype), np.empty(count, dtype), op),
}
REDUCE = ("reduce", "reduce_scatter", "scan", "exscan")


@pytest.mark.ranks(2, 3, 4)
@pytest.mark.parametrize("name", OPERATIONS)
@pytest.mark.parametrize("count", [3, 4000])
def test_one_rank_is_named_in_every_collective(world, communicator, name, count):
    operation, odd = OPERATIONS[name], world.size - 1
    differs = {
        "dtype": ("i8", count, MPI.SUM, ["int64 on rank", "float64 on rank"]),
        "count": ("f8", count + 1, MPI.SUM, [f"{count + 1} on rank", f"{count} on rank"]),
    }
    if name in REDUCE:
        differs["operator"] = ("f8", count, MPI.MAX, ["MAX on rank", "SUM on rank"])
    for comm in each(world, communicator):
        for field, (dtype, other_count, op, words) in differs.items():
            arguments = (dtype, other_count, op) if world.rank == odd else ("f8", count, MPI.SUM)
            with pytest.raises(hpccoll.MismatchError) as caught:
                operation(comm, *arguments)
            for word in (field, *words):
                assert word in str(caught.value)
            if world.size > 2:
                assert caught.value.suspects == (odd,)
        allreduce(comm)


@pytest.mark.ranks(2, 3)
@pytest.mark.parametrize("name", OPERATIONS)
def test_one_rank_in_another_collective_is_named(world, communicator, name):
    others = [other for other in OPERATIONS if other != name]
    odd = world.size - 1
    for comm in each(world, communicator):
        for other in others:
            with pytest.raises(hpccoll.MismatchError) as caught:
                OPERATIONS[other if world.rank == odd else name](comm, "f8", 5, MPI.SUM)
            for word in ("collective", f"{name} on rank", f"{other} on rank {odd}"):
                assert word in str(caught.value)
        allreduce(comm)


@pytest.mark.ranks(2, 3, 4)
@pytest.mark.parametrize("name", ["reduce", "broadcast", "gather", "scatter"])
def test_different_roots_in_every_collective(world, communicator, name):
    for comm in each(world, communicator):
        for count in (3, 4000):
            root = 0 if world.rank == 0 else 1
            many, one = np.ones(count * comm.size), np.ones(count)
            call = {
                "reduce": lambda: comm.Reduce(one, np.empty_like(one), root=root),  # noqa: B023  called in this turn
                "broadcast": lambda: comm.Bcast(one, root=root),  # noqa: B023
                "gather": lambda: comm.Gather(one, many, root=root),  # noqa: B023
                "scatter": lambda: comm.Scatter(many, one, root=root),  # noqa: B023
            }[name]
            with pytest.raises(hpccoll.MismatchError, match="root: 0 on rank"):
                call()
        allreduce(comm)


@pytest.mark.ranks(3)
def test_different_plans(world, communicator):
    for comm in each(world, communicator):
        name = "ring" if world.rank == 0 else "tree"
        expected = pytest.raises(hpccoll.MismatchError, match="plan: ring on rank 0, tree on ranks 1, 2")
        with expected, comm.forced(name):
            allreduce(comm, count=100_000)
        allreduce(comm)


@pytest.mark.ranks(2, 4)
def test_a_rank_that_does_not_call_is_named(world):
    for layout in layouts(world):
        comm = hpccoll.Communicator(world, layout=layout, timeout_s=1)
        allreduce(comm)
        last = world.size - 1
        start = time.monotonic()
        if world.rank == last:
            time.sleep(2)
            with pytest.raises(hpccoll.AbortedError, match="gave up"):
                allreduce(comm)
        else:
            with pytest.raises(hpccoll.CollectiveTimeoutError) as caught:
                allreduce(comm)
            waited = time.monotonic() - start
            assert 0.9 < waited < 3
            assert caught.value.suspects == (last,)
            assert re.search(
                rf"allreduce #1 at test_disagreement.py:\d+ \(allreduce\).*rank {last}\b", str(caught.value)
            )
        with pytest.raises(hpccoll.AbortedError, match="broken since an earlier call"):
            allreduce(comm)
        comm.close()
        world.Barrier()


@pytest.mark.ranks(2)
def test_a_rank_that_comes_late_is_waited_for(world, communicator):
    for comm in each(world, communicator):
        if world.rank == 1:
            time.sleep(0.5)
        start = time.monotonic()
        allreduce(comm)
        if world.rank == 0:
            assert time.monotonic() - start > 0.3


@pytest.mark.ranks(2)
def test_without_checks_right_calls_are_right(world, communicator):
    for comm in each(world, communicator, checks="off"):
        for turn in range(20):
            count = 100_000 if turn % 3 else 5
            total = np.empty(count)
            comm.Allreduce(np.full(count, 1.0 * comm.rank + turn), total)
            assert (total == 1 + 2 * turn).all()


@pytest.mark.ranks(4, 5)
@pytest.mark.parametrize("dtype", ["float16", "float32", "complex64"])
def test_every_rank_gets_the_same_bits(world, communicator, dtype):
    for comm in each(world, communicator):
        for draw in range(50 // len(layouts(world))):
            for count in (1, 7, 10_007):
                random = np.random.default_rng([draw, world.rank, count])
                values = random.standard_normal(count).astype(dtype)
                result = np.empty_like(values)
                comm.Allreduce(values, result, (MPI.SUM, MPI.PROD)[draw % 2])
                digests = world.allgather(hashlib.sha256(result.tobytes()).digest())
                assert len(set(digests)) == 1, (
                    f"draw {draw}, {count} elements of {dtype} on {comm.machine.layout}"
                )


@pytest.mark.ranks(16)
@pytest.mark.timeout(150)
def test_sixteen_ranks_on_four_nodes(world):
    comm = hpccoll.Communicator(world, layout="4x4", timeout_s=100)
    for count in (3, 5_000):
        for name in comm.algorithms("allreduce"):
            with comm.forced(name):
                total = np.empty(count)
                comm.Allreduce(np.arange(count) * (world.rank + 1.0), total)
                assert (total == np.arange(count) * 136.0).all(), name
    comm.close()


@pytest.mark.ranks(2)
def test_communicators_used_in_different_orders(world: MPI.Intracomm) -> None:
    """Each rank waits for the other on another communicator: both learn it at the deadline, and whom for."""
    limit_s = 2.0
    with (
        hpccoll.Communicator(world, timeout_s=limit_s) as one,
        hpccoll.Communicator(world.Dup(), timeout_s=limit_s) as other,
    ):
        for comm in (one, other):
            comm.Barrier()
        mine = one if world.rank == 0 else other
        begin = time.monotonic()
        with pytest.raises(hpccoll.CollectiveTimeoutError, match=f"rank {1 - world.rank}"):
            mine.Allreduce(np.ones(3), np.empty(3))
        assert limit_s * 0.9 < time.monotonic() - begin < limit_s + 5
        world.Barrier()  # who closes first would be known to the other, just before its deadline
