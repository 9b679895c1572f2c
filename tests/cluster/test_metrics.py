"""The share of a link that metrics tell of is that of a link whose rate is known: on virtual hosts, tc's."""

from __future__ import annotations

import json
import sys
from pathlib import Path

import pytest

from tests.support.virtual_hosts import VirtualHosts

pytestmark = [pytest.mark.cluster, pytest.mark.timeout(200)]

CALLS = 5
PROGRAM = f"""
import numpy as np
from mpi4py import MPI
import hpccoll
with hpccoll.Communicator(MPI.COMM_WORLD, algorithm="allreduce:scatter_rail_gather") as comm:
    give, take = np.ones(1 << 20), np.empty(1 << 20)
    for _ in range({CALLS}):
        comm.Allreduce(give, take)
"""


def test_the_share_of_the_network(tmp_path: Path) -> None:
    file = tmp_path / "metrics.jsonl"
    env = {"HPCCOLL_METRICS": str(file), "HPCCOLL_METRICS_RATES": "network:0.125"}
    with VirtualHosts(2, "1gbit") as hosts:
        done = hosts.mpiexec([sys.executable, "-c", PROGRAM], 2, timeout_s=150, env=env)
    assert done.returncode == 0, done.stderr
    head, row = map(json.loads, file.read_text().splitlines())
    assert head["layout"] == "2+2"
    assert head["nominal"]["network"]["gbs"] is None  # hosts of namespaces have no card
    network = row["levels"][-1]
    assert network["name"] == "network"
    assert network["nbytes"] == CALLS * 8 << 20  # each node sends 2 (N-1)/N times the buffer
    assert 0.2 < network["of_measured"] < 1.1  # 0.95 on an idle machine; more than the link cannot be
