"""Ranks that call different things: all learn it before anything moves, and soon after the last has come."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from mpi4py import MPI

import hpccoll
from hpccoll import bootstrap
from tests.support.layouts import layouts

LATE_S = 0.1  # so much later the odd one comes
SOON_S = 1.0  # after that
COUNT = 5000
Array = np.ndarray[Any, np.dtype[Any]]
Calls = dict[str, Callable[[hpccoll.Communicator, Array, Array], object]]


def reduce_blocking(comm: hpccoll.Communicator, give: Array, take: Array) -> None:
    comm.Reduce(give, take)


def reduce_started(comm: hpccoll.Communicator, give: Array, take: Array) -> None:
    comm.Ireduce(give, take).Wait()


# What the odd rank calls while the others reduce COUNT float64 to rank 0 by sum.
ODD: Calls = {
    "another collective": lambda comm, give, take: comm.Bcast(take),
    "another dtype of as many bytes": lambda comm, give, take: comm.Reduce(give.view("i8"), take.view("i8")),
    "another count": lambda comm, give, take: comm.Reduce(give[1:], take[1:]),
    "another operator": lambda comm, give, take: comm.Reduce(give, take, MPI.MAX),
    "another root": lambda comm, give, take: comm.Reduce(give, take, root=1),
    "none, but a barrier": lambda comm, give, take: comm.Barrier(),
    "two calls in the other order": lambda comm, give, take: comm.Allreduce(give, take),
}


@layouts({"": (4,), "2+2": (4,), "3+1": (4,), "1+1+1+1": (4,)})
@pytest.mark.parametrize("started", [False, True], ids=["blocking", "started"])
def test_all_learn_it_when_the_last_has_come(world: MPI.Intracomm, layout: str, started: bool) -> None:
    usual = reduce_started if started else reduce_blocking
    with hpccoll.Communicator(world, layout=layout, timeout_s=20) as comm:
        for number, (what, odd) in enumerate(ODD.items()):
            give, take = np.arange(COUNT, dtype=float), np.full(COUNT, 7.0)
            is_odd = comm.rank == number % comm.size
            comm.Barrier()
            world.Barrier()
            if is_odd:
                time.sleep(LATE_S)
            came = time.monotonic()
            with pytest.raises(hpccoll.MismatchError) as caught:
                (odd if is_odd else usual)(comm, give, take)
            learned = time.monotonic()
            last = max(world.allgather(came))
            assert last <= learned < last + SOON_S, what
            assert f"on rank {number % comm.size}" in str(caught.value), what
            assert (take == 7).all(), f"{what}: something has moved"
            assert (give == np.arange(COUNT)).all(), f"{what}: something has moved"
            total = np.empty(1)
            comm.Allreduce(np.ones(1), total)  # the communicator goes on
            assert total[0] == comm.size


@layouts({"2+2": (4,), "3+1": (4,)})
def test_one_call_too_many_at_the_end(world: MPI.Intracomm, layout: str) -> None:
    """The others have closed theirs: that is what the rank is told that goes on alone."""
    comm = hpccoll.Communicator(world, layout=layout, timeout_s=20)
    give, take = np.ones(COUNT), np.empty(COUNT)
    comm.Allreduce(give, take)
    world.Barrier()
    began = time.monotonic()
    if comm.rank == 1:
        with pytest.raises(hpccoll.PeerLostError, match="has left after 1 calls: it has closed"):
            comm.Allreduce(give, take)
        assert time.monotonic() - began < 5
    else:
        comm.close()
    world.Barrier()


@layouts({"": (3,), "2+1": (3,)})
def test_a_rank_that_comes_late_to_the_first_use(world: MPI.Intracomm, layout: str) -> None:
    comm = hpccoll.Communicator(world, layout=layout, init_timeout_s=20)
    world.Barrier()
    began = time.monotonic()
    if world.rank == 2:
        time.sleep(1.0)
    total = np.empty(1)
    comm.Allreduce(np.ones(1), total)
    assert total[0] == world.size
    assert 0.9 < time.monotonic() - began < 20
    comm.close()


@pytest.mark.ranks(3)
def test_another_version_on_one_rank(world: MPI.Intracomm, monkeypatch: pytest.MonkeyPatch) -> None:
    if world.rank == 1:
        monkeypatch.setattr(bootstrap, "__version__", "0.0.1")
    with pytest.raises(
        hpccoll.MismatchError, match=r"version is .* '0.0.1' on rank 1|version is '0.0.1' on rank 1"
    ):
        hpccoll.Communicator(world).Barrier()
