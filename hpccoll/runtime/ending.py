"""How this program ends: what the other ranks are told of it, and that it does end.

After a lost rank or a deadline MPI_Finalize would wait for ranks that may never come.  A program that such an
error ends therefore aborts the job where it would have finalised, once the others have had time to say what
they saw.
"""

from __future__ import annotations

import functools
import os
import sys
import time
import traceback
from collections.abc import Callable
from types import TracebackType

from mpi4py.run import set_abort_status

from hpccoll.errors import AbortedError, CollectiveTimeoutError, PeerLostError

GRACE_S = 1.0
_uncaught: list[BaseException] = []


@functools.cache
def watch() -> None:
    """From now on note what ends the program; once in a process."""
    sys.excepthook = functools.partial(_note, sys.excepthook, os.getpid())


def _note(
    before: Callable[[type[BaseException], BaseException, TracebackType | None], object],
    process: int,
    kind: type[BaseException],
    error: BaseException,
    trace: TracebackType | None,
) -> None:
    if os.getpid() == process:  # what ends a forked child ends nobody else
        _uncaught.append(error)
    before(kind, error, trace)


def why() -> str:
    """Why this program ends, for the other ranks: what was raised and by which lines."""
    if not _uncaught:
        return "its program has ended"
    error = _uncaught[-1]
    words = "".join(traceback.format_exception_only(error)).strip()[:600]
    where = ", from ".join(
        f"{os.path.basename(frame.filename)}:{frame.lineno} ({frame.name})"
        for frame in reversed(traceback.extract_tb(error.__traceback__)[-3:])
        if not frame.filename.startswith("<frozen")
    )
    return f"{words}, at {where}"[:900] if where else words


def end_the_job() -> None:
    """Abort in place of MPI_Finalize, where this could wait for ever."""
    if _uncaught and isinstance(_uncaught[-1], (PeerLostError, CollectiveTimeoutError, AbortedError)):
        sys.stdout.flush()
        sys.stderr.flush()
        time.sleep(GRACE_S)
        set_abort_status(1)
