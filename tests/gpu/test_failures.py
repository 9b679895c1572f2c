"""A rank that does not come, or fails, on devices: an error in time, and a process that ends."""

from __future__ import annotations

import os

import pytest

from tests.support.launch import Result, run_ranks

pytestmark = pytest.mark.skipif(
    "STANDIN_FOLDER" not in os.environ, reason="real hardware fails when it wants to"
)

PROGRAM = """
import sys, time
import numpy as np
from mpi4py import MPI
import hpccoll
from tests.gpu.memory import device_count, make_stream, mirror, use_device
world = MPI.COMM_WORLD
use_device(world.rank % device_count())
stream = make_stream()
send, receive = mirror(np.ones(1000), stream), mirror(np.zeros(1000), stream)
def say(text):
    sys.stdout.write(text + "\\n")
    sys.stdout.flush()
comm = hpccoll.Communicator(world, timeout_s=3, init_timeout_s=10)
began = time.monotonic()
try:
    comm.Allreduce(send, receive)
    assert (receive.download() == comm.size).all()
    say(f"rank {comm.rank}: first")
    @then@
    say(f"rank {comm.rank}: nothing")
except hpccoll.HpccollError as error:
    say(f"rank {comm.rank}: {type(error).__name__}: {error}")
    try:
        comm.Allreduce(send, receive)
    except hpccoll.HpccollError as error:
        say(f"rank {comm.rank}: then {type(error).__name__}")
say(f"rank {comm.rank}: {'soon' if time.monotonic() - began < 30 else 'late'}")
try:
    comm.close()
except hpccoll.AbortedError:
    pass  # the other rank has given up
"""


def outcome(then: str, fault: str, **env: str) -> tuple[Result, dict[int, list[str]]]:
    """What each rank of two said."""
    code = PROGRAM.replace("@then@", then)
    # Where streams are eager, what hangs would do so in the call itself.
    env = {"STANDIN_NCCL_FAULT": fault, "STANDIN_MODE": "lazy", **env}
    result = run_ranks(2, ["-c", code], timeout_s=90, env=env)
    lines = [line for line in result.stdout.splitlines() if line.startswith("rank ")]
    said = {rank: [line[8:] for line in lines if line.startswith(f"rank {rank}: ")] for rank in (0, 1)}
    return result, said


@pytest.mark.parametrize("reaches", ["end", "nothing"])
def test_a_rank_whose_call_never_starts(reaches: str) -> None:
    # With "nothing" an abort on one rank does not end what waits on the others, as inside a node.
    result, said = outcome(
        "comm.Iallreduce(send, receive).Wait()", "absent:1:2", STANDIN_NCCL_ABORT_REACHES=reaches
    )
    assert result.returncode == 0, result.stderr
    for rank in (0, 1):
        assert said[rank][0] == "first"
        assert "Error: " in said[rank][1], said
        assert said[rank][1].startswith(("CollectiveTimeoutError", "AbortedError")), said
        assert said[rank][2:] == ["then AbortedError", "soon"], said
    assert any(said[rank][1].startswith("CollectiveTimeoutError") for rank in (0, 1))


def test_an_error_of_nccl_is_raised_by_the_next_call() -> None:
    then = "\n    ".join(
        ["comm.Allreduce(send, receive)", "time.sleep(0.5)", "comm.Allreduce(send, receive)"]
    )
    result, said = outcome(then, "async:0:2")
    assert result.returncode == 0, result.stderr
    assert any(line.startswith("AbortedError: ") and "NCCL: " in line for line in said[0]), said
    assert said[0][-2:] == ["then AbortedError", "soon"]


def test_a_communicator_that_cannot_be_made() -> None:
    result, said = outcome("pass", "init:1")
    assert result.returncode == 0, result.stderr
    for rank in (0, 1):
        assert said[rank][0].startswith("ResourceError: no NCCL communicator: rank"), said
        assert said[rank][-1] == "soon"
