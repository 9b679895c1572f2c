"""Calls between neighbours on arrays on devices: what MPI has for arrays on the host."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from mpi4py import MPI

import hpccoll
from tests.collectives.conftest import Make
from tests.gpu.memory import make_stream, mirror

BLOCK = 5
TOPOLOGIES: dict[str, Callable[[hpccoll.Communicator], Any]] = {
    "ring": lambda comm: comm.Create_cart([comm.size], [True]),
    "line": lambda comm: comm.Create_cart([comm.size], [False]),
    "graph": lambda comm: comm.Create_graph(
        [comm.size - 1, *(comm.size + rank for rank in range(comm.size - 1))],
        [*range(1, comm.size), *(0 for _ in range(comm.size - 1))],
    ),
    # All send to rank 0, which sends to none.
    "one way": lambda comm: comm.Create_dist_graph_adjacent(
        range(1, comm.size) if comm.rank == 0 else [], [] if comm.rank == 0 else [0]
    ),
}
CALLS = ("allgather", "allgatherv", "alltoall", "alltoallv", "alltoallw")


def arguments(call: str, comm: Any, give: Any, take: Any) -> tuple[Any, Any]:
    """The two buffers of a call: 2 BLOCK elements for each neighbour, in the ragged ones some less."""
    sources, destinations = comm.inoutedges

    def blocks(neighbours: list[int]) -> tuple[list[int], list[int]]:
        counts = [0 if rank < 0 else 2 * BLOCK - (rank + comm.rank) % 3 for rank in neighbours]
        return counts, [2 * BLOCK * place for place in range(len(neighbours))]

    def typed(buffer: Any, neighbours: list[int]) -> list[Any]:
        counts, displs = blocks(neighbours)
        return [buffer, counts, [8 * displ for displ in displs], [MPI.DOUBLE] * len(neighbours)]

    mine = [give, 2 * BLOCK, MPI.DOUBLE]
    if call == "allgather":
        return mine, [take, 2 * BLOCK, MPI.DOUBLE]
    if call == "allgatherv":
        counts = [2 * BLOCK] * len(sources)
        return mine, [take, counts, [3 * BLOCK * place for place in range(len(sources))], MPI.DOUBLE]
    if call == "alltoall":
        return mine, [take, 2 * BLOCK, MPI.DOUBLE]
    if call == "alltoallv":
        return [give, *blocks(destinations), MPI.DOUBLE], [take, *blocks(sources), MPI.DOUBLE]
    return typed(give, destinations), typed(take, sources)


def make(comm: Any, call: str, give: Any, take: Any, how: str, renew: Callable[[int], None]) -> None:
    """One call, or two starts of a persistent one; `renew` writes what is to be sent."""
    if how == "persistent":
        request = getattr(comm, f"Neighbor_{call}_init")(*arguments(call, comm, give, take))
        for turn in range(2):
            renew(turn)
            request.Start()
            request.Wait()
        request.Free()
        return
    renew(1)
    if how == "blocking":
        getattr(comm, f"Neighbor_{call}")(*arguments(call, comm, give, take))
    else:
        getattr(comm, f"Ineighbor_{call}")(*arguments(call, comm, give, take)).Wait()


@pytest.mark.parametrize("how", ["blocking", "started", "persistent"])
@pytest.mark.parametrize(
    "topology",
    [
        # MPI has no graph without edges.
        pytest.param(name, marks=pytest.mark.ranks(*((2, 3, 4) if name == "graph" else (1, 2, 3, 4))))
        for name in TOPOLOGIES
    ],
)
def test_the_answer_is_that_on_the_host(communicator: Make, stream: int, topology: str, how: str) -> None:
    comm = TOPOLOGIES[topology](communicator())
    most = 3 * BLOCK * max(2, comm.size)
    for call in CALLS:
        give, expected = np.zeros(most), np.full(most, -1.0)

        def renew(turn: int) -> None:
            give[...] = np.arange(most) + 1000 * comm.rank + 100_000 * turn  # noqa: B023

        make(comm, call, give, expected, how, renew)
        ours, found = mirror(np.zeros(most), stream), mirror(np.zeros(most), stream)

        def renew_mirror(turn: int) -> None:
            ours.view[...] = np.arange(most) + 1000 * comm.rank + 100_000 * turn  # noqa: B023
            ours.upload_later()  # noqa: B023

        found.view[...] = -1
        found.upload_later()
        make(comm, call, ours, found, how, renew_mirror)
        # A request is complete for all streams, if anything came.
        complete = how != "blocking" and any(rank >= 0 for rank in comm.inedges)
        answer = found.download(make_stream() if complete else None)
        assert (answer == expected).all(), call
    comm.Free()


@pytest.mark.ranks(2, 3)
@pytest.mark.parametrize("topology", ["ring", "line"])
def test_arrays_of_any_strides(communicator: Make, stream: int, topology: str) -> None:
    comm = TOPOLOGIES[topology](communicator())
    left, right = comm.Shift(0, 1)
    whole, blank = np.arange(24.0).reshape(4, 6) + 100 * comm.rank, np.full((4, 6), -1.0)
    send, receive = mirror(whole, stream), mirror(blank, stream)
    send.view, receive.view = send.view[::2, ::2], receive.view[::2, 1::2]
    comm.Neighbor_alltoall(send, receive)  # the first row to the left, the other to the right
    expected = blank.copy()
    for row, rank in ((0, left), (2, right)):
        if rank != MPI.PROC_NULL:
            expected[row, 1::2] = (np.arange(24.0).reshape(4, 6) + 100 * rank)[2 - row, ::2]
    receive.download()
    assert (receive._root == expected).all()
    with pytest.raises(hpccoll.UsageError, match="multiple of the 2 neighbours"):
        comm.Neighbor_alltoall(mirror(np.zeros(3), stream), receive)
    comm.Free()


@pytest.mark.ranks(2)
def test_one_side_on_the_host(communicator: Make, stream: int) -> None:
    comm = TOPOLOGIES["ring"](communicator())
    send, receive = mirror(np.full(4, comm.rank), stream, "f8"), np.zeros(8)
    comm.Neighbor_allgather(send, receive)
    assert (receive == 1 - comm.rank).all()
    taken = mirror(np.zeros(8), stream)
    comm.Neighbor_allgather(np.full(4, comm.rank + 5.0), taken)
    assert (taken.download() == 6 - comm.rank).all()
    comm.Free()
