"""What plans took on this machine (`hpccoll tune`), and when that counts for more than their price.

Between two measured sizes the logarithm of a plan's time is a straight line over the logarithm of the size,
as it is for any power of the size.  Below the smallest size a call takes as long as there, as latency is all
there is to it; above the largest one, up to `BEYOND` times that, its time grows with the size.  Farther out
nothing is known.  The ends of the interval go the same way.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from itertools import groupby
from math import exp, log

from hpccoll.plans.collective import Collective
from hpccoll.plans.links import Links

HOST, DEVICE = MEMORIES = ("host", "device")
BEYOND = 4  # times the largest measured size
MARGIN = 1.03  # less is no reason to leave what the model chooses: two runs differ by as much
FLAT_MARGIN = 1.02  # what is slower than flat by more is not taken, even if that is not quite sure

# Of a collective and size: the measured plans.
Key = tuple[str, str]  # memory, collective


@dataclass(frozen=True)
class Time:
    """Seconds of a call: the median, and the interval in which it lies with 95 % confidence."""

    time_s: float
    low_s: float
    high_s: float

    def __post_init__(self) -> None:
        if not 0 < self.low_s <= self.time_s <= self.high_s < float("inf"):
            raise ValueError(f"{self.low_s} <= {self.time_s} <= {self.high_s} do not hold, or are no times")

    def scaled(self, factor: float) -> Time:
        """So many times as long."""
        return Time(self.time_s * factor, self.low_s * factor, self.high_s * factor)

    def surely_below(self, other: Time) -> bool:
        """The intervals do not touch."""
        return self.high_s < other.low_s


@dataclass(frozen=True)
class Curve:
    """A plan's times by size in bytes, in ascending order, at least one."""

    sizes: tuple[int, ...]
    times: tuple[Time, ...]

    def at(self, nbytes: int) -> Time | None:
        """The time of a call of so many bytes; None where nothing is known."""
        if nbytes <= self.sizes[0]:
            return self.times[0]
        if nbytes > self.sizes[-1]:
            inside = nbytes <= BEYOND * self.sizes[-1]
            return self.times[-1].scaled(nbytes / self.sizes[-1]) if inside else None
        above = bisect_left(self.sizes, nbytes)
        if self.sizes[above] == nbytes:
            return self.times[above]
        return _between(nbytes, self.sizes[above - 1 : above + 1], self.times[above - 1 : above + 1])


def _between(nbytes: int, sizes: tuple[int, ...], times: tuple[Time, ...]) -> Time:
    (low, high), (first, last) = sizes, times
    share = log(nbytes / low) / log(high / low)

    def on_line(one: float, other: float) -> float:
        return exp((1 - share) * log(one) + share * log(other))

    time_s = on_line(first.time_s, last.time_s)
    # Rounding must not put the median out of its interval.
    low_s, high_s = on_line(first.low_s, last.low_s), on_line(first.high_s, last.high_s)
    return Time(time_s, min(low_s, time_s), max(high_s, time_s))


@dataclass(frozen=True)
class DeviceFacts:
    """What times on devices depend on besides: NCCL's version, the ranks' devices, alike ones together."""

    nccl: int
    names: tuple[str, ...]

    @staticmethod
    def of(nccl: int, names: Sequence[str]) -> DeviceFacts:
        """From the name of each rank's device."""
        return DeviceFacts(nccl, tuple(f"{len(list(run))} x {name}" for name, run in groupby(names)))


@dataclass(frozen=True)
class Measured:
    """All that was measured: curves by memory and collective, then by plan; what the links give.

    `source` says where it is from, in words.  `device`: what those in the memory of devices were measured
    with, which selection there must compare; None where there are none.
    """

    source: str = ""
    curves: Mapping[Key, Mapping[str, Curve]] = field(default_factory=dict)
    links: Links = field(default_factory=Links)
    device: DeviceFacts | None = None

    def times(self, collective: str, nbytes: int, memory: str = HOST) -> dict[str, Time]:
        """By name, what plans take for a size as nccl-tests counts it."""
        found = {plan: curve.at(nbytes) for plan, curve in self.curves.get((memory, collective), {}).items()}
        return {plan: time for plan, time in found.items() if time is not None}


def call_bytes(collective: Collective, itemsize: int) -> int:
    """The size of a call as nccl-tests counts it: of all blocks, in an all-to-all of one rank's."""
    nbytes = collective.elements * itemsize
    return nbytes // collective.size if collective.name == "alltoall" else nbytes


def decide(
    unmeasured: str, times: Mapping[str, Time], because: str = "lowest predicted time"
) -> tuple[str, str]:
    """The plan to take, and why.

    `unmeasured`: what is taken without measurements, and `because` of what.  Another one takes its place when
    it is faster by `MARGIN` and their intervals do not touch; `flat` already when it is faster by
    `FLAT_MARGIN` and its median is below the other's interval, since nobody is to be slower by plans than
    without.
    """
    if not times:
        return unmeasured, because
    mine = times.get(unmeasured)
    if mine is None:
        return unmeasured, f"{because}; it was not measured"
    faster = [
        name for name, one in times.items() if one.surely_below(mine) and one.time_s * MARGIN < mine.time_s
    ]
    best = min(faster, key=lambda name: (times[name].time_s, name), default=unmeasured)
    flat = times.get("flat")
    if flat is not None and flat.time_s < min(times[best].time_s / FLAT_MARGIN, times[best].low_s):
        return "flat", f"measured: {best}, else taken, is slower than flat"
    if best != unmeasured:
        return best, f"measured: faster than {unmeasured} ({because})"
    return best, f"{because}; measured: none is surely faster"
