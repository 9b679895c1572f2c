"""Predicted and measured times between virtual hosts: that all is measured, checked and shown."""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

import pytest

from benchmarks.cluster import predicted
from hpccoll.plans.catalogue import make_plan
from hpccoll.plans.collective import Collective
from hpccoll.plans.cost import price
from hpccoll.plans.links import Links
from hpccoll.scaling.figures import draw
from hpccoll.scaling.study import read
from hpccoll.topology.layout import Layout
from tests.support.launch import Result, run_program, run_ranks
from tests.support.virtual_hosts import available

LIMIT_S = 150.0
pytestmark = pytest.mark.timeout(LIMIT_S + 30)
CONSTANTS = (
    "node_latency_us", "memory_gbs", "staging_gbs", "message_latency_us", "message_gbs", "combine_gbs",
)  # fmt: skip
ROW = {
    "bytes": 1 << 20, "plan": "ring", "taken": True, "predicted_s": 0.009, "times_s": [0.01, 0.012, 0.008],
    "wrong": 0, "links": {"network_gbs": 0.125},
}  # fmt: skip


def measured(tmp_path: Path, *program: str, layout: str) -> tuple[Result, dict[str, Any]]:
    output = tmp_path / "found.json"
    options = ("--sizes", "65536,1048576", "--rounds", "2", "--plans", "ring", "--output", str(output))
    done = run_ranks(2, (*program, *options), timeout_s=LIMIT_S, env={"HPCCOLL_LAYOUT": layout})
    return done, json.loads(output.read_text()) if output.exists() else {}


@pytest.mark.parametrize("layout", ["2", "1+1"])
def test_links_predictions_and_times(tmp_path: Path, layout: str) -> None:
    done, found = measured(tmp_path, "-m", "benchmarks.cluster.links", layout=layout)
    assert done.returncode == 0, done.stderr
    assert found["ranks"] == 2
    rows = found["rows"]
    assert {row["bytes"] for row in rows} == {65536, 1 << 20}
    assert any(row["plan"] == "ring" for row in rows)
    assert sum(row["taken"] for row in rows) == (2 if layout == "2" else len({row["bytes"] for row in rows}))
    for row in rows:
        assert len(row["times_s"]) == 2
        assert min(row["times_s"]) > 0 < row["predicted_s"]
        assert row["wrong"] == 0
        assert all(row["links"][name] > 0 for name in CONSTANTS if layout == "2" or "message" not in name)


def test_wrong_sums_are_counted(tmp_path: Path) -> None:
    code = (
        "import sys, hpccoll, benchmarks.cluster.links as benchmark\n"
        "class Wrong(hpccoll.Communicator):\n"
        "    def Allreduce(self, sendbuf, recvbuf, op=None):\n"
        "        super().Allreduce(sendbuf, recvbuf)\n"
        "        recvbuf[0] += self.rank == 1\n"
        "hpccoll.Communicator = Wrong\n"
        "benchmark.main(sys.argv[1:])"
    )
    done, found = measured(tmp_path, "-c", code, layout="2")
    assert done.returncode == 0, done.stderr
    assert all(row["wrong"] == 1 for row in found["rows"])


def test_the_table_and_the_study() -> None:
    assert predicted.error(ROW) == pytest.approx(-0.1)
    assert predicted.line(2, 4, ROW).split() == [
        "2", "4", "1M", "9.00", "10.00", "8.00", "-", "12.00", "-10%", "ring", "(taken)",
    ]  # fmt: skip
    assert predicted.line(2, 4, {**ROW, "wrong": 3}).endswith("3 WRONG")
    run = {"hosts": 2, "ranks": 4, "library": "MPI", "rows": [ROW, {**ROW, "taken": False}]}
    study = predicted.study_of([run], predicted.parse([]))
    (point,) = study.points
    assert (point.nodes, point.ranks, point.layout) == (2, 4, "2x2")
    assert (point.time_us, point.predicted_us) == pytest.approx((10000, 9000))
    assert point.busbw == pytest.approx((1 << 20) / 0.01 / 1e9 * 1.5)
    pytest.importorskip("matplotlib", reason="matplotlib is not installed (docs/dependencies.md)")
    assert {"against", "model"} <= set(draw([study]))


def test_copies_in_our_segments_have_their_own_rate() -> None:
    """An all-reduce of 2 ranks: 4 passes over their arrays, 4 over segments."""
    links = Links(node_latency_us=0, memory_gbs=10, staging_gbs=50)
    one = make_plan("flat", Collective("allreduce", 2, 1 << 20), Layout.parse("2"), segment=1 << 16)
    assert price(one, 1, links).time_s == pytest.approx((4 / 10 + 4 / 50) * (1 << 20) / 1e9)


@pytest.mark.slow
@pytest.mark.cluster
def test_between_virtual_hosts(tmp_path: Path) -> None:
    if (reason := available()) is not None:
        pytest.skip(reason)
    command = [sys.executable, "-m", "benchmarks.cluster.predicted", "--hosts", "1,2", "--sizes", "1M"]
    options = ["--rounds", "3", "--plans", "ring", "--within", "1e9", "--into", str(tmp_path)]
    done = run_program([*command, *options], timeout_s=LIMIT_S)
    assert done.returncode == 0, done.stderr
    study = read(tmp_path / "study.json")
    assert study.node_counts == (1, 2)
    assert study.wrong == 0
    assert all(one.predicted_us for one in study.points)
