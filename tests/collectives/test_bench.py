"""`hpccoll bench` on several ranks: right results pass, each kind of wrong one is counted."""

from __future__ import annotations

import argparse
import io
import json
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from mpi4py import MPI

import hpccoll
from hpccoll import cli
from hpccoll.cli import bench
from hpccoll.cli.bench.operations import OPERATIONS
from hpccoll.cli.bench.options import Options, read
from hpccoll.cli.bench.sweep import Sweep

pytestmark = [pytest.mark.mpi, pytest.mark.ranks(2, 3)]

COMM = MPI.COMM_WORLD
COLLECTIVES = [name for name, row in OPERATIONS.items() if row.sized]
REDUCTIONS = [name for name, row in OPERATIONS.items() if row.reduces]


@dataclass
class Run:
    """What one run did: exit status, and what this rank printed."""

    status: int
    out: str
    err: str

    @property
    def rows(self) -> list[list[str]]:
        """The columns of the lines that are no comments; the algorithm's words are one."""
        return [line.split(maxsplit=13) for line in self.out.splitlines() if not line.startswith("#")]


@pytest.fixture
def measured(capsys: pytest.CaptureFixture[str]) -> Any:
    def measure(arguments: str) -> Run:
        status = cli.main(["bench", *arguments.split()])
        return Run(status, *capsys.readouterr())

    return measure


@pytest.fixture
def json_path(tmp_path: Path) -> str:
    return str(COMM.bcast(tmp_path / "out.json"))


def options_of(arguments: str) -> Options:
    parser = argparse.ArgumentParser()
    bench.configure(parser)
    return read(parser.parse_args(arguments.split()), {})


@pytest.mark.parametrize("name", COLLECTIVES)
def test_every_algorithm_and_mpi_are_right(measured: Any, name: str) -> None:
    run = measured(f"{name} -b 64 -e 64K -f 1024 -n 2 --compare")
    assert run.status == 0
    assert run.err == ""
    if COMM.rank != 0:
        assert run.out == ""
        return
    assert all((row[8], row[12]) == ("0", "0") for row in run.rows)
    algorithms = {row[13].removesuffix(" *").partition("(")[0] for row in run.rows}
    assert {"flat", "mpi"} < algorithms
    for nbytes in {row[0] for row in run.rows}:
        assert [row[13].endswith(" *") for row in run.rows if row[0] == nbytes].count(True) == 1
    assert "# Out of bounds values : 0 OK" in run.out


@pytest.mark.parametrize("flag", ["--nonblocking", "--persistent"])
@pytest.mark.parametrize("name", [*COLLECTIVES, "barrier"])
def test_other_ways_to_call_are_right(measured: Any, name: str, flag: str) -> None:
    run = measured(f"{name} -b 16K -e 16K -n 1 -w 0 -u 1 --compare {flag}")
    assert run.status == 0
    assert run.err == ""
    if COMM.rank == 0:
        unchecked = "N/A" if name == "barrier" else "0"
        assert {(row[8], row[12]) for row in run.rows} == {(unchecked, unchecked)}
        assert run.rows[-1][13] == "mpi"


@pytest.mark.parametrize("flags", ["", "--persistent", "--algorithm mpi"])
def test_overlap_is_measured(measured: Any, json_path: str, flags: str) -> None:
    run = measured(f"allreduce -b 2K -e 64K -f 32 -n 2 --overlap --json {json_path} {flags}")
    assert run.status == 0
    if COMM.rank != 0:
        return
    assert "# Overlap: " in run.out
    for row, result in zip(run.rows, json.loads(Path(json_path).read_text())["results"], strict=True):
        for shown, half in zip(row[13].split()[:2], ("out_of_place", "in_place"), strict=True):
            assert 0 <= result[half]["overlap_percent"] <= 100
            assert float(shown) == pytest.approx(result[half]["overlap_percent"], abs=0.01)


@pytest.mark.parametrize(
    ("name", "flags"),
    [
        *((name, "--compare") for name in REDUCTIONS),
        ("allreduce", ""),
        ("reduce", "--nonblocking"),
        ("scan", "--persistent"),
        ("reduce_scatter", "--algorithm flat"),
    ],
)
def test_the_price_of_reproducible_mode(measured: Any, json_path: str, name: str, flags: str) -> None:
    run = measured(f"{name} -b 2K -e 64K -f 32 -n 1 --reproducible --json {json_path} {flags}")
    assert run.status == 0
    if COMM.rank != 0:
        return
    results = json.loads(Path(json_path).read_text())["results"]
    assert len({one["size"] for one in results}) == 2
    for nbytes in {one["size"] for one in results}:
        rows = [one for one in results if one["size"] == nbytes]
        default = [one for one in rows if not one["reproducible"]]
        reproducible = [one for one in rows if one["reproducible"]]
        assert default
        assert reproducible
        base = next(one for one in default if one["selected"] or "--algorithm" in flags)
        assert all(one["price"] is None for one in default)
        for one in reproducible:
            for half in ("out_of_place", "in_place"):
                assert one[half]["nwrong"] == base[half]["nwrong"] == 0
                assert one["price"][half] == pytest.approx(one[half]["time"] / base[half]["time"])
    assert "# Reproducible price   : " in run.out


@pytest.mark.parametrize("algorithm", ["", "--algorithm ring", "--algorithm mpi"])
def test_every_operator_and_type(measured: Any, algorithm: str) -> None:
    types = "half" if algorithm else "all"
    run = measured(f"reduce_scatter -b 512 -e 512 -n 1 -w 0 -o all -d {types} {algorithm}")
    assert run.status == 0
    if COMM.rank == 0:
        # 14 types have all operators, the two complex ones no order.  MPI has no mulsum.
        assert len(run.rows) == (14 * 6 + 2 * 4 if types == "all" else 5 if "mpi" in algorithm else 6)
        assert {(row[8], row[12]) for row in run.rows} == {("0", "0")}


def test_roots_and_unaligned_buffers(measured: Any) -> None:
    run = measured("reduce -b 1000 -e 1000 -n 2 -r all -u 3 -d double")
    assert run.status == 0
    if COMM.rank == 0:
        assert [row[4] for row in run.rows] == [str(root) for root in range(COMM.size)]


def test_a_barrier_is_timed(measured: Any) -> None:
    run = measured("barrier -n 5")
    assert run.status == 0
    if COMM.rank == 0:
        (row,) = run.rows
        assert row[:5] == ["0", "0", "none", "none", "-1"]
        assert float(row[5]) > 0
        assert row[8:13] == ["N/A"] * 5


def test_json_agrees_with_the_table(measured: Any, json_path: str) -> None:
    layout = "+".join("1" * COMM.size)
    run = measured(
        f"allreduce -b 1K -e 4K -f 4 -n 10 -a 1 -I 1 -K 2 --compare --layout {layout} --json {json_path}"
    )
    assert run.status == 0
    if COMM.rank != 0:
        return
    text = json.loads(Path(json_path).read_text())
    rows = [line.split() for line in run.out.splitlines() if not line.startswith("#")]
    assert len(text["results"]) == len(rows)
    for result, row in zip(text["results"], rows, strict=True):
        assert [str(result[key]) for key in ("size", "count", "type", "redop", "root")] == row[:5]
        for name, first in (("out_of_place", 5), ("in_place", 13)):
            half, spread = result[name], result[f"{name}_per_iter"]
            assert half["time"] == pytest.approx(float(row[first]), rel=0.01, abs=0.006)
            assert half["nwrong"] == 0
            assert half["bus_bw"] == pytest.approx(half["alg_bw"] * 2 * (COMM.size - 1) / COMM.size)
            assert half["alg_bw"] == pytest.approx(result["size"] / 1e3 / half["time"])
            assert len(spread["times_us"]) == 10
            # Each iteration's slowest rank is no faster than the average rank.
            assert sum(spread["times_us"]) / 10 >= 0.999 * half["time"]
            assert sum(result[f"{name}_rounds_us"]) / 5 == pytest.approx(half["time"])
    assert text["out_of_bounds"] == {"count": 0, "okay": True}
    halves = [result[name] for result in text["results"] for name in ("in_place", "out_of_place")]
    mean = np.mean([half["bus_bw"] for half in halves])
    assert text["average_bus_bandwidth"]["bandwidth"] == pytest.approx(mean)
    assert len(text["config"]["devices"]) == COMM.size


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ("allreduce -g 2", "-g/--ngpus has no meaning here"),
        ("allreduce --algorithm teleport", "--algorithm is 'teleport'"),
        ("allreduce --layout 9+9", "18 ranks"),
        ("reduce -r 9", "-r/--root is 9"),
        ("allreduce -o max -d complex64", "-o max -d complex64"),
        ("allreduce -d bfloat16 --algorithm mpi -b 8 -e 8", "MPI has no sum of bfloat16"),
        ("allreduce --json /nowhere/at/all.json", "cannot write /nowhere/at/all.json"),
        ("teleport", "OP is 'teleport'"),
    ],
)
def test_misuse_is_2_on_all_ranks_and_told_once(measured: Any, arguments: str, message: str) -> None:
    run = measured(arguments)
    assert run.status == 2
    if COMM.rank == 0:
        assert message in run.err
        assert run.err.count("\n") == 1
    else:
        assert run.out == run.err == ""


def test_too_slow_is_1_on_all_ranks(measured: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("NCCL_TESTS_MIN_BW", "1e9")
    run = measured("allreduce -b 64 -e 64 -n 2")
    assert run.status == 1
    if COMM.rank == 0:
        assert " FAILED" in run.out


class Faulty(hpccoll.Communicator):
    """Wrong in one way, on the last rank."""

    fault = ""
    stale: np.ndarray[Any, Any] | None = None

    def Allreduce(self, sendbuf: Any, recvbuf: Any, op: Any = MPI.SUM) -> None:  # noqa: N802  mpi4py's name
        if self.rank != self.size - 1:
            return super().Allreduce(sendbuf, recvbuf, op)
        before = recvbuf.copy()
        super().Allreduce(sendbuf, recvbuf, op)
        if self.fault == "one element":
            recvbuf[-1] += 1
        elif self.fault == "not written":
            recvbuf[...] = before
        elif self.fault == "stale":
            recvbuf[...], self.stale = recvbuf if self.stale is None else self.stale, recvbuf.copy()
        elif self.fault == "input written" and sendbuf is not MPI.IN_PLACE:
            sendbuf[0] += 1
        elif self.fault == "past the end":
            memory = np.frombuffer(recvbuf.base, np.uint8)
            memory[recvbuf.ctypes.data - memory.ctypes.data + recvbuf.nbytes] ^= 1
        elif self.fault == "error":
            raise hpccoll.AbortedError("broken on purpose")
        return None


def faulty(fault: str, arguments: str) -> tuple[Sweep, int, str]:
    stream = io.StringIO()
    sweep = Sweep(COMM, options_of(arguments), stream)
    with Faulty(COMM) as comm:
        comm.fault = fault
        sweep.measure(comm)
    return sweep, sweep.conclude(["bench"]), stream.getvalue()


def wrong(sweep: Sweep) -> list[tuple[int | None, ...]]:
    return [tuple(half.wrong for half in row.halves) for row in sweep.outcome.rows]


def test_no_fault_no_wrong_element() -> None:
    sweep, status, _ = faulty("", "allreduce -b 4K -e 4K -n 2 -c 3")
    assert (wrong(sweep), sweep.outcome.out_of_bounds, status) == ([(0, 0)], 0, 0)


def test_one_wrong_element_is_counted() -> None:
    sweep, status, text = faulty("one element", "allreduce -b 4K -e 4K -n 2 -c 3")
    assert (wrong(sweep), sweep.outcome.out_of_bounds, status) == ([(1, 1)], 0, 1)
    assert ("# Wrong elements       : 2 FAILED" in text) is (COMM.rank == 0)


def test_a_result_that_was_not_written_is_all_wrong() -> None:
    sweep, status, _ = faulty("not written", "allreduce -b 4K -e 4K -n 2")
    (out_of_place, in_place) = wrong(sweep)[0]
    assert out_of_place == 1024
    # In place the input is there, and may be the sum by chance.
    assert in_place is not None
    assert in_place > 1000
    assert status == 1


def test_the_result_of_the_iteration_before_is_wrong() -> None:
    sweep, status, _ = faulty("stale", "allreduce -b 4K -e 4K -n 2 -c 2")
    assert min(wrong(sweep)[0]) > 1000  # type: ignore[type-var]
    assert status == 1


def test_an_input_that_changes_is_wrong() -> None:
    sweep, status, _ = faulty("input written", "allreduce -b 4K -e 4K -n 2")
    assert (wrong(sweep), status) == ([(1, 0)], 1)


def test_a_write_past_the_end_is_out_of_bounds() -> None:
    sweep, status, text = faulty("past the end", "allreduce -b 4K -e 4K -n 2 -w 0 -c 1")
    # Once in the timed calls (the second flips it back) and once in the checked one, in both halves.
    assert sweep.outcome.out_of_bounds == 2
    assert (wrong(sweep), status) == ([(0, 0)], 1)
    assert ("# Out of bounds values : 2 FAILED" in text) is (COMM.rank == 0)


def test_an_error_in_the_middle_is_reported_with_the_rows_before(json_path: str) -> None:
    """One rank's error on purpose: the others' collective was complete, so all are told by the test."""
    stream = io.StringIO()
    sweep = Sweep(COMM, options_of(f"allreduce -b 64 -e 64 -n 1 --algorithm mpi --json {json_path}"), stream)
    with hpccoll.Communicator(COMM) as comm:
        sweep.measure(comm)
    sweep.outcome.errors.append("AbortedError: broken on purpose")
    assert sweep.conclude(["bench"]) == 1
    if COMM.rank == 0:
        assert "# error: AbortedError: broken on purpose" in stream.getvalue()
        text = json.loads(Path(json_path).read_text())
        assert text["errors"] == ["AbortedError: broken on purpose"]
        assert len(text["results"]) == 1


def test_memory_limits_the_sizes(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("hpccoll.cli.bench.kinds._available_bytes", lambda: COMM.size * 5 * 4096)
    sweep, status, text = faulty("", "allreduce -b 1K -e 1M -f 4 -n 1 -M 1")
    assert [row.case.nbytes for row in sweep.outcome.rows] == [1024, 4096]
    assert status == 0
    if COMM.rank == 0:
        assert "# Reducing maxBytes to 4096 due to memory limitation" in text
        assert "# Memory usage         : buffers" in text
    monkeypatch.setattr("hpccoll.cli.bench.kinds._available_bytes", lambda: 0)
    with pytest.raises(hpccoll.UsageError, match="1024 bytes do not fit into memory"):
        faulty("", "allreduce -b 1K -e 1K")
