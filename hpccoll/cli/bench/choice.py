"""Was the automatic choice a good one?  What was taken beside the best plan of each row, and beside flat.

Medians of the rounds, in each of which all were called in turn; a ratio's interval is by bootstrap over the
rounds.  The choice counts as good where the ratio, or the lower end of its interval, is within the limit.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import groupby

import numpy as np

from hpccoll.cli.bench.options import FEW_ROUNDS, PLAIN, PLAIN_ON_DEVICE
from hpccoll.cli.bench.results import Case, Row
from hpccoll.tuning.statistics import ratio_interval

WITHIN_PCT = 5.0
_PLAIN = (PLAIN, PLAIN_ON_DEVICE)
_HALVES = ("out_of_place", "in_place")


@dataclass(frozen=True)
class Beside:
    """The time of the choice over that of another plan: the ratio, and its 95 % interval."""

    plan: str
    ratio: float
    low: float
    high: float

    def is_within(self, percent: float) -> bool:
        """The choice is slower by no more, as far as the rounds can tell."""
        return min(self.ratio, self.low) <= 1 + percent / 100


@dataclass(frozen=True)
class Judged:
    """One half of the rows of a case; `flat` is None where it is no candidate."""

    case: Case
    half: str
    plan: str
    best: Beside
    flat: Beside | None


def judge(rows: Sequence[Row]) -> list[Judged]:
    """Of every case and half with enough rounds of several plans, one of them the choice.

    MPI's own call is no plan of ours, and reproducible mode another one.
    """
    found = []
    for case, of_case in groupby(rows, key=lambda row: row.case):
        if not case.count:  # nothing moves
            continue
        plans = [row for row in of_case if not row.reproducible and row.algorithm not in _PLAIN]
        for half in _HALVES:
            rounds = {row.algorithm: times for row in plans if (times := _rounds(row, half))}
            chosen = next((row for row in plans if row.selected), None)
            if chosen is not None and chosen.algorithm in rounds and len(rounds) > 1:
                found.append(_judged(case, half, chosen, rounds))
    return found


def _judged(case: Case, half: str, chosen: Row, rounds: dict[str, tuple[float, ...]]) -> Judged:
    def beside(name: str) -> Beside:
        return Beside(name, *ratio_interval(np.array(rounds[chosen.algorithm]), np.array(rounds[name])))

    best = min(rounds, key=lambda name: float(np.median(rounds[name])))
    return Judged(case, half, chosen.plan, beside(best), beside("flat") if "flat" in rounds else None)


def _rounds(row: Row, half: str) -> tuple[float, ...]:
    found = getattr(row, half)
    return found.rounds_us if found is not None and len(found.rounds_us) >= FEW_ROUNDS else ()


def is_good(judged: Sequence[Judged], percent: float) -> bool:
    """All choices are within so many percent of the best and of flat."""
    return not any(slower(one, percent) for one in judged)


def slower(one: Judged, percent: float) -> list[Beside]:
    """The plans beside which the choice is slower by more."""
    return [other for other in (one.best, one.flat) if other is not None and not other.is_within(percent)]


def choice_lines(judged: Sequence[Judged], percent: float) -> Iterator[str]:
    """What the footer says: how many choices were good, and each that was not."""
    if not judged:
        return
    with_flat = [one for one in judged if one.flat is not None]
    near_best = sum(one.best.is_within(percent) for one in judged)
    near_flat = sum(one.flat is not None and one.flat.is_within(percent) for one in with_flat)
    yield (
        f"# Choice within {percent:g} %, or its 95 % interval: of the best plan {near_best} of "
        f"{len(judged)}, of flat {near_flat} of {len(with_flat)}"
    )
    for one in judged:
        for other in dict.fromkeys(slower(one, percent)):
            where = f"{one.case.nbytes} B {one.case.datatype} {one.half.replace('_', ' ')}"
            ratio = f"{other.ratio:.2f} ({other.low:.2f} to {other.high:.2f})"
            yield f"#  slower: {where}: {one.plan} takes {ratio} times {other.plan}"
