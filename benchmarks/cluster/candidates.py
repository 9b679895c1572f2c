"""The ways to all-reduce that are compared between hosts.

MPI's own, each plan of hpccoll, its own choice, and its choice with other settings of the communicator.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

if TYPE_CHECKING:
    from mpi4py import MPI
    from numpy.typing import NDArray

    import hpccoll

    Vector = NDArray[np.float32]

MPI_ALONE = "mpi"
AUTOMATIC = "auto"
# Settings that are tried wherever hpccoll knows them; float32 sums that travel as bfloat16.
SETTINGS = ("wire_dtype=bfloat16",)


@dataclass(frozen=True)
class Candidate:
    """One way to all-reduce a message: its plan with all details, and the bytes the busiest node sends."""

    name: str
    call: Callable[[Vector, Vector], object]
    plan: str = ""
    modelled_bytes: int | None = None


class Communicators:
    """Those that candidates need, over one world; `left_out` says why some settings have none.

    Args:
        world: all ranks.
        settings: each as "name=value" or "name=value,name=value", fields of `hpccoll.config.Config`.
        with_hpccoll: without it hpccoll is not even imported, and MPI runs as it would alone.

    """

    def __init__(self, world: MPI.Intracomm, settings: Sequence[str], *, with_hpccoll: bool = True) -> None:
        self.world = world
        self.plain: hpccoll.Communicator | None = None
        self.with_settings: dict[str, hpccoll.Communicator] = {}
        self.left_out: dict[str, str] = {}
        if not with_hpccoll:
            return
        import hpccoll

        self.plain = hpccoll.Communicator(world)
        for text in settings:
            name = f"{AUTOMATIC} {text}"
            try:
                self.with_settings[name] = hpccoll.Communicator(world, **parse_settings(text))
            except hpccoll.UsageError as error:
                self.left_out[name] = str(error)

    def close(self) -> None:
        """Give back what they hold; all ranks call it."""
        for comm in (self.plain, *self.with_settings.values()):
            if comm is not None:
                comm.close()

    def candidates(self, nbytes: int, wanted: Sequence[str] | None) -> list[Candidate]:
        """Every way for this layout and size; of these the wanted ones.

        Raises: SystemExit where a wanted one does not exist.
        """
        found = [Candidate(MPI_ALONE, self.world.Allreduce)]
        if self.plain is not None:
            order = self.plain.algorithms("allreduce").index
            plans = self.plain.explain("allreduce", nbytes).candidates
            for each in sorted(plans, key=lambda each: order(each.name)):
                call = _forced(self.plain, each.name)
                found.append(Candidate(each.name, call, each.plan, each.bytes_between_nodes))
            for name, comm in {AUTOMATIC: self.plain, **self.with_settings}.items():
                best = comm.explain("allreduce", nbytes).candidates[0]
                found.append(Candidate(name, comm.Allreduce, best.plan, best.bytes_between_nodes))
        unknown = set(wanted or ()) - {candidate.name for candidate in found}
        if unknown:
            names = ", ".join(candidate.name for candidate in found)
            raise SystemExit(
                f"no algorithm {', '.join(sorted(unknown))} for {nbytes} bytes here; there are {names}"
            )
        return [candidate for candidate in found if not wanted or candidate.name in wanted]


def parse_settings(text: str) -> dict[str, str]:
    """Of "name=value,name=value".

    Raises: ValueError, naming the part that is no pair.
    """
    found = {}
    for part in text.split(","):
        name, sign, value = part.partition("=")
        if not (name and sign and value):
            raise ValueError(f"{part!r} in {text!r} is not name=value")
        found[name] = value
    return found


def _forced(comm: hpccoll.Communicator, name: str) -> Callable[[Vector, Vector], None]:
    def call(send: Vector, receive: Vector) -> None:
        with comm.forced(name):
            comm.Allreduce(send, receive)

    return call
