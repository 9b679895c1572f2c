"""What checks, watches and the recorder cost: `mpiexec -n 2 python -m benchmarks.price`.

Two communicators in one run, in turn, round by round: as it is by default, and with checks, connections
between nodes and recorder off.  Rank 0 prints the medians over the rounds of the time of a call, in µs.
"""

from __future__ import annotations

import statistics
import sys
import time

import numpy as np
from mpi4py import MPI

import hpccoll

SIZES = {8: 1000, 1024: 500, 65536: 100, 1 << 20: 30}  # bytes: calls of a round


def seconds(comm: hpccoll.Communicator, values: np.ndarray, out: np.ndarray, calls: int) -> float:
    """Of one call; the slowest rank's."""
    comm.Barrier()
    began = time.perf_counter()
    for _ in range(calls):
        comm.Allreduce(values, out)
    return MPI.COMM_WORLD.allreduce((time.perf_counter() - began) / calls, MPI.MAX)


def main(rounds: int) -> None:
    whole = hpccoll.Communicator(MPI.COMM_WORLD)
    bare = hpccoll.Communicator(MPI.COMM_WORLD, checks="off", lifelines="off", recorder="off")
    unchecked = hpccoll.Communicator(MPI.COMM_WORLD, checks="off")
    for nbytes, calls in SIZES.items():
        values, out = np.ones(nbytes // 8), np.empty(nbytes // 8)
        found: dict[str, list[float]] = {"whole": [], "unchecked": [], "bare": []}
        for comm in (whole, unchecked, bare):
            seconds(comm, values, out, calls)
        for _ in range(rounds):
            for name, comm in (("whole", whole), ("unchecked", unchecked), ("bare", bare)):
                found[name].append(1e6 * seconds(comm, values, out, calls))
        medians = {name: statistics.median(times) for name, times in found.items()}
        more = statistics.median(a - b for a, b in zip(found["whole"], found["bare"], strict=True))
        if whole.rank == 0:
            words = ", ".join(f"{name} {one:.2f}" for name, one in medians.items())
            print(f"{nbytes} B: {words}; {more:+.2f} µs, {100 * more / medians['bare']:+.1f} %", flush=True)
    for comm in (whole, bare, unchecked):
        comm.close()


if __name__ == "__main__":
    main(int(sys.argv[1]) if len(sys.argv) > 1 else 41)
