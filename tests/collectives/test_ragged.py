"""Blocks of different lengths, with gaps, in any order: every plan on every layout; mpi4py's lists."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from mpi4py import MPI

import hpccoll
from tests.collectives.conftest import Make
from tests.support.layouts import layouts, on_layouts
from tests.support.oracle import BFLOAT16, ORDERS, RAGGED, Ragged, every_root, perform, perform_all

SOME_LAYOUTS = layouts({"": (2, 3), "1+1": (2,), "2+1": (3,), "3+1": (4,), "cyclic:2+2": (4,)})
VECTORS = {
    "all different": lambda size: [(3 * k + 1) % 7 for k in range(size)],
    "some empty": lambda size: [0 if k % 2 else k + 2 for k in range(size)],
    "one rank has all": lambda size: [11 if k == size - 1 else 0 for k in range(size)],
    "nothing": lambda size: [0] * size,
    "equal": lambda size: [4] * size,
}


def counts(collective: str, name: str, size: int, factor: int = 1) -> tuple[int, ...]:
    """Block lengths by name: of an all-to-all a row for every rank, each turned by one."""
    row = VECTORS[name](size)
    if collective.startswith("alltoall"):
        return tuple(factor * row[(i + j) % size] for i in range(size) for j in range(size))
    return tuple(factor * length for length in row)


@pytest.mark.parametrize("collective", RAGGED)
@on_layouts(1, 2, 3, 4, 5, 6)
def test_every_plan_of_small_blocks(communicator: Make, layout: str, collective: str) -> None:
    comm = communicator(layout=layout)
    for k, name in enumerate(VECTORS):
        job = Ragged(
            collective,
            counts(collective, name, comm.size),
            root=k % comm.size,
            order=ORDERS[k % len(ORDERS)],
            salt=k,
            in_place=k % 2 == 1,
        )
        perform_all(comm, [job])


@pytest.mark.parametrize("collective", RAGGED)
@on_layouts(2, 3, 4, 5)
def test_every_plan_of_long_blocks(communicator: Make, layout: str, collective: str) -> None:
    comm = communicator(layout=layout)
    factor = 211 if collective.startswith("alltoall") else 1009
    for k, name in enumerate(("all different", "one rank has all")):
        block_counts = counts(collective, name, comm.size, factor)
        perform_all(comm, [Ragged(collective, block_counts, root=comm.size - 1, order=ORDERS[1 + k])])


@pytest.mark.parametrize("collective", ["gather", "scatter"])
@on_layouts(2, 3, 4, 5)
def test_every_plan_for_every_root(communicator: Make, layout: str, collective: str) -> None:
    comm = communicator(layout=layout)
    for in_place in (False, True):
        jobs = [Ragged(collective, counts(collective, "some empty", comm.size), in_place=in_place)]
        perform_all(comm, every_root(jobs, comm.size))


@pytest.mark.parametrize("order", ORDERS)
@pytest.mark.parametrize("collective", RAGGED)
@SOME_LAYOUTS
def test_blocks_in_every_order(communicator: Make, layout: str, collective: str, order: str) -> None:
    """What lies between the blocks is not written to."""
    comm = communicator(layout=layout)
    for factor in (1, 300):
        job = Ragged(collective, counts(collective, "all different", comm.size, factor), order=order)
        for salt in range(3):
            perform(comm, replace(job, salt=salt, root=salt % comm.size))
            perform(comm, replace(job, salt=salt, root=salt % comm.size, in_place=True))


@pytest.mark.parametrize("dtype", ["i1", "f2", BFLOAT16, "f4", "c16", "S3", "V24", "M8[s]", "?"], ids=str)
@layouts({"": (2,), "2+1": (3,)})
def test_elements_of_any_type(communicator: Make, layout: str, dtype: Any) -> None:
    comm = communicator(layout=layout)
    for collective in ("gather", "scatter", "allgather", "alltoall"):
        for factor in (1, 400):
            job = Ragged(collective, counts(collective, "all different", comm.size, factor), np.dtype(dtype))
            perform(comm, replace(job, order="mixed", root=1))


@pytest.mark.parametrize("collective", RAGGED)
@layouts({"": (1, 2), "2+1": (3,)})
def test_every_way_of_telling_counts(communicator: Make, layout: str, collective: str) -> None:
    comm = communicator(layout=layout)
    job = Ragged(collective, counts(collective, "all different", comm.size))
    for spec in ("pair", "type", "counts"):
        perform(comm, replace(job, spec=spec))
        perform(comm, replace(job, spec=spec, dtype=np.dtype("f4")))
    perform(comm, replace(job, spec="type", order="gaps"))


# --- what mpi4py's lists mean, as mpi4py itself has it ------------------------------------------


def told(size: int, buffer: Any) -> dict[str, Any]:
    """Lists that mean blocks of `buffer`, which has 4 x size elements of float64."""
    twos, starts = [2] * size, [4 * (size - 1 - k) for k in range(size)]
    return {
        "plain": buffer,
        "count": [buffer, 3],
        "type": [buffer, MPI.DOUBLE],
        "code": [buffer, "d"],
        "count and stride": [buffer, 2, 4, MPI.DOUBLE],
        "pair of numbers": [buffer, (2, 3)],
        "pair and type": [buffer, (twos, starts), MPI.DOUBLE],
        "array of counts": [buffer, np.array(twos), np.array(starts), "d"],
        "counts and no displacements": [buffer, twos, None, MPI.DOUBLE],
        "displacements and no counts": [buffer, (None, [4 * k for k in range(size)]), MPI.DOUBLE],
        "tuple": (buffer, twos),
        "bytes": [buffer.view(np.uint8), twos, starts, MPI.DOUBLE],
    }


@pytest.mark.parametrize("way", told(1, np.zeros(4)))
@layouts({"": (1, 2, 3), "2+1": (3,)})
def test_lists_mean_what_they_mean_to_mpi4py(
    world: MPI.Intracomm, communicator: Make, layout: str, way: str
) -> None:
    comm = communicator(layout=layout)
    size, rank = world.size, world.rank
    numbers = np.arange(4.0 * size) + 100 * rank
    ours, theirs = np.full(4 * size, -1.0), np.full(4 * size, -1.0)
    each_sends = {"plain": 4, "count": 3, "type": 4, "code": 4, "displacements and no counts": 4}.get(way, 2)
    for one, got in ((comm, ours), (world, theirs)):
        one.Allgatherv(numbers[:each_sends], told(size, got)[way])
        one.Gatherv(numbers[:each_sends] + 1, told(size, got)[way] if rank == size - 1 else None, size - 1)
        one.Scatterv(told(size, numbers)[way] if rank == 0 else None, got[-each_sends:], 0)
        assert not (got == -1).all()
        one.Alltoallv(told(size, numbers)[way], told(size, got)[way])
    assert ours.tolist() == theirs.tolist(), f"rank {rank}"


@pytest.mark.ranks(2, 3)
def test_without_counts_a_buffer_is_split_as_evenly_as_it_goes(
    world: MPI.Intracomm, communicator: Make
) -> None:
    comm = communicator()
    size, rank = world.size, world.rank
    total = 3 * size + 1
    own = 4 if rank == 0 else 3
    ours, theirs = np.full(total, -1.0), np.full(total, -1.0)
    for one, got in ((comm, ours), (world, theirs)):
        one.Allgatherv(np.full(own, 1.0 + rank), got)
    assert ours.tolist() == theirs.tolist()
    assert ours.tolist() == [1.0] * 4 + [k for k in range(2, size + 1) for _ in range(3)]


@pytest.mark.ranks(1, 2, 3)
def test_reduce_scatter_without_counts_takes_those_of_the_receive_buffers(
    world: MPI.Intracomm, communicator: Make
) -> None:
    comm = communicator()
    size, rank = world.size, world.rank
    total = size * (size + 1) // 2
    numbers = np.arange(float(total)) + rank
    for factor in (1, 1000):
        ours, theirs = np.full(factor * (rank + 1), -1.0), np.full(factor * (rank + 1), -1.0)
        comm.Reduce_scatter(np.repeat(numbers, factor), ours)
        world.Reduce_scatter(np.repeat(numbers, factor), theirs)
        assert ours.tolist() == theirs.tolist(), f"rank {rank}"


@pytest.mark.ranks(2, 3)
def test_strided_arrays_where_there_is_one_block(communicator: Make) -> None:
    comm = communicator()
    size, rank = comm.size, comm.rank
    sent = np.arange(20.0)[::2] + 100 * rank
    got = np.full(10 * size, -1.0)
    comm.Gatherv(sent, [got, [10] * size] if rank == 0 else None)
    if rank == 0:
        assert got.tolist() == [100 * k + x for k in range(size) for x in range(0, 20, 2)]
    into = np.full((5, 4), -1.0)
    comm.Scatterv([np.arange(10.0 * size), [10] * size] if rank == 0 else None, into[:, ::2])
    assert into[:, ::2].ravel().tolist() == list(range(10 * rank, 10 * rank + 10))
    assert (into[:, 1::2] == -1).all()
    part = np.full(20, -1.0)
    comm.Reduce_scatter(np.arange(20.0 * size)[::2], part[::2], [10] * size)
    assert part[::2].tolist() == [size * x for x in range(20 * rank, 20 * rank + 20, 2)]
    assert (part[1::2] == -1).all()


# --- as reported by others ----------------------------------------------------------------------


@pytest.mark.ranks(4)
@pytest.mark.parametrize("root", range(4))
@pytest.mark.parametrize("layout", ["cyclic:2+2", "2+2", "3+1", ""])
def test_results_are_in_rank_order_where_ranks_are_dealt_in_turn(
    communicator: Make, layout: str, root: int
) -> None:
    """As reported in open-mpi/ompi PR#14197 and davidsd/sdpb#166: places came from node and local rank."""
    comm = communicator(layout=layout)
    rank = comm.rank
    wanted = [0, 1, 1, 2, 2, 2, 3, 3, 3, 3]
    lengths = [1, 2, 3, 4]
    for name in comm.algorithms("gather"):
        got = np.full(10, -1)
        with comm.forced(name):
            comm.Gatherv(np.full(rank + 1, rank), [got, lengths] if rank == root else None, root)
        assert got.tolist() == (wanted if rank == root else [-1] * 10), f"rank {rank}: {name}"
    for name in comm.algorithms("allgather"):
        got = np.full(10, -1)
        with comm.forced(name):
            comm.Allgatherv(np.full(rank + 1, rank), [got, lengths])
        assert got.tolist() == wanted, f"rank {rank}: {name}"
    for name in comm.algorithms("scatter"):
        mine = np.full(rank + 1, -1)
        with comm.forced(name):
            comm.Scatterv([np.array(wanted), lengths] if rank == root else None, mine, root)
        assert mine.tolist() == [rank] * (rank + 1), f"rank {rank}: {name}"


@layouts({"": (2,), "1+1": (2,)})
def test_lengths_that_an_allgather_refuses_an_allgatherv_takes(communicator: Make, layout: str) -> None:
    """As reported in pytorch/pytorch#56112."""
    comm = communicator(layout=layout)
    mine = np.full(2 + comm.rank, comm.rank)
    with pytest.raises(ValueError, match="Allgatherv"):
        comm.Allgather(mine, np.empty(5, int))
    got = np.empty(5, int)
    comm.Allgatherv(mine, [got, [2, 3]])
    assert got.tolist() == [0, 0, 1, 1, 1]


@layouts({"": (3,), "2+1": (3,)})
def test_ragged_and_equal_blocks_in_turn(communicator: Make, layout: str) -> None:
    """Plans of the one are not taken for the other."""
    comm = communicator(layout=layout)
    for salt in range(6):
        for collective in RAGGED:
            lengths = counts(collective, tuple(VECTORS)[salt % len(VECTORS)], comm.size, 1 + 50 * (salt % 2))
            perform(comm, Ragged(collective, lengths, salt=salt, root=salt % 3))


@pytest.mark.ranks(2)
def test_the_tally_counts_ragged_calls(world: MPI.Intracomm) -> None:
    with hpccoll.Communicator(world) as comm:
        for collective in RAGGED:
            perform(comm, Ragged(collective, counts(collective, "all different", 2)))
        by_collective = {name for name, _ in comm.tally()}
        assert by_collective == {"gather", "scatter", "allgather", "alltoall", "reduce_scatter"}
        assert sum(comm.tally().values()) == len(RAGGED)
