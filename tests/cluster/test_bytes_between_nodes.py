"""What the cost model says a plan sends between nodes is what the hosts' network interfaces count.

The hosts' MTU is 9000, as on cluster networks: headers are then below 1 % of the traffic and nothing has to
be taken off the counters. The benchmark's worker does the counting, so its column of bytes is tested too.
"""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

import pytest

from tests.support.virtual_hosts import VirtualHosts

pytestmark = [pytest.mark.cluster, pytest.mark.timeout(300)]

NBYTES = 4 << 20
TWO_LEVEL = ("reduce_ring_broadcast", "scatter_rail_gather")
ONE_LEVEL = ("ring", "recursive_doubling")
TOLERANCE = 0.03


@pytest.fixture(scope="module", params=[2, 4], ids=["2 hosts", "4 hosts"])
def measured(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> dict[str, Any]:
    """The worker's row for each plan on 2 ranks a host, and the number of hosts."""
    output: Path = tmp_path_factory.mktemp("bytes") / "rows.json"
    worker = [sys.executable, "-m", "benchmarks.cluster.allreduce"]
    plans = ",".join([*TWO_LEVEL, *ONE_LEVEL])
    what = ["--sizes", str(NBYTES), "--algorithms", plans, "--calls", "12", "--rounds", "0"]
    with VirtualHosts(request.param) as hosts:
        done = hosts.mpiexec([*worker, *what, "--output", str(output)], 2, timeout_s=240)
    assert done.returncode == 0, done.stderr
    rows = json.loads(output.read_text())["rows"]
    return {"hosts": request.param, **{row["algorithm"]: row for row in rows}}


@pytest.mark.parametrize("plan", [*TWO_LEVEL, *ONE_LEVEL])
def test_interfaces_count_what_the_cost_model_says(measured: dict[str, Any], plan: str) -> None:
    row = measured[plan]
    assert row["wrong"] == 0
    assert len(row["sent_bytes_per_call"]) == measured["hosts"]
    assert max(row["sent_bytes_per_call"]) == pytest.approx(row["modelled_bytes"], rel=TOLERANCE)


@pytest.mark.parametrize("plan", TWO_LEVEL)
def test_two_levels_send_the_least_an_allreduce_can(measured: dict[str, Any], plan: str) -> None:
    hosts = measured["hosts"]
    least = 2 * (hosts - 1) / hosts * NBYTES
    for sent in measured[plan]["sent_bytes_per_call"]:
        assert sent == pytest.approx(least, rel=TOLERANCE)
