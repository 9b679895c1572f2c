"""The times of a step, from those of its buckets."""

from __future__ import annotations

from collections.abc import Sequence

from hpccoll.observe.overlapped import Times
from hpccoll.overlap.grouping import runs


def times_of(under_way: Sequence[tuple[float, float]], waited: tuple[float, float]) -> Times:
    """One step's, from begin and end of each bucket and of the wait, on one clock."""
    apart = tuple(runs(under_way))
    begin, end = waited
    exposed_s = sum(max(0.0, min(end, last) - max(begin, first)) for first, last in apart)
    return Times(1, sum(last - first for first, last in apart), exposed_s, end - begin)
