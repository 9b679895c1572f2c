"""Arrays of `comm.empty`, `zeros` and `full`: in memory that the ranks of a node share."""

from __future__ import annotations

import ctypes
import gc
import itertools
import os
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from mpi4py import MPI

import hpccoll
from hpccoll.errors import HpccollError, UsageError
from tests.collectives.conftest import Make
from tests.support.layouts import layouts, on_layouts
from tests.support.oracle import (
    BFLOAT16,
    COLLECTIVES,
    GUARD,
    RAGGED,
    Array,
    Attempt,
    Job,
    Placed,
    Ragged,
    in_line,
    perform,
)

FEW = layouts({"": (1, 2, 3), "1+1": (2,), "2+1": (3,), "2+2": (4,)})


def mapped() -> int:
    """Segments of ours in the memory of this process."""
    return Path("/proc/self/maps").read_text().count("/dev/shm/hpccoll-")


class Shared:
    """A place for the oracle's `perform`: in the midst of an array of `comm.empty`.

    `begin`: where in it, in bytes, so that places differ between ranks or are not aligned.
    """

    def __init__(self, comm: Any, begin: int = 64) -> None:
        self.comm, self.begin = comm, begin
        self.bases: list[Array] = []

    def __call__(self, array: Array) -> Placed:
        memory = self.comm.empty((array.nbytes + 256,), np.uint8)
        self.bases.append(memory)
        memory[:] = GUARD
        inner = memory[self.begin : self.begin + array.nbytes].view(array.dtype)
        inner[...] = array

        def intact() -> bool:
            before, after = memory[: self.begin], memory[self.begin + array.nbytes :]
            return bool((before == GUARD).all() and (after == GUARD).all())

        return inner, intact


@pytest.mark.parametrize("dtype", ["f8", "i1", "c16", BFLOAT16, "?", "S3", "M8[s]"], ids=str)
@FEW
def test_they_are_arrays_as_numpys(communicator: Make, layout: str, dtype: Any) -> None:
    comm = communicator(layout=layout)
    kind = np.dtype(dtype)
    for shape in ((), (0,), (5,), (3, 0, 2), (4, 5, 6), 7):
        whole = (shape,) if isinstance(shape, int) else shape
        one, nulls = comm.empty(shape, kind), comm.zeros(shape, kind)
        for array in (one, nulls):
            assert (array.shape, array.dtype) == (whole, kind)
            assert array.flags.c_contiguous
            assert array.flags.writeable
            assert array.flags.aligned
        assert nulls.tobytes() == np.zeros(whole, kind).tobytes()
    filled = comm.full((2, 3), 1, kind)
    assert filled.tobytes() == np.full((2, 3), 1, kind).tobytes()


@pytest.mark.ranks(1, 2)
def test_without_a_dtype_they_are_of_numpys_default(communicator: Make) -> None:
    comm = communicator()
    assert comm.empty(3).dtype == comm.zeros(3).dtype == np.dtype(float)
    assert comm.full(3, 7).dtype == np.full(3, 7).dtype
    assert comm.full((2,), 1.5).tolist() == [1.5, 1.5]


@FEW
def test_every_rank_has_its_own(communicator: Make, layout: str) -> None:
    comm = communicator(layout=layout)
    arrays = [comm.full((1000,), 10 * comm.rank + k) for k in range(4)]
    comm.Barrier()
    for k, array in enumerate(arrays):
        assert (array == 10 * comm.rank + k).all()
        array += 1
    comm.Barrier()
    for k, array in enumerate(arrays):
        assert (array == 10 * comm.rank + k + 1).all(), f"rank {comm.rank}: array {k}"


@pytest.mark.parametrize("collective", COLLECTIVES)
@on_layouts(1, 2, 3, 4, 5)
def test_every_plan_on_them(communicator: Make, layout: str, collective: str) -> None:
    comm = communicator(layout=layout)
    place = Shared(comm)
    for k, name in enumerate(comm.algorithms(collective)):
        for count in (5, 2003):
            in_place = collective != "broadcast" and (k + count) % 2 == 0
            with comm.forced(name):
                perform(comm, Job(collective, count, root=k % comm.size, in_place=in_place), place)


@pytest.mark.parametrize("collective", COLLECTIVES)
@FEW
def test_some_ranks_pass_them_and_others_do_not(communicator: Make, layout: str, collective: str) -> None:
    """The kind of memory is one rank's affair."""
    comm = communicator(layout=layout)
    shared = Shared(comm)
    for turn in range(comm.size):
        for count in (5, 9001):
            attempt_in_shared = Attempt(comm, Job(collective, count, root=turn), shared)
            attempt_in_line = Attempt(comm, Job(collective, count, root=turn), in_line)
            attempt = attempt_in_shared if comm.rank == turn else attempt_in_line
            attempt.call()
            attempt.check()


@pytest.mark.parametrize("collective", COLLECTIVES)
@FEW
def test_one_buffer_in_them_and_the_other_not(communicator: Make, layout: str, collective: str) -> None:
    comm = communicator(layout=layout)
    shared = Shared(comm)
    for turn in (0, 1):
        made: list[int] = []

        def place(array: Array, turn: int = turn, made: list[int] = made) -> Placed:
            made.append(0)
            return shared(array) if len(made) % 2 == turn else in_line(array)

        perform(comm, Job(collective, 4003), place)


@FEW
def test_parts_of_them_anywhere(communicator: Make, layout: str) -> None:
    """At another place on every rank, and not aligned."""
    comm = communicator(layout=layout)
    for begin in (0, 8 * (comm.rank + 1), 13 + comm.rank):
        for collective in COLLECTIVES:
            perform(comm, Job(collective, 1001), Shared(comm, begin))
    whole = comm.zeros((40, 50), float)
    whole[:, ::2] = comm.rank + 1
    comm.Allreduce(MPI.IN_PLACE, whole[:, ::2])
    assert (whole[:, ::2] == comm.size * (comm.size + 1) / 2).all()
    assert (whole[:, 1::2] == 0).all()


@FEW
def test_ragged_calls_requests_and_persistent_calls(communicator: Make, layout: str) -> None:
    comm = communicator(layout=layout)
    place = Shared(comm)
    for collective in RAGGED:
        lengths = tuple(
            301 * (k % 3) for k in range(comm.size ** (2 if collective.startswith("alltoall") else 1))
        )
        perform(comm, Ragged(collective, lengths, order="mixed"), place)
    pairs = []
    for collective in COLLECTIVES:
        attempt = Attempt(comm, Job(collective, 3001), place)
        pairs.append((attempt, attempt.start()))
    for attempt, request in pairs:
        request.Wait()
        attempt.check()
    for attempt, _ in pairs:
        persistent = attempt.prepare()
        for salt in (1, 2):
            attempt.renew(salt)
            persistent.Start()
            persistent.Wait()
            attempt.check()
        persistent.Free()


# Of which no two are ever the same.
numbers = itertools.count(1000)


def staged(pattern: float) -> int:
    """How often a number is in the memory through which the node's ranks pass elements to each other."""
    found = 0
    for line in Path("/proc/self/maps").read_text().splitlines():
        if "/hpccoll-" in line and "staging" in line:
            begin, end = (int(word, 16) for word in line.split()[0].split("-"))
            found += ctypes.string_at(begin, end - begin).count(np.float64(pattern).tobytes())
    return found


@pytest.mark.parametrize("native", [True, False])
@pytest.mark.parametrize("collective", ["allreduce", "broadcast", "allgather"])
@layouts({"": (2, 3), "2+1": (3,)})
def test_elements_do_not_pass_through_other_memory(
    world: MPI.Intracomm, layout: str, collective: str, native: bool
) -> None:
    """Else it would only look like zero copies: those of plain arrays do, those of these arrays never.

    (The results of a reduction do: they are combined there.)
    """
    plan = ("reduce_ring_broadcast" if collective == "allreduce" else "two_level") if layout else "flat"
    options: dict[str, Any] = {"algorithm": plan, "native": native, "single_copy_bytes": 0}
    with hpccoll.Communicator(world, layout=layout, **options) as comm:
        count = 50_000
        outs = count * (comm.size if collective == "allgather" else 1)
        first, second = comm.empty((count,), float), comm.empty((outs,), float)

        def passed(send: Array, receive: Array) -> int:
            """How many elements of a call have passed through."""
            number = next(numbers) + 0.25
            send[:] = number
            if collective == "allreduce":
                comm.Allreduce(send, receive)
                assert receive[-1] == number * comm.size
            elif collective == "broadcast":
                comm.Bcast(send)
            else:
                comm.Allgather(send, receive)
                assert receive[-1] == number
            comm.Barrier()
            return staged(number)

        assert (passed(np.empty(count), np.empty(outs)) > 1000) == (comm.local_size > 1), f"rank {comm.rank}"
        for turn in range(3):
            assert passed(first, second) == 0, f"rank {comm.rank}, turn {turn}"
            comm.empty((turn,), float)  # ranks then tell each other which arrays they still have
        # A part keeps the whole.
        part = first[1000:40_000]
        del first
        gc.collect()
        comm.empty((3,), float)
        assert passed(part, second[: part.size * outs // count]) == 0, f"rank {comm.rank}"


@FEW
def test_what_changes_after_the_call_does_not_change_the_result(communicator: Make, layout: str) -> None:
    """Without copies, a rank that goes on at once must not overtake one that still reads."""
    comm = communicator(layout=layout)
    send, receive = comm.empty((30_000,), np.int64), comm.empty((30_000,), np.int64)
    for turn in range(60):
        send[:] = turn + comm.rank
        comm.Allreduce(send, receive)
        send[:] = -1
        wanted = comm.size * turn + comm.size * (comm.size - 1) // 2
        assert (receive == wanted).all(), f"rank {comm.rank}, turn {turn}"
        root = turn % comm.size
        send[:] = 100 * turn + comm.rank
        comm.Bcast(send, root=root)
        assert (send == 100 * turn + root).all(), f"rank {comm.rank}, turn {turn}"
        every = comm.empty((comm.size, 4000), np.int64) if turn == 0 else every  # noqa: F821  of turn 0
        comm.Allgather(send[:4000] + comm.rank, every)
        assert np.array_equal(every[:, 0], 100 * turn + root + np.arange(comm.size))
        every[:] = -1


@FEW
def test_arrays_of_another_communicator(world: MPI.Intracomm, communicator: Make, layout: str) -> None:
    comm = communicator(layout=layout)
    other = hpccoll.Communicator(world).Split(0, -world.rank)
    perform(other, Job("allreduce", 3))
    for collective in COLLECTIVES:
        perform(comm, Job(collective, 2001), Shared(other))
        perform(other, Job(collective, 2001), Shared(comm))
    other.Free()


@pytest.mark.ranks(1, 2, 3)
def test_they_outlive_their_communicator_and_then_they_are_gone(world: MPI.Intracomm) -> None:
    gc.collect()
    before = mapped()
    comm = hpccoll.Communicator(world)
    array = comm.full((5000,), comm.rank)
    part = array[1000:2000]
    perform(comm, Job("allreduce", 3000), Shared(comm))
    comm.close()
    assert (array == world.rank).all()
    del array
    gc.collect()
    part += 1
    assert (part == world.rank + 1).all()
    with hpccoll.Communicator(world) as another:
        total = np.empty(1000, part.dtype)
        another.Allreduce(part, total)
        assert (total == sum(range(1, world.size + 1))).all()
    del part
    gc.collect()
    assert mapped() == before


@pytest.mark.ranks(2)
def test_arrays_that_are_dropped_leave_no_memory(world: MPI.Intracomm) -> None:
    """Also when ranks drop them in another order."""
    with hpccoll.Communicator(world) as comm:
        perform(comm, Job("allreduce", 3))
        gc.collect()
        before = Path("/proc/self/statm").read_text().split()[0]
        for turn in range(30):
            arrays = [comm.empty((1 << 20,), np.uint8) for _ in range(8)]
            comm.Allreduce(arrays[0], arrays[1], MPI.MAX)
            if comm.rank == turn % 2:
                arrays.reverse()
            while arrays:
                arrays.pop()
        gc.collect()
        grown = (int(Path("/proc/self/statm").read_text().split()[0]) - int(before)) * os.sysconf(
            "SC_PAGE_SIZE"
        )
        assert grown < 120 << 20, f"rank {comm.rank}: {grown >> 20} MiB more than before, of 240 allocated"
        assert [path.name for path in Path("/dev/shm").glob(f"hpccoll-*-{os.getpid()}-*")] == []


@layouts({"": (2,), "2+1": (3,)})
@pytest.mark.parametrize(
    ("shape", "dtype", "says"),
    [((3,), object, "object"), ((-1,), float, "-1"), ((3,), "V0", "V0"), ("text", float, "text")],
    ids=str,
)
def test_what_cannot_be_had(communicator: Make, layout: str, shape: Any, dtype: Any, says: str) -> None:
    comm = communicator(layout=layout)
    with pytest.raises((UsageError, ValueError, TypeError), match=says):
        comm.empty(shape, dtype)
    perform(comm, Job("allreduce", 3))


@pytest.mark.ranks(2, 3)
def test_more_than_there_is_is_an_error_on_all(world: MPI.Intracomm) -> None:
    """Reserved at once: never a bus error later (NVIDIA/nccl#290)."""
    with hpccoll.Communicator(world) as comm:
        perform(comm, Job("allreduce", 3))
        with pytest.raises(hpccoll.ResourceError, match=r"wanted|free"):
            comm.empty((1 << 45,), np.uint8)
        perform(comm, Job("allreduce", 3))
        assert comm.full((3,), 2.0).sum() == 6


@pytest.mark.ranks(2)
def test_after_close_there_are_none(world: MPI.Intracomm) -> None:
    comm = hpccoll.Communicator(world)
    comm.close()
    for make in (lambda: comm.empty(3), lambda: comm.zeros(3), lambda: comm.full(3, 1)):
        with pytest.raises(HpccollError, match="closed"):
            make()
