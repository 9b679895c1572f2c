"""The first steps of a communicator: a private duplicate, and the same settings on all ranks.

All of it is agreed by all ranks and limited in time.
"""

from __future__ import annotations

import json
import time
from collections.abc import Mapping
from dataclasses import asdict

from mpi4py import MPI

from hpccoll._version import __version__
from hpccoll.config import Config
from hpccoll.errors import CollectiveTimeoutError, MismatchError
from hpccoll.topology.agreement import call_roll, gather, roll_is_called
from hpccoll.topology.notation import format_ranks, sides_of

ROLL_S = 1.0  # to find out who is missing
_PURPOSE = "first use of the communicator"
_abandoned: list[object] = []  # MPI may still complete it, when a late rank comes


def duplicate(comm: MPI.Intracomm, deadline: float) -> MPI.Intracomm:
    """A private duplicate, on which our messages never meet the user's.

    Collective.  `deadline`: of time.monotonic.  Only when it has passed are there messages of ours on the
    user's communicator, with tags next to the largest: without them nobody knows who is missing.

    Raises: CollectiveTimeoutError when not all ranks come in time, on each that has come; it names the rest.
    """
    began = time.monotonic()
    plain = MPI.Intracomm(comm)
    # Open MPI has it on the world and its duplicates only, not on what Split makes, nor on COMM_SELF.
    largest: int = MPI.COMM_WORLD.Get_attr(MPI.TAG_UB)  # type: ignore[assignment]
    tags = largest - 1, largest - 2
    begun = plain.Idup()
    turns = 0
    while (called := turns % 64 == 0 and roll_is_called(plain, tags)) or not begun[1].Test():
        turns += 1
        if called or time.monotonic() > deadline:
            _abandoned.append(begun)
            call_roll(plain, time.monotonic() + ROLL_S, _PURPOSE, tags, began)
            raise CollectiveTimeoutError(
                f"{_PURPOSE}: all ranks came, but only after {time.monotonic() - began:.1f} s", rank=comm.rank
            )
        time.sleep(0)
    private = begun[0]
    call_roll(private, deadline, _PURPOSE)
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
    """Raises MismatchError on every rank, naming the sides, when settings or versions of hpccoll differ."""
    own = {"version": __version__, **asdict(config)}
    found = gather(private, json.dumps(own).encode(), deadline, "settings")
    if len(set(found)) == 1:
        return
    said = [json.loads(one) for one in found]
    words = []
    for name in dict.fromkeys(key for one in said for key in one):
        sides = sides_of(repr(one[name]) if name in one else "(not known)" for one in said)
        if len(sides) > 1:
            texts = (f"{value} on {format_ranks(ranks)}" for value, ranks in sides.items())
            words.append(f"{name} is {', '.join(texts)}")
    raise MismatchError(f"the ranks have different settings: {'; '.join(words)}", rank=private.rank)
