"""Every plan of every collective on every layout gives what NumPy gives, for sizes that divide by nothing."""

from __future__ import annotations

import time

import numpy as np
import pytest
from mpi4py import MPI

import hpccoll
from tests.collectives.conftest import Make
from tests.support.layouts import layouts, on_layouts
from tests.support.oracle import BLOCKED, COLLECTIVES, ROOTED, Job, every_root, in_line, perform, perform_all

SIZES = (0, 1, 2, 3, 5, 7, 127, 128, 129)
FEWER_SIZES = (0, 1, 3, 7, 128, 129)


@pytest.mark.parametrize("collective", COLLECTIVES)
@on_layouts(1, 2, 3, 4, 5, 6)
def test_every_plan_of_small_sizes(communicator: Make, layout: str, collective: str) -> None:
    comm = communicator(layout=layout)
    may_be_in_place = collective != "broadcast"
    jobs = [
        Job(collective, count, root=k % comm.size, in_place=may_be_in_place and k % 2 == 1, salt=k)
        for k, count in enumerate(SIZES if collective == "allreduce" else FEWER_SIZES)
    ]
    perform_all(comm, jobs)


@pytest.mark.parametrize("collective", ROOTED)
@on_layouts(2, 3, 4, 5)
def test_every_plan_for_every_root(communicator: Make, layout: str, collective: str) -> None:
    comm = communicator(layout=layout)
    perform_all(comm, every_root([Job(collective, 9, in_place=collective != "broadcast")], comm.size))
    perform_all(comm, every_root([Job(collective, 2003)], comm.size))


@pytest.mark.parametrize("collective", COLLECTIVES)
@on_layouts(1, 2, 3, 4, 5, 6)
def test_every_plan_of_long_messages_in_place(communicator: Make, layout: str, collective: str) -> None:
    comm = communicator(layout=layout)
    count = 20011 if collective in BLOCKED else 70001
    perform_all(comm, [Job(collective, count, root=comm.size - 1, in_place=collective != "broadcast")])


@on_layouts(2, 3, 4, 5)
def test_a_million_and_three_elements(communicator: Make, layout: str) -> None:
    comm = communicator(layout=layout)
    size = comm.size
    numbers = np.arange(1_000_003)
    send, sent_intact = in_line(numbers * (comm.rank + 1))
    receive, intact = in_line(np.full(numbers.size, -1))
    comm.Allreduce(send, receive)
    assert np.array_equal(receive, numbers * (size * (size + 1) // 2)), f"rank {comm.rank}"
    assert intact(), f"rank {comm.rank}"
    assert sent_intact(), f"rank {comm.rank}"


@pytest.mark.parametrize("collective", [name for name in COLLECTIVES if name != "allreduce"])
@layouts({"": (2,), "2+1": (3,), "cyclic:2+2": (4,), "3+1": (4,)})
def test_megabytes_of_every_collective(communicator: Make, layout: str, collective: str) -> None:
    """As the planner chooses: sizes at which two-level plans work in chunks."""
    comm = communicator(layout=layout)
    count = 500_003 // (comm.size if collective in BLOCKED else 1)
    perform(comm, Job(collective, count, root=comm.size - 1))


@pytest.mark.slow
@pytest.mark.timeout(300)
@on_layouts(4, 5)
def test_every_plan_of_ten_million_and_nineteen_elements(communicator: Make, layout: str) -> None:
    comm = communicator(layout=layout, timeout_s=120)
    size = comm.size
    numbers = np.arange(10_000_019)
    receive, intact = in_line(np.full(numbers.size, -1))
    for name in comm.algorithms("allreduce"):
        receive[:] = -1
        with comm.forced(name):
            comm.Allreduce(numbers * (comm.rank + 1), receive)
        assert np.array_equal(receive, numbers * (size * (size + 1) // 2)), f"rank {comm.rank}: {name}"
        assert intact(), f"rank {comm.rank}: {name}"


@pytest.mark.slow
@pytest.mark.timeout(200)
@pytest.mark.parametrize("collective", [name for name in COLLECTIVES if name != "allreduce"])
@layouts({"2+2": (4,), "3+1": (4,), "4+1": (5,)})
def test_every_plan_of_megabytes(communicator: Make, layout: str, collective: str) -> None:
    comm = communicator(layout=layout, timeout_s=100)
    count = 1_000_003 // (comm.size if collective in BLOCKED else 1)
    perform_all(comm, [Job(collective, count, root=comm.size - 1, in_place=collective != "broadcast")])


@on_layouts(2, 3, 4, 5)
def test_calls_of_all_kinds_in_turn_do_not_mix(communicator: Make, layout: str) -> None:
    comm = communicator(layout=layout)
    random = np.random.default_rng(7)
    for turn in range(80):
        collective = COLLECTIVES[random.integers(len(COLLECTIVES))]
        count = int(random.choice([0, 1, 40, 700, 9000]))
        root = int(random.integers(comm.size))
        in_place = collective != "broadcast" and bool(random.integers(2))
        perform(comm, Job(collective, count, root=root, in_place=in_place, salt=turn))


@pytest.mark.ranks(4)
@pytest.mark.parametrize("collective", COLLECTIVES)
@pytest.mark.parametrize("layout", ["", "2+2", "3+1"])
def test_in_parts_of_the_world(world: MPI.Intracomm, layout: str, collective: str) -> None:
    """Blocks and roots are those of the part, though its ranks are in another order than in the world."""
    comm = hpccoll.Communicator(world, layout=layout)
    part = comm.Split(world.rank % 2, -world.rank)
    assert part.rank == 1 - world.rank // 2
    perform_all(part, every_root([Job(collective, 5), Job(collective, 3001)], part.size))
    part.Free()
    comm.close()


@on_layouts(1, 2, 3, 4, 5)
def test_nobody_leaves_a_barrier_before_all_have_come(communicator: Make, layout: str) -> None:
    comm = communicator(layout=layout)
    times = np.zeros((20, 2))
    for turn, pair in enumerate(times):
        if turn % comm.size == comm.rank:
            time.sleep(0.003)
        # Ranks of one machine read one clock.
        pair[0] = time.monotonic()
        comm.Barrier()
        pair[1] = time.monotonic()
    everyones = np.empty((comm.size, *times.shape))
    comm.Allgather(times, everyones)
    come, left = everyones[:, :, 0].max(axis=0), everyones[:, :, 1].min(axis=0)
    assert (left >= come).all(), f"turns {np.nonzero(left < come)[0].tolist()}"


@pytest.mark.ranks(16)
@pytest.mark.timeout(150)
@pytest.mark.parametrize("collective", COLLECTIVES)
def test_every_plan_on_four_nodes_of_four(communicator: Make, collective: str) -> None:
    comm = communicator(layout="4x4", timeout_s=100)
    perform_all(comm, [Job(collective, 37, root=9), Job(collective, 1500, root=15)])
