"""MPI started for fewer threads than all: nothing moves behind the caller's back, and this is said."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.support.launch import Result, run_ranks

LEVELS = ("single", "funneled", "serialized")
PROGRAM = """
import os, sys, threading, time
import mpi4py
mpi4py.rc.thread_level = sys.argv[1]
import numpy as np
from mpi4py import MPI
import hpccoll

levels = {"single": MPI.THREAD_SINGLE, "funneled": MPI.THREAD_FUNNELED, "serialized": MPI.THREAD_SERIALIZED}
assert MPI.Query_thread() == levels[sys.argv[1]], MPI.Query_thread()
comm = hpccoll.Communicator(MPI.COMM_WORLD, timeout_s=10)
size, rank = comm.size, comm.rank


def finished(request):
    end = time.monotonic() + 10
    while not request.Test():
        assert time.monotonic() < end
    return True
"""
WORKS = """
for count in (3, 5000):
    send, total = np.full(count, rank + 1.0), np.empty(count)
    wanted = np.full(count, size * (size + 1) / 2)
    comm.Allreduce(send, total)
    assert (total == wanted).all()
    for wait in (lambda request: request.Wait(), finished):
        total[:] = 0
        wait(comm.Iallreduce(send, total))
        assert (total == wanted).all()
    several = [np.empty(count) for _ in range(5)]
    hpccoll.Request.Waitall([comm.Iallreduce(send, one) for one in several])
    assert all((one == wanted).all() for one in several)
    # One that is not waited for moves on in the waiting for another.
    first, second = np.empty(count), np.empty(count)
    requests = [comm.Iallreduce(send, first), comm.Iallreduce(send, second)]
    requests[1].Wait()
    assert finished(requests[0])
    assert (first == wanted).all() and (second == wanted).all()
    kept = comm.Allreduce_init(send, total)
    for turn in range(3):
        total[:] = 0
        kept.Start()
        kept.Wait()
        assert (total == wanted).all()
    kept.Free()
comm.close()
os.write(1, b"rank %d done\\n" % rank)
"""
ALONE = """
# No thread of ours may call MPI: none is there.
comm.Barrier()
before = [thread.name for thread in threading.enumerate()]
total = np.zeros(5000)
request = comm.Iallreduce(np.ones(5000), total)
time.sleep(0.3)
assert [thread.name for thread in threading.enumerate()] == before, threading.enumerate()
request.Wait()
assert (total == size).all()
comm.close()
os.write(1, b"rank %d done\\n" % rank)
"""
MIXED = """
# MPI's own wait cannot move ours on below the highest level: it must end, with an answer or an error.
from mpi4py.MPI import Request
total = np.zeros(3)
request = comm.Iallreduce(np.ones(3), total)
end = time.monotonic() + 5
while not request.Test():
    assert time.monotonic() < end
Request.Waitall([request])
assert (total == size).all()
comm.close()
os.write(1, b"rank %d done\\n" % rank)
"""


def run(tmp_path: Path, level: str, body: str) -> Result:
    script = tmp_path / "program.py"
    script.write_text(PROGRAM + body)
    return run_ranks(2, [str(script), level], timeout_s=40)


@pytest.mark.parametrize("body", [WORKS, ALONE, MIXED], ids=["all calls", "no thread of ours", "MPI's wait"])
@pytest.mark.parametrize("level", LEVELS)
def test_requests_move_on_in_test_and_wait(tmp_path: Path, level: str, body: str) -> None:
    result = run(tmp_path, level, body)
    assert result.returncode == 0, result.stderr
    assert sorted(result.stdout.split("\n")) == ["", "rank 0 done", "rank 1 done"]


@pytest.mark.parametrize("level", [*LEVELS, "multiple"])
def test_topo_says_what_the_level_means(level: str) -> None:
    result = run_ranks(2, ["-m", "hpccoll.cli", "topo"], timeout_s=40, env={"MPI4PY_RC_THREAD_LEVEL": level})
    assert result.returncode == 0, result.stderr
    line = next((line for line in result.stdout.splitlines() if level in line.lower()), None)
    assert line is not None, f"no word of {level} in: {result.stdout}"
    assert ("Test" in line and "Wait" in line) == (level != "multiple"), line
