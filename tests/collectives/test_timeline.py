"""HPCCOLL_TRACE: the timeline that a program leaves, at close, at its end, and after a kill."""

from __future__ import annotations

import time
from collections.abc import Iterator
from pathlib import Path
from tempfile import TemporaryDirectory

import numpy as np
import pytest
from mpi4py import MPI

import hpccoll
from hpccoll.cli import main
from hpccoll.errors import UsageError
from tests.support.launch import run_ranks
from tests.support.timeline import Shown, shown

ROUNDS = 4
LAYERS = 6


@pytest.fixture
def directory(world: MPI.Intracomm) -> Iterator[Path]:
    """The same on all ranks."""
    with TemporaryDirectory(prefix="hpccoll-timeline-") as own:
        yield Path(world.bcast(own))


def train(comm: hpccoll.Communicator) -> None:
    """A program with all that a timeline has."""
    short, long = np.ones(3), np.ones(60_000)
    for _ in range(ROUNDS):
        comm.Allreduce(MPI.IN_PLACE, short)
        comm.Allreduce(MPI.IN_PLACE, long)
        long[:] = 1
        for array in (short, long):
            if comm.rank == 0:
                time.sleep(0.02)  # the others wait for it
            request = comm.Iallreduce(MPI.IN_PLACE, array)
            time.sleep(0.002)
            request.Wait()
            array[:] = 1
    gradients = [np.ones(5000, np.float32) for _ in range(LAYERS)]
    buckets = hpccoll.GradientBuckets(comm, gradients, bucket_bytes=40_000)
    for _ in range(ROUNDS):
        with comm.annotate("step"):
            for layer in reversed(range(LAYERS)):
                with comm.annotate("layer"):
                    time.sleep(0.001)
                buckets.ready(layer)
            buckets.wait()
    buckets.close()


def check(found: Shown, size: int) -> None:
    """What `train` has left."""
    assert len(found.processes) == size
    assert found.about["ranks"] == size
    assert found.about["lost_calls"] == found.about["lost_events"] == 0
    for process in range(size):
        assert found.processes[process].startswith(f"rank {process} on ")
        program = found.of(process, "program")
        calls = [one for one in program if one["cat"] == "call" and one["args"]["count"] == 60_000]
        assert [one["name"] for one in calls] == ["allreduce"] * ROUNDS
        assert all(one["args"]["line"].endswith(" in train") for one in calls)
        started = [one for one in found.of(process, "started calls") if one["cat"] == "started"]
        assert len(started) == 2 * ROUNDS + 3 * ROUNDS  # those of buckets, too
        waits = [one for one in program if one["cat"] == "wait" and "step" not in one.get("args", {})]
        if process > 0:
            assert len([one for one in waits if one["dur"] > 5000]) >= 2 * ROUNDS
            assert {one["name"][: len("wait for allreduce #")] for one in waits} == {"wait for allreduce #"}
        steps = [one for one in program if one["cat"] == "wait" and "step" in one.get("args", {})]
        assert [one["args"]["step"] for one in steps] == list(range(1, ROUNDS + 1))
        named = [one["name"] for one in program if one["cat"] == "part"]
        assert named.count("step") == ROUNDS
        assert named.count("layer") == ROUNDS * LAYERS
        filled = [one for one in found.of(process, "buckets") if one["cat"] == "bucket"]
        assert len(filled) == 3 * ROUNDS
        assert all(one["name"].startswith("bucket ") and " of float32" in one["name"] for one in filled)
        assert {one["name"].rpartition(": ")[2] for one in filled} == {"0, 1", "2, 3", "4, 5"}
        for one in found.of(process, "buckets"):
            if one["cat"] == "exposed":
                wait = next(w for w in steps if w["ts"] - 1 <= one["ts"] <= w["ts"] + w["dur"] + 1)
                assert one["ts"] + one["dur"] <= wait["ts"] + wait["dur"] + 1
        _check_computation(found, process, program)


def _check_computation(found: Shown, process: int, program: list[dict[str, object]]) -> None:
    """It is where the program does not wait, and under the names that the program gave."""
    pieces = found.of(process, "computation")
    layers = sum(one["dur"] for one in pieces if one["name"] == "layer")
    assert layers >= ROUNDS * LAYERS * 1000
    busy = [one for one in program if one["cat"] != "part"]
    for piece in pieces:
        for one in busy:
            overlap = min(piece["ts"] + piece["dur"], one["ts"] + one["dur"]) - max(piece["ts"], one["ts"])
            assert overlap <= 0.01


@pytest.mark.ranks(1, 2, 4)
@pytest.mark.parametrize("native", [True, False])
def test_a_timeline_at_close(world: MPI.Intracomm, directory: Path, native: bool) -> None:
    layout = {1: "1", 2: "1+1", 4: "2+2"}[world.size]
    with hpccoll.Communicator(world, trace=str(directory), layout=layout, native=native) as comm:
        train(comm)
    if world.rank == 0:
        (path,) = directory.glob("timeline-*.json")
        assert path.stat().st_mode & 0o777 == 0o600
        found = shown(path)
        check(found, world.size)
        several = world.size > 1
        assert bool(found.flows) == several
        assert found.about["alignment_error_us"] == 0  # one host
        # One clock: nothing arrives before it was sent.
        assert all(end["ts"] >= begin["ts"] for begin, end in found.flows)
        assert all(begin["pid"] != end["pid"] for begin, end in found.flows)
        levels = {name for _, name in found.tracks if name.startswith("level")}
        assert any("NODE" in name for name in levels) == (world.size == 4)


@pytest.mark.ranks(2)
def test_communicators_of_one_job_share_a_file(world: MPI.Intracomm, directory: Path) -> None:
    values = np.ones(7)
    with hpccoll.Communicator(world, trace=str(directory)) as comm:
        comm.Allreduce(MPI.IN_PLACE, values)
        with comm.Dup() as other:
            other.Allreduce(MPI.IN_PLACE, values)
        if world.rank == 0:
            assert not list(directory.glob("timeline-*.json"))  # one is open
    if world.rank == 0:
        (path,) = directory.glob("timeline-*.json")
        calls = [one for one in shown(path).of(0, "program") if one["cat"] == "call"]
        assert len({one["args"]["sequence"] for one in calls}) < len(calls)
        assert len(shown(path).processes) == 2


@pytest.mark.ranks(2)
def test_memory_is_bounded(world: MPI.Intracomm, directory: Path) -> None:
    """The last calls and events are kept, and it is said how many are not."""
    values = np.ones(30_000)
    with hpccoll.Communicator(
        world, trace=str(directory), timeline_bytes=65536, layout="1+1", algorithm="ring"
    ) as comm:
        comm.Barrier()
        (own,) = (one for one in directory.iterdir() if one.name.endswith(f".{world.rank}"))
        for _ in range(400):
            comm.Allreduce(MPI.IN_PLACE, values)
            values[:] = 1
        assert own.stat().st_size == 65536
    if world.rank == 0:
        found = shown(next(directory.glob("timeline-*.json")))
        assert found.about["lost_calls"] > 0
        assert found.about["lost_events"] > 0
        kept = [one["args"]["sequence"] for one in found.of(0, "program") if one["cat"] == "call"]
        assert kept == list(range(min(kept), max(kept) + 1))
        assert max(kept) >= 399


@pytest.mark.ranks(1)
def test_without_the_setting_there_is_nothing(world: MPI.Intracomm, directory: Path) -> None:
    with hpccoll.Communicator(world) as comm:
        comm.Allreduce(MPI.IN_PLACE, np.ones(3))
        with comm.annotate("a part") as part:
            assert part is None
        assert comm._context is not None
        assert comm._context.recorder.events is None
        assert comm._context._movement.observe is None
    assert list(directory.iterdir()) == []
    with pytest.raises(UsageError, match="recorder is off"):
        hpccoll.Communicator(world, trace=str(directory), recorder="off").Barrier()


PROGRAM = """
import os, signal, sys, time
import numpy as np
from mpi4py import MPI
import hpccoll
world = MPI.COMM_WORLD
comm = hpccoll.Communicator(world, layout="1+1")
values = np.ones(40_000)
for step in range(6):
    comm.Allreduce(MPI.IN_PLACE, values)
    values[:] = 1
if sys.argv[1] == "kill":
    world.Barrier()
    os.kill(os.getpid(), signal.SIGKILL)
"""


def ended(tmp_path: Path, how: str) -> int:
    program = tmp_path / "program.py"
    program.write_text(PROGRAM)
    env = {"HPCCOLL_TRACE": str(tmp_path / "trace")}
    return run_ranks(2, [str(program), how], timeout_s=50, env=env).returncode


def test_a_timeline_at_the_end_of_a_program(tmp_path: Path) -> None:
    assert ended(tmp_path, "well") == 0
    (path,) = (tmp_path / "trace").iterdir()  # the ranks' files are taken away
    found = shown(path)
    for process in (0, 1):
        assert sum(one["cat"] == "call" for one in found.of(process, "program")) == 6
    assert found.flows


def test_what_a_kill_leaves_is_put_together(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert ended(tmp_path, "kill") != 0
    target = tmp_path / "after.json"
    assert main(["trace", str(tmp_path / "trace"), "--timeline", str(target)]) == 0
    assert "2 ranks" in capsys.readouterr().out
    found = shown(target)
    for process in (0, 1):
        assert sum(one["cat"] == "call" for one in found.of(process, "program")) == 6
    assert found.flows
