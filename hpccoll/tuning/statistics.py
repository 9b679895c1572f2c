"""What times of several plans, taken in turn in rounds, say: medians, intervals, ratios."""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

Values = NDArray[np.float64]

RESAMPLES = 2000
CONFIDENCE = 0.95
_SEED = 20111  # the same data have the same interval, on every rank and every day


def without_rounds(times: Values) -> Values:
    """The times without what slowed a whole round down.

    `times`: by round and plan, above 0; NaN where a plan took no part.  What a round did to the plans that
    took part in all of them (the median of their times over their medians) is divided out of all its times:
    it would blur each plan's interval and says nothing about which is faster.
    """
    throughout = ~np.isnan(times).any(axis=0)
    if times.shape[0] < 3 or np.count_nonzero(throughout) < 2:
        return times
    full = times[:, throughout]
    of_round = np.median(full / np.median(full, axis=0), axis=1)
    cleaned: Values = times / of_round[:, None]
    return cleaned


def median_interval(times: Values) -> tuple[float, float, float]:
    """The median, and the ends of its interval by bootstrap (percentiles of resampled medians)."""
    found = times[~np.isnan(times)]
    medians = np.median(_resampled(found), axis=1)
    low, high = np.percentile(medians, _percentiles())
    middle = float(np.median(found))
    return middle, min(float(low), middle), max(float(high), middle)


def ratio_interval(times: Values, base: Values) -> tuple[float, float, float]:
    """The ratio of two medians, and its interval by bootstrap over the rounds, the same of both."""
    rounds = _draws(len(times))
    ratios = np.median(times[rounds], axis=1) / np.median(base[rounds], axis=1)
    low, high = np.percentile(ratios, _percentiles())
    return float(np.median(times) / np.median(base)), float(low), float(high)


def _resampled(values: Values) -> Values:
    resampled: Values = values[_draws(len(values))]
    return resampled


def _draws(count: int) -> NDArray[Any]:
    return np.random.default_rng(_SEED).integers(0, count, (RESAMPLES, count))


def _percentiles() -> list[float]:
    tail = 50 * (1 - CONFIDENCE)
    return [tail, 100 - tail]
