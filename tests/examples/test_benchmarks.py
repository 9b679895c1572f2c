"""The comparison with MPI on one node: its numbers, that it sees wrong results, its tables and figures."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from benchmarks.node.measure import COLLECTIVES
from benchmarks.node.report import figures, tables
from tests.support.launch import REPOSITORY, run_ranks

MEASURE = str(REPOSITORY / "benchmarks" / "node" / "measure.py")
LIMIT_S = 100.0

pytestmark = pytest.mark.timeout(LIMIT_S + 20)


def test_every_collective_is_measured_and_reported(tmp_path: Path) -> None:
    ranks, path = 2, tmp_path / "found.json"
    options = ("--json", str(path), "--sizes", "8,20000", "--rounds", "1")
    result = run_ranks(ranks, (MEASURE, *options), timeout_s=LIMIT_S)
    assert result.returncode == 0, result
    found = json.loads(path.read_text())
    assert found["ranks"] == ranks
    assert [(row["collective"], row["bytes"]) for row in found["rows"]] == [
        (name, nbytes) for name in COLLECTIVES for nbytes in (8, 20000)
    ]
    for row in found["rows"]:
        assert set(row["us"]) == {"mpi", "private", "checked", "registered"}
        assert all(time > 0 for time in row["us"].values())
    text = tables(found)
    assert text.count("\n| Allreduce |") == 2
    pytest.importorskip("matplotlib")
    figures([found], tmp_path)
    assert (tmp_path / f"node-{ranks}-ranks.png").stat().st_size > 10_000


def test_a_wrong_result_ends_it(tmp_path: Path) -> None:
    code = (
        "import sys, numpy, hpccoll, benchmarks.node.measure as measure\n"
        "class Wrong(hpccoll.Communicator):\n"
        "    def Reduce(self, give, take, *rest):\n"
        "        super().Reduce(give, take, *rest)\n"
        "        if take is not None: take[-1] += 1\n"
        "hpccoll.Communicator = Wrong\n"
        "measure.main(sys.argv[1:])"
    )
    options = ("--json", str(tmp_path / "found.json"), "--collectives", "Reduce", "--sizes", "64")
    result = run_ranks(2, ("-c", code, *options), timeout_s=LIMIT_S, env={"PYTHONPATH": str(REPOSITORY)})
    assert result.returncode != 0
    assert "Reduce of 64 bytes: private has another result than MPI" in result.stderr
    assert not (tmp_path / "found.json").exists()
