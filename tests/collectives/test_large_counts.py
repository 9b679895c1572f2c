"""More elements than one call of MPI counts: with the limit lowered, and once for real.

As reported in mpi4py/mpi4py#650, pmodels/mpich#2317, PyLops/pylops-mpi#115 and open-mpi/ompi PR#9616.
"""

from __future__ import annotations

from collections.abc import Callable, Generator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from mpi4py import MPI

import hpccoll
from hpccoll.runtime import context
from hpccoll.transports import mpi
from tests.support.layouts import layouts
from tests.support.oracle import COLLECTIVES, RAGGED, Attempt, Job, Ragged, perform, perform_all

LIMIT = 1000
SIZES = (999, 1000, 1001, 3001)
LAYOUTS = layouts({"": (1, 2), "1+1": (2,), "2+1": (3,)})
STARTING = (
    "Isend", "Irecv", "Issend", "Iallreduce", "Ireduce", "Ibcast", "Iallgather", "Iallgatherv", "Igather",
    "Igatherv", "Iscatter", "Iscatterv", "Ialltoall", "Ialltoallv", "Ialltoallw", "Ireduce_scatter_block",
    "Ireduce_scatter", "Iscan", "Iexscan",
)  # fmt: skip


class Watched(MPI.Intracomm):
    """A private duplicate that notes the longest buffer or block of any call of MPI.

    `longest` is in what MPI counts: bytes of buffers passed as bytes, elements of others.  The extension
    makes its calls elsewhere, of the same lengths.
    """

    longest = 0

    def note(self, name: str, arguments: tuple[Any, ...]) -> None:
        for buffer in arguments[: 1 if name in ("Isend", "Irecv", "Issend", "Ibcast") else 2]:
            Watched.longest = max(Watched.longest, counted(buffer, name, self.size))


def counted(buffer: Any, name: str, size: int) -> int:
    """The largest count that MPI gets for a buffer."""
    if isinstance(buffer, np.ndarray):
        count = buffer.size
    elif isinstance(buffer, (list, tuple)):
        given = buffer[1][0] if len(buffer) > 2 and isinstance(buffer[1], tuple) else buffer[1]
        if isinstance(given, (list, tuple, np.ndarray)):
            return int(max(given, default=0))
        count = int(given) if isinstance(given, int) else memoryview(buffer[0]).nbytes
    else:
        return 0  # None, MPI.IN_PLACE
    blocks = (
        size if name in ("Iallgather", "Igather", "Iscatter", "Ialltoall", "Ireduce_scatter_block") else 1
    )
    return count // blocks


def _watched(name: str) -> Callable[..., Any]:
    def method(self: Watched, *arguments: Any, **named: Any) -> Any:
        self.note(name, arguments)
        return getattr(MPI.Intracomm, name)(self, *arguments, **named)

    return method


for _name in STARTING:
    setattr(Watched, _name, _watched(_name))


@pytest.fixture
def limited(monkeypatch: pytest.MonkeyPatch) -> Generator[Callable[..., hpccoll.Communicator], None, None]:
    """`limited(**options)`: a communicator whose calls of MPI are limited, and watched."""
    monkeypatch.setattr(mpi, "COUNT_LIMIT", LIMIT)
    duplicate = context.duplicate
    monkeypatch.setattr(context, "duplicate", lambda *arguments: Watched(duplicate(*arguments)))
    made = []

    def make(**options: Any) -> hpccoll.Communicator:
        # Small payloads travel in the messages of the agreement, which have a limit of their own.
        made.append(hpccoll.Communicator(MPI.COMM_WORLD, small_bytes=0, segment_bytes=1 << 20, **options))
        return made[-1]

    yield make
    for comm in made:
        comm.close()


@pytest.mark.parametrize("native", [True, False])
@pytest.mark.parametrize("collective", COLLECTIVES)
@LAYOUTS
def test_every_plan_beyond_a_lowered_limit(
    limited: Callable[..., hpccoll.Communicator], layout: str, collective: str, native: bool
) -> None:
    comm = limited(layout=layout, native=native)
    Watched.longest = 0
    for k, count in enumerate(SIZES):
        for dtype in ("i1", "f8"):
            in_place = collective != "broadcast" and k % 2 == 0
            perform_all(
                comm, [Job(collective, count, np.dtype(dtype), root=k % comm.size, in_place=in_place)]
            )
            assert Watched.longest <= LIMIT, f"rank {comm.rank}: {collective} of {count} {dtype}"
    # Otherwise nothing has been tried: between nodes MPI carries the elements.
    assert Watched.longest > LIMIT // 2 or comm.node_count == 1 or native


@pytest.mark.parametrize("native", [True, False])
@pytest.mark.parametrize("collective", RAGGED)
@LAYOUTS
def test_ragged_calls_beyond_a_lowered_limit(
    limited: Callable[..., hpccoll.Communicator], layout: str, collective: str, native: bool
) -> None:
    """Single blocks below and above it, totals and displacements above it."""
    comm = limited(layout=layout, native=native)
    size = comm.size
    Watched.longest = 0
    for factor in (340, 1003):
        row = [factor * (1 + k % 3) for k in range(size)]
        counts = (
            row
            if not collective.startswith("alltoall")
            else [row[(i + j) % size] for i in range(size) for j in range(size)]
        )
        for order in ("packed", "mixed"):
            perform_all(comm, [Ragged(collective, tuple(counts), np.dtype("i2"), root=size - 1, order=order)])
            assert Watched.longest <= LIMIT, f"rank {comm.rank}: {collective} of {counts}"


@pytest.mark.parametrize("native", [True, False])
@layouts({"1+1": (2,), "2+1": (3,)})
def test_requests_and_persistent_calls_beyond_a_lowered_limit(
    limited: Callable[..., hpccoll.Communicator], layout: str, native: bool
) -> None:
    comm = limited(layout=layout, native=native)
    pairs = []
    for collective in COLLECTIVES:
        attempt = Attempt(comm, Job(collective, 3001))
        pairs.append((attempt, attempt.start()))
    for attempt, request in pairs:
        request.Wait()
        attempt.check()
    for attempt, _ in pairs:
        persistent = attempt.prepare()
        attempt.renew(1)
        persistent.Start()
        persistent.Wait()
        attempt.check()
        persistent.Free()
    assert Watched.longest <= LIMIT


def free_bytes() -> int:
    """What can be had without swapping, as the kernel has it."""
    lines = Path("/proc/meminfo").read_text().splitlines()
    return next(int(line.split()[1]) * 1024 for line in lines if line.startswith("MemAvailable"))


MORE = 2**31 + 5
# Two ranks with a send and a receive buffer of MORE bytes each, and what the plans borrow.
WANTED_BYTES = 14 * 2**30
big = pytest.mark.skipif(free_bytes() < WANTED_BYTES, reason="needs 14 GiB of free memory")


@big
@pytest.mark.slow
@pytest.mark.timeout(600)
@layouts({"": (2,), "1+1": (2,)})
def test_more_bytes_than_an_int_counts(world: MPI.Intracomm, layout: str) -> None:
    with hpccoll.Communicator(world, layout=layout, timeout_s=300) as comm:
        send, receive = np.ones(MORE, np.uint8), np.zeros(MORE, np.uint8)
        comm.Allreduce(send, receive)
        assert [int(receive[k]) for k in (0, 2**31 - 1, 2**31, -1)] == [2] * 4
        assert int(receive.min()) == int(receive.max()) == 2
        send *= 3 + comm.rank
        comm.Bcast(send, root=1)
        assert [int(send[k]) for k in (0, 2**31 - 1, 2**31, -1)] == [4] * 4


@big
@pytest.mark.slow
@pytest.mark.timeout(600)
@layouts({"": (2,), "1+1": (2,)})
def test_blocks_that_are_too_many_only_together(world: MPI.Intracomm, layout: str) -> None:
    """As reported in pmodels/mpich#2317: the count of one block fits, that of all does not."""
    with hpccoll.Communicator(world, layout=layout, timeout_s=300) as comm:
        count = 2**30 + 3
        mine = np.full(count, comm.rank + 1, np.uint8)
        everything = np.zeros(2 * count, np.uint8) if comm.rank == 1 else None
        comm.Gather(mine, everything, root=1)
        if everything is not None:
            assert [int(everything[k]) for k in (0, count - 1, count, -1)] == [1, 1, 2, 2]
            everything[:] = 0
        # A displacement beyond 2^31.
        comm.Gatherv(mine[:7], None if everything is None else [everything, ([7, 7], [2**31 - 1, 0])], root=1)
        if everything is not None:
            assert everything[2**31 - 1 : 2**31 + 6].tolist() == [1] * 7
            assert everything[:8].tolist() == [2] * 7 + [0]


@layouts({"": (2,), "1+1": (2,)})
def test_without_a_lowered_limit_nothing_is_cut(
    limited: Callable[..., hpccoll.Communicator], monkeypatch: pytest.MonkeyPatch, layout: str
) -> None:
    """The watching itself: what it notes is what MPI gets."""
    monkeypatch.setattr(mpi, "COUNT_LIMIT", 2**31 - 1)
    comm = limited(layout=layout, native=False)
    Watched.longest = 0
    for name in comm.algorithms("broadcast"):
        with comm.forced(name):
            perform(comm, Job("broadcast", 30_000))
    assert Watched.longest > LIMIT
