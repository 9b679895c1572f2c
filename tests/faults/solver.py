"""A program whose ranks do not go on together: `solver.py FAULT`.  Rank 2 is the one at fault."""

from __future__ import annotations

import os
import signal
import sys
import time

import numpy as np
from mpi4py import MPI

import hpccoll

AT_FAULT = 2
HANGS_AT = 5


def residual(comm: hpccoll.Communicator, values: np.ndarray) -> float:
    total = np.zeros(1)
    comm.Allreduce(values[:1], total)  # residual
    return float(total[0])


def step(comm: hpccoll.Communicator, fault: str, number: int) -> None:
    values = np.full(1000, comm.rank + 1.0)
    mine = comm.rank == AT_FAULT and number == HANGS_AT
    if mine and fault == "kill":
        os.kill(os.getpid(), signal.SIGKILL)
    if mine and fault == "hold":
        time.sleep(300)
    if comm.rank == AT_FAULT and fault == "slow":
        time.sleep(300 if mine else 0.2)
    if mine and fault == "mismatch":
        values = values[:999]
    if not (mine and fault == "skip"):
        comm.Allreduce(MPI.IN_PLACE, values)  # values
    residual(comm, values)


def main(fault: str) -> None:
    comm = hpccoll.Communicator(MPI.COMM_WORLD)
    for number in range(2 * HANGS_AT):
        if fault == "early" and comm.rank == AT_FAULT and number == HANGS_AT:
            return
        step(comm, fault, number)
    comm.close()


if __name__ == "__main__":
    main(sys.argv[1])
