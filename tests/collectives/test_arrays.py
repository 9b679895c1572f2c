"""What callers pass: strided, Fortran-ordered, read-only, 0-d, numbers, lists of mpi4py; what stays."""

from __future__ import annotations

import array
from typing import Any

import numpy as np
import pytest
from mpi4py import MPI

import hpccoll
from tests.collectives.conftest import Make
from tests.support.layouts import layouts
from tests.support.oracle import BLOCKED, COLLECTIVES, Job, perform
from tests.support.places import PLACES

# One node, and two nodes of unequal size; arrays that go with the agreement, and ones that do not.
LAYOUTS = layouts({"": (2, 3), "2+1": (3,)})
COUNTS = (12, 6000)


@pytest.mark.parametrize("place", PLACES)
@LAYOUTS
def test_arrays_are_taken_by_index(communicator: Make, layout: str, place: str) -> None:
    """As reported in pytorch/pytorch#159548: memory was sent instead of the view, or a copy was reduced."""
    comm = communicator(layout=layout)
    for count in COUNTS:
        for collective in COLLECTIVES:
            # Blocks of ranks lie along the memory of a Fortran-ordered array: below.
            if place == "transposed" and collective in BLOCKED:
                continue
            in_place = collective != "broadcast"
            perform(comm, Job(collective, count, root=comm.size - 1, in_place=in_place), PLACES[place])
            perform(comm, Job(collective, count, root=0), PLACES[place])


@pytest.mark.ranks(4)
@pytest.mark.parametrize("layout", ["", "2+2"])
def test_a_slice_in_place_leaves_the_columns_between(communicator: Make, layout: str) -> None:
    comm = communicator(layout=layout)
    whole = np.arange(24.0).reshape(4, 6) * (comm.rank + 1)
    before = whole.copy()
    comm.Allreduce(MPI.IN_PLACE, whole[:, ::2])
    assert whole[1, ::2].tolist() == [60, 80, 100]
    assert np.array_equal(whole[:, 1::2], before[:, 1::2])


@pytest.mark.ranks(2, 3)
@pytest.mark.parametrize("shape", [(2, 3), (60, 50), (4, 5, 3)])
def test_one_rank_in_fortran_order_the_others_in_c_order(communicator: Make, shape: tuple[int, ...]) -> None:
    """As reported in numba-mpi/numba-mpi PR#31: the data arrived transposed."""
    comm = communicator()
    numbers = np.arange(np.prod(shape)).reshape(shape)
    for fortran in range(comm.size):
        order: Any = "F" if comm.rank == fortran else "C"
        mine = np.array(numbers, order=order)
        total = np.empty(shape, numbers.dtype, order=order)
        comm.Allreduce(mine, total)
        assert np.array_equal(total, comm.size * numbers)
        comm.Allreduce(MPI.IN_PLACE, mine)
        assert np.array_equal(mine, comm.size * numbers)
        got = np.array(numbers if comm.rank == fortran else np.zeros_like(numbers), order=order)
        comm.Bcast(got, root=fortran)
        assert np.array_equal(got, numbers)
        total = np.zeros(shape, numbers.dtype, order=order)
        comm.Reduce(np.array(numbers, order="F"), total, root=fortran)
        assert np.array_equal(total, comm.size * numbers * (comm.rank == fortran))


@LAYOUTS
def test_blocks_in_a_fortran_ordered_array_lie_along_its_last_axis(communicator: Make, layout: str) -> None:
    comm = communicator(layout=layout)
    size, rank = comm.size, comm.rank
    for shape in ((2, 3), (50, 31)):
        block = np.arange(np.prod(shape)).reshape(shape)
        gathered = np.empty((*shape, size), block.dtype, order="F")
        comm.Allgather(block * (rank + 1), gathered)
        for other in range(size):
            assert np.array_equal(gathered[..., other], block * (other + 1))
        mine = np.empty(shape, block.dtype, order="F")
        comm.Reduce_scatter_block(gathered, mine)
        assert np.array_equal(mine, size * block * (rank + 1))
        for root in range(size):
            at_root = np.full((*shape, size), -1, order="F")
            comm.Gather(block * (rank + 1), at_root, root=root)
            assert np.array_equal(at_root, gathered if rank == root else np.full_like(gathered, -1))
            for order in ("C", "F"):
                mine = np.empty(shape, block.dtype, order=order)
                comm.Scatter(gathered if rank == root else None, mine, root=root)
                assert np.array_equal(mine, block * (rank + 1)), f"rank {rank}: into {order} order"
        sent = np.empty((*shape, size), block.dtype, order="F")
        for other in range(size):
            sent[..., other] = block * (10 * rank + other)
        exchanged = np.empty_like(sent)
        comm.Alltoall(sent, exchanged)
        for other in range(size):
            assert np.array_equal(exchanged[..., other], block * (10 * other + rank))


@LAYOUTS
@pytest.mark.parametrize("count", COUNTS)
def test_read_only_inputs(communicator: Make, layout: str, count: int) -> None:
    """As reported in mpi4py/mpi4py#216: what is raised depended on the protocol that was tried first."""
    comm = communicator(layout=layout)
    ones = np.broadcast_to(1.0, count)
    got = np.empty(count)
    comm.Allreduce(ones, got)
    assert (got == comm.size).all()
    fixed = np.arange(count)
    fixed.flags.writeable = False
    comm.Bcast(fixed if comm.rank == 0 else (copy := np.empty(count, int)), root=0)
    assert comm.rank == 0 or np.array_equal(copy, fixed)
    comm.Bcast(ones if comm.rank == 1 else got, root=1)
    assert (got[:] == (1 if comm.rank != 1 else comm.size)).all()
    everything = np.empty((comm.size, count))
    comm.Allgather(ones, everything)
    assert (everything == 1).all()


@layouts({"": (1, 4), "3+1": (4,)})
def test_arrays_without_dimensions_and_numbers(communicator: Make, layout: str) -> None:
    """As reported in chainer/chainer#5474, mpi4jax/mpi4jax#4 and horovod/horovod#3698."""
    comm = communicator(layout=layout)
    size = comm.size
    for number in (np.array(1.0), np.float64(1), 1.0, 1, True):
        total = np.zeros(())
        comm.Allreduce(number, total)
        assert (total.shape, total.dtype, float(total)) == ((), np.dtype(float), size)
        every = np.zeros(size)
        comm.Allgather(number, every)
        assert every.tolist() == [1.0] * size
    total = np.zeros(())
    comm.Reduce(np.float64(comm.rank), total if comm.rank == 0 else None)
    assert total == (size * (size - 1) // 2 if comm.rank == 0 else 0)
    where = np.array(comm.rank)
    comm.Bcast(where, root=size - 1)
    assert where == size - 1
    comm.Allreduce(MPI.IN_PLACE, where)
    assert where == size * (size - 1)
    for name, wanted in (("Scan", comm.rank + 1), ("Exscan", comm.rank)):
        total = np.zeros(())
        getattr(comm, name)(1.0, total)
        assert (total.shape, float(total)) == ((), wanted)
    gathered = np.zeros(size)
    comm.Gather(np.float64(comm.rank), gathered if comm.rank == 0 else None)
    assert gathered.tolist() == (list(range(size)) if comm.rank == 0 else [0.0] * size)
    one = np.zeros(())
    comm.Scatter(np.arange(float(size)), one)
    assert one == comm.rank
    block = np.zeros(())
    if size == 1:
        comm.Reduce_scatter_block(np.array(1.0), block)
        assert block == 1
    else:
        with pytest.raises(ValueError, match="sendbuf holds 1 elements: must be 4 ranks x 1"):
            comm.Reduce_scatter_block(np.array(1.0), block)


@pytest.mark.ranks(1, 2, 3)
def test_shapes_are_kept_for_empty_arrays(communicator: Make) -> None:
    """As reported in pytorch/pytorch#85234, pytorch/gloo PR#356: the process died of a division by zero."""
    comm = communicator()
    size = comm.size
    for shape in ((0,), (1, 0, 2)):
        nothing, result, several = np.empty(shape), np.empty(shape), np.empty((size, *shape))
        for op in (MPI.SUM, MPI.MAX, MPI.MIN, MPI.PROD, hpccoll.AVG):
            comm.Allreduce(nothing, result, op=op)
            comm.Reduce(nothing, result, op=op)
            comm.Reduce_scatter_block(nothing, result, op=op)
            comm.Reduce_scatter(nothing, result, [0] * size, op=op)
            comm.Scan(nothing, result, op=op)
            comm.Exscan(nothing, result, op=op)
        comm.Bcast(result)
        comm.Allgather(nothing, several)
        comm.Gather(nothing, several if comm.rank == size - 1 else None, root=size - 1)
        comm.Scatter(several if comm.rank == size - 1 else None, result, root=size - 1)
        comm.Alltoall(several, np.empty_like(several))
        zeros = [0] * size
        comm.Allgatherv(nothing, [several, zeros])
        comm.Gatherv(nothing, [several, zeros] if comm.rank == 0 else None)
        comm.Scatterv([several, zeros] if comm.rank == 0 else None, result)
        comm.Alltoallv([several, zeros], [np.empty_like(several), zeros])
        comm.Alltoallw(*[[several, zeros, zeros, [MPI.DOUBLE] * size] for _ in range(2)])
        for request in (comm.Iallreduce(nothing, result), comm.Ialltoall(several, np.empty_like(several))):
            request.Wait()
        assert (result.shape, several.shape, result.dtype) == (shape, (size, *shape), np.dtype(float))
    perform(comm, Job("allreduce", 5))


@pytest.mark.ranks(2)
@pytest.mark.parametrize("count", [1, 5000])
def test_a_reduction_to_one_rank_leaves_the_others_alone(communicator: Make, count: int) -> None:
    """As reported in pytorch/pytorch#76527: half of the result appeared in the other rank's input."""
    comm = communicator()
    mine = np.repeat(np.array([[[1, 2], [3, 5]], [[10, 20], [30, 40]]])[comm.rank], count, axis=0)
    before, result = mine.copy(), np.full_like(mine, -5)
    for name in comm.algorithms("reduce"):
        result[...] = -5
        with comm.forced(name):
            comm.Reduce(mine, result, root=0)
        wanted = np.repeat([[11, 22], [33, 45]], count, axis=0) if comm.rank == 0 else np.full_like(mine, -5)
        assert np.array_equal(result, wanted), name
        assert np.array_equal(mine, before), name


@LAYOUTS
def test_the_same_memory_twice_is_in_place(communicator: Make, layout: str) -> None:
    comm = communicator(layout=layout)
    for count in COUNTS:
        mine = np.full(count, comm.rank + 1)
        comm.Allreduce(mine, mine)
        assert (mine == comm.size * (comm.size + 1) // 2).all()
        every = np.zeros((comm.size, count), int)
        every[comm.rank] = comm.rank
        comm.Allgather(every[comm.rank], every)
        wanted = np.repeat(np.arange(comm.size), count).reshape(comm.size, count)
        assert np.array_equal(every, wanted)
        for root in range(comm.size):
            # At the root one block is its place among all: nothing to copy, and no overlap.
            every[:] = -1
            every[comm.rank] = comm.rank
            comm.Gather(every[comm.rank], every, root=root)
            assert comm.rank != root or np.array_equal(every, wanted)
            every[:] = wanted if comm.rank == root else -1
            comm.Scatter(every, every[comm.rank], root=root)
            assert (every[comm.rank] == comm.rank).all()


@pytest.mark.ranks(2, 3)
def test_interleaved_views_of_one_array_do_not_overlap(communicator: Make) -> None:
    comm = communicator()
    both = np.arange(20.0)
    comm.Allreduce(both[::2], both[1::2])
    assert np.array_equal(both[1::2], comm.size * np.arange(0, 20, 2.0))
    assert np.array_equal(both[::2], np.arange(0, 20, 2.0))


@pytest.mark.ranks(2)
def test_lists_of_mpi4py(communicator: Make) -> None:
    comm = communicator()
    mine, got = np.arange(6.0) + comm.rank, np.zeros(6)
    for send, receive, wanted in [
        ([mine, MPI.DOUBLE], [got, MPI.DOUBLE], [1, 3, 5, 7, 9, 11]),
        ([mine, "d"], (got, "d"), [1, 3, 5, 7, 9, 11]),
        ([mine, 2], [got, 2], [1, 3, 0, 0, 0, 0]),
        ([mine, 2, MPI.DOUBLE], [got, 2, MPI.DOUBLE], [1, 3, 0, 0, 0, 0]),
        ([mine, None, MPI.DOUBLE], [got, None], [1, 3, 5, 7, 9, 11]),
        ([mine, (2, 1), MPI.DOUBLE], [got, (2, 3), MPI.DOUBLE], [0, 0, 0, 3, 5, 0]),
        ([mine, 2, 1, MPI.DOUBLE], [got, 2, 3, MPI.DOUBLE], [0, 0, 0, 3, 5, 0]),
        ([mine.view(np.uint8), MPI.DOUBLE], [got.view(np.int32), MPI.DOUBLE], [1, 3, 5, 7, 9, 11]),
    ]:
        got[:] = 0
        comm.Allreduce(send, receive)
        assert got.tolist() == wanted


@pytest.mark.ranks(2, 3)
def test_counts_in_lists_are_those_of_one_block(communicator: Make) -> None:
    """mpi4py passes them to MPI, where the count of an all-gather is that of each rank."""
    comm = communicator()
    size = comm.size
    ours, theirs = np.zeros(3 * size), np.zeros(3 * size)
    for count in (3, 2):
        send = [np.arange(3.0) + 10 * comm.rank, count, MPI.DOUBLE]
        comm.Allgather(send, [ours, count, MPI.DOUBLE])
        MPI.COMM_WORLD.Allgather(send, [theirs, count, MPI.DOUBLE])
        assert np.array_equal(ours, theirs)
        mine, its = np.zeros(count), np.zeros(count)
        comm.Reduce_scatter_block([ours, count, MPI.DOUBLE], mine)
        MPI.COMM_WORLD.Reduce_scatter_block([ours, count, MPI.DOUBLE], its)
        assert np.array_equal(mine, its)
        comm.Reduce_scatter_block(MPI.IN_PLACE, [ours, count, MPI.DOUBLE])
        MPI.COMM_WORLD.Reduce_scatter_block(MPI.IN_PLACE, [theirs, count, MPI.DOUBLE])
        assert np.array_equal(ours[:count], theirs[:count])


@pytest.mark.ranks(2, 3)
@pytest.mark.parametrize("count", [3, 4000])
def test_derived_types_on_one_rank_only(communicator: Make, count: int) -> None:
    comm = communicator()
    vector = MPI.DOUBLE.Create_vector(count, 1, 2).Commit()
    try:
        spread, plain = np.arange(2.0 * count), np.arange(0, 2.0 * count, 2)
        got = np.full(2 * count, -1.0)
        packs = comm.rank == comm.size - 1
        comm.Allreduce([spread, 1, vector] if packs else plain, [got, 1, vector] if packs else got[:count])
        assert np.array_equal(got[::2] if packs else got[:count], comm.size * plain)
        assert (got[1::2] == -1).all() if packs else (got[count:] == -1).all()
        one, many = [spread, 1, vector] if packs else plain, np.full(comm.size * count, -1.0)
        comm.Allgather(one, many)
        assert np.array_equal(many, np.tile(plain, comm.size))
        for root in range(comm.size):
            got[:] = -1
            comm.Scatter(
                many if comm.rank == root else None, [got, 1, vector] if packs else got[:count], root
            )
            assert np.array_equal(got[::2] if packs else got[:count], plain)
            many[:] = -1
            comm.Gather(one, many if comm.rank == root else None, root)
            assert np.array_equal(many, np.tile(plain, comm.size)) == (comm.rank == root)
            many[:] = np.tile(plain, comm.size)
        got[:] = -1
        comm.Scan(one, [got, 1, vector] if packs else got[:count])
        assert np.array_equal(got[::2] if packs else got[:count], (comm.rank + 1) * plain)
    finally:
        vector.Free()


@pytest.mark.ranks(1, 2)
def test_other_things_with_memory(communicator: Make) -> None:
    comm = communicator()
    size = comm.size
    received = bytearray(3)
    comm.Bcast(b"abc" if comm.rank == 0 else received)
    assert comm.rank == 0 or received == b"abc"
    numbers, got = array.array("d", [1, 2]), array.array("d", [0, 0])
    comm.Allreduce(numbers, got)
    assert got.tolist() == [size, 2 * size]
    comm.Allreduce(memoryview(numbers), memoryview(got)[::-1])
    assert got.tolist() == [2 * size, size]
    # A matrix keeps two axes whatever is done to it.
    matrix = np.arange(90_000.0).reshape(300, 300).view(np.matrix)
    total = np.empty((300, 300)).view(np.matrix)
    comm.Allreduce(matrix, total)
    assert np.array_equal(total, size * matrix)


@pytest.mark.ranks(2)
def test_each_rank_may_pass_another_kind_of_buffer(communicator: Make) -> None:
    comm = communicator()
    if comm.rank == 0:
        got = np.empty((2, 3))
        comm.Allreduce([np.arange(6.0), 6, MPI.DOUBLE], got.T[::-1, ::-1])
        assert np.array_equal(got.T[::-1, ::-1].reshape(-1), 2 * np.arange(6.0))
    else:
        numbers = array.array("d", range(6))
        comm.Allreduce(MPI.IN_PLACE, numbers)
        assert numbers.tolist() == [0, 2, 4, 6, 8, 10]
