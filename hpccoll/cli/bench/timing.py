"""Timed blocks of calls, and what a block's times over the ranks come to."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from itertools import repeat
from math import ceil, sqrt
from time import perf_counter, process_time

# -z: a barrier of all ranks after each call, inside the time; or after each iteration, outside it.
BARRIER_TIMED = 1
BARRIER_UNTIMED = 3


@dataclass(frozen=True)
class Block:
    """One rank's time for a block of calls: elapsed, of the processor, of each iteration where wanted."""

    calls: int
    elapsed_s: float
    cpu_s: float
    each_s: tuple[float, ...] = ()


def time_block(
    call: Callable[[], object],
    barrier: Callable[[], object],
    *,
    iterations: int,
    calls: int,
    blocking: int = 0,
    each: bool = False,
) -> Block:
    """Time `iterations` times `calls` calls, after a barrier; `each` keeps every iteration's time."""
    barrier()
    if each or blocking in (BARRIER_TIMED, BARRIER_UNTIMED):
        return _one_by_one(call, barrier, iterations, calls, blocking)
    begin_cpu, begin = process_time(), perf_counter()
    for _ in repeat(None, iterations * calls):
        call()
    elapsed_s = perf_counter() - begin
    return Block(iterations * calls, elapsed_s, process_time() - begin_cpu)


def _one_by_one(
    call: Callable[[], object], barrier: Callable[[], object], iterations: int, calls: int, blocking: int
) -> Block:
    each: list[float] = []
    cpu_s = 0.0
    for _ in repeat(None, iterations):
        begin_cpu, begin = process_time(), perf_counter()
        for _ in repeat(None, calls):
            call()
            if blocking == BARRIER_TIMED:
                barrier()
        each.append(perf_counter() - begin)
        cpu_s += process_time() - begin_cpu
        if blocking == BARRIER_UNTIMED:
            barrier()
    return Block(iterations * calls, sum(each), cpu_s, tuple(each))


@dataclass(frozen=True)
class Spread:
    """How the times of the iterations differ, in microseconds."""

    times_us: tuple[float, ...]
    skipped: int
    min_us: float
    max_us: float
    avg_us: float
    p50_us: float
    p95_us: float
    p99_us: float
    stdev_us: float

    @property
    def cv_pct(self) -> float:
        """The deviation in percent of the average."""
        return 100.0 * self.stdev_us / self.avg_us if self.avg_us > 0 else 0.0


def spread_of(times_us: tuple[float, ...], skip: int) -> Spread:
    """The spread of all iterations but the first `skip`."""
    ordered = sorted(times_us[skip:])
    count = len(ordered)
    average = sum(ordered) / count
    deviation = sqrt(sum((time - average) ** 2 for time in ordered) / count)

    def percentile(percent: int) -> float:
        return ordered[min(count - 1, ceil(count * percent / 100) - 1)]

    return Spread(
        times_us,
        skip,
        ordered[0],
        ordered[-1],
        average,
        ordered[count // 2],
        percentile(95),
        percentile(99),
        deviation,
    )
