"""`hpccoll trace` on a job whose hosts lose the link between them: it names the link, and nobody else."""

from __future__ import annotations

import re
import sys
import tempfile
import time
from pathlib import Path

import pytest

from hpccoll.observe.reading import read_directory
from hpccoll.observe.verdict import Finding, judge
from tests.support.launch import find_mpiexec, until
from tests.support.virtual_hosts import VirtualHosts, remote_options

pytestmark = [pytest.mark.cluster, pytest.mark.timeout(180)]

STUCK_AFTER_S = 2.0
LOOP = """
import numpy as np
from mpi4py import MPI
import hpccoll
comm = hpccoll.Communicator(MPI.COMM_WORLD)
values = np.ones(20_000)
while True:
    comm.Allreduce(MPI.IN_PLACE, values)
    values[:] = 1
"""


def last_calls(directory: str) -> list[int]:
    """The number of the last call of each rank."""
    return [max(one.calls, default=-1) for one in read_directory(directory)[0]]


def found(directory: str) -> list[Finding]:
    traces, problems = read_directory(directory)
    assert problems == []
    jobs = judge(traces, time.time_ns(), STUCK_AFTER_S)
    return [one for _, findings in jobs for one in findings if one.wrong]


def test_the_link_is_named() -> None:
    launcher = find_mpiexec()
    with tempfile.TemporaryDirectory(prefix="hpccoll-link-") as directory, VirtualHosts(2) as hosts:
        env = {"HPCCOLL_TRACE_DIR": directory, "HPCCOLL_TIMEOUT_S": "100"}
        options = remote_options(launcher.flavour, hosts.hosts, 2)
        job = hosts.start("node0", [launcher.path, *options, sys.executable, "-c", LOOP], env=env)
        until(lambda: len(list(Path(directory).iterdir())) == 4, 60)
        until(lambda: min(last_calls(directory)) > 10, 60)
        hosts.link("node1", up=False)
        until(lambda: found(directory) != [], 30)
        (finding,) = found(directory)
        hosts.kill()
        job.communicate(timeout=30)
    assert finding.kind == "link"
    waited = re.search(r"have waited ([\d.]+) s", finding.text)
    assert waited is not None
    assert STUCK_AFTER_S <= float(waited[1]) < 30
    assert set(finding.ranks) & {0, 1}
    assert set(finding.ranks) & {2, 3}
    assert "in allreduce (20000 x float64, SUM) at <string>:8 in <module>" in finding.text
    assert "the link between node 0 (node0) and node 1 (node1) does not bring messages" in finding.text
