"""Calls on devices that ranks know already: where they differ, and what ends a wait that asks nobody."""

from __future__ import annotations

import os
import re
import shlex
import sys
from pathlib import Path

import pytest

from tests.support.launch import Result, find_mpiexec, run_program, run_ranks

pytestmark = [
    pytest.mark.skipif("STANDIN_FOLDER" not in os.environ, reason="real hardware fails when it wants to"),
    pytest.mark.timeout(120),
]

FIRST, EVERY = 4, 10
TIMEOUT_S = 5.0
LOST_S = 5.0

PROGRAM = """
import os, signal, sys, time
import numpy as np
from mpi4py import MPI
import hpccoll
from tests.gpu.memory import device_count, make_stream, mirror, synchronize, use_device
world = MPI.COMM_WORLD
use_device(world.rank % device_count())
stream = make_stream()
short = mirror(np.ones(100), stream), mirror(np.zeros(100), stream)
long = mirror(np.ones(3000), stream), mirror(np.zeros(3000), stream)
comm = hpccoll.Communicator(world, timeout_s=@timeout@, init_timeout_s=20)
mine = comm.rank == 1
def say(text):
    sys.stdout.write(f"rank {world.rank}: {text}" + chr(10))
    sys.stdout.flush()
def call(number, kinds=(short, long)):
    comm.Allreduce(*kinds[number % 2])
comm.Allreduce(*short, MPI.PROD)
for number in range(1, @calls@):
    call(number)
began = time.monotonic()
try:
@then@
    say("nothing")
except hpccoll.HpccollError as error:
    say(f"{type(error).__name__}: {error}")
say(f"{time.monotonic() - began:.2f} s")
try:
    comm.Allreduce(*short)
    synchronize(stream)
    say("usable" if (short[1].download() == comm.size).all() else "wrong")
    comm.close()
except hpccoll.AbortedError as error:
    say(f"broken: {error}")
"""


def said(
    then: str,
    calls: int,
    *,
    layout: str = "2",
    timeout_s: float = TIMEOUT_S,
    last: Path | None = None,
    **env: str,
) -> tuple[Result, dict[int, list[str]]]:
    """What each of the ranks said; `then` is done after so many calls.

    `last`: rank 0 makes this file in the end, for which shells wait where others are killed: else the
    launcher would end it, too.
    """
    indented = "\n".join("    " + line for line in then.strip("\n").split("\n"))
    code = (
        PROGRAM.replace("@then@", indented)
        .replace("@calls@", str(calls))
        .replace("@timeout@", str(timeout_s))
    )
    ranks = sum(map(int, layout.split("+")))
    env = {
        "STANDIN_MODE": "lazy",
        "HPCCOLL_DEVICE_CHECKS_FIRST": str(FIRST),
        "HPCCOLL_DEVICE_CHECKS_EVERY": str(EVERY),
        "HPCCOLL_LAYOUT": layout,
        **env,
    }
    if last is not None:
        code += f"if world.rank == 0: open({str(last)!r}, {'w'!r})"
        inner = f"{sys.executable} -c {shlex.quote(code)}; until [ -e {last} ]; do sleep 0.2; done"
        result = run_program(find_mpiexec().command(ranks, ["sh", "-c", inner]), timeout_s=90, env=env)
    else:
        result = run_ranks(ranks, ["-c", code], timeout_s=90, env=env)
    lines = [line for line in result.stdout.splitlines() if line.startswith("rank ")]
    every = {
        rank: [line.split(": ", 1)[1] for line in lines if line.startswith(f"rank {rank}: ")]
        for rank in range(ranks)
    }
    return result, every


def seconds(lines: list[str]) -> float:
    return next(float(line.split()[0]) for line in lines if re.fullmatch(r"\d+\.\d+ s", line))


@pytest.mark.parametrize(
    ("layout", "calls"),
    [("2", 2 * EVERY), ("2+1", FIRST - 1), pytest.param("1+1", 2 * EVERY, marks=pytest.mark.slow)],
)
def test_a_call_that_is_looked_at_differs(layout: str, calls: int) -> None:
    """Nothing is enqueued then, and the communicator stays usable."""
    result, every = said("call(number + 1 + mine)", calls, layout=layout)
    assert result.returncode == 0, result.stderr
    for lines in every.values():
        assert lines[0].startswith("MismatchError: "), lines
        assert re.search(r"count: 100 on .*, 3000 on|count: 3000 on .*, 100 on", lines[0])
        assert lines[-1] == "usable"
        assert seconds(lines) < TIMEOUT_S


@pytest.mark.parametrize("layout", ["2", pytest.param("2+1", marks=pytest.mark.slow)])
@pytest.mark.parametrize(
    "differs", ["call(number + 1 + mine)", "comm.Allreduce(*short, MPI.PROD if mine else MPI.SUM)"]
)
def test_a_call_that_nobody_looked_at_differed(layout: str, differs: str) -> None:
    """It is found at the next that all look at, and nothing can be taken back; NCCL sees no operators."""
    then = f"""
{differs}
for number in range({EVERY + 2}):
    call(number)
"""
    result, every = said(then, EVERY + 2, layout=layout)
    assert result.returncode == 0, result.stderr
    for lines in every.values():
        assert lines[0].startswith("AbortedError: "), lines
        assert "calls on devices that were enqueued before differ, too" in lines[0]
        assert lines[-1].startswith("broken: "), lines
        assert seconds(lines) < TIMEOUT_S + 1


def test_one_call_too_many() -> None:
    then = f"""
if mine:
    call(1)
for number in range({2 * EVERY}):
    call(number)
"""
    result, every = said(then, EVERY + 3)
    assert result.returncode == 0, result.stderr
    for lines in every.values():
        assert lines[0].startswith("AbortedError: "), lines
        assert lines[-1].startswith("broken: "), lines


@pytest.mark.parametrize(
    "make",
    [
        "request = comm.Iallreduce(*short, operator)",
        "request = persistent[operator is MPI.PROD]; request.Start()",
    ],
)
def test_a_started_call_waits_for_nobody_and_differs(make: str) -> None:
    """The ranks agree while it is under way; NCCL does not see which operator it is."""
    then = f"""
persistent = [comm.Allreduce_init(*short, MPI.SUM), comm.Allreduce_init(*short, MPI.PROD)]
if not mine:
    time.sleep(0.5)
began = time.monotonic()
for number in range({EVERY + 2}):
    operator = MPI.PROD if mine and number == 3 else MPI.SUM
    {make}
    started = time.monotonic() - began
    assert started < 0.4 * (number + 1), started
    request.Wait()
comm.Allreduce(*short)
"""
    result, every = said(then, EVERY)
    assert result.returncode == 0, result.stderr
    for lines in every.values():
        assert lines[0].startswith("AbortedError: "), lines
        assert "calls on devices that were enqueued before differ, too: as many" in lines[0], lines
        assert lines[-1].startswith("broken: "), lines
        assert seconds(lines) < TIMEOUT_S


KILL = "os.kill(os.getpid(), signal.SIGKILL)"


@pytest.mark.parametrize(
    ("layout", "end"),
    [
        ("2", "sys.exit(0)"),
        ("1+1", KILL),
        *(
            pytest.param(*one, marks=pytest.mark.slow)
            for one in [("2", KILL), ("1+1", "1 // 0"), ("2", "1 // 0")]
        ),
    ],
)
def test_a_stream_that_waits_for_a_lost_rank_goes_on(tmp_path: Path, end: str, layout: str) -> None:
    """The host of the other waits for its stream, and asks nobody; it has minutes until the deadline."""
    then = f"""
if mine:
    {end}
call(number + 1)
synchronize(stream)
say("synchronized")
"""
    reaches = {"STANDIN_NCCL_ABORT_REACHES": "nothing"}
    _, every = said(then, EVERY + 2, layout=layout, timeout_s=300, last=tmp_path / "last", **reaches)
    lines = every[0]
    assert lines[0] == "synchronized", lines
    assert seconds(lines) < LOST_S
    assert re.match(r"broken: .*rank 1 (died|\(node 1, \S+\) died|has left)", lines[-1]), lines


def test_an_error_of_nccl_while_the_host_is_elsewhere() -> None:
    """NCCL says it to the thread that asks; the host, which waits for its stream, goes on."""
    then = """
call(number + 1)
synchronize(stream)
say("synchronized")
"""
    fault = {"STANDIN_NCCL_FAULT": f"async:0:{EVERY + 3}"}
    result, every = said(then, EVERY + 2, timeout_s=300, **fault)
    assert result.returncode == 0, result.stderr
    assert every[0][0] == "synchronized", every
    assert seconds(every[0]) < LOST_S
    assert re.match(r"broken: .*NCCL: ", every[0][-1]), every
    assert every[1][-1].startswith("broken: "), every
