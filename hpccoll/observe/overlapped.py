"""How long communication was under way, and how much of that the program has waited for."""

from __future__ import annotations

from dataclasses import dataclass


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
    def mean(self) -> Times:
        """Those of a mean step."""
        count = max(1, self.steps)
        return Times(
            min(1, self.steps), self.in_flight_s / count, self.exposed_s / count, self.wait_s / count
        )

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


NO_STEPS = Times()
