"""All-to-all: few ranks on a node, blocks by hand, types of their own for every peer."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

import numpy as np
import pytest
from mpi4py import MPI

from tests.collectives.conftest import Make
from tests.support.layouts import layouts, on_layouts
from tests.support.oracle import COLLECTIVES, RAGGED, Array, Job, Ragged, perform_all

LAYOUTS = layouts({"": (1, 2, 3), "1+1": (2,), "2+1": (3,), "2+2": (4,), "cyclic:2+2": (4,)})


@contextmanager
def committed(*types: MPI.Datatype) -> Iterator[list[MPI.Datatype]]:
    """Derived types for the time of a test."""
    ready = [one.Commit() for one in types]
    try:
        yield ready
    finally:
        for one in ready:
            one.Free()


@pytest.mark.ranks(4)
@pytest.mark.parametrize("layout", ["1+1+1+1", "2+1+1", "3+1", "2+2", "cyclic:2+2", ""])
def test_nodes_of_one_rank(communicator: Make, layout: str) -> None:
    """As reported in openucx/ucc PR#658: the group of one rank was switched off, and all hung."""
    comm = communicator(layout=layout)
    rank = comm.rank
    for name in comm.algorithms("alltoall"):
        got = np.full(4, -1, np.int32)
        with comm.forced(name):
            comm.Alltoall(np.arange(4, dtype=np.int32) + 10 * rank, got)
        assert got.tolist() == [rank, 10 + rank, 20 + rank, 30 + rank], f"rank {rank}: {name}"


@pytest.mark.parametrize("collective", COLLECTIVES)
@pytest.mark.ranks(4)
@pytest.mark.parametrize("layout", ["1+1+1+1", "2+1+1"])
def test_nodes_of_one_rank_in_all_others(communicator: Make, layout: str, collective: str) -> None:
    comm = communicator(layout=layout)
    perform_all(comm, [Job(collective, count, root=root) for count in (4, 900) for root in (0, 3)])
    ragged = [name for name in RAGGED if name == collective]
    lengths = (2, 0, 300, 5) * (4 if collective == "alltoall" else 1)
    for name in ragged:
        perform_all(comm, [Ragged(name, lengths, root=root) for root in (0, 3)])


@on_layouts(2, 3, 4, 5)
def test_a_row_for_every_rank(communicator: Make, layout: str) -> None:
    """Of a square matrix dealt by rows, its transpose."""
    comm = communicator(layout=layout)
    size, rank = comm.size, comm.rank
    for width in (1, 40):
        whole = np.arange((size * width) ** 2).reshape(size * width, size * width)
        mine = whole[rank * width : (rank + 1) * width]
        tiles = mine.reshape(width, size, width).transpose(1, 0, 2).copy()
        got = np.empty_like(tiles)
        comm.Alltoall(tiles, got)
        columns = got.reshape(size * width, width)
        assert np.array_equal(columns, whole[:, rank * width : (rank + 1) * width]), f"rank {rank}"


@pytest.mark.ranks(2, 3)
def test_strided_buffers(communicator: Make) -> None:
    comm = communicator()
    size, rank = comm.size, comm.rank
    for count in (3, 900):
        send, receive = np.full((size, 2 * count), -1), np.full((size, 2 * count), -1)
        send[:, ::2] = 100 * rank + np.arange(size)[:, None]
        comm.Alltoall(send[:, ::2], receive[:, 1::2])
        assert np.array_equal(receive[:, 1], 100 * np.arange(size) + rank)
        assert (receive[:, 1::2] == receive[:, 1:2]).all()
        assert (receive[:, ::2] == -1).all()


def square(size: int, rank: int, side: int = 4) -> Array:
    return np.arange(size * side * side, dtype=np.float64).reshape(size, side, side) + 1000 * rank


@LAYOUTS
def test_alltoallw_with_a_type_for_every_peer(communicator: Make, layout: str) -> None:
    """Each peer gets another part of a matrix: the first a row, the second a column, the third a corner."""
    comm = communicator(layout=layout)
    size, rank = comm.size, comm.rank
    kind = MPI.DOUBLE
    with committed(
        kind.Create_contiguous(4),
        kind.Create_vector(4, 1, 4),
        kind.Create_subarray([4, 4], [2, 2], [1, 2]),
    ) as parts:
        views = [lambda a: a[0], lambda a: a[:, 0], lambda a: a[1:3, 2:4].reshape(-1)]
        send, receive = square(1, rank)[0], np.full((size, 4), -1.0)
        to = [parts[target % 3] for target in range(size)]
        comm.Alltoallw(
            [send, [1] * size, [0] * size, to],
            [receive, [4] * size, [32 * source for source in range(size)], [kind] * size],
        )
        for source in range(size):
            wanted = views[rank % 3](square(1, source)[0])
            assert receive[source].tolist() == wanted.tolist(), f"rank {rank} from {source}"
        # And back, into the shape from which the other took it.
        again = np.full((size, 4, 4), -1.0)
        comm.Alltoallw(
            [receive, [4] * size, [32 * source for source in range(size)], [kind] * size],
            [again, [1] * size, [128 * source for source in range(size)], to],
        )
        for source in range(size):
            part = views[source % 3]
            wanted = np.full((4, 4), -1.0)
            wanted[{0: np.s_[0], 1: np.s_[:, 0], 2: np.s_[1:3, 2:4]}[source % 3]] = part(send).reshape(
                (2, 2) if source % 3 == 2 else (4,)
            )
            assert np.array_equal(again[source], wanted), f"rank {rank} from {source}"


@layouts({"": (1, 2, 3), "2+1": (3,)})
def test_alltoallw_with_numbers_of_different_types(communicator: Make, layout: str) -> None:
    """To an even rank two int16, to an odd one a float64; of some nothing."""
    comm = communicator(layout=layout)
    size, rank = comm.size, comm.rank

    def kind(target: int) -> tuple[MPI.Datatype, int, np.dtype]:
        return (MPI.SHORT, 2, np.dtype("i2")) if target % 2 == 0 else (MPI.DOUBLE, 1, np.dtype("f8"))

    send, receive = np.zeros((size, 16), np.uint8), np.full((size, 16), 0xA5, np.uint8)
    for target in range(size):
        _, count, dtype = kind(target)
        send[target].view(dtype)[:count] = 10 * rank + target + np.arange(count)
    talk = [[(i + 2 * j) % 3 != 2 for j in range(size)] for i in range(size)]
    displacements = [16 * peer for peer in range(size)]
    comm.Alltoallw(
        [
            send,
            [kind(target)[1] * talk[rank][target] for target in range(size)],
            displacements,
            [kind(target)[0] for target in range(size)],
        ],
        [
            receive,
            [kind(rank)[1] * talk[source][rank] for source in range(size)],
            displacements,
            [kind(rank)[0]] * size,
        ],
    )
    for source in range(size):
        _, count, dtype = kind(rank)
        found, rest = receive[source].view(dtype)[:count], receive[source, count * dtype.itemsize :]
        if talk[source][rank]:
            assert found.tolist() == [10 * source + rank + k for k in range(count)], (
                f"rank {rank} from {source}"
            )
        else:
            assert (receive[source] == 0xA5).all(), f"rank {rank} from {source}"
        assert (rest == 0xA5).all(), f"rank {rank} from {source}"


@pytest.mark.ranks(1, 2, 3)
def test_alltoallw_with_types_alone(communicator: Make) -> None:
    """[buf, types]: one item of each type, all from the begin of the buffer."""
    comm = communicator()
    size, rank = comm.size, comm.rank
    with committed(*[MPI.INT64_T.Create_indexed_block(1, [peer]) for peer in range(size)]) as one_each:
        receive = np.full(size, -1)
        comm.Alltoallw([np.arange(size) + 10 * rank, one_each], [receive, one_each])
        assert receive.tolist() == [10 * source + rank for source in range(size)]
        both = np.arange(size) + 10 * rank
        comm.Alltoallw(MPI.IN_PLACE, [both, one_each])
        assert both.tolist() == [10 * source + rank for source in range(size)]


@pytest.mark.ranks(2, 3)
def test_derived_types_in_ragged_calls_on_one_rank_only(communicator: Make) -> None:
    """That rank packs; the others pass plain elements of the same signature."""
    comm = communicator()
    size, rank = comm.size, comm.rank
    packs = rank == size - 1
    with committed(MPI.DOUBLE.Create_vector(3, 1, 2).Create_resized(0, 48)) as (spread,):
        wide = np.full(6 * size, -1.0)
        wide[::2] = np.arange(3 * size) + 100 * rank
        plain = wide[::2].copy()
        ones, threes = [1] * size, [3] * size
        send = [wide, ones, None, spread] if packs else [plain, threes]
        got = np.full(6 * size, -1.0) if packs else np.full(3 * size, -1.0)
        receive = [got, ones, None, spread] if packs else [got, threes]
        comm.Alltoallv(send, receive)
        wanted = [100 * source + 3 * rank + k for source in range(size) for k in range(3)]
        assert (got[::2] if packs else got).tolist() == wanted, f"rank {rank}"
        assert not packs or (got[1::2] == -1).all()
        got[:] = -1
        comm.Allgatherv([wide, 1, spread] if packs else plain[:3], receive)
        wanted = [100 * source + k for source in range(size) for k in range(3)]
        assert (got[::2] if packs else got).tolist() == wanted, f"rank {rank}"
        assert not packs or (got[1::2] == -1).all()
