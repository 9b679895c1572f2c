"""Threads: one communicator each, or one for all; Python threads that run while another waits.

As reported in open-mpi/ompi#2427 (threads mixed messages) and mpi4py/mpi4py#784 (the interpreter was locked).
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from mpi4py import MPI

import hpccoll
from hpccoll.errors import HpccollError
from tests.collectives.conftest import Make
from tests.support.layouts import layouts
from tests.support.oracle import COLLECTIVES, Attempt, Job, perform

pytestmark = pytest.mark.skipif(
    MPI.Query_thread() < MPI.THREAD_MULTIPLE, reason="MPI has not been started for several threads"
)
LIMIT_S = 30.0
LAYOUTS = layouts({"": (2,), "1+1": (2,), "2+1": (3,)})


def together(*works: Callable[[], None]) -> None:
    """Run each in a thread of its own; the first error of any is raised here."""
    errors: list[BaseException] = []

    def guarded(work: Callable[[], None]) -> None:
        try:
            work()
        except BaseException as error:
            errors.append(error)

    threads = [threading.Thread(target=guarded, args=(work,), daemon=True) for work in works]
    for thread in threads:
        thread.start()
    end = time.monotonic() + LIMIT_S
    for thread in threads:
        thread.join(max(0.0, end - time.monotonic()))
    assert not any(thread.is_alive() for thread in threads), f"rank {MPI.COMM_WORLD.rank}: a thread hangs"
    if errors:
        raise errors[0]


def sums(comm: Any, count: int, turns: int, begin: int = 0) -> None:
    """All-reduces with other data each time, every one checked."""
    size, rank = comm.size, comm.rank
    for turn in range(begin, begin + turns):
        total = np.empty(count, np.int64)
        comm.Allreduce(np.full(count, (rank + 1) * turn), total)
        assert (total == size * (size + 1) // 2 * turn).all(), f"rank {rank}: turn {turn} of {count}"


@LAYOUTS
@pytest.mark.parametrize("counts", [(3, 4), (3, 5000), (5000, 6000)])
def test_two_threads_with_two_communicators(
    world: MPI.Intracomm, layout: str, counts: tuple[int, int]
) -> None:
    comms = [hpccoll.Communicator(world, layout=layout) for _ in counts]
    parts = [comm.Dup() for comm in comms]
    # Also the first use, which sets a communicator up, is in the threads.
    together(*(lambda pair=pair: sums(*pair, 200) for pair in zip(parts, counts, strict=True)))
    for part in parts:
        part.Free()


@LAYOUTS
def test_threads_of_all_collectives(world: MPI.Intracomm, layout: str) -> None:
    parts = [hpccoll.Communicator(world, layout=layout).Dup() for _ in range(3)]

    def work(comm: Any, salt: int) -> None:
        for turn in range(3):
            for k, name in enumerate(COLLECTIVES):
                count = (4, 900)[(turn + salt) % 2]
                perform(comm, Job(name, count, root=k % comm.size, salt=10 * salt + turn))

    together(*(lambda pair=pair: work(pair[1], pair[0]) for pair in enumerate(parts)))
    for part in parts:
        part.Free()


@pytest.mark.ranks(1)
@pytest.mark.parametrize("counts", [(3, 4), (3, 5000), (5000, 6000)])
def test_two_threads_on_one_communicator_of_one_rank(communicator: Make, counts: tuple[int, int]) -> None:
    """There is no order among ranks to get wrong: all results are right, or the second thread is told."""
    comm = communicator()
    refused: list[HpccollError] = []

    def work(count: int) -> None:
        for turn in range(200):
            try:
                sums(comm, count, 1, turn)
            except HpccollError as error:
                refused.append(error)

    together(*(lambda count=count: work(count) for count in counts))
    assert all("thread" in str(error) for error in refused), refused[:1]
    sums(comm, 3, 3)


@layouts({"": (2,), "1+1": (2,)})
@pytest.mark.parametrize("counts", [(3, 4), (3, 5000)])
def test_two_threads_on_one_communicator_never_mix(
    world: MPI.Intracomm, layout: str, counts: tuple[int, int]
) -> None:
    """Which thread comes first differs between ranks: every result is right, or it is an error."""
    comm = hpccoll.Communicator(world, layout=layout, timeout_s=4)
    sums(comm, 3, 2)

    def work(count: int) -> None:
        for turn in range(100):
            try:
                sums(comm, count, 1, turn)
            except HpccollError:
                return

    together(*(lambda count=count: work(count) for count in counts))
    comm.close()
    with hpccoll.Communicator(world, layout=layout) as another:
        sums(another, 3, 3)


@LAYOUTS
def test_threads_that_take_turns(communicator: Make, layout: str) -> None:
    """A communicator is not tied to the thread that made it."""
    comm = communicator(layout=layout)
    turns = [threading.Semaphore(1), threading.Semaphore(0)]

    def work(me: int) -> None:
        for turn in range(40):
            assert turns[me].acquire(timeout=LIMIT_S)
            try:
                perform(comm, Job(COLLECTIVES[turn % len(COLLECTIVES)], 3 + 700 * me, salt=turn))
            finally:
                turns[1 - me].release()

    together(lambda: work(0), lambda: work(1))


@LAYOUTS
def test_a_request_is_waited_for_in_another_thread(communicator: Make, layout: str) -> None:
    comm = communicator(layout=layout)
    pairs = []
    for count in (4, 900, 5000):
        attempt = Attempt(comm, Job("allreduce", count))
        pairs.append((attempt, attempt.start()))

    def work() -> None:
        for attempt, request in reversed(pairs):
            request.Wait()
            attempt.check()

    together(work)


@LAYOUTS
@pytest.mark.parametrize("what", ["Barrier", "Allreduce", "Wait"])
def test_a_python_thread_runs_while_another_waits(communicator: Make, layout: str, what: str) -> None:
    comm = communicator(layout=layout)
    perform(comm, Job("allreduce", 9000))
    comm.Barrier()
    late = comm.size - 1
    turns, stop = [0], threading.Event()

    def count() -> None:
        while not stop.is_set():
            turns[0] += 1
            time.sleep(0.001)

    counting = threading.Thread(target=count)
    if comm.rank == late:
        time.sleep(0.5)
    else:
        counting.start()
    begin = time.monotonic()
    if what == "Barrier":
        comm.Barrier()
    elif what == "Allreduce":
        perform(comm, Job("allreduce", 9000))
    else:
        comm.Ibarrier().Wait()
    waited = time.monotonic() - begin
    stop.set()
    if comm.rank != late:
        counting.join()
        assert waited > 0.3, f"rank {comm.rank}: waited only {waited:.2f} s"
        assert turns[0] > 30, f"rank {comm.rank}: {turns[0]} turns in {waited:.2f} s"


@pytest.mark.ranks(2)
def test_a_computing_thread_keeps_its_speed_while_another_waits(communicator: Make) -> None:
    """Pure Python beside a rank that waits: the waiting does not take half of the interpreter."""
    comm = communicator()

    def turns(seconds: float) -> int:
        end, done = time.monotonic() + seconds, 0
        while time.monotonic() < end:
            done += 1
        return done

    comm.Barrier()
    if comm.rank == 1:
        time.sleep(1.2)
        comm.Barrier()
        return
    waiting = threading.Thread(target=comm.Barrier)
    alone = turns(0.3)
    waiting.start()
    beside = turns(0.3)
    waiting.join(LIMIT_S)
    assert beside > alone / 4, f"{beside} turns beside a waiting call, {alone} alone"
