"""Persistent calls: prepared once, started again and again with what is in the buffers then."""

from __future__ import annotations

import time
from typing import Any

import numpy as np
import pytest
from mpi4py import MPI

import hpccoll
from hpccoll.errors import HpccollError, UsageError
from tests.collectives.conftest import Make
from tests.support.layouts import layouts, on_layouts
from tests.support.oracle import COLLECTIVES, RAGGED, Attempt, Job, Ragged, perform
from tests.support.places import PLACES

FEW = layouts({"": (1, 2), "1+1": (2,), "2+1": (3,)})
STRIDED = ("every_second", "backwards", "unaligned")


def ragged(collective: str, size: int) -> Ragged:
    lengths = (size * size) if collective.startswith("alltoall") else size
    return Ragged(collective, tuple(11 * (k % 4) for k in range(lengths)), root=size - 1, order="gaps")


@pytest.mark.parametrize("collective", COLLECTIVES)
@on_layouts(1, 2, 3, 4)
def test_every_plan_started_with_other_data_each_time(
    communicator: Make, layout: str, collective: str
) -> None:
    comm = communicator(layout=layout)
    for k, name in enumerate(comm.algorithms(collective)):
        for count in (9, 1201):
            in_place = collective != "broadcast" and (k + count) % 2 == 0
            attempt = Attempt(comm, Job(collective, count, root=k % comm.size, in_place=in_place))
            with comm.forced(name):
                request = attempt.prepare()
            for salt in range(3):
                attempt.renew(salt)
                request.Start()
                request.Wait()
                attempt.check()
            request.Free()


@pytest.mark.parametrize("collective", RAGGED)
@on_layouts(1, 2, 3, 4)
def test_every_ragged_call(communicator: Make, layout: str, collective: str) -> None:
    comm = communicator(layout=layout)
    attempt = Attempt(comm, ragged(collective, comm.size))
    request = attempt.prepare()
    for salt in (0, 3, 6):  # the gaps depend on the salt: these have the same
        attempt.renew(salt)
        request.Start()
        request.Wait()
        attempt.check()
    request.Free()


@pytest.mark.parametrize("collective", [name for name in COLLECTIVES if name != "alltoall"])
@layouts({"": (2,), "2+1": (3,)})
def test_arrays_that_are_packed_are_packed_anew(communicator: Make, layout: str, collective: str) -> None:
    comm = communicator(layout=layout)
    for place in STRIDED:
        for count in (6, 900):
            attempt = Attempt(comm, Job(collective, count, root=1), PLACES[place])
            request = attempt.prepare()
            for salt in range(3):
                attempt.renew(salt)
                request.Start()
                request.Wait()
                attempt.check()
            request.Free()


@pytest.mark.parametrize("count", [5, 2500])
@on_layouts(1, 2, 3, 4)
def test_a_hundred_starts(communicator: Make, layout: str, count: int) -> None:
    comm = communicator(layout=layout)
    size, rank = comm.size, comm.rank
    send, receive = np.empty(count), np.empty(count)
    request = comm.Allreduce_init(send, receive)
    assert isinstance(request, hpccoll.PersistentRequest)
    for turn in range(100):
        send[:] = np.arange(count) * (rank + 1) + turn
        receive[:] = -1
        request.Start()
        request.Wait()
        wanted = np.arange(count) * (size * (size + 1) // 2) + turn * size
        assert np.array_equal(receive, wanted), f"rank {rank}, turn {turn}"
    request.Free()


@FEW
def test_a_barrier(communicator: Make, layout: str) -> None:
    comm = communicator(layout=layout)
    request = comm.Barrier_init()
    late = comm.size - 1
    for _ in range(3):
        comm.Barrier()
        if comm.rank == late:
            time.sleep(0.05)
        came = time.monotonic()
        request.Start()
        request.Wait()
        left = time.monotonic()
        times = np.empty((comm.size, 2))
        comm.Allgather(np.array([came, left]), times)
        assert (times[:, 1] >= times[late, 0]).all()
    request.Free()


@FEW
def test_tested_until_it_is_complete(communicator: Make, layout: str) -> None:
    comm = communicator(layout=layout)
    attempt = Attempt(comm, Job("scan", 900))
    request = attempt.prepare()
    for salt in range(3):
        attempt.renew(salt)
        request.Start()
        end = time.monotonic() + 20
        while not request.Test():
            assert time.monotonic() < end
        attempt.check()
    request.Free()


@pytest.mark.parametrize("wait_all", [False, True])
@FEW
def test_several_started_together(communicator: Make, layout: str, wait_all: bool) -> None:
    comm = communicator(layout=layout)
    jobs: list[Job | Ragged] = [
        Job(name, count, root=comm.size - 1) for name in COLLECTIVES for count in (3, 800)
    ]
    jobs += [ragged(name, comm.size) for name in RAGGED]
    attempts = [Attempt(comm, job) for job in jobs]
    requests = [attempt.prepare() for attempt in attempts]
    for salt in (0, 3, 6):
        for attempt in attempts:
            attempt.renew(salt)
        hpccoll.PersistentRequest.Startall(requests)
        if wait_all:
            hpccoll.PersistentRequest.Waitall(requests)
        else:
            for request in reversed(requests):
                request.Wait()
        for attempt in attempts:
            attempt.check()
    for request in requests:
        request.Free()


@FEW
def test_among_other_calls(communicator: Make, layout: str) -> None:
    comm = communicator(layout=layout)
    kept, other = Attempt(comm, Job("allreduce", 40)), Attempt(comm, Job("gather", 1000, root=comm.size - 1))
    first, second = kept.prepare(), other.prepare()
    for salt in range(4):
        kept.renew(salt)
        other.renew(salt)
        first.Start()
        perform(comm, Job("alltoall", 6, salt=salt))
        second.Start()
        between = Attempt(comm, Job("reduce_scatter", 700, salt=salt))
        request = between.start()
        second.Wait()
        perform(comm, Job("broadcast", 3000, salt=salt))
        first.Wait()
        request.Wait()
        for attempt in (kept, other, between):
            attempt.check()
    first.Free()
    second.Free()


@pytest.mark.ranks(1, 2)
def test_before_the_first_start_and_after_the_end_there_is_nothing_to_wait_for(communicator: Make) -> None:
    comm = communicator()
    attempt = Attempt(comm, Job("allreduce", 5))
    request = attempt.prepare()
    assert request.Wait() is True
    assert request.Test() is True
    attempt.renew(1)
    request.Start()
    assert request.Wait() is True
    attempt.check()
    assert request.Wait() is True
    assert request.Test() is True
    attempt.check()
    request.Free()


@layouts({"": (1, 2), "1+1": (2,)})
def test_starting_what_is_under_way_is_an_error(
    communicator: Make, world: MPI.Intracomm, layout: str
) -> None:
    comm = communicator(layout=layout)
    attempt = Attempt(comm, Job("allreduce", 5))
    request = attempt.prepare()
    attempt.renew(1)
    if comm.rank == 0:
        request.Start()
        with pytest.raises(UsageError, match=r"under way|active|started"):
            request.Start()
    world.Barrier()
    if comm.rank != 0:
        request.Start()
    request.Wait()
    attempt.check()
    request.Free()


@FEW
def test_freeing_what_is_under_way_ends_it_first(communicator: Make, layout: str) -> None:
    comm = communicator(layout=layout)
    for count in (5, 3000):
        attempt = Attempt(comm, Job("allreduce", count))
        request = attempt.prepare()
        request.Start()
        request.Free()
        attempt.check()


@layouts({"": (1, 2), "1+1": (2,)})
def test_after_free_it_cannot_be_started(communicator: Make, layout: str) -> None:
    comm = communicator(layout=layout)
    request = Attempt(comm, Job("allreduce", 5)).prepare()
    request.Free()
    with pytest.raises(UsageError, match=r"freed|Free"):
        request.Start()
    perform(comm, Job("allreduce", 3))


@FEW
def test_closing_with_one_under_way_is_refused(world: MPI.Intracomm, layout: str) -> None:
    comm = hpccoll.Communicator(world, layout=layout)
    attempt = Attempt(comm, Job("allreduce", 3))
    request = attempt.prepare()
    idle = Attempt(comm, Job("allreduce", 4)).prepare()
    perform(comm, Job("allreduce", 3))
    if comm.rank == 0 and comm.size > 1:
        request.Start()  # no other rank has
        with pytest.raises(UsageError, match="not complete"):
            comm.close()
    world.Barrier()
    if comm.rank != 0 or comm.size == 1:
        request.Start()
    request.Wait()
    attempt.check()
    comm.close()  # with one that is prepared but not under way
    for one in (request, idle):
        with pytest.raises(UsageError, match="closed"):
            one.Start()


@layouts({"": (2, 3), "1+1": (2,), "2+1": (3,)})
@pytest.mark.parametrize("fault", ["root", "op", "recvbuf"])
def test_wrong_arguments_on_one_rank_are_an_error_on_all(communicator: Make, layout: str, fault: str) -> None:
    comm = communicator(layout=layout)
    culprit = comm.size - 1
    arguments: dict[str, Any] = {"recvbuf": np.zeros(3), "op": MPI.SUM, "root": 0}
    if comm.rank == culprit:
        arguments[fault] = {"recvbuf": "text", "op": "sum", "root": -1}[fault]
    receive, op, root = arguments.values()

    def whole() -> None:
        call = (
            comm.Allreduce_init(np.ones(3), receive, op)
            if fault != "root"
            else comm.Bcast_init(receive, root)
        )
        call.Start()
        call.Wait()

    with pytest.raises(UsageError, match=f"rank {culprit}: {fault} is ") as caught:
        whole()
    assert caught.value.suspects == (culprit,)
    perform(comm, Job("allreduce", 3))


@layouts({"": (2, 3), "1+1": (2,), "2+1": (3,)})
def test_different_calls_are_an_error_on_all_each_time(communicator: Make, layout: str) -> None:
    comm = communicator(layout=layout)
    good = Attempt(comm, Job("allreduce", 6))
    right = good.prepare()
    other = comm.Allreduce_init(np.ones(6), np.empty(6), MPI.MAX)
    for salt in range(3):
        (other if comm.rank == comm.size - 1 else right).Start()
        with pytest.raises(hpccoll.MismatchError, match=r"operator|dtype"):
            (other if comm.rank == comm.size - 1 else right).Wait()
        good.renew(salt)
        right.Start()
        right.Wait()
        good.check()
    right.Free()
    other.Free()


@pytest.mark.ranks(1, 2)
@pytest.mark.parametrize("name", ["Startall", "Waitall"])
def test_what_mpis_own_lists_of_requests_do_with_ours(communicator: Make, name: str) -> None:
    """MPI cannot start them, and says so; it must not do anything else in silence."""
    comm = communicator()
    attempt = Attempt(comm, Job("allreduce", 5))
    request = attempt.prepare()
    if name == "Startall":
        with pytest.raises((MPI.Exception, HpccollError, TypeError)):
            MPI.Prequest.Startall([request])
    attempt.renew(2)
    request.Start()
    if name == "Waitall":
        try:
            MPI.Request.Waitall([request])
        except (MPI.Exception, HpccollError, TypeError):
            request.Wait()
    else:
        request.Wait()
    attempt.check()
    request.Free()
