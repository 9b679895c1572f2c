"""How this program ends: what the other ranks are told of it, and that it does end.

After a lost rank, a deadline or a wrong checksum MPI_Finalize would wait for ranks that may never come.  A
program that such an error ends therefore aborts the job where it would have finalised, once the others have
had time to say what they saw.
"""

from __future__ import annotations

import functools
import os
import sys
import time
import traceback
from collections.abc import Callable, Mapping
from types import TracebackType

from mpi4py.run import set_abort_status

from hpccoll.errors import AbortedError, CollectiveTimeoutError, IntegrityError, PeerLostError

GRACE_S = 1.0
BREAKING = (PeerLostError, CollectiveTimeoutError, IntegrityError, AbortedError)
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
    if _uncaught and isinstance(_uncaught[-1], BREAKING):
        sys.stdout.flush()
        sys.stderr.flush()
        time.sleep(GRACE_S)
        set_abort_status(1)


def why_no_shrink(environ: Mapping[str, str], library: str) -> str:
    """Why this MPI cannot go on without a rank that was lost; empty where it can, or where that is not known.

    `library`: what MPI says that it is.
    """
    if library.startswith("Open MPI"):
        # Which mpirun sets for its ranks.
        if environ.get("OMPI_MCA_mpi_ft_enable", "").lower() in ("1", "true", "yes"):
            return ""
        return "Open MPI goes on without a lost rank only when started by mpirun --with-ft ulfm"
    if any(sign in library for sign in ("MPICH", "Intel", "MVAPICH", "CRAY")):
        name = library.split("\n")[0].strip()[:60]
        return f"{name} cannot go on without a lost rank: Open MPI 5, by mpirun --with-ft ulfm, can"
    return ""
