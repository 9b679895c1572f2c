"""One clock for the ranks of several hosts.

Ranks of one host share the monotonic clock.  Between hosts messages there and back measure how far clocks
are apart, where a timeline is wanted (alignment.py, JobClocks).  Else the wall clocks are a first guess; what
ranks did together corrects it: nobody is done with a synchronising call before everybody has come to it.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass

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


@dataclass(frozen=True)
class Offset:
    """How far the reference is ahead of a clock, in ns: at two moments of that clock, a line between them.

    `error_ns`: at most so far from the truth, as the messages say that measured it; None where none did, and
    wall clocks and calls in which all wait for all had to serve.
    """

    at_ns: tuple[int, int] = (0, 0)
    offset_ns: tuple[int, int] = (0, 0)
    error_ns: int | None = 0

    @property
    def drift_ppm(self) -> float | None:
        """By how many microseconds a second the reference is faster; None where it was measured once."""
        span = self.at_ns[1] - self.at_ns[0]
        return 1e6 * (self.offset_ns[1] - self.offset_ns[0]) / span if span > 0 else None

    def of(self, at_ns: int) -> int:
        """A time of the clock as one of the reference."""
        span = self.at_ns[1] - self.at_ns[0]
        if span <= 0:
            return at_ns + self.offset_ns[0]
        slope = self.offset_ns[1] - self.offset_ns[0]
        return at_ns + self.offset_ns[0] + round(slope * ((at_ns - self.at_ns[0]) / span))

    def then(self, other: Offset) -> Offset:
        """First this one, and from its reference on to that of another."""
        ends = [other.of(self.of(at)) - at for at in self.at_ns]
        known = self.error_ns is not None and other.error_ns is not None
        error = (self.error_ns or 0) + (other.error_ns or 0) if known else None
        return Offset(self.at_ns, (ends[0], ends[1]), error)


class JobClocks:
    """All clocks of a job's ranks against one of them, that of the first communicator's lowest rank."""

    def __init__(self, traces: Sequence[RankTrace]) -> None:
        by_communicator: dict[str, list[RankTrace]] = defaultdict(list)
        for one in sorted(traces, key=lambda one: one.rank):
            by_communicator[one.communicator].append(one)
        ordered = sorted(by_communicator.values(), key=lambda ranks: min(one.wall_ns for one in ranks))
        self.reference = ordered[0][0].clock
        self.offsets = {self.reference: Offset()}
        for _ in ordered:  # again: what one communicator reaches, another may go on from
            for ranks in ordered:
                self._reach(ranks)
        self._guess(ordered)

    def of(self, trace: RankTrace, monotonic_ns: int) -> int:
        """A time of a rank's clock, by the reference."""
        return self.offsets[trace.clock].of(monotonic_ns)

    def _reach(self, ranks: Sequence[RankTrace]) -> None:
        """Clocks of a communicator that are measured against its rank 0's, whose own is known."""
        to_first = {one.clock: _measured(one) for one in ranks if one.measurements}
        if ranks[0].rank == 0:
            to_first[ranks[0].clock] = Offset()
        known = next((clock for clock in to_first if clock in self.offsets), None)
        if known is None:
            return
        from_first = self.offsets[known] if to_first[known] == Offset() else _inverse(to_first[known])
        if to_first[known] != Offset():
            from_first = from_first.then(self.offsets[known])
        for clock, offset in to_first.items():
            self.offsets.setdefault(clock, offset.then(from_first))

    def _guess(self, communicators: Sequence[Sequence[RankTrace]]) -> None:
        """Clocks that nobody has measured: by wall clocks, corrected by what ranks did together."""
        for ranks in communicators:
            here = [one for one in ranks if one.clock in self.offsets]
            there = [one for one in ranks if one.clock not in self.offsets]
            if here and there:
                guessed = Clocks([*here, *there])
                for one in there:
                    ahead = guessed.of(one, 0) - guessed.of(here[0], 0) + self.offsets[here[0].clock].of(0)
                    self.offsets.setdefault(one.clock, Offset((0, 0), (ahead, ahead), None))


def _measured(trace: RankTrace) -> Offset:
    """A rank's clock against rank 0's."""
    first, last = trace.measurements[0], trace.measurements[-1]
    middle = [(one.begin_ns + one.end_ns) // 2 for one in (first, last)]
    return Offset(
        (middle[0], middle[1]), (first.offset_ns, last.offset_ns), max(first.error_ns, last.error_ns)
    )


def _inverse(offset: Offset) -> Offset:
    """From the reference back to the clock."""
    at = [offset.of(one) for one in offset.at_ns]
    return Offset((at[0], at[1]), (-offset.offset_ns[0], -offset.offset_ns[1]), offset.error_ns)
