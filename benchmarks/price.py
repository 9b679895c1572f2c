"""What checks, watches and recorder cost, or checksums: `mpiexec -n 2 python -m benchmarks.price [ROUNDS]`.

Communicators in one run, in turn, round by round: as it is by default, and with checks, connections between
nodes and recorder off.  With `checksums` behind ROUNDS: as it is by default, without the extension, and with
checksums; of several collectives.  Rank 0 prints the medians over the rounds of the time of a call, in µs.
"""

from __future__ import annotations

import statistics
import sys
import time
from collections.abc import Callable

import numpy as np
from mpi4py import MPI

import hpccoll

SIZES = {8: 1000, 1024: 500, 65536: 100, 1 << 20: 30}  # bytes: calls of a round
CHECKED_SIZES = {8: 200, 65536: 50, 1 << 20: 10, 16 << 20: 2}
Call = Callable[[hpccoll.Communicator, np.ndarray, np.ndarray], object]
CALLS: dict[str, Call] = {
    "Allreduce": lambda comm, values, out: comm.Allreduce(values, out),
    "Bcast": lambda comm, values, out: comm.Bcast(values),
    "Alltoall": lambda comm, values, out: comm.Alltoall(values, out),
}


def seconds(comm: hpccoll.Communicator, call: Call, nbytes: int, calls: int) -> float:
    """Of one call; the slowest rank's."""
    count = max(nbytes // 8, comm.size if call is CALLS["Alltoall"] else 1)
    values, out = np.ones(count), np.empty(count)
    comm.Barrier()
    began = time.perf_counter()
    for _ in range(calls):
        call(comm, values, out)
    return MPI.COMM_WORLD.allreduce((time.perf_counter() - began) / calls, MPI.MAX)


def compare(comms: dict[str, hpccoll.Communicator], name: str, sizes: dict[int, int], rounds: int) -> None:
    """The times of a call on each communicator, and what the first takes more than the last."""
    for nbytes, calls in sizes.items():
        found: dict[str, list[float]] = {one: [] for one in comms}
        for comm in comms.values():
            seconds(comm, CALLS[name], nbytes, calls)
        for _ in range(rounds):
            for one, comm in comms.items():
                found[one].append(1e6 * seconds(comm, CALLS[name], nbytes, calls))
        medians = {one: statistics.median(times) for one, times in found.items()}
        first, *_, last = found
        more = statistics.median(a - b for a, b in zip(found[first], found[last], strict=True))
        if MPI.COMM_WORLD.rank == 0:
            words = ", ".join(f"{one} {middle:.2f}" for one, middle in medians.items())
            print(
                f"{name} {nbytes} B: {words}; {more:+.2f} µs, {100 * more / medians[last]:+.1f} %", flush=True
            )


def main(rounds: int, checksums: bool) -> None:
    world = MPI.COMM_WORLD
    if checksums:
        comms = {
            "checksums": hpccoll.Communicator(world, checksums=True),
            "no extension": hpccoll.Communicator(world, native=False),
            "default": hpccoll.Communicator(world),
        }
    else:
        comms = {
            "whole": hpccoll.Communicator(world),
            "unchecked": hpccoll.Communicator(world, checks="off"),
            "bare": hpccoll.Communicator(world, checks="off", lifelines="off", recorder="off"),
        }
    for name in CALLS if checksums else ("Allreduce",):
        compare(comms, name, CHECKED_SIZES if checksums else SIZES, rounds)
    for comm in comms.values():
        comm.close()


if __name__ == "__main__":
    main(int(sys.argv[1]) if len(sys.argv) > 1 else 41, sys.argv[2:] == ["checksums"])
