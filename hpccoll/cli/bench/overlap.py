"""How much of a started call goes on while its caller computes, as the OSU Micro-Benchmarks say it.

    pure       time of the start and the wait, with nothing between
    overall    time of the start, a computation that alone takes as long as `pure`, and the wait
    compute    time of the computation in there
    overlap    max(0, 1 - (overall - compute) / pure), in percent

Each is averaged over the ranks.  Nothing is tested in between (OSU's -t 0).
"""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
from mpi4py import MPI

Work = Callable[[], object]
Wait = Callable[[], object]
CALIBRATION_S = 0.05


@dataclass(frozen=True)
class Halves:
    """A call in two parts: `begin` starts it and returns what waits for it.  Called, it does both."""

    begin: Callable[[], Wait]

    def __call__(self) -> None:
        self.begin()()


def overlap_percent(pure_s: float, overall_s: float, compute_s: float) -> float:
    """OSU's definition."""
    return max(0.0, 100 - 100 * (overall_s - compute_s) / pure_s)


def numpy_work() -> Work:
    """A unit of some 10 us: sums and products of 16 Ki elements, which stay in a cache."""
    one, other = np.linspace(0, 1, 16384, dtype=np.float32), np.linspace(1, 2, 16384, dtype=np.float32)
    result = np.empty_like(one)

    def unit() -> None:
        np.multiply(one, other, out=result)
        np.add(result, one, out=result)

    return unit


def units_for(world: MPI.Intracomm, unit: Work, seconds: float) -> int:
    """How many units take so long alone; the same number on all ranks."""
    done, begin = 0, time.perf_counter()
    while time.perf_counter() - begin < CALIBRATION_S:
        unit()
        done += 1
    unit_s = world.allreduce((time.perf_counter() - begin) / done, MPI.SUM) / world.size
    units: int = round(seconds / unit_s)
    return max(1, units)


def measure_overlap(world: MPI.Intracomm, call: Halves, iterations: int) -> float:
    """The percentage of a call, on all ranks alike.  Collective."""
    unit = numpy_work()

    def mean(units: int) -> tuple[float, float]:
        total = computed = 0.0
        for _ in range(iterations):
            world.Barrier()
            begin = time.perf_counter()
            wait = call.begin()
            started = time.perf_counter()
            for _ in range(units):
                unit()
            computed += time.perf_counter() - started
            wait()
            total += time.perf_counter() - begin
        sums = world.allreduce(np.array([total, computed])) / (world.size * iterations)
        return float(sums[0]), float(sums[1])

    pure_s, _ = mean(0)
    overall_s, compute_s = mean(units_for(world, unit, pure_s))
    return overlap_percent(pure_s, overall_s, compute_s)
