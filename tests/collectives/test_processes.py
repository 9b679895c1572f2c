"""Reading the memory of the node's other ranks: tried by all before any does it, and used by all or none."""

from __future__ import annotations

import os
from collections.abc import Callable

import numpy as np
import pytest
from mpi4py import MPI

from hpccoll import _native
from hpccoll.memory.processes import Processes, Read, open_processes
from hpccoll.runtime import engine
from hpccoll.topology.layout import Layout
from tests.collectives.conftest import Make
from tests.support.layouts import layouts
from tests.support.oracle import COLLECTIVES, Job, every_place, every_root, perform

needs_engine = pytest.mark.skipif(bool(_native.reason()), reason=_native.reason())


def opened(
    world: MPI.Intracomm, layout: Layout, read: Read | None, has_core: bool = True
) -> Processes | None:
    stages = open_processes(world, layout, read, has_core)
    while True:
        try:
            next(stages)
        except StopIteration as end:
            found: Processes | None = end.value
            return found


@needs_engine
@layouts({"": (1, 2, 3), "2+1": (3,), "2+2": (4,)})
def test_the_processes_of_each_node(world: MPI.Intracomm, layout: str) -> None:
    nodes = Layout.parse(layout or str(world.size))
    everybody = world.allgather(os.getpid())
    mine = nodes.nodes[nodes.node(world.rank)]
    numbers = tuple(everybody[rank] for rank in mine)
    for last_has_core in (True, False):
        has_core = last_has_core or world.rank < world.size - 1
        found = opened(world, nodes, engine.core().bytes_of_process, has_core)
        assert found == Processes(numbers, last_has_core or world.size - 1 not in mine)


def not_allowed(process: int, address: int, nbytes: int) -> bytes:
    raise PermissionError("ptrace_scope")


def of_another_container(process: int, address: int, nbytes: int) -> bytes:
    return bytes(nbytes)


@needs_engine
@pytest.mark.ranks(2, 3)
@pytest.mark.parametrize("read", [None, not_allowed, of_another_container])
def test_what_one_rank_may_not_nobody_does(world: MPI.Intracomm, read: Read | None) -> None:
    everybody = Layout.parse(str(world.size))
    last = world.rank == world.size - 1
    assert opened(world, everybody, read if last else engine.core().bytes_of_process) is None


@needs_engine
def test_memory_that_is_not_there() -> None:
    read: Callable[[int, int, int], bytes] = engine.core().bytes_of_process
    here = np.arange(4)
    assert read(os.getpid(), here.ctypes.data, 32) == here.tobytes()
    with pytest.raises(OSError, match="Bad address"):
        read(os.getpid(), 8, 1)
    with pytest.raises(ProcessLookupError):
        read(2**22 + 1, here.ctypes.data, 1)  # larger than any process number
    with pytest.raises(ValueError, match="below 0"):
        read(os.getpid(), here.ctypes.data, -1)


@layouts({"": (2, 3), "2+1": (3,)})
@pytest.mark.parametrize("least", [0, 1])
@pytest.mark.parametrize("collective", COLLECTIVES)
def test_every_collective(communicator: Make, layout: str, least: int, collective: str) -> None:
    comm = communicator(layout=layout, single_copy_bytes=least, small_bytes=0)
    jobs = [Job(collective, count) for count in (1, 70_000)]
    for job in every_root(every_place(jobs), comm.size):
        for _ in range(2):
            perform(comm, job)
