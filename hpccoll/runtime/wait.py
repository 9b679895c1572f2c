"""The one place where a rank waits: with a deadline, a look at the abort flag, and the core yielded."""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Generator
from typing import Any, TypeVar

from hpccoll.runtime.agreement import Hint

T = TypeVar("T")

# So many turns without a result before the core is yielded, and before it is slept on.
SPINS = 20
YIELDS = 4000
SLEEP_S = 50e-6
HINT_S = 2e-3


def drive(
    stages: Generator[Hint | None, Any, T],
    deadline: float,
    aborted: Callable[[], None],
    late: Callable[[], Exception],
) -> T:
    """Run a generator of waits to its end.

    `aborted` raises when the communicator was given up elsewhere; `late()` is raised at `deadline` (of
    time.monotonic).
    """
    turns = 0
    while True:
        try:
            hint = next(stages)
        except StopIteration as end:
            result: T = end.value
            return result
        turns += 1
        if turns > SPINS or hint is not None:
            if turns % 16 == 0 or hint is not None:
                aborted()
                if time.monotonic() > deadline:
                    raise late()
            if hint is not None:
                hint(HINT_S)
            elif turns < YIELDS:
                os.sched_yield()
            else:
                time.sleep(SLEEP_S)
