"""Every plan of every collective on every layout gives what NumPy gives, for sizes that divide by nothing."""

from __future__ import annotations

import numpy as np
import pytest
from mpi4py import MPI

from tests.collectives.conftest import Make
from tests.support.layouts import on_layouts
from tests.support.oracle import COLLECTIVES, Job, every_place, every_root, in_line, perform, perform_all

SIZES = (1, 2, 3, 5, 7, 127, 128, 129)


@pytest.mark.parametrize("collective", COLLECTIVES)
@on_layouts(1, 2, 3, 4, 5, 6)
def test_every_plan_of_small_sizes(communicator: Make, layout: str, collective: str) -> None:
    comm = communicator(layout=layout)
    jobs = every_place([Job(collective, count, salt=count) for count in SIZES])
    perform_all(comm, jobs)
    perform_all(comm, every_root(every_place([Job(collective, 9)]), comm.size))


@pytest.mark.parametrize("collective", COLLECTIVES)
@on_layouts(1, 2, 3, 4, 5, 6)
def test_every_plan_of_a_long_message(communicator: Make, layout: str, collective: str) -> None:
    comm = communicator(layout=layout)
    count = 50021 if collective in ("allgather", "reduce_scatter") else 100003
    perform_all(comm, every_place([Job(collective, count, root=comm.size - 1)]))


@pytest.mark.parametrize("collective", COLLECTIVES)
@on_layouts(1, 2, 3, 4, 5, 6)
def test_no_elements(communicator: Make, layout: str, collective: str) -> None:
    comm = communicator(layout=layout)
    perform_all(comm, every_place([Job(collective, 0), Job(collective, 3)]))


@on_layouts(2, 3, 4, 5)
def test_a_million_and_three_elements(communicator: Make, layout: str) -> None:
    comm = communicator(layout=layout)
    size = comm.size
    numbers = np.arange(1_000_003)
    send, sent_intact = in_line(numbers * (comm.rank + 1))
    for name in comm.algorithms("allreduce"):
        receive, intact = in_line(np.full(numbers.size, -1))
        with comm.forced(name):
            comm.Allreduce(send, receive)
        assert np.array_equal(receive, numbers * (size * (size + 1) // 2)), f"rank {comm.rank}: {name}"
        assert intact(), f"rank {comm.rank}: {name}"
    assert sent_intact()


@pytest.mark.slow
@pytest.mark.timeout(240)
@on_layouts(4, 5)
def test_ten_million_and_nineteen_elements(communicator: Make, layout: str) -> None:
    comm = communicator(layout=layout, timeout_s=60)
    size = comm.size
    numbers = np.arange(10_000_019)
    receive, intact = in_line(np.full(numbers.size, -1))
    comm.Allreduce(numbers * (comm.rank + 1), receive)
    assert np.array_equal(receive, numbers * (size * (size + 1) // 2)), f"rank {comm.rank}"
    assert intact(), f"rank {comm.rank}"


@on_layouts(2, 3, 4, 5)
def test_calls_of_all_kinds_in_turn_do_not_mix(communicator: Make, layout: str) -> None:
    comm = communicator(layout=layout)
    random = np.random.default_rng(7)
    for turn in range(150):
        collective = COLLECTIVES[random.integers(len(COLLECTIVES))]
        count = int(random.choice([0, 1, 40, 700, 9000]))
        root = int(random.integers(comm.size))
        in_place = collective != "broadcast" and bool(random.integers(2))
        perform(comm, Job(collective, count, root=root, in_place=in_place, salt=turn))


@pytest.mark.ranks(2, 3, 4, 5)
@pytest.mark.timeout(120)
def test_nobody_leaves_a_barrier_before_all_have_come(communicator: Make) -> None:
    comm = communicator(layout="1+" + "1+" * (MPI.COMM_WORLD.size - 2) + "1")
    alike = communicator()
    arrivals = np.zeros(comm.size, np.int64)
    window = MPI.Win.Create(arrivals, 8, comm=MPI.COMM_WORLD)
    try:
        for barrier in (comm.Barrier, alike.Barrier):
            for turn in range(1, 30):
                arrivals[comm.rank] += 1
                barrier()
                for other in range(comm.size):
                    there = np.zeros(comm.size, np.int64)
                    window.Lock(other, MPI.LOCK_SHARED)
                    window.Get(there, other)
                    window.Unlock(other)
                    assert there[other] >= arrivals[comm.rank], f"rank {comm.rank}, turn {turn}: {other} had not come"
                barrier()
    finally:
        window.Free()
