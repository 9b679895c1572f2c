"""The test runner judged from outside: small test files with known faults, run by it as `make test` would."""

from __future__ import annotations

import re
import sys
import time
from pathlib import Path

import pytest

from tests.support.console import closing_line
from tests.support.launch import Result, run_program
from tests.support.verdict import Case, Trial, Verdict, together

pytestmark = pytest.mark.timeout(150)

RESYNC_S = 3
# Every run below is one or two launches of 2 ranks; the rest is room for a machine that is busy.
BOUND_S = 60


def run_tests(folder: Path, text: str, *options: str) -> Result:
    """Run a test file of that text, which may use `MPI`, `os`, `pytest` and `time`."""
    (folder / "test_it.py").write_text(f"import os, pytest, time\nfrom mpi4py import MPI\n\n{text}")
    limits = ["--resync-s", str(RESYNC_S), "--timeout-s", "20"]
    command = [
        sys.executable,
        "-m",
        "tests.support.run",
        str(folder),
        "--rootdir",
        str(folder),
        *limits,
        *options,
    ]
    result = run_program(command, timeout_s=120)
    assert not result.timed_out, result.stdout
    assert "Traceback" not in result.stderr, result.stderr
    return result


def running(pid: int) -> bool:
    """Whether the process is there, and not only waiting for its parent to notice that it has ended."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] not in "ZX"
    except OSError:
        return False


def totals(result: Result) -> str:
    """What the closing line counts: "1 failed, 2 passed"."""
    match = re.fullmatch(r"=+ (.*) in [\d.]+s(?: \([\d:]+\))? =+", result.stdout.rstrip().splitlines()[-1])
    assert match, result.stdout
    return match[1]


def test_all_pass(tmp_path: Path) -> None:
    text = """
def test_alone():
    pass

@pytest.mark.ranks(1, 2)
def test_together():
    assert MPI.COMM_WORLD.allreduce(1) == MPI.COMM_WORLD.size

@pytest.mark.ranks(2)
def test_skipped():
    pytest.skip("for a reason")

@pytest.mark.ranks(3)
@pytest.mark.slow
def test_not_now():
    pass
"""
    result = run_tests(tmp_path, text)
    assert (result.returncode, totals(result)) == (0, "3 passed, 1 skipped, 1 deselected")
    assert "SKIPPED [1] test_it.py: for a reason" in result.stdout


def test_one_rank_fails(tmp_path: Path) -> None:
    text = """
@pytest.mark.ranks(2)
def test_before():
    pass

@pytest.mark.ranks(2)
def test_fails():
    print("what it", "said")
    assert MPI.COMM_WORLD.rank == 0, "the odd one"

@pytest.mark.ranks(2)
def test_after():
    assert MPI.COMM_WORLD.allreduce(1) == 2
"""
    result = run_tests(tmp_path, text)
    assert (result.returncode, totals(result)) == (1, "1 failed, 2 passed")
    assert "rank 1 of 2:\n" in result.stdout
    assert "rank 0 of 2:\n" not in result.stdout
    assert result.stdout.count("what it said") == 1, "only the failing rank's output"
    assert "FAILED test_it.py::test_fails [2 ranks] - AssertionError: the odd one" in result.stdout


def test_one_rank_hangs(tmp_path: Path) -> None:
    text = """
@pytest.mark.ranks(2)
def test_hangs():
    if MPI.COMM_WORLD.rank == 1:
        MPI.COMM_WORLD.recv(source=0, tag=77)  # never sent

@pytest.mark.ranks(2)
def test_after():
    assert MPI.COMM_WORLD.allreduce(1) == 2
"""
    result = run_tests(tmp_path, text)
    assert (result.returncode, totals(result)) == (1, "1 failed, 1 passed")
    assert RESYNC_S < result.seconds < BOUND_S
    assert f"rank 0: ranks out of step after test_it.py::test_hangs: waited {RESYNC_S} s" in result.stdout
    assert re.search(r'test_it.py", line \d+ in test_hangs', result.stdout), "the stack of the rank that hung"


def test_all_ranks_hang(tmp_path: Path) -> None:
    text = """
@pytest.mark.ranks(2)
def test_hangs():
    MPI.COMM_WORLD.recv(source=MPI.ANY_SOURCE, tag=77)  # never sent
"""
    result = run_tests(tmp_path, text, "--timeout-s", "2")
    assert (result.returncode, totals(result)) == (1, "1 failed")
    assert 2 < result.seconds < BOUND_S
    assert re.search(r'test_it.py", line \d+, in test_hangs', result.stdout), (
        "the stack that pytest-timeout shows"
    )


def test_one_rank_dies(tmp_path: Path) -> None:
    text = """
@pytest.mark.ranks(2)
def test_before():
    pass

@pytest.mark.ranks(2)
def test_dies():
    if MPI.COMM_WORLD.rank == 1:
        os._exit(3)
    MPI.COMM_WORLD.Barrier()

@pytest.mark.ranks(2)
def test_after():
    assert MPI.COMM_WORLD.allreduce(1) == 2
"""
    result = run_tests(tmp_path, text)
    assert (result.returncode, totals(result)) == (1, "1 failed, 2 passed")
    assert result.seconds < BOUND_S
    assert "FAILED test_it.py::test_dies [2 ranks] - no outcome" in result.stdout


def test_a_test_without_ranks_that_dies_or_hangs(tmp_path: Path) -> None:
    text = """
def test_dies():
    os._exit(0)

def test_hangs():
    time.sleep(600)

def test_after():
    pass
"""
    result = run_tests(tmp_path, text, "--timeout-s", "2")
    assert (result.returncode, totals(result)) == (1, "2 failed, 1 passed")
    assert result.seconds < BOUND_S


def test_a_launch_that_takes_too_long_is_ended_with_its_processes(tmp_path: Path) -> None:
    text = f"""
@pytest.mark.ranks(2)
def test_hangs():
    open({str(tmp_path)!r} + f"/{{MPI.COMM_WORLD.rank}}.pid", "w").write(str(os.getpid()))
    time.sleep(600)
"""
    result = run_tests(tmp_path, text, "--timeout-s", "300", "--launch-limit-s", "12")
    assert (result.returncode, totals(result)) == (1, "1 failed")
    assert result.seconds < BOUND_S
    assert "the launch took more than 12 s" in result.stdout
    pids = [int(file.read_text()) for file in tmp_path.glob("*.pid")]
    assert len(pids) == 2
    deadline = time.monotonic() + 5
    while any(map(running, pids)) and time.monotonic() < deadline:
        time.sleep(0.05)
    assert not any(map(running, pids))


def test_ranks_that_skip_differently_disagree(tmp_path: Path) -> None:
    text = """
@pytest.mark.ranks(2)
def test_skips_on_one():
    if MPI.COMM_WORLD.rank == 1:
        pytest.skip("not here")
"""
    result = run_tests(tmp_path, text)
    assert (result.returncode, totals(result)) == (1, "1 failed")
    assert "rank 0 of 2:\nthe ranks disagree; here: passed" in result.stdout
    assert "rank 1 of 2:\nthe ranks disagree; here: skipped" in result.stdout


def test_ranks_that_collect_differently_do_not_start(tmp_path: Path) -> None:
    text = """
@pytest.mark.ranks(2)
@pytest.mark.parametrize("own", [MPI.COMM_WORLD.rank])
def test_parametrized_by_rank(own):
    pass
"""
    result = run_tests(tmp_path, text)
    assert (result.returncode, totals(result)) == (1, "1 error")
    assert "the ranks did not collect the same tests" in result.stdout


def test_a_file_that_cannot_be_imported_is_one_error(tmp_path: Path) -> None:
    (tmp_path / "test_other.py").write_text("def test_fine():\n    pass\n")
    text = """
import nowhere_to_be_found

@pytest.mark.ranks(1, 2)
def test_unseen():
    pass
"""
    result = run_tests(tmp_path, text)
    assert (result.returncode, totals(result)) == (1, "1 passed, 1 error")
    assert "nowhere_to_be_found" in result.stdout


def test_shared_memory_left_behind_is_an_error_and_removed(tmp_path: Path) -> None:
    text = """
@pytest.mark.ranks(2)
def test_leaves():
    if MPI.COMM_WORLD.rank == 1:
        open(f"/dev/shm/hpccoll-{os.getuid()}-{os.getpid()}-0123-test", "w").close()
"""
    result = run_tests(tmp_path, text)
    assert (result.returncode, totals(result)) == (1, "1 passed, 1 error")
    match = re.search(r"left in /dev/shm: (hpccoll-\d+-\d+-0123-test)", result.stdout)
    assert match, result.stdout
    assert not Path("/dev/shm", match[1]).exists()


def test_nothing_to_run_is_not_success(tmp_path: Path) -> None:
    result = run_tests(tmp_path, "")
    assert (result.returncode, totals(result)) == (5, "no tests ran")


@pytest.mark.parametrize(
    ("outcomes", "deselected", "line"),
    [
        (["passed"] * 3, 0, "3 passed in 7.20s"),
        (
            ["passed", "skipped", "failed", "error", "error"],
            2,
            "1 failed, 1 passed, 1 skipped, 2 deselected, 2 errors in 7.20s",
        ),
        (["xfailed", "xpassed"], 0, "1 xfailed, 1 xpassed in 7.20s"),
    ],
)
def test_closing_line(outcomes: list[str], deselected: int, line: str) -> None:
    verdicts = [Verdict("test", 1, outcome) for outcome in outcomes]
    assert closing_line(verdicts, deselected, 7.2).strip("= ") == line


def test_closing_line_tells_minutes() -> None:
    assert (
        closing_line([Verdict("test", 1, "passed")], 0, 3725.5).strip("= ")
        == "1 passed in 3725.50s (1:02:05)"
    )


def test_the_same_text_is_printed_once() -> None:
    assert together(["same", "other", "same\n"], 3) == "rank 0, 2 of 3:\nsame\n\nrank 1 of 3:\nother"


def report(when: str, outcome: str) -> dict[str, object]:
    return {"event": "report", "when": when, "outcome": outcome, "seconds": 0.5, "text": "", "reason": ""}


@pytest.mark.parametrize(
    ("setup", "call", "teardown", "outcome"),
    [
        ("passed", "passed", "passed", "passed"),
        ("passed", "failed", "passed", "failed"),
        ("failed", None, "passed", "error"),
        ("passed", "passed", "failed", "error"),
        ("skipped", None, "passed", "skipped"),
        ("passed", "xfailed", "passed", "xfailed"),
    ],
)
def test_outcome_of_a_rank_decides(setup: str, call: str | None, teardown: str, outcome: str) -> None:
    trial = Trial(Case("test", "file", (2,), None), 2)
    for rank in range(2):
        for when, result in (("setup", setup), ("call", call), ("teardown", teardown)):
            if result is not None:
                trial.add(rank, report(when, result))
        assert not trial.settled
    trial.add(1, {"event": "finish"})
    assert trial.settled
    assert trial.verdict().outcome == outcome
