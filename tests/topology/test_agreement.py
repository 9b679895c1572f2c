"""Exchanges with a deadline: who is missing is named, in bounded time, on every rank that came."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING

import numpy as np
import pytest

from hpccoll.errors import CollectiveTimeoutError

if TYPE_CHECKING:
    from mpi4py import MPI

DEADLINE_S = 2.0


@pytest.mark.ranks(1, 2, 4)
def test_payloads_of_any_length_arrive_in_rank_order(world: MPI.Intracomm) -> None:
    from hpccoll.topology.agreement import call_roll, gather, gather_numbers

    comm = world.Dup()
    deadline = time.monotonic() + 20
    call_roll(comm, deadline, "test")
    payloads = [b"", b"\0\0", b"end\0", bytes(range(256)) * 40]
    assert gather(comm, payloads[comm.rank], deadline, "test") == payloads[: comm.size]
    assert gather(comm, b"", deadline, "test") == [b""] * comm.size
    assert gather_numbers(comm, -(2**63) + comm.rank, deadline, "test") == [
        -(2**63) + r for r in range(comm.size)
    ]
    comm.Free()


@pytest.mark.ranks(2, 4)
def test_ranks_that_come_one_after_the_other_all_pass(world: MPI.Intracomm) -> None:
    from hpccoll.topology.agreement import call_roll

    comm = world.Dup()
    for round_ in range(3):
        time.sleep(0.1 * ((comm.rank + round_) % comm.size))
        call_roll(comm, time.monotonic() + 20, "test")
    comm.Free()


@pytest.mark.ranks(2, 4)
def test_a_missing_rank_is_named_by_all_others_and_hears_of_it_when_it_comes(world: MPI.Intracomm) -> None:
    from hpccoll.topology.agreement import call_roll

    comm = world.Dup()
    late = comm.size - 1
    world.Barrier()
    if comm.rank == late:
        time.sleep(2 * DEADLINE_S)
    begin = time.monotonic()
    with pytest.raises(CollectiveTimeoutError) as caught:
        call_roll(comm, begin + DEADLINE_S, "test")
    seconds = time.monotonic() - begin
    assert f"test: {late} of {comm.size} ranks arrived" in str(caught.value)
    assert f"missing: rank {late}" in str(caught.value)
    assert caught.value.suspects == (late,)
    assert caught.value.rank == comm.rank
    if comm.rank == late:
        assert seconds < 1.0
    else:
        assert 0.9 * DEADLINE_S < seconds < DEADLINE_S + 3


@pytest.mark.ranks(4)
def test_the_earliest_deadline_counts(world: MPI.Intracomm) -> None:
    from hpccoll.topology.agreement import call_roll

    comm = world.Dup()
    world.Barrier()
    begin = time.monotonic()
    if comm.rank != 2:
        patience_s = 1.0 if comm.rank == 3 else 30.0
        with pytest.raises(CollectiveTimeoutError, match="3 of 4 ranks arrived within"):
            call_roll(comm, begin + patience_s, "test")
        assert 0.9 < time.monotonic() - begin < 5.0


@pytest.mark.ranks(2, 4)
def test_without_rank_0_the_others_name_it(world: MPI.Intracomm) -> None:
    from hpccoll.topology.agreement import VERDICT_GRACE_S, call_roll

    comm = world.Dup()
    world.Barrier()
    begin = time.monotonic()
    if comm.rank > 0:
        with pytest.raises(CollectiveTimeoutError, match="test: rank 0, which calls the roll") as caught:
            call_roll(comm, begin + 0.5, "test")
        assert caught.value.suspects == (0,)
        assert 0.5 + VERDICT_GRACE_S <= time.monotonic() - begin < 0.5 + VERDICT_GRACE_S + 3


@pytest.mark.ranks(2, 4)
def test_a_rank_that_stops_in_between_ends_the_step_at_the_deadline(world: MPI.Intracomm) -> None:
    from mpi4py import MPI

    from hpccoll.topology.agreement import call_roll, gather

    comm = world.Dup()
    begin = time.monotonic()
    call_roll(comm, begin + 20, "test")
    if comm.rank < comm.size - 1:
        with pytest.raises(CollectiveTimeoutError, match="exchange: not complete at the deadline") as caught:
            gather(comm, b"x" * 100, time.monotonic() + 1.0, "exchange")
        assert caught.value.rank == comm.rank
        assert 1.0 <= time.monotonic() - begin < 5.0
        world.Barrier()
    else:
        # After the test every operation is complete: the one that was given up has its partner now.
        world.Barrier()
        numbers = np.zeros(1, dtype=np.int64)
        comm.Iallreduce(MPI.IN_PLACE, numbers, MPI.MAX).Wait()
        assert numbers[0] == 100
