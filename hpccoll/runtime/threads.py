"""Threads of ours, which the system may have none of to give (limits of processes, or of address space)."""

from __future__ import annotations

import threading
import warnings
from collections.abc import Callable

# What does without: who reads this must know what is lost.
_LOST = {
    "hpccoll-watch": "no connections to other nodes: the loss of a rank there is known at the deadline",
    "hpccoll-progress": "started calls move on only while this rank is in hpccoll",
    "hpccoll-devices": "why a call on a device cannot be completed is known at the next call only",
}


def started_thread(run: Callable[[], None], name: str) -> threading.Thread | None:
    """A daemon thread that runs a function; None, and a RuntimeWarning, where the system gives none."""
    thread = threading.Thread(target=run, name=name, daemon=True)
    try:
        thread.start()
    except RuntimeError as error:
        warnings.warn(
            f"{error} ({name}; raise ulimit -u, ulimit -v or the job's limits): {_LOST[name]}",
            RuntimeWarning,
            stacklevel=2,
        )
        return None
    return thread
