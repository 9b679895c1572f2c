"""The one place where a rank waits: with a deadline, a look at the abort flag, and the core yielded."""

from __future__ import annotations

import time
from collections.abc import Callable, Generator
from typing import Any, TypeVar

from hpccoll.cores import give_core

# What a generator yields: a wait that `drive` may do instead of asking again (wait(seconds) returns early
# when it is over), MOVED when something was completed since, or None.
Hint = Callable[[float], object]
Waits = Generator["Hint | None", None, None]


def MOVED(seconds: float) -> None:  # noqa: N802 - a constant, with the type of a hint
    """Nothing to wait for."""


T = TypeVar("T")

# So long the core is yielded at every turn; then the rank sleeps between turns.
YIELD_S = 20e-3
SLEEP_S = 50e-6
# A wait in shared memory may sleep so long before MPI is given a turn.
HINT_S = 200e-6


def drive(
    stages: Generator[Hint | None, Any, T],
    deadline: float,
    aborted: Callable[[], None],
    progress: Callable[[], object],
    late: Callable[[float], Exception | None],
    *,
    spin_s: float = 0.0,
) -> T:
    """Run a generator of waits to its end.

    `aborted` raises when the communicator was given up elsewhere; `late(s)` is raised s seconds after
    `deadline` (of time.monotonic), unless it is None yet.  `progress` gives MPI a turn: the caller may have
    messages of its own under way, for which other ranks wait before they come here.  `spin_s`: so long a
    wait keeps the core.
    """
    aborted()  # what others gave up while this rank was elsewhere is not to be completed
    turns = 0
    pressing = False  # a turn for MPI
    now = began = time.monotonic()
    while True:
        try:
            hint = next(stages)
        except StopIteration as end:
            result: T = end.value
            return result
        turns += 1
        if pressing or turns % 16 == 0 or hint is not None:
            pressing = False
            now = time.monotonic()
            aborted()
            progress()
            if now > deadline and (error := late(now - deadline)) is not None:
                raise error
        if hint is MOVED:
            began = now
        elif now - began > spin_s + YIELD_S:
            time.sleep(SLEEP_S)
            now = time.monotonic()
        elif hint is not None:
            hint(HINT_S)
        elif now - began >= spin_s:
            pressing = give_core()
