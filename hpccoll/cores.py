"""How a wait gives the core to others; the C extension does the same (`_native/wait.c`)."""

from __future__ import annotations

import os
import time

# Who yields again and again where others compute may be let in after a whole slice of theirs each time (3 ms
# on Linux 6.18); who sleeps is let in soon.  A yield so long shows that others compute, and for a while
# sleeps take the place of yields.
LONG_YIELD_S = 50e-6
CROWDED_S = 0.2
NAP_S = 20e-6

_crowded_until = 0.0


def give_core() -> bool:
    """Let others compute for a moment; True when so much time passed that MPI should have a turn."""
    global _crowded_until  # the threads of a process share its cores
    before = time.monotonic()
    if before < _crowded_until:
        time.sleep(NAP_S)
        return True
    os.sched_yield()
    after = time.monotonic()
    if after - before > LONG_YIELD_S:
        _crowded_until = after + CROWDED_S
        return True
    return False
