"""MPI.IN_PLACE: where the own block lies, which ranks may pass it, what stays as it was."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from mpi4py import MPI

from hpccoll.errors import UsageError
from tests.collectives.conftest import Make
from tests.support.layouts import layouts, on_layouts
from tests.support.oracle import COLLECTIVES, RAGGED, ROOTED, Job, Ragged, every_root, perform, perform_all

HAVE_IT = tuple(name for name in COLLECTIVES if name != "broadcast")
LAYOUTS = layouts({"": (1, 2, 3), "1+1": (2,), "2+1": (3,), "2+2": (4,), "3+1": (4,), "cyclic:2+2": (4,)})


@pytest.mark.parametrize("collective", HAVE_IT)
@LAYOUTS
def test_every_plan_for_every_root(communicator: Make, layout: str, collective: str) -> None:
    comm = communicator(layout=layout)
    jobs = [Job(collective, 13, in_place=True), Job(collective, 1021, in_place=True, salt=1)]
    perform_all(comm, every_root(jobs, comm.size))


@pytest.mark.parametrize("collective", RAGGED)
@LAYOUTS
def test_every_plan_with_counts(communicator: Make, layout: str, collective: str) -> None:
    comm = communicator(layout=layout)
    size = comm.size
    for factor in (1, 97):
        lengths = [factor * (k * k % 5) for k in range(size)]
        if collective.startswith("alltoall"):
            # In place a rank gives to each as much as it takes from it.
            lengths = [factor * ((i + j + i * j) % 5) for i in range(size) for j in range(size)]
        jobs = [
            Ragged(collective, tuple(lengths), in_place=True, order=order) for order in ("packed", "mixed")
        ]
        perform_all(comm, every_root(jobs, size))


@pytest.mark.ranks(1, 4)
@pytest.mark.parametrize("layout", ["", "2+2", "3+1"])
def test_a_reduction_to_each_root_in_turn(communicator: Make, layout: str) -> None:
    """As reported in open-mpi/ompi PR#11488 and pmodels/mpich PR#6543: right for root 0 only."""
    comm = communicator(layout=layout if communicator_size() == 4 else "")
    for root in range(comm.size):
        for name in comm.algorithms("reduce"):
            mine = np.array([comm.rank + 1])
            with comm.forced(name):
                comm.Reduce(MPI.IN_PLACE if comm.rank == root else mine, mine, root=root)
            wanted = comm.size * (comm.size + 1) // 2 if comm.rank == root else comm.rank + 1
            assert mine.tolist() == [wanted], f"rank {comm.rank}: {name} to {root}"


def communicator_size() -> int:
    return MPI.COMM_WORLD.size


@layouts({"": (2,), "1+1": (2,)})
def test_blocks_lie_where_mpi_has_them(communicator: Make, layout: str) -> None:
    """As reported in llnl/Aluminum#22, #74 and #110, and NVIDIA/nccl-tests#261: NCCL has them elsewhere."""
    comm = communicator(layout=layout)
    rank = comm.rank
    got = np.array([-1, 1])
    comm.Gather(MPI.IN_PLACE if rank == 1 else np.array([rank]), got if rank == 1 else None, root=1)
    assert got.tolist() == ([0, 1] if rank == 1 else [-1, 1])
    every = np.full(4, -1)
    every[2 * rank : 2 * rank + 2] = rank
    comm.Allgather(MPI.IN_PLACE, every)
    assert every.tolist() == [0, 0, 1, 1]
    # The result of a reduce-scatter is in the first block, whatever the rank; the rest stays.
    parts = np.array([1, 2, 3]) * (rank + 1)
    comm.Reduce_scatter(MPI.IN_PLACE, parts, [1, 2])
    assert parts.tolist() == ([3, 2, 3] if rank == 0 else [6, 9, 6])
    halves = np.array([1, 2, 3, 4]) * (rank + 1)
    comm.Reduce_scatter_block(MPI.IN_PLACE, halves)
    assert halves.tolist() == ([3, 6, 3, 4] if rank == 0 else [9, 12, 6, 8])
    whole = np.array([10, 20]) * (rank + 1)
    kept = np.array([-7])
    comm.Scatter(whole, MPI.IN_PLACE if rank == 0 else kept, root=0)
    assert whole.tolist() == [10 * (rank + 1), 20 * (rank + 1)]
    assert kept.tolist() == [-7 if rank == 0 else 20]
    pairs = np.array([10 * rank, 10 * rank + 1])
    comm.Alltoall(MPI.IN_PLACE, pairs)
    assert pairs.tolist() == [rank, 10 + rank]


WRONG: dict[str, Any] = {
    "reduce": lambda comm, both, root: comm.Reduce(MPI.IN_PLACE, both, root=root),
    "gather": lambda comm, both, root: comm.Gather(MPI.IN_PLACE, both, root=root),
    "scatter": lambda comm, both, root: comm.Scatter(both, MPI.IN_PLACE, root=root),
    "gatherv": lambda comm, both, root: comm.Gatherv(MPI.IN_PLACE, [both, [2] * comm.size], root=root),
    "scatterv": lambda comm, both, root: comm.Scatterv([both, [2] * comm.size], MPI.IN_PLACE, root=root),
}


@pytest.mark.parametrize("what", WRONG)
@layouts({"": (2, 3), "2+1": (3,), "2+2": (4,)})
def test_beside_the_root_it_is_an_error_on_all(communicator: Make, layout: str, what: str) -> None:
    """As reported in pmodels/mpich#759: the program ended."""
    comm = communicator(layout=layout)
    both = np.full(2 * comm.size, -5)
    with pytest.raises(UsageError, match=r"rank 1: .*IN_PLACE.*only the root \(0\)") as caught:
        WRONG[what](comm, both, 0)
    assert 1 in caught.value.suspects
    assert (both == -5).all()
    perform(comm, Job("allreduce", 3))


@pytest.mark.parametrize("what", WRONG)
@layouts({"": (2, 3), "2+1": (3,)})
def test_beside_the_root_on_one_rank_is_an_error_on_all(communicator: Make, layout: str, what: str) -> None:
    comm = communicator(layout=layout)
    culprit = comm.size - 1
    size = comm.size
    both = np.full(2 * size, -5)
    right: dict[str, Any] = {
        "reduce": lambda: comm.Reduce(both, np.empty_like(both), root=0),
        "gather": lambda: comm.Gather(both[:2], np.empty_like(both), root=0),
        "scatter": lambda: comm.Scatter(both, np.empty(2, int), root=0),
        "gatherv": lambda: comm.Gatherv(both[:2], [np.empty_like(both), [2] * size], root=0),
        "scatterv": lambda: comm.Scatterv([both, [2] * size], np.empty(2, int), root=0),
    }
    with pytest.raises(UsageError, match=f"rank {culprit}: .*IN_PLACE"):
        WRONG[what](comm, both, 0) if comm.rank == culprit else right[what]()
    assert (both == -5).all()
    perform(comm, Job("allreduce", 3))


@on_layouts(2, 3, 4)
def test_some_ranks_in_place_and_others_not(communicator: Make, layout: str) -> None:
    """Where no root is, each rank decides for itself."""
    comm = communicator(layout=layout)
    for count in (3, 2003):
        for turn, collective in enumerate(name for name in HAVE_IT if name not in ROOTED):
            perform(comm, Job(collective, count, in_place=(comm.rank + turn) % 2 == 0))
        lengths = tuple((k + 1) * count for k in range(comm.size))
        perform(comm, Ragged("allgather", lengths, in_place=comm.rank % 2 == 0, order="gaps"))
        perform(comm, Ragged("reduce_scatter", lengths, in_place=comm.rank % 2 == 0))
