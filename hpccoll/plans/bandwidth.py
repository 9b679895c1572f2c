"""Bandwidths of collectives as nccl-tests defines them (doc/PERFORMANCE.md): algbw and busbw.

algbw = size / time, busbw = algbw x factor.  The factor makes busbw comparable with the rate of a link,
whatever the number of ranks.  A scan, which nccl-tests has not, has the factor 1 of reduce and broadcast,
since a chain carries the buffer once over each of its links.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping

Factor = Callable[[int], float]


def _one(size: int) -> float:
    return 1.0


def _others(size: int) -> float:
    return (size - 1) / size


def _twice_others(size: int) -> float:
    return 2 * (size - 1) / size


FACTORS: Mapping[str, Factor] = {
    "allreduce": _twice_others,
    "reduce": _one,
    "broadcast": _one,
    "allgather": _others,
    "reduce_scatter": _others,
    "gather": _others,
    "scatter": _others,
    "alltoall": _others,
    "scan": _one,
    "exscan": _one,
    "barrier": _one,
}
"""busbw / algbw of each collective, for a number of ranks above 1."""


def bandwidths(nbytes: float, time_s: float, factor: Factor, size: int) -> tuple[float, float]:
    """The algbw and busbw in 1e9 bytes a second; a rank alone has no bus, and no time no bandwidth."""
    if time_s <= 0.0:
        return 0.0, 0.0
    algbw = nbytes / 1e9 / time_s
    return algbw, algbw * factor(size) if size > 1 else 0.0
