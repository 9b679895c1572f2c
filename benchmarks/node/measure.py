"""Collectives on one node: MPI's own beside hpccoll's, in one process.

    mpiexec -n 2 python benchmarks/node/measure.py --json FILE

All ways to make a call are gone through in turn in every round, so that a slow moment of the machine falls on
all of them; a way's time is the median over the rounds of the slowest rank's.  Every call has other buffers
than the one before it, up to MOST_ROTATED of them.  Each result is compared with MPI's.

    mpi          the method of mpi4py's communicator
    private      ours with checks="off", on arrays of NumPy
    checked      the same with checks="on", the default
    registered   ours with checks="off", on arrays of `comm.empty`
    gloo         torch's gloo (gloo.py), where torch is installed and gloo has the collective

Each way makes as many calls in a round as ROUND_S has room for. A cell ends after --rounds rounds, or when
--cell-s seconds are over (with more ranks than cores a call may take long); its row says how many there were.

`copy_gbs` is the memory's limit at the same moment: what as many processes copy, bytes read and written.
"""

from __future__ import annotations

import argparse
import importlib.util
import json
import platform
import statistics
import sys
import time
from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
from mpi4py import MPI

import hpccoll

# Last, so that hpccoll is the installed one and `benchmarks` the one of this file.
sys.path.append(str(Path(__file__).resolve().parents[2]))

from benchmarks.node import gloo

Make = Callable[[int], Any]  # an array of so many elements
COLLECTIVES = (
    "Allreduce", "Reduce", "Bcast", "Allgather", "Reduce_scatter_block",
    "Gather", "Scatter", "Alltoall", "Scan",
)  # fmt: skip
SIZES = (8, 64, 512, 4096, 16 << 10, 64 << 10, 256 << 10, 1 << 20, 4 << 20, 16 << 20, 64 << 20)
ROTATED_BYTES = 64 << 20
MOST_ROTATED = 8
ROUND_S = 0.02
CELL_S = 10.0
FEWEST_ROUNDS = 2
DTYPE = np.dtype(np.float32)
WAYS = ("mpi", "private", "checked", "registered", "gloo")
AT_ROOT = ("Gather", "Reduce")
WORLD = MPI.COMM_WORLD


class Way:
    """One way to make a collective call of a size: `make` makes its arrays, `passed` what the call is given.

    With `in_place` the receive arrays hold what is given.
    """

    def __init__(
        self,
        comm: Any,
        collective: str,
        nbytes: int,
        make: Make,
        pairs: int,
        passed: Callable[[Any], Any] = lambda array: array,
        in_place: bool = False,
    ) -> None:
        size, count = WORLD.size, max(1, nbytes // DTYPE.itemsize)
        block = max(1, count // size)
        gives = block if collective in ("Allgather", "Gather") else block * size
        takes = block if collective in ("Reduce_scatter_block", "Scatter") else block * size
        if collective in ("Allreduce", "Reduce", "Bcast", "Scan"):
            gives = takes = count
        self._buffers = [(make(gives), make(takes)) for _ in range(pairs)]
        for give, take in self._buffers:
            give[...] = np.arange(gives) % 17 + WORLD.rank
            take[...] = give if in_place or collective == "Bcast" else give[:1]
        self._passed = [(passed(give), passed(take)) for give, take in self._buffers]
        self._takes = WORLD.rank == 0 or collective not in AT_ROOT
        method = getattr(comm, collective)
        if collective == "Bcast":
            self._call = lambda give, take: method(take)
        elif collective == "Scatter":
            self._call = lambda give, take: method(give if WORLD.rank == 0 else None, take)
        elif collective in AT_ROOT:
            self._call = lambda give, take: method(give, take if WORLD.rank == 0 else None)
        else:
            self._call = method
        self._next = 0

    def results(self) -> list[Any]:
        """What is in all receive buffers after a call on each; nothing on a rank that receives nothing."""
        for give, take in self._passed:
            self._call(give, take)
        return [take.copy() for _, take in self._buffers if self._takes]

    def time_s(self, calls: int) -> float:
        """Of one call, on the slowest rank."""
        WORLD.Barrier()
        begin = time.perf_counter()
        for _ in range(calls):
            self._call(*self._passed[self._next])
            self._next = (self._next + 1) % len(self._passed)
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


def ways_of(comms: dict[str, Any], collective: str, nbytes: int) -> dict[str, Way]:
    """Every way that `comms` has for this collective."""
    pairs = max(1, min(MOST_ROTATED, ROTATED_BYTES // (2 * nbytes)))
    ways = {}
    for name, comm in comms.items():
        if name == "gloo":
            if hasattr(comm, collective):
                in_place = collective in gloo.IN_PLACE
                ways[name] = Way(comm, collective, nbytes, _private, pairs, comm.tensor, in_place)
        else:
            make = partial(comm.empty, dtype=DTYPE) if name == "registered" else _private
            ways[name] = Way(comm, collective, nbytes, make, pairs)
    return ways


def measured(
    comms: dict[str, Any], collective: str, nbytes: int, rounds: int, cell_s: float
) -> tuple[dict[str, float], int]:
    """Microseconds of each way, and in how many rounds."""
    ways = ways_of(comms, collective, nbytes)
    wanted = ways["mpi"].results()
    for name, way in ways.items():
        same = all(map(np.array_equal, way.results(), wanted))
        if not WORLD.allreduce(same, MPI.LAND):  # so that all ranks end
            raise SystemExit(f"{collective} of {nbytes} bytes: {name} has another result than MPI")
    calls = {name: max(2, min(1000, int(ROUND_S / way.time_s(3)))) for name, way in ways.items()}
    times: dict[str, list[float]] = {name: [] for name in ways}
    end = time.monotonic() + cell_s
    for turn in range(rounds):
        # Rank 0's clock decides for all.
        if turn >= FEWEST_ROUNDS and WORLD.bcast(time.monotonic() > end):
            break
        for name, way in ways.items():
            times[name].append(way.time_s(calls[name]))
    taken = {name: round(1e6 * statistics.median(of_way), 2) for name, of_way in times.items()}
    return taken, len(times["mpi"])


def _private(count: int) -> Any:
    return np.empty(count, DTYPE)


def communicators(wanted: Sequence[str] | None) -> tuple[dict[str, Any], dict[str, str]]:
    """What makes the calls of each way, and why ways are left out.

    Raises: SystemExit where a way that was asked for is unknown or cannot be had.
    """
    unknown = set(wanted or ()) - set(WAYS)
    if unknown:
        raise SystemExit(f"no way {', '.join(sorted(unknown))}; there are {', '.join(WAYS)}")
    names = [name for name in WAYS if not wanted or name in wanted or name == "mpi"]
    left_out = {}
    reason = gloo.missing() if "gloo" in names else None
    if reason is not None:
        if wanted:
            raise SystemExit(f"gloo cannot be measured: {reason}")
        names.remove("gloo")
        left_out["gloo"] = reason
    unchecked = hpccoll.Communicator(WORLD, checks="off")
    makers = {
        "mpi": lambda: WORLD,
        "private": lambda: unchecked,
        "checked": lambda: hpccoll.Communicator(WORLD),
        "registered": lambda: unchecked,
        "gloo": lambda: gloo.Gloo(WORLD),
    }
    return {name: makers[name]() for name in names}, left_out


def main(arguments: Sequence[str] | None = None) -> None:
    """Measure, and write the rows as JSON."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--json", type=Path, required=True)
    parser.add_argument("--collectives", type=lambda text: text.split(","), default=COLLECTIVES)
    parser.add_argument("--sizes", type=lambda text: [int(one) for one in text.split(",")], default=SIZES)
    parser.add_argument("--rounds", type=int, default=7)
    parser.add_argument("--cell-s", type=float, default=CELL_S, help="seconds for the rounds of one row")
    parser.add_argument(
        "--ways", type=lambda text: text.split(","), help="of the list above; mpi always is one"
    )
    options = parser.parse_args(arguments)
    comms, left_out = communicators(options.ways)
    rows = []
    for collective in options.collectives:
        for nbytes in options.sizes:
            limit = copy_gbs() if nbytes >= 1 << 20 else None
            times, rounds = measured(comms, collective, nbytes, options.rounds, options.cell_s)
            row = {
                "collective": collective,
                "bytes": nbytes,
                "copy_gbs": limit,
                "rounds": rounds,
                "us": times,
            }
            rows.append(row)
            if WORLD.rank == 0:
                print(f"{collective:22s} {nbytes:9d} bytes  {times}", flush=True)
    found = {
        "mpi": MPI.Get_library_version().splitlines()[0].strip(" \0"),
        "ranks": WORLD.size,
        "machine": platform.processor() or platform.machine(),
        "python": platform.python_version(),
        "numpy": np.__version__,
        "hpccoll": hpccoll.__version__,
        "hpccoll_from": str(Path(hpccoll.__file__).parent),
        "extension": importlib.util.find_spec("hpccoll._native._core") is not None,
        "torch": str(sys.modules["torch"].__version__) if "gloo" in comms else None,
        "left_out": left_out,
        "rows": rows,
    }
    if "gloo" in comms:
        comms["gloo"].close()
    if WORLD.rank == 0:
        options.json.write_text(json.dumps(found, indent=1) + "\n")


if __name__ == "__main__":
    main()
