"""How a wait gives the core to others; the C extension does the same (`_native/wait.c`)."""

from __future__ import annotations

import os
import time

# Who yields again and again where others compute may be let in after a whole slice of theirs each time (3 ms
# on Linux 6.18); who sleeps is let in soon, but sees a sleep later what it waits for.  So sleeps take the
# place of yields where long yields follow each other soon, in a fifth of their time: for 2 ms, then for twice
# as long each time while the yields between are long.
LONG_YIELD_S = 400e-6
SOON = 0.2
CROWDED_S = 2e-3
MOST_CROWDED_S = 0.2
NAP_S = 20e-6

# Of all threads, which share the cores: when the last long yield or the sleeps end, and how long those last.
_calm_since = 0.0
_crowded_s = 0.0


def give_core() -> bool:
    """Let others compute for a moment; True when so much time passed that MPI should have a turn."""
    global _calm_since, _crowded_s
    before = time.monotonic()
    calm_s = before - _calm_since
    if calm_s < 0:
        time.sleep(NAP_S)
        return True
    os.sched_yield()
    after = time.monotonic()
    if after - before <= LONG_YIELD_S:
        return False
    soon = calm_s < SOON * (after - before)
    _crowded_s = min(max(2 * _crowded_s, CROWDED_S), MOST_CROWDED_S) if soon else 0.0
    _calm_since = after + _crowded_s
    return True
