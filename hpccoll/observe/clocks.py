"""One clock for the ranks of several hosts.

Ranks of one host share the monotonic clock.  Between hosts the wall clocks are a first guess; what ranks did
together corrects it: nobody is done with a synchronising call before everybody has come to it.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Sequence

from hpccoll.observe import form
from hpccoll.observe.reading import Call, RankTrace

SYNCHRONISING = ("allreduce", "allgather", "alltoall", "barrier", "reduce_scatter")
NEVER_NS = 2**80


class Clocks:
    """Times of all ranks of one communicator, in ns since the epoch."""

    def __init__(self, traces: Sequence[RankTrace]) -> None:
        hosts: dict[str, list[RankTrace]] = defaultdict(list)
        for trace in traces:
            hosts[_clock(trace)].append(trace)
        self._offsets = {
            host: sum(one.wall_ns - one.monotonic_ns for one in ranks) // len(ranks)
            for host, ranks in hosts.items()
        }
        first, *others = hosts
        for host in others:
            low, high = _bounds(hosts[first], hosts[host])
            low, high = low + self._offsets[first], high + self._offsets[first]
            if low <= high:
                self._offsets[host] = min(max(self._offsets[host], low), high)

    def of(self, trace: RankTrace, monotonic_ns: int) -> int:
        """A time of a rank's clock."""
        return monotonic_ns + self._offsets[_clock(trace)]


def _clock(trace: RankTrace) -> str:
    return trace.host if trace.pid_space == "unknown" else trace.pid_space.split(".")[0]


def _bounds(here: Sequence[RankTrace], there: Sequence[RankTrace]) -> tuple[int, int]:
    """What must be added to the clock there to have that here, at least and at most."""
    low, high = -NEVER_NS, NEVER_NS
    for sequence in set.intersection(*(set(one.calls) for one in (*here, *there))):
        ours, theirs = _times(here, sequence), _times(there, sequence)
        if ours is not None and theirs is not None:
            low = max(low, ours[0] - theirs[1])
            high = min(high, ours[1] - theirs[0])
    return low, high


def _times(traces: Sequence[RankTrace], sequence: int) -> tuple[int, int] | None:
    """When the last of these came to a synchronising call, and when the first was done with it."""
    calls: list[Call] = [one.calls[sequence] for one in traces]
    if any(one.state != form.DONE or one.collective not in SYNCHRONISING for one in calls):
        return None
    return max(one.entered_ns for one in calls), min(one.ended_ns for one in calls)
