"""What commands write besides the table: JSON and pictures, by rank 0, with the same end on all ranks."""

from __future__ import annotations

import json
import sys
import time
from collections.abc import Callable
from typing import TYPE_CHECKING, Any, TypeVar

from hpccoll import files
from hpccoll.errors import UsageError

if TYPE_CHECKING:
    from mpi4py import MPI

STANDARD_OUTPUT = "-"
LINGER_S = 0.2  # mpiexec drops what a rank writes in its last moment
JSON_HELP = 'write it to FILE as JSON; "-": to standard output alone'

_T = TypeVar("_T")


def json_text(document: object) -> str:
    """A document as JSON, in ASCII: so it is the same in every locale, whatever a host is called."""
    return json.dumps(document, indent=2) + "\n"


def write_json(path: str, document: object) -> None:
    """Write a document to a file, or to standard output.  Raises: UsageError, as `files.write_text`."""
    if path == STANDARD_OUTPUT:
        sys.stdout.write(json_text(document))
        sys.stdout.flush()  # srun may end this process as soon as another one ends
    else:
        files.write_text(path, json_text(document))


def check_writable(world: MPI.Intracomm, *paths: str | None) -> None:
    """Raises UsageError on all ranks when rank 0 cannot write one of the files.  Collective.

    Args:
        world: of all ranks.
        *paths: the same on all ranks.  Without any nothing is sent: the network may be what is looked at.

    """
    named = [path for path in paths if path is not None and path != STANDARD_OUTPUT]

    def check() -> None:
        for path in named:
            files.check_writable(path)

    if named:
        by_rank_0(world, check)


def abort(world: MPI.Intracomm, status: int) -> None:
    """End all ranks, when what this one has written last has had time to get through the launcher."""
    sys.stdout.flush()
    sys.stderr.flush()
    time.sleep(LINGER_S)
    world.Abort(status)


def all_come(world: MPI.Intracomm, patience_s: float) -> bool:
    """Whether all ranks come here within so many seconds.  Collective, if they do."""
    deadline = time.monotonic() + patience_s
    request = world.Ibarrier()
    while not request.Test():
        if time.monotonic() > deadline:
            return False
        time.sleep(0.01)
    return True


def by_rank_0(world: MPI.Intracomm, action: Callable[[], _T]) -> _T:
    """Let rank 0 do something; all get what it returned.  Collective.

    Raises: UsageError on all ranks, where the action raised it.
    """
    told: tuple[Any, str | None] = None, None
    if world.rank == 0:
        try:
            told = action(), None
        except UsageError as error:
            told = None, str(error)
    found, why = world.bcast(told)
    if why is not None:
        raise UsageError(why)
    return found  # type: ignore[no-any-return]
