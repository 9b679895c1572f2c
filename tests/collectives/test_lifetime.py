"""How communicators end: dropped, closed in a block, collected in a cycle, or with the program."""

from __future__ import annotations

import ast
import gc
import inspect
import os
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path

import mpi4py
import numpy as np
import pytest
from mpi4py import MPI

import hpccoll
from hpccoll import _native
from hpccoll.memory.flags import open_flags
from tests.collectives.conftest import Make
from tests.support.launch import run_ranks
from tests.support.layouts import layouts
from tests.support.oracle import Job, perform

LONG = 70_000  # elements that go through the staging segment


def mapped() -> int:
    """Files of ours in the memory of this process."""
    return sum("/hpccoll-" in line for line in Path("/proc/self/maps").read_text().splitlines())


def opened() -> int:
    """Open file descriptors of this process."""
    return len(os.listdir("/proc/self/fd"))


def at_most(count: Callable[[], int], most: int) -> bool:
    """Whether a count comes down to so many: the thread that listens to other nodes may just be at work."""
    deadline = time.monotonic() + 2
    while count() > most and time.monotonic() < deadline:
        time.sleep(0.01)
        gc.collect()
    return count() <= most


def returning_communicators() -> list[tuple[str, str]]:
    """Class and name of mpi4py's methods that make intracommunicators of a communicator."""
    stub = ast.parse((Path(mpi4py.__file__).parent / "MPI.pyi").read_text())
    made = ("Self", "Comm", "Intracomm", "Cartcomm", "Graphcomm", "Distgraphcomm")
    kinds = ("Comm", "Intracomm", "Topocomm", "Cartcomm", "Graphcomm", "Distgraphcomm")
    return [
        (kind.name, method.name)
        for kind in stub.body
        if isinstance(kind, ast.ClassDef) and kind.name in kinds
        for method in kind.body
        if isinstance(method, ast.FunctionDef)
        and not method.name.startswith("_")
        and method.args.args[:1]
        and method.args.args[0].arg == "self"
        and method.returns is not None
        and any(isinstance(part, ast.Name) and part.id in made for part in ast.walk(method.returns))
    ]


def test_every_method_of_mpi4py_that_makes_a_communicator_makes_ours() -> None:
    found = returning_communicators()
    assert {"Dup", "Idup", "Split", "Create_cart", "Sub", "Ishrink"} <= {name for _, name in found}
    kinds = {"Cartcomm": hpccoll.CartCommunicator, "Graphcomm": hpccoll.GraphCommunicator}
    for owner, name in found:
        method = inspect.getattr_static(kinds.get(owner, hpccoll.Communicator), name)
        assert getattr(method, "__module__", "").startswith("hpccoll"), f"{owner}.{name} is mpi4py's own"


@layouts({"": (2, 3), "2+1": (3,)})
def test_dropped_communicators_leave_no_memory_and_no_descriptors(world: MPI.Intracomm, layout: str) -> None:
    gc.collect()
    segments, descriptors = mapped(), opened()
    for turn in range(12):
        comm = hpccoll.Communicator(world, layout=layout)
        perform(comm, Job("allreduce", LONG))
        if turn % 2:
            comm.close()
        del comm
        if turn % world.size == world.rank:
            gc.collect()
    gc.collect()
    assert at_most(mapped, segments)
    assert at_most(opened, descriptors)


@layouts({"": (2,), "2+1": (3,)})
@pytest.mark.parametrize("close", [True, False])
def test_a_communicator_in_a_cycle_is_collected(world: MPI.Intracomm, layout: str, close: bool) -> None:
    gc.collect()
    before = mapped()
    comm = hpccoll.Communicator(world, layout=layout)
    perform(comm, Job("allreduce", LONG))
    assert (mapped() > before + 1) == (comm.local_size > 1)  # one is the record of its calls
    cycle: list[object] = [comm, comm._context]
    cycle.append(cycle)
    if close:
        comm.close()
    del comm, cycle
    gc.collect()
    assert at_most(mapped, before)


@pytest.mark.skipif(not _native.available(), reason="no extension")
def test_flags_and_their_buffer_in_a_cycle_are_collected() -> None:
    """The collector clears a memoryview before the flags that use it, when it is the older one."""
    collected = 0
    for nested in (False, True):
        whole = memoryview(bytearray(4096))
        view = whole[:64] if nested else whole
        cycle: list[object] = [open_flags(view, native=True)]
        cycle.append(cycle)
        del whole, view, cycle
        collected += gc.collect()
    assert collected > 0


@layouts({"": (2,), "2+1": (3,)})
def test_a_block_that_ends_with_an_error_on_one_rank(world: MPI.Intracomm, layout: str) -> None:
    culprit = world.size - 1

    def block() -> None:
        with hpccoll.Communicator(world, layout=layout) as comm:
            perform(comm, Job("allreduce", LONG))
            kept.append(comm)
            if world.rank == culprit:
                raise ArithmeticError("mine alone")

    kept: list[hpccoll.Communicator] = []
    if world.rank == culprit:
        with pytest.raises(ArithmeticError, match="mine alone"):
            block()
    else:
        block()
    with pytest.raises(hpccoll.UsageError, match="closed"):
        kept[0].Barrier()
    with hpccoll.Communicator(world, layout=layout) as another:
        perform(another, Job("allreduce", 3))


@pytest.mark.ranks(1, 2)
@pytest.mark.parametrize(
    "end", [lambda comm: comm.Free(), lambda comm: comm.Disconnect()], ids=["Free", "Disconnect"]
)
def test_after_the_end_of_its_communicator_it_is_closed(
    world: MPI.Intracomm, end: Callable[[hpccoll.Communicator], None]
) -> None:
    comm = hpccoll.Communicator(world).Dup()
    perform(comm, Job("allreduce", LONG))
    end(comm)
    assert comm == MPI.COMM_NULL
    with pytest.raises(hpccoll.UsageError, match=r"closed|COMM_NULL"):
        comm.Allreduce(np.ones(1), np.empty(1))
    comm.close()


@pytest.mark.ranks(1, 2)
def test_operators_of_mpi_and_of_users(world: MPI.Intracomm) -> None:
    """What our table has not is MPI's own call, but on an open communicator only."""
    comm = hpccoll.Communicator(world)
    pair, best = np.array([[comm.rank, 7]], "i"), np.zeros((1, 2), "i")
    longest = MPI.Op.Create(lambda one, other, kind: None, commute=True)
    comm.Allreduce([pair, 1, MPI.INT_INT], [best, 1, MPI.INT_INT], op=MPI.MAXLOC)
    assert best.tolist() == [[comm.size - 1, 7]]
    comm.Reduce(np.ones(1), np.empty(1), op=longest)
    comm.close()
    for op in (MPI.MAXLOC, longest):
        with pytest.raises(hpccoll.UsageError, match="closed"):
            comm.Allreduce(np.ones(1), np.empty(1), op=op)
    longest.Free()


@layouts({"2+2": (4,), "3+1": (4,), "": (5,)})
def test_parts_of_the_world_work_independently(communicator: Make, layout: str) -> None:
    comm = communicator(layout=layout)
    part = comm.Split(comm.rank % 2, -comm.rank)
    for turn in range(5 if comm.rank % 2 else 2):
        perform(part, Job(("allreduce", "broadcast", "allgather")[turn % 3], 40 + 3000 * turn))
    perform(comm, Job("allreduce", 7))
    single = part.Split(part.rank)
    perform(single, Job("reduce_scatter", 5))
    assert (single.size, single.node_count) == (1, 1)
    perform(comm, Job("allgather", 700))
    single.Free()
    part.Free()


PROGRAM = """
import sys, time
import numpy as np
from mpi4py import MPI
import hpccoll
world = MPI.COMM_WORLD
"""


def test_a_program_that_fails_on_all_ranks_has_an_exit_status(tmp_path: Path) -> None:
    script = tmp_path / "program.py"
    script.write_text(
        PROGRAM
        + "comm = hpccoll.Communicator(world)\n"
        + f"comm.Allreduce(np.ones({LONG}), np.empty({LONG}))\n"
        + "raise RuntimeError('the end')\n"
    )
    result = run_ranks(2, [str(script)], timeout_s=30)
    assert not result.timed_out
    assert result.returncode != 0
    # The pieces of two tracebacks may be mixed; each has the words in its last line and in the program's.
    assert result.stderr.count("the end") == 4


def test_a_program_that_does_not_close_ends_at_once(tmp_path: Path) -> None:
    """As reported in cupy/cupy#7863: threads of the library kept the program alive."""
    script = tmp_path / "program.py"
    script.write_text(
        PROGRAM
        + "comms = [hpccoll.Communicator(world, layout=layout) for layout in ('', '1+1')]\n"
        + f"for comm in comms: comm.Allreduce(np.ones({LONG}), np.empty({LONG}))\n"
        + "open(f'{sys.argv[1]}/{world.rank}', 'w').close()\n"
    )
    result = run_ranks(2, [str(script), str(tmp_path)], timeout_s=30)
    ended = time.time()
    assert (result.returncode, result.timed_out) == (0, False), result.stderr
    for rank in range(2):
        assert ended - (tmp_path / str(rank)).stat().st_mtime < 5


@pytest.mark.parametrize("missing", [0, 2])
def test_a_rank_that_misses_the_first_use_is_named(tmp_path: Path, missing: int) -> None:
    """Making one is local: a wrong option on one rank stops that one, the others learn of it at first use."""
    script = tmp_path / "program.py"
    script.write_text(
        PROGRAM
        + f"checks = 'maybe' if world.rank == {missing} else 'on'\n"
        + "began = time.monotonic()\n"
        + "time.sleep(world.rank / 4)\n"
        + "try:\n"
        + "    hpccoll.Communicator(world, init_timeout_s=2, checks=checks).Barrier()\n"
        + "except hpccoll.HpccollError as error:\n"
        + "    said = f'{type(error).__name__} {time.monotonic() - began:.1f} {error.suspects} {error}'\n"
        + "    open(f'{sys.argv[1]}/{world.rank}', 'w').write(said)\n"
        + f"time.sleep(8 if world.rank == {missing} else 10)\n"
        + "world.Abort(0)\n"
    )
    result = run_ranks(3, [str(script), str(tmp_path)], timeout_s=30)
    assert not result.timed_out
    for rank in range(3):
        kind, seconds, text = (tmp_path / str(rank)).read_text().split(maxsplit=2)
        if rank == missing:
            assert (kind, "checks is 'maybe'" in text) == ("UsageError", True)
            continue
        assert kind == "CollectiveTimeoutError"
        assert 2 <= float(seconds) < 6
        assert text.startswith(f"({missing},) ")
        assert f"rank {missing}" in text


@pytest.mark.ranks(2)
def test_what_a_killed_program_has_left_is_taken_away_by_the_next_one(world: MPI.Intracomm) -> None:
    """Its ranks may be killed between making a segment and unlinking it."""
    code = (
        "import os, signal, sys\n"
        "import mpi4py; mpi4py.rc.initialize = False\n"
        "from hpccoll.memory.segments import create_segment\n"
        "segment = create_segment(4096, directory=sys.argv[1], purpose='control')\n"
        "os.kill(os.getpid(), signal.SIGKILL)\n"
    )
    directory = world.bcast(tempfile.mkdtemp(dir="/dev/shm") if world.rank == 0 else None)
    try:
        if world.rank == 0:
            subprocess.run([sys.executable, "-c", code, directory], check=False)
            assert len(os.listdir(directory)) == 1
        with hpccoll.Communicator(world, shm_dir=directory) as comm:
            comm.Barrier()
            assert os.listdir(directory) == []
    finally:
        world.Barrier()
        if world.rank == 0:
            shutil.rmtree(directory)
