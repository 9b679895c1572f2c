"""Too little of something on one rank is an error on all; and in the long run nothing is used up."""

from __future__ import annotations

import json
import os
import random
import shlex
import subprocess
import sys
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest

from hpccoll.memory.segments import sweep
from tests.faults.nemesis import ours
from tests.support.control_groups import inside, limited_group
from tests.support.launch import Result, environment, find_mpiexec, run_program, started

pytestmark = pytest.mark.timeout(120)

PROGRAM = Path(__file__).with_name("scarce.py")
LOOP = Path(__file__).with_name("faulty.py")
LONGEST_S = 60.0


def said(directory: Path, ranks: int) -> list[dict[str, Any]]:
    return [json.loads((directory / f"{rank}.json").read_text()) for rank in range(ranks)]


def run(
    what: str, culprit: int, directory: Path, ranks: int, layout: str, before: Sequence[str] = (), **env: str
) -> Result:
    command = find_mpiexec().command(
        ranks, [sys.executable, str(PROGRAM), what, str(culprit), str(directory)]
    )
    settings = {"HPCCOLL_LAYOUT": layout, "HPCCOLL_TRACE_DIR": str(directory / "traces"), **env}
    return run_program([*before, *command], timeout_s=LONGEST_S, env=settings)


@pytest.mark.parametrize("what", ["descriptors", "file-size"])
@pytest.mark.parametrize(("layout", "culprit"), [("3", 0), ("2+2", 2)])
def test_what_one_rank_lacks_all_learn(tmp_path: Path, what: str, layout: str, culprit: int) -> None:
    ranks = sum(map(int, layout.split("+")))
    result = run(what, culprit, tmp_path, ranks, layout)
    assert result.returncode == 0, result.stderr
    for one in said(tmp_path, ranks):
        if one["kind"] == "":
            assert one["right"]  # it did without
        else:
            assert one["kind"] == "ResourceError", one["text"]
            assert one["seconds"] < 10
    assert len({one["kind"] for one in said(tmp_path, ranks)}) == 1


@pytest.mark.parametrize(
    ("layout", "culprit", "left"),
    [
        ("3", 2, 0),
        ("2+1", 0, 6_000_000),
        *(pytest.param(*one, marks=pytest.mark.slow) for one in (("3", 2, 6_000_000), ("2+1", 0, 0))),
    ],
)
def test_address_space(tmp_path: Path, layout: str, culprit: int, left: int) -> None:
    """All learn it, or it is done without (and said), or MPI itself ends the job for want of memory."""
    before = ours()
    result = run("address-space", culprit, tmp_path, 3, layout, SCARCE_SPACE_LEFT=str(left))
    assert not result.timed_out
    assert result.seconds < LONGEST_S / 2
    if result.returncode:
        assert "Abort(" in result.stderr, result.stderr
        sweep()  # as the next start does: the launcher may kill a rank just when it has made a file
    else:
        found = said(tmp_path, 3)
        assert len({one["kind"] for one in found}) == 1, found
        for one in found:
            assert one.get("right") or (one["kind"], "ulimit -v" in one["text"]) == ("ResourceError", True), (
                one
            )
    assert ours() <= before


@pytest.mark.parametrize("layout", ["3", "2+1"])
def test_a_limit_of_memory(tmp_path: Path, layout: str) -> None:
    """What would have the kernel kill a rank is refused on all, and they go on."""
    with limited_group(1 << 30) as group:
        command = find_mpiexec().command(
            3, [*inside(group), sys.executable, str(PROGRAM), "group", "-1", str(tmp_path), str(group)]
        )
        env = {"HPCCOLL_LAYOUT": layout, "HPCCOLL_TRACE_DIR": str(tmp_path / "traces")}
        result = run_program(command, timeout_s=LONGEST_S, env=env)
    assert result.returncode == 0, result.stderr
    for one in said(tmp_path, 3):
        assert one["kind"] == "ResourceError", one
        assert "MiB are left of the memory limit of" in one["text"]
        assert "ask the batch system or the container for more" in one["text"]
        assert one["seconds"] < 10
        assert one["right"]


def mounted(options: str, directory: Path) -> list[str]:
    """A command that runs another one where a tmpfs is mounted at a directory; skips where that cannot be."""
    inner = f'mount -t tmpfs -o {options} tmpfs {shlex.quote(str(directory))} && exec "$@"'
    command = ["unshare", "--mount", "sh", "-c", inner, "sh"]
    try:
        done = subprocess.run([*command, "true"], capture_output=True, text=True, timeout=20)
    except FileNotFoundError:
        pytest.skip("no unshare")
    if done.returncode:
        pytest.skip(f"no tmpfs can be mounted here: {done.stderr.strip()}")
    return command


@pytest.mark.parametrize("options", ["size=64k", "size=1m,ro"])
@pytest.mark.parametrize("layout", ["3", "2+1"])
def test_shared_memory_too_small(tmp_path: Path, options: str, layout: str) -> None:
    memory = tmp_path / "shm"
    memory.mkdir()
    result = run("", -1, tmp_path, 3, layout, mounted(options, memory), HPCCOLL_SHM_DIR=str(memory))
    assert result.returncode == 0, result.stderr
    for one in said(tmp_path, 3):
        assert one["kind"] == "ResourceError", one
        assert one["seconds"] < 10
        assert str(memory) in one["text"]
        assert "ro" in options or (("free" in one["text"] and "KiB" in one["text"]) or "MiB" in one["text"])


def test_no_shared_memory(tmp_path: Path) -> None:
    result = run("", -1, tmp_path, 3, "2+1", HPCCOLL_SHM_DIR=str(tmp_path / "none"))
    assert result.returncode == 0, result.stderr
    for one in said(tmp_path, 3):
        assert one["kind"] == "ResourceError", one
        assert "none" in one["text"]


@pytest.mark.parametrize("layout", ["2", "1+1"])
@pytest.mark.parametrize(
    ("communicators", "calls"), [(60, 1000), pytest.param(3000, 10_000, marks=pytest.mark.slow)]
)
@pytest.mark.timeout(600)
def test_nothing_is_used_up(tmp_path: Path, layout: str, communicators: int, calls: int) -> None:
    command = find_mpiexec().command(
        2, [sys.executable, str(PROGRAM), "lasting", "0", str(tmp_path), str(communicators), str(calls)]
    )
    env = {"HPCCOLL_LAYOUT": layout, "HPCCOLL_TRACE_DIR": str(tmp_path / "traces")}
    result = run_program(command, timeout_s=500, env=env)
    assert result.returncode == 0, result.stderr
    for one in said(tmp_path, 2):
        for before, after in one.values():
            assert after["files of ours"] <= before["files of ours"]
            assert after["threads"] <= before["threads"] + 1  # who listens to other nodes may just be ending
            assert after["descriptors"] <= before["descriptors"] + 2  # a connection that is just ending
            # Of each communicator MPI keeps a little; a leak of ours would be pages of shared memory.
            assert after["KiB"] < before["KiB"] + 4096 + 3 * communicators


@pytest.mark.parametrize("times", [3, pytest.param(20, marks=pytest.mark.slow)])
def test_a_job_that_is_killed_leaves_nothing(tmp_path: Path, times: int) -> None:
    """All ranks at once, at a random moment of a loop of calls."""
    chance = random.Random(times)
    before = ours()
    for turn in range(times):
        directory = tmp_path / str(turn)
        directory.mkdir()
        inner = f"exec {sys.executable} {LOOP} during-SIGKILL -1 {directory}"
        command = find_mpiexec().command(4, ["sh", "-c", f"echo $$ >> {directory}/ranks; {inner}"])
        env = environment({"HPCCOLL_LAYOUT": "3+1", "HPCCOLL_TRACE_DIR": str(directory / "traces")})
        with started(command, env=env, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL):
            deadline = time.monotonic() + LONGEST_S
            while len(list(directory.glob("traces/*"))) < 4:
                assert time.monotonic() < deadline
                time.sleep(0.02)
            time.sleep(chance.uniform(0, 0.5))
            numbers = [int(one) for one in (directory / "ranks").read_text().split()]
            for number in numbers:
                os.kill(number, 9)
    assert ours() <= before
