"""`hpccoll trace` on programs whose ranks do not go on together: it names rank, reason and lines."""

from __future__ import annotations

import contextlib
import io
import json
import re
import sys
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from hpccoll import cli
from hpccoll.observe.reading import read_file
from tests.faults.solver import AT_FAULT, HANGS_AT
from tests.support.launch import environment, find_mpiexec, run_program, run_ranks, started

pytestmark = pytest.mark.timeout(60)

PROGRAM = Path(__file__).with_name("solver.py")
STUCK_AFTER_S = 1.0
LONGEST_S = 30.0  # to start four ranks on a busy machine, and to be stuck


def line(comment: str) -> str:
    """Where the program has a call, as reports name it."""
    number = next(
        k for k, one in enumerate(PROGRAM.read_text().splitlines(), 1) if one.endswith(f"# {comment}")
    )
    return f"solver.py:{number}"


def trace(directory: Path, *options: str) -> tuple[int, Any]:
    """Exit status and JSON of the command."""
    out = io.StringIO()
    with contextlib.redirect_stdout(out):
        status = cli.main(["trace", str(directory), "--json", *options])
    return status, json.loads(out.getvalue())


@contextlib.contextmanager
def hanging(fault: str, directory: Path, ranks: int = 3, **settings: str) -> Iterator[None]:
    # Behind a shell that stays, so that the launcher does not end the others when one is killed.
    program = ["sh", "-c", f"{sys.executable} {PROGRAM} {fault}; sleep 60"]
    command = find_mpiexec().command(ranks, program)
    env = environment({"HPCCOLL_TRACE_DIR": str(directory), "HPCCOLL_TIMEOUT_S": "40", **settings})
    with tempfile.TemporaryFile() as out, started(command, env=env, stdout=out, stderr=out):
        yield


def first_finding(directory: Path, words: str = "") -> dict[str, Any]:
    """What is found first of the hanging program, once something with these words is."""
    begin = time.monotonic()
    while time.monotonic() < begin + LONGEST_S:
        time.sleep(0.2)
        if not directory.is_dir():
            continue
        status, found = trace(directory, "--stuck-after-s", str(STUCK_AFTER_S))
        for finding in found["communicators"][0]["findings"][:1] if status else ():
            if words in finding["text"]:
                return dict(finding)
    pytest.fail("nothing was found")


def waited_s(finding: dict[str, Any]) -> float:
    """How long the ranks that are not at fault had waited."""
    found = re.search(r"(?:have waited|gave up after) ([\d.]+) s", finding["text"])
    assert found is not None
    return float(found[1])


@pytest.mark.parametrize("fault", ["slow", "kill", pytest.param("early", marks=pytest.mark.slow)])
def test_who_did_not_come(tmp_path: Path, fault: str) -> None:
    kind = {"slow": "slow", "kill": "dead", "early": "left"}[fault]
    process = {"kill": "process is gone", "early": "came to its end", "slow": "is alive. It is slow"}[fault]
    directory = tmp_path / "traces"
    with hanging(fault, directory):
        finding = first_finding(directory, process)  # on a busy machine it is late before it is gone
    assert (finding["kind"], finding["ranks"]) == (kind, [AT_FAULT])
    assert waited_s(finding) < LONGEST_S
    assert fault != "slow" or waited_s(finding) >= STUCK_AFTER_S  # who is gone is not waited for
    call = 2 * HANGS_AT
    assert re.search(
        rf"Call #{call} does not end: ranks 0, 1 (?:have waited|gave up after) .* in "
        r"allreduce \(1000 x float64, SUM\) at \S*"
        rf"{line('values')} in step. Rank {AT_FAULT} has not made call #{call}: its last call was allreduce "
        rf"\(1 x float64, SUM\) #{call - 1} at \S*{line('residual')} in residual.*{process}",
        finding["text"],
    )


def test_a_call_left_out_and_a_call_that_differs(tmp_path: Path) -> None:
    directory = tmp_path / "traces"
    with hanging("skip", directory):
        finding = first_finding(directory, "call different things")
    assert (finding["kind"], finding["ranks"]) == ("mismatch", [AT_FAULT])
    for words in (
        f"in call #{2 * HANGS_AT}: ranks 0, 1: allreduce (1000 x float64, SUM) at ",
        f"{line('values')} in step; rank {AT_FAULT}: allreduce (1 x float64, SUM) at ",
        f"{line('residual')} in residual",
        f"count (1000 on ranks 0, 1, 1 on rank {AT_FAULT})",
        "did it leave one out?",
    ):
        assert words in finding["text"]


def test_what_is_said_after_the_deadline(tmp_path: Path) -> None:
    directory, html = tmp_path / "traces", tmp_path / "page.html"
    with hanging("hold", directory, HPCCOLL_TIMEOUT_S="2", HPCCOLL_LAYOUT="2+1"):
        finding = first_finding(directory, "gave up")
        assert 2 <= waited_s(finding) < 4
        status, _ = trace(directory, "--html", str(html), "--stuck-after-s", "100")
    assert finding["kind"] in ("missing", "slow")  # it may have been late before, on a busy machine
    assert (finding["ranks"], status) == ([AT_FAULT], 1)
    page = html.read_text()
    assert page.count("<text") == 3 + 2
    assert page.count("<rect") == 3 * 2 * HANGS_AT + 2
    assert "http" not in page.replace("http-equiv", "")


def test_a_program_that_ends_well_leaves_nothing(tmp_path: Path) -> None:
    directory = tmp_path / "traces"
    env = {"HPCCOLL_TRACE_DIR": str(directory)}
    code = (
        "import sys, numpy, hpccoll; from mpi4py import MPI; comm = hpccoll.Communicator(MPI.COMM_WORLD);"
        "comm.Barrier(); comm.Allreduce(numpy.ones(9), numpy.ones(9)); 1 // int(sys.argv[1])"
    )
    result = run_ranks(2, ["-c", code, "1"], timeout_s=LONGEST_S, env=env)
    assert (result.returncode, list(directory.iterdir())) == (0, [])
    assert trace(directory) == (0, {"communicators": [], "left_out": []})
    result = run_program([sys.executable, "-c", code, "0"], timeout_s=LONGEST_S, env=env)
    assert "ZeroDivisionError" in result.stderr
    assert len(list(directory.iterdir())) == 1


def test_misuse(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert cli.main(["trace", str(tmp_path / "none")]) == cli.MISUSE
    assert "none" in capsys.readouterr().err
    assert cli.main(["trace", str(tmp_path), "--html", str(tmp_path)]) == cli.MISUSE
    assert cli.main(["trace", str(tmp_path), "--stuck-after-s", "-1"]) == cli.MISUSE
    assert cli.main(["trace", str(tmp_path)]) == cli.GOOD


SIGNALLED = """
import os, signal, sys
import hpccoll
from mpi4py import MPI
signal.signal(signal.SIGUSR1, lambda number, frame: print("the program's own handler"))
with hpccoll.Communicator(MPI.COMM_WORLD, trace_signal="SIGUSR1") as comm:
    comm.Barrier()
    os.kill(os.getpid(), signal.SIGUSR1)
    print(comm.dump_trace(sys.argv[1]).name)
"""


def test_copies_on_a_signal_and_on_demand(tmp_path: Path) -> None:
    directory = tmp_path / "traces"
    result = run_program(
        [sys.executable, "-c", SIGNALLED, str(tmp_path / "asked")],
        timeout_s=LONGEST_S,
        env={"HPCCOLL_TRACE_DIR": str(directory)},
    )
    said, name = result.stdout.splitlines()
    assert said == "the program's own handler"
    assert [one.name for one in directory.iterdir()] == ["on-signal"]
    for copy in (directory / "on-signal" / name, tmp_path / "asked" / name):
        assert copy.stat().st_mode & 0o777 == 0o600
        assert [str(one) for one in read_file(str(copy)).calls.values()] == ["barrier #0"]


def test_where_no_file_can_be_made_the_program_goes_on(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    code = "import hpccoll; from mpi4py import MPI; hpccoll.Communicator(MPI.COMM_WORLD).Barrier()"
    env = {"HPCCOLL_TRACE_DIR": str(tmp_path / "file")}
    result = run_program([sys.executable, "-c", code], timeout_s=LONGEST_S, env=env)
    assert result.returncode == 0
    assert "RuntimeWarning: no calls are recorded" in result.stderr
