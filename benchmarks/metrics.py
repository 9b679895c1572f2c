"""What it costs that calls are counted and timed: the same calls with and without, in turn in one run.

    mpiexec -n 2 python -m benchmarks.metrics [--rounds 100] [--without-recorder] [--without-extension]
    mpiexec -n 2 python -m benchmarks.metrics --timeline            # what a timeline costs (HPCCOLL_TRACE)

Three communicators take turns: without metrics, with them, and a second one without, whose difference from
the first is what cannot be told from noise. A round times a number of all-reduces in a row on each. Shown are
the median of the first's times a call, the medians of the differences within rounds, with the interval that
holds them with 95 % (bootstrap over rounds), and what the fastest rounds of each differ by, which others on
the machine disturb least.
"""

from __future__ import annotations

import argparse
import json
import sys
import tempfile
import time

import numpy as np
from mpi4py import MPI
from numpy.typing import NDArray

import hpccoll

CALLS = {8: 400, 4096: 200, 1 << 20: 20}  # in a row, by bytes
SAMPLES = 2000
SEED = 20240229


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.metrics", description=__doc__)
    parser.add_argument("--rounds", type=int, default=100)
    parser.add_argument("--without-recorder", action="store_true", help="recorder off")
    parser.add_argument("--without-extension", action="store_true", help="native off")
    parser.add_argument("--timeline", action="store_true", help="a timeline in the place of metrics")
    parser.add_argument("--json", metavar="FILE", help="the same as JSON, from rank 0")
    options = parser.parse_args()
    settings = {
        "native": not options.without_extension,
        "recorder": "off" if options.without_recorder else "on",
    }
    world = MPI.COMM_WORLD
    with tempfile.TemporaryDirectory() as directory:
        compared = {"trace": world.bcast(directory)} if options.timeline else {"metrics": "count"}
        rows = compare(compared, settings, options.rounds)
    if world.rank == 0:
        show(rows, "a timeline" if options.timeline else "metrics")
        if options.json:
            with open(options.json, "w") as file:
                json.dump(
                    [{key: np.asarray(value).tolist() for key, value in row.items()} for row in rows], file
                )
    return 0


def compare(compared: dict[str, str], settings: dict[str, object], rounds: int) -> list[dict[str, object]]:
    """A row for each size, of calls with these settings besides and without."""
    without, counted, control = (
        hpccoll.Communicator(MPI.COMM_WORLD, **settings, **more) for more in ({}, compared, {})
    )
    rows = []
    for nbytes, calls in CALLS.items():
        times = measure((without, counted, control), nbytes, calls, rounds)
        rows.append({"nbytes": nbytes, "us": 1e6 * float(np.median(times[0]))})
        for name, column in (("metrics", times[1]), ("control", times[2])):
            rows[-1][name] = [*(1e9 * difference(column - times[0])), 1e9 * (column.min() - times[0].min())]
    for comm in (without, counted, control):
        comm.close()
    return rows


def measure(
    comms: tuple[hpccoll.Communicator, ...], nbytes: int, calls: int, rounds: int
) -> NDArray[np.float64]:
    """Seconds of a call: a row for each communicator, a column for each round; the slowest rank's."""
    give, take = np.ones(nbytes // 8), np.empty(nbytes // 8)
    times = np.zeros((len(comms), rounds))
    for comm in comms:
        for _ in range(20):
            comm.Allreduce(give, take)
    for turn in range(rounds):
        for k in range(len(comms)):
            place = (turn + k) % len(comms)
            comm = comms[place]
            MPI.COMM_WORLD.Barrier()
            comm.Allreduce(give, take)
            began = time.perf_counter()
            for _ in range(calls):
                comm.Allreduce(give, take)
            times[place, turn] = (time.perf_counter() - began) / calls
    slowest = np.empty_like(times)
    MPI.COMM_WORLD.Allreduce(times, slowest, MPI.MAX)
    return slowest


def difference(of_rounds: NDArray[np.float64]) -> NDArray[np.float64]:
    """The median, and the interval that holds it with 95 %."""
    draws = np.random.default_rng(SEED).choice(of_rounds, (SAMPLES, len(of_rounds)))
    low, high = np.quantile(np.median(draws, axis=1), (0.025, 0.975))
    return np.array([np.median(of_rounds), low, high])


def show(rows: list[dict[str, object]], what: str) -> None:
    heading = f"{f'with {what}':>32}  {'fastest':>9}  {'control':>32}  {'fastest':>9}"
    print(f"{'bytes':>9}  {'a call':>10}  {heading}")
    for row in rows:
        us = row["us"]
        cells = []
        for name in ("metrics", "control"):
            middle, low, high, fastest = row[name]
            interval = f"{middle:+.0f} ({low:+.0f} to {high:+.0f}) ns {middle / us / 10:+.2f} %"
            cells.append(f"{interval:>32}  {fastest:>+6.0f} ns")
        print(f"{row['nbytes']:>9}  {us:>7.2f} us  {'  '.join(cells)}")


if __name__ == "__main__":
    sys.exit(main())
