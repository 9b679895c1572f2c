"""Known calls that are started: C has them until they are over, and Python goes on where that takes long."""

from __future__ import annotations

import gc
import os
import struct
import sys
import threading
import time
import weakref
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from mpi4py import MPI

import hpccoll
from hpccoll import _native
from hpccoll.errors import AbortedError, CollectiveTimeoutError, MismatchError, UsageError
from hpccoll.observe import form
from hpccoll.observe.reading import read_file
from hpccoll.runtime.known_calls import LONG_S
from tests.collectives.conftest import Make
from tests.collectives.test_repeats import again
from tests.support.layouts import layouts, on_layouts
from tests.support.oracle import COLLECTIVES, Attempt, Job

needs_engine = pytest.mark.skipif(bool(_native.reason()), reason=_native.reason())
LAYOUTS = layouts({"": (2, 3, 4), "1+1": (2,), "2+1": (3,), "2+2": (4,), "cyclic:2+2": (4,)})
PAIR = layouts({"": (2,), "1+1": (2,)})
MOST_STARTED = 64  # in _native/repeats.h
COUNTS = (3, 400, 2000)  # by one slot, by one part, by several


@contextmanager
def begun_in_python(comm: hpccoll.Communicator) -> Iterator[list[str]]:
    """The collectives that were started the long way inside."""
    context = comm._used()
    begun: list[str] = []
    start = context.start

    def counted(call: Any, given: Any = None) -> Any:
        begun.append(call.collective)
        return start(call, given)

    context.start = counted  # type: ignore[method-assign]
    try:
        yield begun
    finally:
        del context.start


def startable(comm: hpccoll.Communicator, collective: str, count: int) -> Attempt:
    """A call that C can start; the test is skipped where it is none."""
    if comm.node_count > 1 and comm.explain(collective, 8 * count * comm.size).plan == "flat":
        pytest.skip("MPI's own call is the plan")
    return Attempt(comm, Job(collective, count, root=comm.size - 1))


def with_other_data(attempts: list[Attempt], salt: int) -> list[MPI.Request]:
    """Start all, each with data of this turn."""
    requests = []
    for k, attempt in enumerate(attempts):
        attempt.renew(7 * salt + k)
        requests.append(attempt.start())
    return requests


@needs_engine
@LAYOUTS
@pytest.mark.parametrize("count", COUNTS)
@pytest.mark.parametrize("collective", COLLECTIVES)
def test_the_second_start_is_known(communicator: Make, layout: str, collective: str, count: int) -> None:
    attempt = startable(communicator(layout=layout, small_bytes=1024), collective, count)
    comm = attempt.comm
    before = comm.tally()
    for salt in range(2):
        with_other_data([attempt], salt)[0].Wait()
        attempt.check()
    with begun_in_python(comm) as begun:
        for salt in range(2, 12):
            with_other_data([attempt], salt)[0].Wait()
            attempt.check()
    assert not begun
    assert (comm.tally() - before).total() == 12


@needs_engine
@LAYOUTS
@pytest.mark.parametrize("count", COUNTS)
@pytest.mark.parametrize("collective", COLLECTIVES)
def test_persistent_calls_are_known(communicator: Make, layout: str, collective: str, count: int) -> None:
    attempt = startable(communicator(layout=layout, small_bytes=1024), collective, count)
    request = attempt.prepare()
    with begun_in_python(attempt.comm) as begun:
        for salt in range(10):
            attempt.renew(salt)
            request.Start()
            if salt % 3 == 2:
                MPI.Request.Waitall([request])
            elif salt % 3:
                request.Wait()
            else:
                while not request.Test():
                    pass
            attempt.check()
            assert request == MPI.REQUEST_NULL
    assert begun in ([], [collective])
    request.Start()
    with pytest.raises(UsageError, match="started already"):
        request.Start()
    request.Free()


@on_layouts(2, 3, 4)
def test_many_in_flight(communicator: Make, layout: str) -> None:
    comm = communicator(layout=layout)
    attempts = [
        Attempt(comm, Job(name, 2 + k, root=k % comm.size, salt=k)) for k in range(12) for name in COLLECTIVES
    ]
    assert len(attempts) > MOST_STARTED
    for salt in range(4):
        requests = with_other_data(attempts, salt)
        order = np.random.default_rng(salt + 10 * comm.rank).permutation(len(requests))
        for k in order:
            requests[k].Wait()
            attempts[k].check()


WAYS: dict[str, Callable[[list[MPI.Request]], object]] = {
    "ours, all": hpccoll.Request.Waitall,
    "MPI's, all": MPI.Request.Waitall,
    "ours, any": lambda requests: [hpccoll.Request.Waitany(requests) for _ in requests],
    "MPI's, any": lambda requests: [MPI.Request.Waitany(requests) for _ in requests],
    "ours, some": lambda requests: [None for _ in iter(lambda: hpccoll.Request.Waitsome(requests), None)],
    "test all": lambda requests: [None for _ in iter(lambda: hpccoll.Request.Testall(requests), True)],
    "status": lambda requests: [
        request.Wait() for request in requests if [None for _ in iter(request.Get_status, True)] or True
    ],
}


@pytest.mark.parametrize("way", WAYS)
@LAYOUTS
def test_several_are_waited_for(communicator: Make, layout: str, way: str) -> None:
    comm = communicator(layout=layout)
    jobs = [Job("allreduce", 3), Job("scan", 500), Job("allgather", 2000), Job("broadcast", 4)]
    attempts = [Attempt(comm, job) for job in jobs]
    for salt in range(5):
        requests = with_other_data(attempts, salt)
        WAYS[way](requests)
        assert all(request == MPI.REQUEST_NULL for request in requests)
        for attempt in attempts:
            attempt.check()


@on_layouts(2, 3)
def test_beside_blocking_calls(communicator: Make, layout: str) -> None:
    comm = communicator(layout=layout)
    started = [again(comm, Job("allreduce", count)) for count in COUNTS]
    short, long = again(comm, Job("scan", 5)), again(comm, Job("allreduce", 50_000))
    forced = again(comm, Job("allreduce", 9))
    for salt in range(10):
        requests = with_other_data(started, salt)
        for blocking in (short, long):
            blocking.renew(salt)
            blocking.call()
            blocking.check()
        with comm.forced(comm.algorithms("allreduce")[-1]):
            (last,) = with_other_data([forced], salt)
            comm.Barrier()
        for request, attempt in zip(requests, started, strict=True):
            request.Wait()
            attempt.check()
        last.Wait()
        forced.check()


@LAYOUTS
@pytest.mark.parametrize("count", COUNTS)
@pytest.mark.parametrize("late_s", [LONG_S / 4, 3 * LONG_S])
def test_a_rank_that_comes_late(communicator: Make, layout: str, late_s: float, count: int) -> None:
    """The others wait in C for a moment, and then in Python."""
    comm = communicator(layout=layout)
    attempts = [again(comm, Job("allreduce", count)), again(comm, Job("alltoall", count - 1))]
    for salt in range(3):
        for late in range(comm.size):
            MPI.COMM_WORLD.Barrier()
            if comm.rank == late:
                time.sleep(late_s)
            requests = with_other_data(attempts, 10 * salt + late)
            for request, attempt in zip(reversed(requests), reversed(attempts), strict=True):
                request.Wait()
                attempt.check()


@PAIR
def test_nobody_waits_for_it(communicator: Make, layout: str) -> None:
    """Others see that this rank has started it; a later call finds all in order, and the arrays go."""
    comm = communicator(layout=layout)
    attempt = again(comm, Job("allreduce", 3))
    MPI.COMM_WORLD.Barrier()
    give, take = np.ones(3), np.zeros(3)
    seen = [weakref.ref(give), weakref.ref(take)]
    request = comm.Iallreduce(give, take)
    if comm.rank:
        request.Wait()
    del request, give, take
    attempt.renew(5)
    attempt.call()
    attempt.check()
    gc.collect()
    assert [one() for one in seen] == [None, None]


@PAIR
def test_it_moves_on_while_the_caller_computes(communicator: Make, layout: str) -> None:
    """With MPI's own wait, and the other rank late: the worker completes it."""
    comm = communicator(layout=layout)
    again(comm, Job("allreduce", 3))
    take = np.zeros(3)
    for _ in range(5):
        MPI.COMM_WORLD.Barrier()
        if comm.rank:
            time.sleep(3 * LONG_S)
        request = comm.Iallreduce(np.full(3, 2.0), take)
        end = time.monotonic() + 20
        while take[2] != 4 and time.monotonic() < end:
            sum(range(1000))
        assert (take == 4).all()
        MPI.Request.Wait(request)
        take[:] = 0


@PAIR
@pytest.mark.parametrize("count", COUNTS)
def test_different_calls(communicator: Make, layout: str, count: int) -> None:
    comm = communicator(layout=layout)
    attempts = [again(comm, Job("allreduce", count)), again(comm, Job("allreduce", count + 1))]
    for _ in range(2):
        request = attempts[comm.rank].start()
        with pytest.raises(MismatchError, match="count") as caught:
            request.Wait()
        assert comm.last_error is caught.value
        after = [attempts[0].start(), attempts[1].start()]
        hpccoll.Request.Waitall(after)
        for attempt in attempts:
            attempt.check()


@PAIR
def test_wrong_arguments_on_one_rank(communicator: Make, layout: str) -> None:
    comm = communicator(layout=layout)
    attempt = again(comm, Job("reduce", 3))
    for _ in range(2):
        before = attempt.start()
        if comm.rank:
            with pytest.raises(UsageError, match="root is 9"):
                comm.Ireduce(np.ones(3), np.ones(3), root=9).Wait()
        else:
            request = comm.Ireduce(np.ones(3), np.ones(3), root=0)
            with pytest.raises(UsageError, match="rank 1: root is 9"):
                request.Wait()
        before.Wait()
        attempt.check()


@pytest.mark.ranks(2)
@pytest.mark.parametrize("way", ["wait", "test", "MPI's"])
def test_a_rank_that_does_not_come(world: MPI.Intracomm, way: str) -> None:
    comm = hpccoll.Communicator(world, timeout_s=0.5)
    attempt = again(comm, Job("allreduce", 3))
    if comm.rank == 0:
        request = attempt.start()
        if way == "MPI's":
            with pytest.raises(MPI.Exception):
                MPI.Request.Wait(request)
            assert isinstance(comm.last_error, CollectiveTimeoutError)
        else:
            ask = {"wait": request.Wait, "test": lambda: [None for _ in iter(request.Test, True)]}[way]
            with pytest.raises(
                CollectiveTimeoutError,
                match=r"rank 1 did not call|node 1 did not answer \(rank 1",
            ):
                ask()
    world.Barrier()
    with pytest.raises(AbortedError, match=r"rank 0 gave up|is broken since"):
        attempt.start().Wait()
    comm.close()


@layouts({"1+1": (2,), "2+1": (3,)})
def test_a_rank_of_another_node_that_does_not_come(world: MPI.Intracomm, layout: str) -> None:
    comm = hpccoll.Communicator(world, timeout_s=0.5, layout=layout)
    attempt = again(comm, Job("allreduce", 3))
    if comm.rank != comm.size - 1:
        request = attempt.start()
        with pytest.raises((CollectiveTimeoutError, AbortedError), match=r"is not complete|gave up"):
            request.Wait()
    world.Barrier()
    comm._let_go()


@pytest.mark.ranks(2)
def test_closing_while_it_is_under_way(world: MPI.Intracomm) -> None:
    comm = hpccoll.Communicator(world)
    attempt = again(comm, Job("allreduce", 3))
    if comm.rank == 0:
        request = attempt.start()
        with pytest.raises(UsageError, match="1 requests of this communicator are not complete"):
            comm.close()
    world.Barrier()
    if comm.rank:
        request = attempt.start()
    request.Wait()
    attempt.check()
    comm.close()


@needs_engine
@pytest.mark.ranks(2)
def test_each_has_one_record(world: MPI.Intracomm, tmp_path: Path) -> None:
    """Also those that Python has taken over."""
    comm = hpccoll.Communicator(world)
    attempts = [again(comm, Job("allreduce", 3 + k)) for k in range(3)]
    before = 12
    for late_s in (0, 3 * LONG_S):
        world.Barrier()
        time.sleep(late_s * comm.rank)
        hpccoll.Request.Waitall(with_other_data(attempts, 1))
    path = comm.dump_trace(tmp_path)
    (written,) = struct.unpack_from("<Q", path.read_bytes(), form.WRITTEN)
    calls = list(read_file(str(path)).calls.values())
    assert [call.sequence for call in calls] == list(range(before + 6)) == list(range(written))
    assert not any(call.waits for call in calls)
    assert {call.collective for call in calls} == {"allreduce"}
    name = "Attempt.start" if sys.version_info >= (3, 11) else "start"  # older code has no longer name
    assert {call.place.function for call in calls[before:] if call.place} == {name}
    comm.close()


@pytest.mark.ranks(2)
def test_in_a_forked_child(communicator: Make) -> None:
    comm = communicator()
    attempt = again(comm, Job("allreduce", 5))
    MPI.COMM_WORLD.Barrier()
    if comm.rank == 0:
        request = attempt.start()
        child = os.fork()
        if child == 0:
            try:
                request.Wait()
            except UsageError as error:
                os._exit(0 if "forked child" in str(error) else 1)
            os._exit(2)
        assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0
    MPI.COMM_WORLD.Barrier()
    if comm.rank:
        request = attempt.start()
    request.Wait()
    attempt.check()


@needs_engine
@PAIR
def test_what_python_took_over_is_seen_to_be_complete(
    communicator: Make, layout: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """By Test, however soon after the start that was."""
    monkeypatch.setattr("hpccoll.runtime.request.PATIENCE_S", 600.0)
    comm = communicator(layout=layout)
    attempt = again(comm, Job("allreduce", 400))
    attempt.renew(5)
    if comm.rank == 0:
        time.sleep(0.05)  # the other rank's is not over before it is taken over
    request = attempt.start()
    comm._used().known.take_over()
    MPI.Request.Waitall([request])
    attempt.check()
    assert request.Test()


@PAIR
def test_two_threads(communicator: Make, layout: str) -> None:
    """Each with a communicator of its own, while the worker looks after both."""
    comms = [communicator(layout=layout), communicator(layout=layout, timeout_s=60)]
    attempts = [[again(comm, Job("allreduce", count)) for count in COUNTS] for comm in comms]
    failed: list[BaseException] = []

    def work(mine: list[Attempt]) -> None:
        try:
            for salt in range(200):
                for request, attempt in zip(with_other_data(mine, salt), mine, strict=True):
                    request.Wait()
                    attempt.check()
        except BaseException as error:
            failed.append(error)

    threads = [threading.Thread(target=work, args=(mine,)) for mine in attempts]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not failed


@needs_engine
@pytest.mark.ranks(1)
def test_what_the_extension_refuses(communicator: Make) -> None:
    comm = communicator()
    repeats = comm._used().known._repeats
    assert repeats is not None
    native: Any = repeats._native
    for wrong in ((), ("allreduce",), ("allreduce", (None, None, None, 0))):
        with pytest.raises(TypeError, match="start"):
            native.start(*wrong)
    assert native.start("allreduce", (None,), print) is False
    assert native.start("allreduce", [np.ones(1), np.ones(1), MPI.SUM, 0], print) is False
    assert native.move() == -1
    assert native.take_over() == []
    with pytest.raises(TypeError):
        _native._core.Started()
