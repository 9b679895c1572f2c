"""What counts a program's calls leaves them as they are, those too that a late rank makes others wait for."""

from __future__ import annotations

from tests.support.launch import run_ranks

# Rank 1 comes so late that rank 0, which knows the call by then, hands it from C to Python.
LATE = r"""
import sys
import time
import numpy as np
from mpi4py import MPI
import hpccoll
from tests.conformance.counting import Census

census = Census()
census.begin()
comm = hpccoll.Communicator(MPI.COMM_WORLD)
a, b = np.ones(4), np.empty(4)
for call in range(6):
    if call >= 4 and comm.rank == 1:
        time.sleep(0.05)
    comm.Allreduce(a, b)
assert b.tolist() == [2.0] * 4, b
sys.stdout.write(f"calls {census.calls.total()} on plans {census.on_plans().total()}\n")
"""


def test_a_known_call_of_which_a_rank_is_late_is_counted() -> None:
    result = run_ranks(2, ["-c", LATE], timeout_s=60, env={"HPCCOLL_SMALL_BYTES": "0"})
    assert result.returncode == 0, result
    assert result.stdout.count("calls 6 on plans 6") == 2, result
