"""The first steps of a communicator: a private duplicate, and the same settings on all ranks.

All of it is agreed by all ranks and limited in time.
"""

from __future__ import annotations

import time
from collections.abc import Mapping

from mpi4py import MPI

from hpccoll.config import Config
from hpccoll.errors import CollectiveTimeoutError, MismatchError
from hpccoll.topology.agreement import call_roll, gather
from hpccoll.topology.notation import format_ranks


def duplicate(comm: MPI.Intracomm, deadline: float) -> MPI.Intracomm:
    """A private duplicate, on which our messages never meet the user's.

    Collective.  `deadline`: of time.monotonic.

    Raises: CollectiveTimeoutError when not all ranks come in time.
    """
    plain = MPI.Intracomm(comm)
    private, request = plain.Idup()
    while not request.Test():
        if time.monotonic() > deadline:
            raise CollectiveTimeoutError(
                f"rank {comm.rank} of {comm.size}: not all ranks came to the first use of the communicator "
                "before init_timeout_s",
                rank=comm.rank,
            )
        time.sleep(0)
    call_roll(private, deadline, "first use of the communicator")
    return private


def ranks_on_host(environ: Mapping[str, str]) -> int:
    """How many ranks of the whole job the launcher has put on this host; 1 when it does not say.

    Other communicators' ranks use the same cores as this one's.
    """
    for name in ("MPI_LOCALNRANKS", "OMPI_COMM_WORLD_LOCAL_SIZE", "MV2_COMM_WORLD_LOCAL_SIZE"):
        if environ.get(name, "").isdecimal():
            return int(environ[name])
    return 1


def check_same_settings(private: MPI.Intracomm, config: Config, deadline: float) -> None:
    """Raises MismatchError on every rank, naming the sides, when the settings differ."""
    texts = [text.decode() for text in gather(private, config.digest().encode(), deadline, "settings")]
    if len(set(texts)) > 1:
        sides = {text: [rank for rank, one in enumerate(texts) if one == text] for text in set(texts)}
        raise MismatchError(
            "the ranks have different settings: "
            + "; ".join(f"{format_ranks(ranks)}: {text}" for text, ranks in sorted(sides.items())),
            rank=private.rank,
        )
