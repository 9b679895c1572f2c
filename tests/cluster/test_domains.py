"""NVLink domains that span virtual hosts, as the NVML of the CPU stand-in tells of them."""

from __future__ import annotations

import sys
import tempfile

import pytest

from tests.emulation.load import environment, real_driver
from tests.support.virtual_hosts import VirtualHosts

pytestmark = [pytest.mark.cluster, pytest.mark.timeout(240)]

# Two hosts are in one clique of a rack, one in another clique of it, one on no fabric.
PROGRAM = """
import os
from mpi4py import MPI
host = os.uname().nodename
clique = {"node0": "rack:7", "node1": "rack:7", "node2": "rack:8"}.get(host)
if clique is not None:
    os.environ["STANDIN_FABRIC"] = clique
import numpy as np
import hpccoll
from tests.gpu.memory import make_stream, mirror, use_device
comm = hpccoll.Communicator(MPI.COMM_WORLD)
use_device(comm.device)
stream = make_stream()
layout = comm.machine.layout
told = comm.allgather((layout.nodes, layout.domains))
assert told == [told[0]] * comm.size
send = mirror(np.full(5, comm.rank + 1, "i4"), stream)
plans = []
for plan in comm.algorithms("allreduce", "device"):
    take = mirror(np.zeros(5, "i4"), stream)
    with comm.forced(plan):
        comm.Allreduce(send, take)
    assert (take.download() == sum(range(comm.size + 1))).all(), plan
    plans.append(plan)
on_host = np.zeros(5)
comm.Allreduce(np.full(5, comm.rank + 1.0), on_host)
assert (on_host == sum(range(comm.size + 1))).all()
if comm.rank == 0:
    print(layout.nodes, layout.domains, plans, comm.device_path)
comm.close()
"""


@pytest.mark.skipif(real_driver() is not None, reason="the stand-in is for machines without a driver")
def test_hosts_of_a_rack_are_one_domain() -> None:
    with tempfile.TemporaryDirectory(prefix="hpccoll-meeting-") as meeting, VirtualHosts(4) as rack:
        env = environment(2, meeting=meeting, host="")
        env.pop("STANDIN_HOST")
        done = rack.mpiexec([sys.executable, "-c", PROGRAM], 2, env=env, timeout_s=200)
    assert done.returncode == 0, done
    nodes, domains = ((0, 1), (2, 3), (4, 5), (6, 7)), ((0, 1, 2, 3), (4, 5), (6, 7))
    assert done.stdout.strip() == f"{nodes} {domains} ['flat', 'reduce_ring_broadcast'] nccl"
