"""A rank dies, stops, leaves or is late: every other learns it in time, and by whom it was let down."""

from __future__ import annotations

import json
import re
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import pytest

from tests.faults.faulty import LATER_S, TIMEOUT_S
from tests.faults.nemesis import ours
from tests.support.control_groups import limited_group
from tests.support.launch import environment, find_mpiexec, run_ranks, started, until

pytestmark = pytest.mark.timeout(90)

PROGRAM = Path(__file__).with_name("faulty.py")
LONGEST_S = 40.0  # until a job on a busy machine has started and ended
DEAD_S = 2.0
FILLING_S = 2.0  # until a rank has as much memory as it may have
GONE_S = 8.0  # until the last survivor has noticed, has said so and has left the others time to
SOON_S = 1.0  # after the deadline, or after the news
RANKS = 4


@pytest.fixture(autouse=True)
def nothing_stays() -> Iterator[None]:
    """No file of ours is left in shared memory."""
    before = ours()
    yield
    assert ours() <= before


def outcomes(
    directory: Path, fault: str, culprit: int, layout: str, awaited: Sequence[int]
) -> dict[int, dict[str, Any]]:
    """How these ranks ended, and after how many seconds, behind shells that stay.

    So the launcher does not end the others when one is killed.
    """
    command = find_mpiexec().command(
        RANKS, ["sh", "-c", f"{sys.executable} {PROGRAM} {fault} {culprit} {directory}; sleep {LONGEST_S:g}"]
    )
    env = environment({"HPCCOLL_LAYOUT": layout, "HPCCOLL_TRACE_DIR": str(directory / "traces")})
    reports = {rank: directory / f"{rank}.json" for rank in awaited}
    with tempfile.TemporaryFile("w+") as out, started(command, env=env, stdout=out, stderr=out):
        deadline = time.monotonic() + LONGEST_S
        while not all(report.exists() for report in reports.values()):
            if time.monotonic() > deadline:
                out.seek(0)
                pytest.fail(f"only {[rank for rank in reports if reports[rank].exists()]}: {out.read()}")
            time.sleep(0.05)
    struck = float((directory / "struck").read_text())
    found = {rank: json.loads(report.read_text()) for rank, report in reports.items()}
    return {rank: {**one, "after": one["at"] - struck} for rank, one in found.items()}


def others(culprit: int) -> list[int]:
    return [rank for rank in range(RANKS) if rank != culprit]


@pytest.mark.parametrize("fault", ["signal:SIGKILL", "segfault", "signal:SIGTERM", "during-SIGKILL"])
@pytest.mark.parametrize(
    ("layout", "culprit"), [("4", 2), ("2+2", 0), ("3+1", 1), ("3+1", 3), ("cyclic:2+2", 3), ("1+1+1+1", 1)]
)
def test_a_rank_that_dies(tmp_path: Path, fault: str, layout: str, culprit: int) -> None:
    for rank, one in outcomes(tmp_path, fault, culprit, layout, others(culprit)).items():
        assert (rank, one["kind"], one["suspects"]) == (rank, "PeerLostError", [culprit]), one["text"]
        assert re.search(rf"rank {culprit} (\(node \d, \S+\) )?died", one["text"])
        assert re.search(r"#\d+ at faulty.py:\d+ \(work\)", one["text"])
        assert one["after"] < DEAD_S


@pytest.mark.parametrize(
    ("layout", "culprit", "place"),
    [
        ("2+2", 0, "LEADERS:1"),
        ("3+1", 3, "LEADERS:1"),
        pytest.param("2+2", 3, "NODE:1", marks=pytest.mark.slow),
        pytest.param("3+1", 1, "NODE:3", marks=pytest.mark.slow),
        pytest.param("cyclic:2+2", 1, "LEADERS:0", marks=pytest.mark.slow),
    ],
)
def test_a_rank_that_dies_at_a_step(tmp_path: Path, layout: str, culprit: int, place: str) -> None:
    """On one level, while others wait on the other; in a call of several chunks."""
    for rank, one in outcomes(tmp_path, f"at:SIGKILL:{place}", culprit, layout, others(culprit)).items():
        assert (rank, one["kind"], one["suspects"]) == (rank, "PeerLostError", [culprit]), one["text"]
        assert re.search(r"allreduce #\d+ at faulty.py:\d+ \(in_steps\)", one["text"])
        assert one["after"] < DEAD_S


@pytest.mark.parametrize(
    ("layout", "culprit", "place"),
    [
        pytest.param("2+2", 2, "LEADERS:1", marks=pytest.mark.slow),
        ("3+1", 1, "NODE:2"),
        pytest.param("3+1", 0, "LEADERS:3", marks=pytest.mark.slow),
    ],
)
def test_a_rank_that_stops_at_a_step(tmp_path: Path, layout: str, culprit: int, place: str) -> None:
    for rank, one in outcomes(tmp_path, f"at:SIGSTOP:{place}", culprit, layout, others(culprit)).items():
        assert (rank, one["kind"]) == (rank, "CollectiveTimeoutError"), one["text"]
        assert culprit in one["suspects"], one["text"]
        assert TIMEOUT_S * 0.95 < one["after"] < TIMEOUT_S + SOON_S


@pytest.mark.parametrize(
    ("layout", "culprit"),
    [("3+1", 3), *(pytest.param(*one, marks=pytest.mark.slow) for one in (("4", 2), ("2+2", 0)))],
)
def test_a_rank_that_the_kernel_kills_for_its_memory(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, layout: str, culprit: int
) -> None:
    with limited_group(48 << 20) as group:
        monkeypatch.setenv("FAULTY_GROUP", str(group))
        found = outcomes(tmp_path, "out-of-memory", culprit, layout, others(culprit))
    for rank, one in found.items():
        assert (rank, one["kind"], one["suspects"]) == (rank, "PeerLostError", [culprit]), one["text"]
        assert one["after"] < FILLING_S + DEAD_S


@pytest.mark.parametrize(
    ("fault", "words"),
    [
        ("raise", r"ArithmeticError: the matrix is singular, at faulty.py:\d+ \(strike\), from faulty.py"),
        ("exit", "its program has ended"),
        ("signal:SIGINT", "KeyboardInterrupt"),
    ],
)
@pytest.mark.parametrize(("layout", "culprit"), [("4", 2), ("2+2", 0), ("3+1", 1), ("1+1+1+1", 3)])
def test_a_rank_that_leaves(tmp_path: Path, fault: str, words: str, layout: str, culprit: int) -> None:
    for rank, one in outcomes(tmp_path, fault, culprit, layout, others(culprit)).items():
        assert (rank, one["kind"], one["suspects"]) == (rank, "PeerLostError", [culprit]), one["text"]
        assert re.search(rf"rank {culprit} has left after \d+ calls: {words}", one["text"])
        assert one["after"] < DEAD_S


@pytest.mark.parametrize("count", [4, 300_000])
@pytest.mark.parametrize(
    ("layout", "culprit"), [("4", 2), pytest.param("2+2", 0, marks=pytest.mark.slow), ("3+1", 3)]
)
def test_a_rank_that_leaves_a_started_call_behind(
    tmp_path: Path, count: int, layout: str, culprit: int
) -> None:
    for rank, one in outcomes(tmp_path, f"unfinished:{count}", culprit, layout, others(culprit)).items():
        assert (rank, one["kind"], one["suspects"]) == (rank, "PeerLostError", [culprit]), one["text"]
        assert re.search(rf"rank {culprit} has left after \d+ calls: its program has ended", one["text"])
        assert "started and not waited for" in one["text"]
        assert LATER_S * 0.9 < one["after"] < LATER_S + DEAD_S


@pytest.mark.parametrize("fault", ["stop", "late:30", "hold-the-GIL:30"])
@pytest.mark.parametrize(("layout", "culprit"), [("4", 2), ("3+1", 1), ("3+1", 3), ("1+1+1+1", 3)])
def test_a_rank_that_is_silent(tmp_path: Path, fault: str, layout: str, culprit: int) -> None:
    for rank, one in outcomes(tmp_path, fault, culprit, layout, others(culprit)).items():
        assert (rank, one["kind"], one["suspects"]) == (rank, "CollectiveTimeoutError", [culprit]), one[
            "text"
        ]
        assert f"rank {culprit}" in one["text"]
        assert "stopped by a signal" in one["text"] or fault != "stop" or layout != "4"
        assert TIMEOUT_S * 0.95 < one["after"] < TIMEOUT_S + SOON_S


def test_who_waits_long_says_for_whom(tmp_path: Path) -> None:
    env = {
        "HPCCOLL_LAYOUT": "2+1",
        "HPCCOLL_TRACE_DIR": str(tmp_path / "traces"),
        "HPCCOLL_WARN_AFTER_S": "0.5",
    }
    result = run_ranks(3, [str(PROGRAM), "late:1.3", "1", str(tmp_path)], timeout_s=LONGEST_S, env=env)
    assert result.returncode == 0, result.stderr
    said = re.findall(
        r"rank (\d) has waited (\d) s in allreduce #30 at faulty.py:\d+ \(work\): (.*)", result.stderr
    )
    assert ("0", "1", "rank 1 on node 0 did not call it") in said
    assert ("2", "1", "node 0 did not answer: rank 1 is missing") in said
    assert {rank for rank, _, _ in said} == {"0", "2"}


@pytest.mark.parametrize("fault", ["stop:1", "late:1", "hold-the-GIL:1"])
@pytest.mark.parametrize(("layout", "culprit"), [("4", 2), ("3+1", 0)])
def test_a_rank_that_comes_in_time(tmp_path: Path, fault: str, layout: str, culprit: int) -> None:
    for one in outcomes(tmp_path, fault, culprit, layout, range(RANKS)).values():
        assert one["kind"] == "", one["text"]


@pytest.mark.parametrize(("layout", "culprit"), [("4", 2), ("3+1", 0), ("3+1", 3)])
def test_a_rank_that_comes_back_too_late(tmp_path: Path, layout: str, culprit: int) -> None:
    seconds = TIMEOUT_S + 2
    found = outcomes(tmp_path, f"stop:{seconds}", culprit, layout, range(RANKS))
    assert found[culprit]["kind"] == "AbortedError"
    assert "gave up" in found[culprit]["text"]
    assert found[culprit]["after"] < seconds + SOON_S
    assert all(found[rank]["kind"] == "CollectiveTimeoutError" for rank in others(culprit))


@pytest.mark.parametrize("fault", ["signal:SIGKILL", "raise", "stop"])
def test_a_job_as_launchers_start_it_ends(tmp_path: Path, fault: str) -> None:
    """Whatever happens to the survivors: the job is over soon, and its status says that it failed."""
    began = time.monotonic()
    env = {"HPCCOLL_LAYOUT": "2+1", "HPCCOLL_TRACE_DIR": str(tmp_path / "traces")}
    result = run_ranks(3, [str(PROGRAM), fault, "1", str(tmp_path)], timeout_s=LONGEST_S, env=env)
    assert result.returncode != 0
    assert time.monotonic() - began < TIMEOUT_S + 15
    if fault == "raise":
        assert "ArithmeticError: the matrix is singular" in result.stderr


UNTIED = {"hydra": "-disable-auto-cleanup", "intel": "-disable-auto-cleanup", "openmpi": "--continuous"}


@pytest.mark.parametrize("layout", ["4", pytest.param("3+1", marks=pytest.mark.slow)])
def test_nobody_survives_where_the_launcher_ends_nobody(tmp_path: Path, layout: str) -> None:
    program = f"echo $$ >> {tmp_path}/ranks; exec {sys.executable} {PROGRAM} signal:SIGKILL 1 {tmp_path}"
    mpiexec = find_mpiexec()
    path, *rest = mpiexec.command(RANKS, ["sh", "-c", program])
    env = environment({"HPCCOLL_LAYOUT": layout, "HPCCOLL_TRACE_DIR": str(tmp_path / "traces")})
    devnull = subprocess.DEVNULL
    with started([path, UNTIED[mpiexec.flavour], *rest], env=env, stdout=devnull, stderr=devnull) as job:
        until((tmp_path / "struck").exists, LONGEST_S)
        ranks = [int(one) for one in (tmp_path / "ranks").read_text().split()]
        until(lambda: not any(map(runs, ranks)), GONE_S)
        assert job.wait(GONE_S) != 0


def runs(number: int) -> bool:
    """Whether there is a process that has not ended."""
    try:
        return Path(f"/proc/{number}/stat").read_text().rpartition(")")[2].split()[0] not in "ZX"
    except OSError:
        return False


def test_what_ends_one_rank_ends_all(tmp_path: Path) -> None:
    """`python -m hpccoll` does not wait for the ranks that wait in MPI."""
    code = "import sys; from mpi4py import MPI; w = MPI.COMM_WORLD; w.rank == 1 and sys.exit(3); w.Barrier()"
    result = run_ranks(3, ["-m", "hpccoll", "-c", code], timeout_s=LONGEST_S)
    assert result.returncode == 3
