"""Timelines of several hosts: how far clocks are apart by messages, where in truth they are one clock."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

from tests.support.timeline import shown
from tests.support.virtual_hosts import VirtualHosts

pytestmark = [pytest.mark.cluster, pytest.mark.timeout(200)]

PROGRAM = """
import time
import numpy as np
from mpi4py import MPI
import hpccoll
with hpccoll.Communicator(MPI.COMM_WORLD) as comm:
    values = np.ones(200_000, np.float32)
    for _ in range(10):
        comm.Allreduce(MPI.IN_PLACE, values)
        values[:] = 1
        time.sleep(0.12)
"""
HOSTS = 3


def test_the_error_of_clocks_is_what_is_said(tmp_path: Path) -> None:
    with VirtualHosts(HOSTS, "1gbit") as hosts:
        env = {"HPCCOLL_TRACE": str(tmp_path)}
        done = hosts.mpiexec([sys.executable, "-c", PROGRAM], 1, timeout_s=150, env=env)
    assert done.returncode == 0, done.stderr
    (path,) = tmp_path.glob("timeline-*.json")
    found = shown(path)
    assert list(found.processes.values()) == [f"rank {rank} on node{rank}" for rank in range(HOSTS)]
    clocks = found.about["clocks"]
    assert set(clocks) == {f"node{rank}" for rank in range(HOSTS)}
    # The namespaces are on one machine: the true offset and drift are 0.
    for name, clock in clocks.items():
        assert abs(clock["offset_us"]) <= clock["error_us"]
        assert abs(clock["offset_at_close_us"]) <= clock["error_us"]
        assert (clock["error_us"] > 0) == (name != "node0")
        assert clock["error_us"] < 20_000  # 40 rounds of about 100 us, of which the shortest counts
    assert found.about["alignment_error_us"] == max(clock["error_us"] for clock in clocks.values())
    assert found.about["messages"] == len(found.flows) > 0
    # A message arrives after it was sent, but for what both clocks may be off.
    most = 2 * found.about["alignment_error_us"]
    assert found.about["earliest_arrival_before_send_us"] <= most
    assert all(end["ts"] >= begin["ts"] - most for begin, end in found.flows)
