"""Our communicator in the place of MPI.COMM_WORLD, for programs that cannot be edited.

`python -m hpccoll script.py` does it before the script's first line, `hpccoll.install()` from then on.
"""

from __future__ import annotations

import copyreg
from collections.abc import Callable
from typing import Any

from mpi4py import MPI

from hpccoll.communicator import Communicator
from hpccoll.errors import UsageError

PLAIN = MPI.COMM_WORLD
_installed: list[tuple[Communicator, dict[str, Any]]] = []


def install(**options: Any) -> Communicator:
    """Put a `Communicator` of all ranks in the place of `MPI.COMM_WORLD`, and return it.  Local.

    Whoever says `MPI.COMM_WORLD` from now on gets it.  Who has taken the name before keeps mpi4py's: modules
    with `from mpi4py.MPI import COMM_WORLD`, default arguments, attributes.  Both are one MPI handle and
    compare equal, so that messages between them match; a collective must be made by all ranks on the same
    kind.  Both can be pickled; what comes back is ours.

    Args:
        **options: fields of `hpccoll.config.Config`, the same on every rank.

    Returns:
        The communicator; the same one for every call.

    Raises:
        UsageError: an option is unknown or wrong, or differs from those of an earlier call.

    """
    if _installed:
        comm, before = _installed[0]
        if options and options != before:
            raise UsageError(
                f"hpccoll.install({options}): it is installed already, with {before or 'no options'}"
            )
        return comm
    comm = Communicator(PLAIN, **options)
    _installed.append((comm, options))
    MPI.COMM_WORLD = comm  # type: ignore[misc]
    # Pickle asks by name whether an object is still the one of that name, and mpi4py's no longer is.
    copyreg.pickle(MPI.Intracomm, _reduce)
    copyreg.pickle(Communicator, _reduce)
    return comm


def world() -> MPI.Intracomm:
    """What a pickled world communicator becomes: ours where it is installed, else mpi4py's."""
    return _installed[0][0] if _installed else MPI.COMM_WORLD


def _reduce(comm: MPI.Intracomm) -> str | tuple[Callable[..., Any], tuple[Any, ...]]:
    return (world, ()) if comm == PLAIN else comm.__reduce__()
