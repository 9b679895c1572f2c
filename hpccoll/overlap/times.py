"""How long communication was under way, and how much of that the program has waited for."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from hpccoll.overlap.grouping import runs


@dataclass(frozen=True)
class Times:
    """Seconds of this rank, of so many steps.

    `in_flight_s`: at least one bucket was under way, waiting for other ranks included.  `exposed_s`: of that,
    while the program was in `wait()`.  `wait_s`: all of `wait()`, what it copies included.
    """

    steps: int = 0
    in_flight_s: float = 0.0
    exposed_s: float = 0.0
    wait_s: float = 0.0

    @property
    def hidden_s(self) -> float:
        """Communication that went on while the program did other things."""
        return max(0.0, self.in_flight_s - self.exposed_s)

    @property
    def hidden_percent(self) -> float:
        """Of the time under way; 0 where there was none."""
        return 100.0 * self.hidden_s / self.in_flight_s if self.in_flight_s > 0 else 0.0

    def __add__(self, other: Times) -> Times:
        return Times(
            self.steps + other.steps,
            self.in_flight_s + other.in_flight_s,
            self.exposed_s + other.exposed_s,
            self.wait_s + other.wait_s,
        )


def times_of(under_way: Sequence[tuple[float, float]], waited: tuple[float, float]) -> Times:
    """One step's, from begin and end of each bucket and of the wait, on one clock."""
    apart = tuple(runs(under_way))
    begin, end = waited
    exposed_s = sum(max(0.0, min(end, last) - max(begin, first)) for first, last in apart)
    return Times(1, sum(last - first for first, last in apart), exposed_s, end - begin)
