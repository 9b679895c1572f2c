"""Non-blocking calls: several in flight, waited for in any order, beside MPI's requests; errors; progress."""

from __future__ import annotations

import gc
import time
import weakref
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from mpi4py import MPI

import hpccoll
from hpccoll.errors import HpccollError, UsageError
from tests.collectives.conftest import Make
from tests.support.layouts import layouts, on_layouts
from tests.support.oracle import COLLECTIVES, RAGGED, Array, Attempt, Job, Ragged, perform

LAYOUTS = layouts({"": (1, 2, 3), "1+1": (2,), "2+1": (3,), "3+1": (4,), "cyclic:2+2": (4,)})
FEW = layouts({"": (2,), "1+1": (2,), "2+1": (3,)})
TAG = 77


def ragged(collective: str, size: int, salt: int = 0) -> Ragged:
    lengths = (size * size) if collective.startswith("alltoall") else size
    return Ragged(
        collective,
        tuple(7 * ((k + salt) % 4) for k in range(lengths)),
        root=salt % size,
        order="mixed",
        salt=salt,
    )


def finished(request: MPI.Request, limit_s: float = 20.0) -> bool:
    """Test until it is complete."""
    end = time.monotonic() + limit_s
    while not request.Test():
        if time.monotonic() > end:
            return False
    return True


# --- one at a time ------------------------------------------------------------------------------


@pytest.mark.parametrize("collective", COLLECTIVES)
@on_layouts(1, 2, 3, 4, 5)
def test_every_plan_as_a_request(communicator: Make, layout: str, collective: str) -> None:
    comm = communicator(layout=layout)
    for k, name in enumerate(comm.algorithms(collective)):
        for count in (7, 1501):
            in_place = collective != "broadcast" and (k + count) % 2 == 0
            attempt = Attempt(comm, Job(collective, count, root=k % comm.size, salt=k, in_place=in_place))
            with comm.forced(name):
                request = attempt.start()
            if k % 2:
                request.Wait()
            else:
                assert finished(request), f"rank {comm.rank}: {name}"
            attempt.check()


@pytest.mark.parametrize("collective", RAGGED)
@LAYOUTS
def test_every_ragged_call_as_a_request(communicator: Make, layout: str, collective: str) -> None:
    comm = communicator(layout=layout)
    for salt in range(3):
        attempt = Attempt(comm, ragged(collective, comm.size, salt))
        attempt.start().Wait()
        attempt.check()


@pytest.mark.ranks(1, 2)
def test_what_a_request_is(communicator: Make) -> None:
    comm = communicator()
    for attempt in (Attempt(comm, Job("allreduce", 3)), Attempt(comm, Job("alltoall", 900))):
        request = attempt.start()
        assert isinstance(request, hpccoll.Request)
        assert isinstance(request, MPI.Grequest)
        assert request.Wait(MPI.Status()) is True
        attempt.check()
        # As MPI has it: what is complete may be waited for and tested again.
        assert request.Wait() is True
        assert request.Test() is True
        assert comm.last_error is None


@pytest.mark.ranks(1, 2, 3)
def test_the_names_in_small_letters(communicator: Make) -> None:
    """As of mpi4py's requests: `wait` returns a message, which a collective has not."""
    comm = communicator()
    attempt = Attempt(comm, Job("scan", 5))
    assert attempt.start().wait() is None
    attempt.check()
    attempt = Attempt(comm, Job("gather", 5))
    request = attempt.start()
    while not (found := request.test())[0]:
        pass
    assert found == (True, None)
    attempt.check()


@on_layouts(2, 3, 4)
def test_a_barrier_is_not_over_before_all_have_come(communicator: Make, layout: str) -> None:
    comm = communicator(layout=layout)
    late = comm.size - 1
    comm.Barrier()
    if comm.rank == late:
        time.sleep(0.2)
    came = time.monotonic()
    request = comm.Ibarrier()
    if comm.rank != late:
        assert not request.Test()
    assert finished(request)
    left = time.monotonic()
    times = np.empty((comm.size, 2))
    comm.Allgather(np.array([came, left]), times)
    assert (times[:, 1] >= times[late, 0]).all()


@FEW
def test_starting_does_not_wait_for_the_others(communicator: Make, layout: str) -> None:
    comm = communicator(layout=layout)
    jobs: list[Job | Ragged] = [Job(name, count, root=1) for name in COLLECTIVES for count in (3, 3000)]
    jobs += [ragged(name, comm.size) for name in RAGGED if name != "reduce_scatter"]
    perform(comm, Job("allreduce", 3000))  # the memory for long messages is there
    attempts = [Attempt(comm, job) for job in jobs]
    if comm.rank == 1:
        time.sleep(1.0)
    begin = time.monotonic()
    requests = [attempt.start() for attempt in attempts]
    started = time.monotonic() - begin
    hpccoll.Request.Waitall(requests)
    assert started < 0.9 or comm.rank == 1, f"rank {comm.rank}: {started:.2f} s"
    for attempt in attempts:
        attempt.check()


# --- several ------------------------------------------------------------------------------------


def in_flight(comm: Any, turns: int = 2) -> list[tuple[Attempt, Any]]:
    """One request of every collective, short and long, each with data of its own."""
    jobs: list[Job | Ragged] = []
    for salt in range(turns):
        for k, name in enumerate(COLLECTIVES):
            jobs.append(Job(name, (5, 700, 3000)[(k + salt) % 3], root=salt % comm.size, salt=salt))
        jobs += [ragged(name, comm.size, salt) for name in RAGGED]
    attempts = [Attempt(comm, job) for job in jobs]
    return [(attempt, attempt.start()) for attempt in attempts]


@LAYOUTS
def test_waited_for_in_another_order_on_every_rank(communicator: Make, layout: str) -> None:
    comm = communicator(layout=layout)
    pairs = in_flight(comm)
    np.random.default_rng(comm.rank).shuffle(pairs)  # type: ignore[arg-type]
    for attempt, request in pairs:
        request.Wait()
        attempt.check()


@FEW
@pytest.mark.parametrize("last_first", [False, True])
def test_only_one_is_waited_for_and_the_others_move_too(
    communicator: Make, layout: str, last_first: bool
) -> None:
    comm = communicator(layout=layout)
    pairs = in_flight(comm)
    pairs[-1 if last_first else 0][1].Wait()
    for attempt, request in pairs:
        assert finished(request)
        attempt.check()


WAYS: dict[str, Callable[[Any, list[Any]], None]] = {}


def way(function: Callable[[Any, list[Any]], None]) -> Callable[[Any, list[Any]], None]:
    WAYS[function.__name__] = function
    return function


@way
def all_at_once(kind: Any, requests: list[Any]) -> None:
    kind.Waitall(requests)


@way
def all_with_statuses(kind: Any, requests: list[Any]) -> None:
    kind.Waitall(requests, [MPI.Status() for _ in requests])


@way
def one_after_the_other(kind: Any, requests: list[Any]) -> None:
    seen = sorted(kind.Waitany(requests) for _ in requests)
    assert seen == list(range(len(requests)))
    assert kind.Waitany(requests) == MPI.UNDEFINED


@way
def some_at_a_time(kind: Any, requests: list[Any]) -> None:
    seen: list[int] = []
    while (done := kind.Waitsome(requests)) is not None:
        assert done
        seen += done
    assert sorted(seen) == list(range(len(requests)))


@way
def asking_for_all(kind: Any, requests: list[Any]) -> None:
    end = time.monotonic() + 30
    while not kind.Testall(requests):
        assert time.monotonic() < end


@way
def asking_for_any(kind: Any, requests: list[Any]) -> None:
    end = time.monotonic() + 30
    seen: list[int] = []
    while len(seen) < len(requests):
        index, flag = kind.Testany(requests)
        seen += [index] if flag else []
        assert time.monotonic() < end
    assert sorted(seen) == list(range(len(requests)))


@way
def asking_for_some(kind: Any, requests: list[Any]) -> None:
    end = time.monotonic() + 30
    seen: list[int] = []
    while len(seen) < len(requests):
        seen += kind.Testsome(requests) or []
        assert time.monotonic() < end
    assert sorted(seen) == list(range(len(requests)))


@pytest.mark.parametrize("name", WAYS)
@pytest.mark.parametrize("kind", [MPI.Request, hpccoll.Request], ids=["MPI's", "ours"])
@layouts({"": (1, 2), "1+1": (2,), "2+1": (3,)})
def test_beside_messages_between_ranks(
    world: MPI.Intracomm, communicator: Make, layout: str, kind: Any, name: str
) -> None:
    comm = communicator(layout=layout)
    size, rank = comm.size, comm.rank
    pairs = in_flight(comm, 1)
    sent, received = np.arange(5000.0) + rank, np.empty(5000)
    requests: list[Any] = [request for _, request in pairs]
    requests.insert(1, world.Irecv(received, (rank - 1) % size, TAG))
    requests.append(world.Isend(sent, (rank + 1) % size, TAG))
    WAYS[name](kind, requests)
    for attempt, request in pairs:
        attempt.check()
        assert request.Test()
    assert np.array_equal(received, np.arange(5000.0) + (rank - 1) % size)


@FEW
def test_among_blocking_calls(communicator: Make, layout: str) -> None:
    comm = communicator(layout=layout)
    random = np.random.default_rng(3)
    open_ones: list[tuple[Attempt, Any]] = []
    for salt in range(120):
        name = COLLECTIVES[random.integers(len(COLLECTIVES))]
        job = Job(name, int(random.choice([1, 40, 1500])), root=int(random.integers(comm.size)), salt=salt)
        if random.integers(2):
            perform(comm, job)
        else:
            attempt = Attempt(comm, job)
            open_ones.append((attempt, attempt.start()))
        if len(open_ones) > 6:
            attempt, request = open_ones.pop(int(random.integers(len(open_ones))))
            request.Wait()
            attempt.check()
    for attempt, request in open_ones:
        request.Wait()
        attempt.check()


@pytest.mark.ranks(2)
@pytest.mark.parametrize("layout", ["", "1+1"])
def test_two_hundred_in_flight(communicator: Make, layout: str) -> None:
    comm = communicator(layout=layout)
    attempts = [Attempt(comm, Job("allreduce", 3 if k % 3 else 900, salt=k)) for k in range(200)]
    requests = [attempt.start() for attempt in attempts]
    hpccoll.Request.Waitall(requests)
    for attempt in attempts:
        attempt.check()


@FEW
def test_on_two_communicators_at_a_time(world: MPI.Intracomm, layout: str) -> None:
    one = hpccoll.Communicator(world, layout=layout)
    other = one.Dup()
    pairs = [*in_flight(one, 1), *in_flight(other, 1)]
    # Ranks wait for the two communicators' requests in different order.
    if world.rank % 2:
        pairs.reverse()
    for attempt, request in pairs:
        request.Wait()
        attempt.check()
    other.Free()
    one.close()


@FEW
def test_methods_that_pickle_work_meanwhile(communicator: Make, layout: str) -> None:
    comm = communicator(layout=layout)
    pairs = in_flight(comm, 1)
    assert comm.allgather(("x", comm.rank)) == [("x", k) for k in range(comm.size)]
    assert comm.allreduce(comm.rank) == sum(range(comm.size))
    for attempt, request in pairs:
        request.Wait()
        attempt.check()


# --- memory -------------------------------------------------------------------------------------


@FEW
@pytest.mark.parametrize("count", [3, 20_000])
def test_buffers_live_until_the_request_is_complete(communicator: Make, layout: str, count: int) -> None:
    comm = communicator(layout=layout)
    comm.Barrier()
    send: Array = np.full(count, comm.rank + 1.0)
    receive = np.zeros(count)
    sent, received = weakref.ref(send), weakref.ref(receive)
    if comm.rank == 0:
        time.sleep(0.2)
    request = comm.Iallreduce(send, receive)
    del send
    gc.collect()
    if comm.rank != 0:  # it cannot be complete: rank 0 has not come yet
        others = [np.full(count, -1.0) for _ in range(50)]
        # Few elements have left it at once; many have not.
        assert sent() is not None or count == 3
        del others
    request.Wait()
    assert (receive == comm.size * (comm.size + 1) / 2).all(), f"rank {comm.rank}"
    del receive
    request.Wait()
    gc.collect()
    assert sent() is None, f"rank {comm.rank}"
    assert received() is None, f"rank {comm.rank}"


@FEW
def test_strided_results_come_to_their_array(communicator: Make, layout: str) -> None:
    comm = communicator(layout=layout)
    for count in (4, 5000):
        whole = np.full((count, 3), -1.0)
        request = comm.Iallreduce(np.arange(float(count))[::-1], whole[:, 1])
        request.Wait()
        assert np.array_equal(whole[:, 1], comm.size * np.arange(float(count))[::-1]), f"rank {comm.rank}"
        assert (whole[:, ::2] == -1).all()


@FEW
def test_requests_that_nobody_waits_for(world: MPI.Intracomm, layout: str) -> None:
    """The next calls are right, and the collector does not wait for anybody."""
    comm = hpccoll.Communicator(world, layout=layout)
    for turn in range(10):
        for count in (3, 4000):
            comm.Iallreduce(np.ones(count), np.empty(count))
        if comm.rank == turn % comm.size:
            gc.collect()
        perform(comm, Job("allreduce", 9, salt=turn))
    kept = [comm.Ibarrier() for _ in range(3)]
    del kept
    gc.collect()
    perform(comm, Job("allreduce", 2000))
    comm.close()


@FEW
def test_closing_with_requests_under_way_is_refused(world: MPI.Intracomm, layout: str) -> None:
    comm = hpccoll.Communicator(world, layout=layout)
    perform(comm, Job("allreduce", 3))
    total = np.empty(3)
    if comm.rank == 0:
        # No other rank has called it: it cannot be complete.
        request = comm.Iallreduce(np.ones(3), total)
        with pytest.raises(UsageError, match="not complete"):
            comm.close()
        assert not request.Test()
    world.Barrier()
    if comm.rank != 0:
        request = comm.Iallreduce(np.ones(3), total)
    request.Wait()
    assert (total == comm.size).all()
    comm.close()
    with pytest.raises(UsageError, match="closed"):
        comm.Iallreduce(np.ones(3), total)


# --- errors -------------------------------------------------------------------------------------


@FEW
def test_wrong_arguments_on_one_rank_reach_the_others_at_wait(communicator: Make, layout: str) -> None:
    comm = communicator(layout=layout)
    culprit = comm.size - 1
    for count in (3, 5000):
        before, after = Attempt(comm, Job("allreduce", count)), Attempt(comm, Job("scan", count))
        first = before.start()
        receive = np.full(count, -1.0)
        if comm.rank == culprit:
            with pytest.raises(UsageError, match=f"rank {culprit}|must be a rank") as caught:
                comm.Ireduce(np.ones(count), receive, root=comm.size).Wait()
        else:
            request = comm.Ireduce(np.ones(count), receive, root=0)
            with pytest.raises(UsageError, match=f"rank {culprit}: root is {comm.size}") as caught:
                request.Wait()
            assert comm.last_error is caught.value
            assert caught.value.suspects == (culprit,)
        last = after.start()
        last.Wait()
        first.Wait()
        before.check()
        after.check()
        assert (receive == -1).all()


@FEW
def test_different_calls_are_told_at_wait(communicator: Make, layout: str) -> None:
    comm = communicator(layout=layout)
    odd = comm.rank == comm.size - 1
    request = comm.Ibarrier() if odd else comm.Iallreduce(np.ones(3), np.empty(3))
    with pytest.raises(hpccoll.MismatchError, match="barrier on rank") as caught:
        request.Wait()
    assert comm.last_error is caught.value
    odd_count = comm.Iallgather(np.ones(3 + odd), np.empty((3 + odd) * comm.size))
    with pytest.raises(hpccoll.MismatchError, match="count"):
        finished(odd_count)
    perform(comm, Job("allreduce", 3))


def ask_for_all(requests: list[MPI.Request]) -> None:
    end = time.monotonic() + 20
    while not MPI.Request.Testall(requests) and time.monotonic() < end:
        pass


WITH_ERRORS = {"Waitall": MPI.Request.Waitall, "Waitany": MPI.Request.Waitany, "Testall": ask_for_all}


@pytest.mark.parametrize("name", WITH_ERRORS)
@FEW
def test_what_went_wrong_stays_readable_after_mpis_own_wait(
    world: MPI.Intracomm, communicator: Make, layout: str, name: str
) -> None:
    comm = communicator(layout=layout)
    odd = comm.rank == comm.size - 1
    received = np.empty(1)
    beside = [world.Irecv(received, comm.rank, TAG), world.Isend(np.ones(1), comm.rank, TAG)]
    if name == "Waitany":
        MPI.Request.Waitall(beside)
        beside = []
    request = comm.Iallreduce(np.ones(3), np.empty(3), MPI.MAX if odd else MPI.SUM)
    requests = [request, *beside]
    with pytest.raises((MPI.Exception, hpccoll.MismatchError)):
        WITH_ERRORS[name](requests)
    assert isinstance(comm.last_error, hpccoll.MismatchError)
    assert "operator" in str(comm.last_error)
    perform(comm, Job("allreduce", 3))


@FEW
def test_ours_raises_our_errors_from_waiting_for_all(communicator: Make, layout: str) -> None:
    comm = communicator(layout=layout)
    odd = comm.rank == comm.size - 1
    good = Attempt(comm, Job("allreduce", 700))
    requests = [good.start(), comm.Iallreduce(np.ones(3 + odd), np.empty(3 + odd))]
    with pytest.raises(hpccoll.MismatchError, match="count"):
        hpccoll.Request.Waitall(requests)
    requests[0].Wait()
    good.check()
    perform(comm, Job("allreduce", 3))


@pytest.mark.ranks(2, 3)
def test_a_rank_that_does_not_call_is_named_at_the_deadline(world: MPI.Intracomm) -> None:
    comm = hpccoll.Communicator(world, timeout_s=1)
    perform(comm, Job("allreduce", 3))
    last = comm.size - 1
    if comm.rank != last:
        begin = time.monotonic()
        request = comm.Iallreduce(np.ones(3), np.empty(3))
        with pytest.raises((hpccoll.CollectiveTimeoutError, hpccoll.AbortedError)) as caught:
            request.Wait()
        waited = time.monotonic() - begin
        assert 0.9 < waited < 5
        if isinstance(caught.value, TimeoutError):
            assert f"rank {last}" in str(caught.value)
            assert caught.value.suspects == (last,)
        with pytest.raises(HpccollError, match="broken"):
            comm.Iallreduce(np.ones(3), np.empty(3)).Wait()
    else:
        time.sleep(2)
    comm.close()
    world.Barrier()


@pytest.mark.ranks(2, 3)
def test_a_request_waits_longer_than_a_caller_who_computes(world: MPI.Intracomm) -> None:
    """A deadline is for ranks that do not come, not for a caller who is late to ask."""
    with hpccoll.Communicator(world, timeout_s=1) as comm:
        perform(comm, Job("allreduce", 3))
        attempts = [Attempt(comm, Job("allreduce", count)) for count in (3, 5000)]
        requests = [attempt.start() for attempt in attempts]
        time.sleep(1.5)
        for attempt, request in zip(attempts, requests, strict=True):
            request.Wait()
            attempt.check()


# --- progress -----------------------------------------------------------------------------------

several_threads = pytest.mark.skipif(
    MPI.Query_thread() < MPI.THREAD_MULTIPLE, reason="MPI has not been started for several threads"
)


def compute_until(seen: Callable[[], bool], limit_s: float) -> bool:
    """Compute in pure Python, no call of ours or of MPI, until the result is there."""
    end = time.monotonic() + limit_s
    while not seen():
        total = 0
        for k in range(20_000):
            total += k * k % 7
        if time.monotonic() > end:
            return False
    return True


@several_threads
@pytest.mark.parametrize("collective", COLLECTIVES)
@pytest.mark.parametrize("native", [True, False])
@layouts({"": (2,), "1+1": (2,), "2+1": (3,)})
def test_calls_move_on_while_the_caller_computes(
    communicator: Make, layout: str, collective: str, native: bool
) -> None:
    comm = communicator(layout=layout, native=native)
    for count in (3, 3000, 120_000) if native else (3, 3000):
        job = Job(collective, count // (comm.size if collective in ("alltoall", "allgather") else 1), root=1)
        attempt = Attempt(comm, job)
        wanted = job.after(job.given(comm.size), comm.rank)
        comm.Barrier()
        request = attempt.start()
        receive = attempt.received
        arrived = compute_until(lambda: np.array_equal(receive, wanted), 15)  # noqa: B023  called in this turn
        assert arrived, f"rank {comm.rank}: {job}"
        request.Wait()
        attempt.check()


@several_threads
@pytest.mark.ranks(2)
@pytest.mark.parametrize("blocking", [True, False])
def test_calls_move_on_though_another_communicator_has_failed(world: MPI.Intracomm, blocking: bool) -> None:
    """A wait that ended with an error is over, also for those who move other calls on."""
    broken, comm = hpccoll.Communicator(world, timeout_s=1), hpccoll.Communicator(world)
    for one in (broken, comm):
        perform(one, Job("allreduce", 3))
    if world.rank == 0:
        call = broken.Barrier if blocking else lambda: broken.Ibarrier().Wait()
        with pytest.raises(hpccoll.CollectiveTimeoutError):
            call()
        assert broken.last_error is not None
    world.Barrier()
    for count in (3, 3000):
        attempt = Attempt(comm, Job("allreduce", count))
        wanted = attempt.job.after(attempt.job.given(2), comm.rank)
        if comm.rank == 1:
            time.sleep(0.2)  # so that rank 0 cannot be through as it starts
        request = attempt.start()
        received = attempt.received
        assert compute_until(lambda: np.array_equal(received, wanted), 10), f"rank {comm.rank}"  # noqa: B023
        request.Wait()
        attempt.check()
    comm.close()
    broken.close()


@several_threads
@layouts({"": (2,), "1+1": (2,)})
def test_several_calls_move_on_while_the_caller_computes(communicator: Make, layout: str) -> None:
    comm = communicator(layout=layout)
    pairs = in_flight(comm)
    size, rank = comm.size, comm.rank
    wanted = [attempt.job.after(attempt.job.given(size), rank) for attempt, _ in pairs]

    def arrived() -> bool:
        return all(
            np.array_equal(attempt.received, one) for (attempt, _), one in zip(pairs, wanted, strict=True)
        )

    assert compute_until(arrived, 20), f"rank {rank}"
    hpccoll.Request.Waitall([request for _, request in pairs])
    for attempt, _ in pairs:
        attempt.check()
