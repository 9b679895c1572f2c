"""Timed blocks of calls, and what a block's times over the ranks come to."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from itertools import repeat
from math import ceil, sqrt
from time import perf_counter, process_time

# -z: a barrier of all ranks after each call, inside the time; or after each iteration, outside it.
# Calls that only enqueue are waited for before it; with 2 each call is, without a barrier.
BARRIER_TIMED = 1
WAITED_FOR = 2
BARRIER_UNTIMED = 3


@dataclass(frozen=True)
class Block:
    """One rank's time for a block of calls: elapsed, of the processor, of each iteration where wanted.

    Where calls only enqueue, `cpu_s` is the time until all are enqueued, as in nccl-tests.
    """

    calls: int
    elapsed_s: float
    cpu_s: float
    each_s: tuple[float, ...] = ()


@dataclass(frozen=True)
class Pace:
    """How often contenders are called that take turns: rounds of calls that together last `round_s`.

    One that is slower than the fastest by more than `HOPELESS` takes part in the first `FEW` rounds only.
    """

    rounds: int
    round_s: float

    HOPELESS = 4.0
    FEW = 3
    MOST_CALLS = 2000

    def calls(self, once_s: float) -> int:
        """Calls in a round of what takes so long."""
        return max(1, min(self.MOST_CALLS, ceil(self.round_s / max(once_s, 1e-7))))

    def rounds_of(self, once_s: float, fastest_s: float) -> int:
        """Rounds of what takes so long."""
        return self.rounds if once_s <= self.HOPELESS * fastest_s else min(self.FEW, self.rounds)


def time_block(
    call: Callable[[], object],
    barrier: Callable[[], object],
    *,
    iterations: int,
    calls: int,
    blocking: int = 0,
    each: bool = False,
    settle: Callable[[], object] | None = None,
) -> Block:
    """Time `iterations` times `calls` calls, after a barrier; `each` keeps every iteration's time.

    `settle` waits for calls that only enqueue: after all of them, or as `blocking` and `each` say.
    """
    if settle is not None:
        settle()
    barrier()
    by_call = settle is not None and blocking == WAITED_FOR
    if each or by_call or blocking in (BARRIER_TIMED, BARRIER_UNTIMED):
        return _one_by_one(call, barrier, iterations, calls, blocking, settle)
    begin_cpu, begin = process_time(), perf_counter()
    for _ in repeat(None, iterations * calls):
        call()
    elapsed_s = perf_counter() - begin
    if settle is None:
        return Block(iterations * calls, elapsed_s, process_time() - begin_cpu)
    settle()
    return Block(iterations * calls, perf_counter() - begin, elapsed_s)


def _one_by_one(
    call: Callable[[], object],
    barrier: Callable[[], object],
    iterations: int,
    calls: int,
    blocking: int,
    settle: Callable[[], object] | None,
) -> Block:
    each: list[float] = []
    cpu_s = 0.0
    by_call = settle if blocking in (BARRIER_TIMED, WAITED_FOR) else None
    at_end = settle if by_call is None else None
    for _ in repeat(None, iterations):
        begin_cpu, begin = process_time(), perf_counter()
        for _ in repeat(None, calls):
            call()
            if by_call is not None:
                by_call()
            if blocking == BARRIER_TIMED:
                barrier()
        enqueued = perf_counter() - begin
        if at_end is not None:
            at_end()
        each.append(perf_counter() - begin)
        cpu_s += process_time() - begin_cpu if settle is None else enqueued
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
