"""How much of an Iallreduce runs while its caller computes, MPI's own and hpccoll's; each rank on the hosts.

    mpiexec -hosts ... python -m benchmarks.cluster.overlap --bytes 16777216 --output FILE

As osu_iallreduce of the OSU Micro-Benchmarks says it (hpccoll/cli/bench/overlap.py), without MPI_Test.
Each is averaged over the ranks, then the median is taken over the rounds. What takes the computation's core
shows in `compute`, which this definition forgives; so `slowed` is beside it: compute by what the same work
takes alone, in the same round. Computations: NumPy's, on arrays that stay in a cache, without the GIL; and of
Python alone, which never gives the GIL up by itself.
"""

from __future__ import annotations

import argparse
import json
import statistics
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
from mpi4py import MPI

import hpccoll
from benchmarks.cluster.allreduce import expected, given
from hpccoll.cli.bench.overlap import Work, numpy_work, overlap_percent, units_for

WARM_CALLS = 3
KINDS = ("pure_s", "overall_s", "compute_s", "alone_s")


def python_work() -> Work:
    """A unit of some 10 us: a loop over integers."""

    def unit() -> int:
        total = 0
        for number in range(300):
            total += number * number
        return total

    return unit


WORKS = {"numpy": numpy_work, "python": python_work}


class Call:
    """One communicator's Iallreduce of given arrays."""

    def __init__(self, comm: MPI.Intracomm, nbytes: int) -> None:
        self._world = MPI.COMM_WORLD
        self._start = comm.Iallreduce
        size = self._world.size
        self._send, self._expected = given(nbytes, self._world.rank, size), expected(nbytes, size)
        self._receive = np.empty_like(self._send)

    def time(self, work: Work | None = None, units: int = 0) -> tuple[float, float]:
        """Seconds of the call with `units` units inside it, and of these; averages over the ranks."""
        self._receive.fill(-1)
        self._world.Barrier()
        begin = time.perf_counter()
        request = self._start(self._send, self._receive)
        started = time.perf_counter()
        if work is not None:
            for _ in range(units):
                work()
        computed = time.perf_counter()
        request.Wait()
        return self._average(time.perf_counter() - begin), self._average(computed - started)

    def alone(self, work: Work, units: int) -> float:
        """Seconds of the units without a call."""
        self._world.Barrier()
        begin = time.perf_counter()
        for _ in range(units):
            work()
        return self._average(time.perf_counter() - begin)

    def wrong(self) -> int:
        """Wrong elements of all ranks in the last call's result."""
        return self._world.allreduce(int(np.count_nonzero(self._receive != self._expected)))

    def _average(self, mine: float) -> float:
        return self._world.allreduce(mine) / self._world.size


def measure(world: MPI.Intracomm, calls: dict[str, Call], rounds: int) -> list[dict[str, Any]]:
    """A row for each call and computation; all take turns in every round."""
    works = {name: make() for name, make in WORKS.items()}
    units: dict[tuple[str, str], int] = {}
    for who, call in calls.items():
        pure_s = statistics.median(call.time()[0] for _ in range(WARM_CALLS))
        for name, work in works.items():
            units[who, name] = units_for(world, work, pure_s)
    rows: dict[tuple[str, str], dict[str, Any]] = {
        (who, name): {"who": who, "work": name, "units": count, "wrong": 0, **{kind: [] for kind in KINDS}}
        for (who, name), count in units.items()
    }
    for _ in range(rounds):
        for (who, name), row in rows.items():
            pure_s, _ = calls[who].time()
            overall_s, compute_s = calls[who].time(works[name], row["units"])
            row["wrong"] += calls[who].wrong()
            alone_s = calls[who].alone(works[name], row["units"])
            for kind, seconds in zip(KINDS, (pure_s, overall_s, compute_s, alone_s), strict=True):
                row[kind].append(seconds)
    return list(rows.values())


def complete_row(row: dict[str, Any]) -> None:
    """Add the percentage and by how much the computation was slowed."""
    pure_s, overall_s, compute_s, alone_s = (statistics.median(row[kind]) for kind in KINDS)
    row["overlap_percent"] = overlap_percent(pure_s, overall_s, compute_s)
    row["slowed"] = compute_s / alone_s


def main(arguments: Sequence[str] | None = None) -> None:
    """Measure on COMM_WORLD; rank 0 writes the rows to --output as JSON."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--bytes", type=int, default=16 << 20)
    parser.add_argument("--rounds", type=int, default=7)
    parser.add_argument("--output", type=Path, required=True)
    options = parser.parse_args(arguments)
    world = MPI.COMM_WORLD
    with hpccoll.Communicator(world) as comm:
        calls = {"mpi": Call(world, options.bytes), "hpccoll": Call(comm, options.bytes)}
        rows = measure(world, calls, options.rounds)
    for row in rows:
        complete_row(row)
    if world.rank == 0:
        options.output.write_text(json.dumps({"bytes": options.bytes, "ranks": world.size, "rows": rows}))


if __name__ == "__main__":
    main()
