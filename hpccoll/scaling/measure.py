"""A collective measured on the first node of a job, the first two, ..., all of them, by one MPI program.

The calls are timed and checked by `hpccoll bench`; ranks of nodes that do not take part sleep.
"""

from __future__ import annotations

import io
import statistics
import time
from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any, cast

from mpi4py import MPI

from hpccoll.cli.bench.facts import mpi_library
from hpccoll.cli.bench.kinds import open_kind
from hpccoll.cli.bench.options import Options
from hpccoll.cli.bench.results import Half, Row
from hpccoll.cli.bench.sweep import Sweep
from hpccoll.errors import HpccollError
from hpccoll.scaling.study import Point

_NAP_S = 0.005


def measure(
    world: MPI.Intracomm,
    whole: Any,
    options: Options,
    counts: Sequence[int],
    done: Callable[[list[Point], str], None],
) -> None:
    """Measure on the first n nodes for each n of `counts`; `done(points, mpi_library)` after each, on rank 0.

    `whole`: our communicator on `world`.  Collective.

    Raises: HpccollError where a call failed, on the ranks that took part in it; then the job must be ended,
    since the others are asleep.
    """
    for count in counts:
        taking_part = whole.machine.node < count
        color = 0 if taking_part else MPI.UNDEFINED
        plain = cast(MPI.Intracomm, world.Split(color))
        ours = whole.Split(color)
        if taking_part:
            try:
                points, library = _points(plain, ours, options)
                if world.rank == 0:
                    done(points, library)
            finally:
                ours.close()
                plain.Free()
        _sleep_until_all_are_here(world)


def _points(plain: MPI.Intracomm, ours: Any, options: Options) -> tuple[list[Point], str]:
    sweep = Sweep(plain, replace(options, per_iteration=True), io.StringIO())
    redops = options.redops if options.operation.reduces else ()
    kind = open_kind(plain, ours, on_device=options.on_device, redops=redops)
    sweep.measure(ours, kind=kind)
    kind.close()
    if sweep.outcome.out_of_bounds:
        raise HpccollError(f"{sweep.outcome.out_of_bounds} ranks have written beyond their arrays")
    machine = ours.machine
    place = (machine.node_count, plain.size, str(machine.layout))
    # A row for each size, up to what memory allows.
    asked = zip(options.sizes, sweep.outcome.rows, strict=False)
    return [
        _point(nbytes, row, ours, options, place) for nbytes, row in asked if row.out_of_place
    ], mpi_library()


def _point(nbytes: int, row: Row, ours: Any, options: Options, place: tuple[int, int, str]) -> Point:
    half = row.out_of_place
    assert half is not None
    times = _times(half)
    median = statistics.median(times)
    low, _, high = statistics.quantiles(times, n=4) if len(times) > 1 else (median, median, median)
    busbw = half.busbw * half.time_us / median if median else 0.0
    return Point(
        *place,
        nbytes=nbytes,
        plan=row.plan,
        time_us=median,
        busbw=busbw,
        low_us=low,
        high_us=high,
        predicted_us=_predicted_us(row, ours, options),
        wrong=half.wrong or 0,
    )


def _times(half: Half) -> Sequence[float]:
    spread = half.spread
    return (half.time_us,) if spread is None else spread.times_us[spread.skipped :]


def _predicted_us(row: Row, ours: Any, options: Options) -> float | None:
    """The price of the plan that was taken; None for ragged calls and on devices, which are not priced so."""
    operation = options.operation
    if operation.ragged or options.on_device:
        return None
    found = ours.explain(operation.explained_as, row.case.nbytes, dtype=row.case.datatype)
    return next((one.time_s * 1e6 for one in found.candidates if one.name == row.algorithm), None)


def _sleep_until_all_are_here(world: MPI.Intracomm) -> None:
    """As a barrier, without taking the cores from those who measure."""
    request = world.Ibarrier()
    while not request.Test():
        time.sleep(_NAP_S)
