"""The one place where a rank waits: with a deadline, a look at the abort flag, and the core yielded."""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Generator
from typing import Any, TypeVar

# A wait that `drive` may do instead of asking again: wait(seconds) returns early when it is over.
Hint = Callable[[float], object]
Waits = Generator["Hint | None", None, None]

T = TypeVar("T")

# So many turns without a result before the core is yielded, and before it is slept on.
SPINS = 20
YIELDS = 4000
SLEEP_S = 50e-6
# A wait in shared memory may sleep so long before MPI is given a turn.
HINT_S = 200e-6


def drive(
    stages: Generator[Hint | None, Any, T],
    deadline: float,
    aborted: Callable[[], None],
    progress: Callable[[], object],
    late: Callable[[], Exception],
) -> T:
    """Run a generator of waits to its end.

    `aborted` raises when the communicator was given up elsewhere; `late()` is raised at `deadline` (of
    time.monotonic).  `progress` gives MPI a turn: the caller may have messages of its own under way, for
    which other ranks wait before they come here.
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
                progress()
                if time.monotonic() > deadline:
                    raise late()
            if hint is not None:
                hint(HINT_S)
            elif turns < YIELDS:
                os.sched_yield()
            else:
                time.sleep(SLEEP_S)
