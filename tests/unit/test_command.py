"""The command `hpccoll` itself: how it ends when nobody reads on, and when it fails unforeseen."""

from __future__ import annotations

import subprocess
import sys

from tests.support.launch import environment, run_ranks


def test_nobody_reads_on() -> None:
    """As after `| head`: no traceback, and nothing is wrong."""
    command = [sys.executable, "-m", "hpccoll.cli", "plan", "allreduce", "--layout", "64x8", "--rank", "0"]
    with subprocess.Popen(
        [*command, "--algorithm", "ring"],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        env=environment(),
    ) as process:
        assert process.stdout is not None
        assert process.stderr is not None
        process.stdout.close()
        assert process.wait(timeout=60) == 0
        assert process.stderr.read() == ""


def test_what_fails_unforeseen_on_one_rank_ends_the_job() -> None:
    code = (
        "import sys\n"
        "from mpi4py import MPI\n"
        "from hpccoll.cli import main, topo\n"
        "topo.run = lambda args: 1 / 0 if MPI.COMM_WORLD.rank else MPI.COMM_WORLD.Barrier()\n"
        "sys.exit(main(['topo']))\n"
    )
    done = run_ranks(2, ["-c", code], timeout_s=30.0)
    assert not done.timed_out
    assert done.returncode != 0
    assert "ZeroDivisionError" in done.stderr
