"""Collectives on device arrays: every plan, layout, root and place, exact."""

from __future__ import annotations

from itertools import accumulate

import numpy as np
import pytest
from mpi4py import MPI

import hpccoll
from tests.collectives.conftest import Make
from tests.gpu.memory import DeviceAttempt, Mirror, device_plans, mirror, perform, perform_all
from tests.support.layouts import layouts, on_layouts
from tests.support.oracle import BLOCKED, COLLECTIVES, Job, every_place, every_root, in_line
from tests.support.oracle.ragged import RAGGED, Ragged
from tests.support.places import PLACES


@on_layouts(1, 2, 3, 4)
def test_every_collective_and_plan(communicator: Make, layout: str, stream: int) -> None:
    comm = communicator(layout=layout)
    for collective in COLLECTIVES:
        jobs = [Job(collective, count) for count in (1, 7, 1003)]
        perform_all(comm, every_root(every_place(jobs), comm.size), stream)


@on_layouts(2, 3, 4)
def test_the_plans_run_as_named(communicator: Make, layout: str, stream: int) -> None:
    comm = communicator(layout=layout)
    for collective in set(COLLECTIVES) - {"scan", "exscan"}:
        for name in device_plans(comm, collective):
            before = comm.tally()[collective, name]
            with comm.forced(name):
                perform(comm, Job(collective, 12), stream)
            assert comm.tally()[collective, name] == before + 1
    assert comm.device_path == "nccl"


@layouts({"": (2,), "2+2": (4,), "3+1": (4,), "cyclic:2+2": (4,)})
def test_chunks_in_flight_between_two_streams(communicator: Make, layout: str, stream: int) -> None:
    comm = communicator(layout=layout, chunk_bytes=4 * 1024 * 1024)
    for collective in ("allreduce", "reduce", "broadcast"):
        jobs = [Job(collective, 4 * 1024 * 1024 + 13, np.dtype("f4"), root=comm.size - 1)]
        perform_all(comm, jobs, stream)


@layouts({"": (2, 3), "2+2": (4,)})
def test_calls_made_again_on_the_same_memory(communicator: Make, layout: str, stream: int) -> None:
    comm = communicator(layout=layout)
    for collective in COLLECTIVES:
        for job in every_root(every_place([Job(collective, 1003)]), comm.size):
            attempt = DeviceAttempt(comm, job, in_line, stream)
            for salt in range(3):
                attempt.renew(salt)
                attempt.call()
                attempt.check()


@layouts({"": (2, 3), "2+2": (4,), "3+1": (4,), "cyclic:2+2": (4,)})
def test_blocks_of_different_lengths(communicator: Make, layout: str, stream: int) -> None:
    comm = communicator(layout=layout)
    size = comm.size
    for collective in RAGGED:
        if collective == "alltoallw":
            continue
        counts = tuple(range(size * size)) if collective == "alltoall" else tuple(range(size))
        if collective == "alltoall":  # in place both directions have the same counts
            counts = tuple(counts[max(i, j) * size + min(i, j)] for i in range(size) for j in range(size))
        for order in ("packed", "gaps", "backwards"):
            jobs = [Ragged(collective, counts, order=order, root=size - 1)]
            for job in every_place(jobs):
                for name in device_plans(comm, collective):
                    before = comm.tally()[collective, name]
                    with comm.forced(name):
                        perform(comm, job, stream)
                    if collective != "reduce_scatter":
                        assert comm.tally()[collective, name] == before + 1
    assert None not in comm._context.on_devices._kinds.values()  # none went over the host


@layouts({"": (2,), "2+2": (4,)})
def test_blocks_of_which_the_ranks_disagree(communicator: Make, layout: str, stream: int) -> None:
    comm = communicator(layout=layout)
    size, rank = comm.size, comm.rank
    send, receive = mirror(np.arange(3.0 * size), stream), mirror(np.full(3 * size, -1.0), stream)
    comm.Alltoallv([send, [2] * size], [receive, [2] * size])
    gives = [2] * size
    gives[(rank + 1) % size] += rank == 0  # rank 0 gives one more than the next one takes
    with pytest.raises(hpccoll.MismatchError, match="rank 0 gives 3 elements to rank 1, which takes 2"):
        comm.Alltoallv([send, gives], [receive, [2] * size])
    counts = [1 + (rank == 0), *[1] * (size - 1)]
    with pytest.raises(hpccoll.MismatchError, match="block of rank 0 has 2 on rank 0"):
        comm.Allgatherv(mirror(np.ones(counts[rank]), stream), [receive, counts])
    comm.Alltoallv([send, [2] * size], [receive, [2] * size])
    wanted = np.concatenate([np.arange(2) + 2 * rank for _ in range(size)])
    assert (receive.download()[: 2 * size] == wanted).all()


@layouts({"": (2,), "2+2": (4,)})
@pytest.mark.parametrize("place", sorted(set(PLACES) - {"in_line", "unaligned"}))
def test_strided_arrays(communicator: Make, layout: str, stream: int, place: str) -> None:
    comm = communicator(layout=layout)
    for collective in COLLECTIVES:
        if place == "transposed" and collective in BLOCKED:
            continue  # blocks of a Fortran-ordered array lie along its last axis
        perform(comm, Job(collective, 24), stream, PLACES[place])
        perform(comm, Job(collective, 24, np.dtype("c16")), stream, PLACES[place])


@layouts({"": (2, 4), "2+2": (4,), "3+1": (4,)})
def test_sizes_that_do_not_divide(communicator: Make, layout: str, stream: int) -> None:
    comm = communicator(layout=layout)
    for count in (1, 2, 3, 5, 7, 127, 128, 129, 100_003):
        perform_all(comm, [Job("allreduce", count)], stream)


@layouts({"": (1, 2, 4), "3+1": (4,)})
def test_empty_arrays(communicator: Make, layout: str, stream: int) -> None:
    comm = communicator(layout=layout)
    for collective in COLLECTIVES:
        perform_all(comm, [Job(collective, 0), Job(collective, 0, op="MAX")], stream)
        perform(comm, Job(collective, 3), stream)
    a, b = np.zeros((1, 0, 2)), np.zeros((comm.size, 1, 0, 2))
    comm.Allgather(Mirror(a, stream), Mirror(b, stream))


@layouts({"": (2,), "2+2": (4,)})
def test_reduce_touches_only_the_root(communicator: Make, layout: str, stream: int) -> None:
    comm = communicator(layout=layout)
    values = np.arange(4.0).reshape(2, 2) + 10 * comm.rank
    send, receive = mirror(values, stream), mirror(np.full((2, 2), -1.0), stream)
    comm.Reduce(send, receive, root=0)
    assert (send.download() == values).all()
    total = sum(np.arange(4.0).reshape(2, 2) + 10 * rank for rank in range(comm.size))
    assert (receive.download() == (total if comm.rank == 0 else -1)).all()


@layouts({"": (2,), "2+2": (4,)})
def test_buffer_lists(communicator: Make, layout: str, stream: int) -> None:
    comm = communicator(layout=layout)
    send, receive = mirror(np.arange(10.0) + comm.rank, stream), mirror(np.zeros(10), stream)
    comm.Allreduce([send, 4, MPI.DOUBLE], [receive, 4, MPI.DOUBLE])
    wanted = np.zeros(10)
    wanted[:4] = comm.size * np.arange(4) + sum(range(comm.size))
    assert (receive.download() == wanted).all()
    counts = [rank + 1 for rank in range(comm.size)]
    displs = [0, *accumulate(counts)][:-1]
    own, all_of_them = (
        mirror(np.full(comm.rank + 1, comm.rank), stream),
        mirror(np.zeros(sum(counts), int), stream),
    )
    comm.Allgatherv(own, (all_of_them, counts, displs, MPI.INT64_T))
    assert (all_of_them.download() == np.repeat(range(comm.size), counts)).all()


@layouts({"": (2,), "2+2": (4,)})
def test_persistent_and_started_calls(communicator: Make, layout: str, stream: int) -> None:
    comm = communicator(layout=layout)
    send, receive = mirror(np.zeros(100), stream), mirror(np.zeros(100), stream)
    request = comm.Allreduce_init(send, receive)
    for turn in range(3):
        send.view[...] = turn + comm.rank
        send.upload()
        request.Start()
        request.Wait()
        assert (receive.download() == comm.size * turn + sum(range(comm.size))).all()
    request.Free()
    requests = [comm.Iallreduce(send, mirror(np.zeros(100), stream)) for _ in range(3)]
    hpccoll.Request.Waitall(requests)
    with pytest.raises(hpccoll.UsageError, match="not on a device"):
        comm.Allreduce(np.zeros(3), np.zeros(3), stream=stream)
