"""Which rank comes late to the calls that all have made."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping
from dataclasses import dataclass
from statistics import median

from hpccoll.observe.clocks import SYNCHRONISING, Clocks
from hpccoll.observe.reading import RankTrace
from hpccoll.plans.text import time_text

FEWEST_CALLS = 4
MOST = 0.6  # of all waiting, that for one rank
MUCH = 0.2  # of the time, the others wait for it


@dataclass(frozen=True)
class Skew:
    """A rank that was the last in `late` of `calls` calls.

    `waited_s`: how long the others (the middle one of them) waited for it in these; `share`: of the time
    between the first and the last call.
    """

    rank: int
    late: int
    calls: int
    waited_s: float
    share: float

    def __str__(self) -> str:
        return (
            f"rank {self.rank} was the last in {self.late} of the last {self.calls} calls; the others waited "
            f"{time_text(self.waited_s)} for it, {self.share:.0%} of the time"
        )


def find_skew(ranks: Mapping[int, RankTrace], clocks: Clocks) -> Skew | None:
    """The rank that the others wait for most, if they do so often."""
    if len(ranks) < 2:
        return None
    common = set.intersection(*(set(one.calls) for one in ranks.values()))
    entered = []
    for sequence in sorted(common):
        calls = {rank: one.calls[sequence] for rank, one in ranks.items()}
        if all(call.collective in SYNCHRONISING for call in calls.values()):
            entered.append({rank: clocks.of(ranks[rank], call.entered_ns) for rank, call in calls.items()})
    if len(entered) < FEWEST_CALLS:
        return None
    last = [max(times, key=times.__getitem__) for times in entered]
    waits: dict[int, list[int]] = defaultdict(list)
    for times, rank in zip(entered, last, strict=True):
        waits[rank].append(int(times[rank] - median(one for other, one in times.items() if other != rank)))
    # Without the longest, which may be that of a start, or of one accident.
    again = {rank: sum(found) - max(found) for rank, found in waits.items()}
    rank = max(again, key=again.__getitem__)
    span = max(entered[-1].values()) - min(entered[0].values())
    if again[rank] <= 0 or again[rank] < MOST * sum(again.values()) or again[rank] < MUCH * span:
        return None
    waited = sum(waits[rank])
    return Skew(rank, len(waits[rank]), len(entered), waited / 1e9, min(waited / span, 1.0))
