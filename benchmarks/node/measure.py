"""Collectives on one node: MPI's own beside hpccoll's, in one process.

    mpiexec -n 2 python benchmarks/node/measure.py --json FILE

All ways to make a call are gone through in turn in every round, so that a slow moment of the machine falls on
all of them; a way's time is the median over the rounds of the slowest rank's.  Every call has other buffers
than the one before it, up to MOST_ROTATED of them.  Each result is compared with MPI's.

    mpi          the method of mpi4py's communicator
    private      ours with checks="off", on arrays of NumPy
    checked      the same with checks="on", the default
    registered   ours with checks="off", on arrays of `comm.empty`

`copy_gbs` is the memory's limit at the same moment: what as many processes copy, bytes read and written.
"""

from __future__ import annotations

import argparse
import json
import platform
import statistics
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np
from mpi4py import MPI

import hpccoll

Make = Callable[[int], Any]  # an array of so many elements
COLLECTIVES = (
    "Allreduce", "Reduce", "Bcast", "Allgather", "Reduce_scatter_block",
    "Gather", "Scatter", "Alltoall", "Scan",
)  # fmt: skip
SIZES = (8, 64, 512, 4096, 16 << 10, 64 << 10, 256 << 10, 1 << 20, 4 << 20, 16 << 20, 64 << 20)
ROTATED_BYTES = 64 << 20
MOST_ROTATED = 8
ROUND_S = 0.02
DTYPE = np.dtype(np.float32)
WORLD = MPI.COMM_WORLD


class Way:
    """One way to make a collective call of a size: `make` makes its arrays."""

    def __init__(self, comm: Any, collective: str, nbytes: int, make: Make, pairs: int) -> None:
        size, count = WORLD.size, max(1, nbytes // DTYPE.itemsize)
        block = max(1, count // size)
        gives = block if collective in ("Allgather", "Gather") else block * size
        takes = block if collective in ("Reduce_scatter_block", "Scatter") else block * size
        if collective in ("Allreduce", "Reduce", "Bcast", "Scan"):
            gives = takes = count
        self._buffers = [(make(gives), make(takes)) for _ in range(pairs)]
        for give, take in self._buffers:
            give[...] = np.arange(gives) % 17 + WORLD.rank
            take[...] = give[:1] if collective != "Bcast" else give
        method = getattr(comm, collective)
        if collective == "Bcast":
            self._call = lambda give, take: method(take)
        elif collective == "Scatter":
            self._call = lambda give, take: method(give if WORLD.rank == 0 else None, take)
        elif collective in ("Gather", "Reduce"):
            self._call = lambda give, take: method(give, take if WORLD.rank == 0 else None)
        else:
            self._call = method
        self._next = 0

    def results(self) -> list[Any]:
        """What is in all receive buffers after a call on each."""
        for give, take in self._buffers:
            self._call(give, take)
        return [take.copy() for _, take in self._buffers]

    def time_s(self, calls: int) -> float:
        """Of one call, on the slowest rank."""
        WORLD.Barrier()
        begin = time.perf_counter()
        for _ in range(calls):
            self._call(*self._buffers[self._next])
            self._next = (self._next + 1) % len(self._buffers)
        return float(WORLD.allreduce((time.perf_counter() - begin) / calls, MPI.MAX))


def copy_gbs(nbytes: int = 64 << 20, rounds: int = 5) -> float:
    """Bytes read and written a second, in 1e9, when all ranks copy memory at the same time."""
    source, target = np.ones(nbytes, np.uint8), np.ones(nbytes, np.uint8)
    times = []
    for _ in range(rounds):
        WORLD.Barrier()
        begin = time.perf_counter()
        np.copyto(target, source)
        times.append(WORLD.allreduce(time.perf_counter() - begin, MPI.MAX))
    return 2e-9 * nbytes * WORLD.size / statistics.median(times)


def measured(comms: dict[str, Any], collective: str, nbytes: int, rounds: int) -> dict[str, float]:
    """Microseconds of each way."""
    pairs = max(1, min(MOST_ROTATED, ROTATED_BYTES // (2 * nbytes)))
    ways = {name: Way(comm, collective, nbytes, _private, pairs) for name, comm in comms.items()}
    ours = comms["private"]
    ways["registered"] = Way(ours, collective, nbytes, lambda count: ours.empty(count, DTYPE), pairs)
    wanted = ways["mpi"].results()
    for name, way in ways.items():
        same = all(map(np.array_equal, way.results(), wanted))
        if not WORLD.allreduce(same, MPI.LAND):  # so that all ranks end
            raise SystemExit(f"{collective} of {nbytes} bytes: {name} has another result than MPI")
    slowest = max(way.time_s(3) for way in ways.values())
    calls = max(2, min(1000, int(ROUND_S / slowest)))
    times: dict[str, list[float]] = {name: [] for name in ways}
    for _ in range(rounds):
        for name, way in ways.items():
            times[name].append(way.time_s(calls))
    return {name: round(1e6 * statistics.median(of_way), 2) for name, of_way in times.items()}


def _private(count: int) -> Any:
    return np.empty(count, DTYPE)


def main(arguments: Sequence[str] | None = None) -> None:
    """Measure, and write the rows as JSON."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--json", type=Path, required=True)
    parser.add_argument("--collectives", type=lambda text: text.split(","), default=COLLECTIVES)
    parser.add_argument("--sizes", type=lambda text: [int(one) for one in text.split(",")], default=SIZES)
    parser.add_argument("--rounds", type=int, default=7)
    options = parser.parse_args(arguments)
    comms = {
        "mpi": WORLD,
        "private": hpccoll.Communicator(WORLD, checks="off"),
        "checked": hpccoll.Communicator(WORLD),
    }
    rows = []
    for collective in options.collectives:
        for nbytes in options.sizes:
            limit = copy_gbs() if nbytes >= 1 << 20 else None
            times = measured(comms, collective, nbytes, options.rounds)
            rows.append({"collective": collective, "bytes": nbytes, "copy_gbs": limit, "us": times})
            if WORLD.rank == 0:
                print(f"{collective:22s} {nbytes:9d} bytes  {times}", flush=True)
    found = {
        "mpi": MPI.Get_library_version().splitlines()[0].strip(" \0"),
        "ranks": WORLD.size,
        "machine": platform.processor() or platform.machine(),
        "python": platform.python_version(),
        "numpy": np.__version__,
        "hpccoll": hpccoll.__version__,
        "rows": rows,
    }
    if WORLD.rank == 0:
        options.json.write_text(json.dumps(found, indent=1) + "\n")


if __name__ == "__main__":
    main()
