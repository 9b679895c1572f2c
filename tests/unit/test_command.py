"""The command `hpccoll` itself: how it ends when nobody reads on, and when it fails unforeseen."""

from __future__ import annotations

import subprocess
import sys
from importlib import metadata

import numpy as np
import pytest
from mpi4py import MPI

from hpccoll import cli
from tests.support.launch import Result, environment, run_program, run_ranks


def hpccoll_command(*arguments: str, **variables: str) -> Result:
    return run_program([sys.executable, "-m", "hpccoll.cli", *arguments], timeout_s=50.0, env=variables)


def test_versions() -> None:
    done = hpccoll_command("--version")
    assert done.returncode == 0, done.stderr
    lines = done.stdout.splitlines()
    assert lines[0].startswith(f"hpccoll {metadata.version('hpccoll')}, C extension: ")
    assert f"NumPy {np.__version__}" in lines[1]
    assert MPI.Get_library_version().split()[0] in lines[2]
    assert lines[3].startswith("NCCL: ")
    assert lines[4].startswith("CUDA: ")
    assert f"mpi4py {metadata.version('mpi4py')}" in lines[5]
    assert "turned off" in hpccoll_command("--version", HPCCOLL_NATIVE="0").stdout


@pytest.mark.parametrize("command", cli.COMMANDS)
def test_help(command: str, capsys: pytest.CaptureFixture[str]) -> None:
    """Also that no text has a percent sign which argparse takes for a format."""
    with pytest.raises(SystemExit) as ended:
        cli.main([command, "--help"])
    assert ended.value.code == 0
    assert "options:" in capsys.readouterr().out


def test_no_command() -> None:
    done = hpccoll_command()
    assert done.returncode == 2
    assert "which command?" in done.stderr


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


def test_who_alone_finds_a_command_wrong_says_so_and_ends_the_job() -> None:
    code = (
        "import os, sys\n"
        "from mpi4py import MPI\n"
        "from hpccoll import cli\n"
        "cli.PATIENCE_S = 2.0\n"
        "if MPI.COMM_WORLD.rank: os.environ['HPCCOLL_TIMEOUT_S'] = 'never'\n"
        "sys.exit(cli.main(['topo']))\n"
    )
    done = run_ranks(2, ["-c", code], timeout_s=40.0)
    assert not done.timed_out
    assert done.returncode != 0
    assert "rank 1: hpccoll topo: HPCCOLL_TIMEOUT_S" in done.stderr


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
