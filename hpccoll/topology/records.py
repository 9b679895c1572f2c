"""What each rank tells all others before they agree on a machine, and the check that it fits together."""

from __future__ import annotations

import hashlib
import json
import os
from collections.abc import Sequence
from dataclasses import dataclass

from hpccoll import _native
from hpccoll.errors import TopologyError, UsageError
from hpccoll.topology.fabric import own_fabric
from hpccoll.topology.hosts import HostFacts, read_host_facts
from hpccoll.topology.layout import Layout
from hpccoll.topology.notation import format_ranks

OUTSIDE = -1
"""The world rank of a rank that is not in MPI.COMM_WORLD."""


@dataclass(frozen=True)
class Record:
    """What one rank tells the others.

    Attributes:
        facts: its `HostFacts`, as JSON.
        layout: the layout that it was given, shortened; "" for none.
        nodes: a digest of the nodes of that layout, whose text can be long; "" for none.
        error: what is wrong with it; "" for nothing.
        world_size: the size of its MPI.COMM_WORLD.
        native: it uses the C extension.
        cores: those that it may use, as the bits of a number in hexadecimal digits.
        fabric: the NVLink fabric that its GPUs are on; "" where none reaches beyond the host.

    """

    facts: str
    layout: str
    nodes: str
    error: str
    world_size: int
    native: bool
    cores: str
    fabric: str

    def to_bytes(self) -> bytes:
        """JSON."""
        return json.dumps(vars(self)).encode()

    @staticmethod
    def from_bytes(data: bytes) -> Record:
        """What another rank sent.

        Raises:
            TopologyError: it is not what `to_bytes` makes.

        """
        try:
            return Record(**json.loads(data))
        except (ValueError, TypeError) as error:
            raise TopologyError(
                f"a rank sent a record that this one cannot read ({error}): do all run the same hpccoll?"
            ) from error

    def host_facts(self) -> HostFacts:
        """The facts about the rank's node."""
        return HostFacts.from_bytes(self.facts.encode())


def own_record(
    text: str | None, shm_directory: str, world_size: int, world_ranks: Sequence[int]
) -> tuple[Layout | None, Record]:
    """The layout of MPI.COMM_WORLD given here (None: none, or a wrong one) and this rank's record.  Local.

    Args:
        text: the layout as the user gave it; None or "" for none.
        shm_directory: where shared memory segments are made.
        world_size: the size of MPI.COMM_WORLD.
        world_ranks: the rank in it of every rank of the communicator, or `OUTSIDE`.

    """
    stated, error = None, ""
    try:
        if text:
            stated = _stated_layout(text, world_size, world_ranks)
    except UsageError as refused:
        error = str(refused)
    return stated, Record(
        facts=read_host_facts(shm_directory).to_bytes().decode(),
        layout="" if stated is None else stated.shortened(),
        nodes="" if stated is None else hashlib.sha256(repr(stated.node_of).encode()).hexdigest(),
        error=error,
        world_size=world_size,
        native=_native.available(),
        cores=f"{sum(1 << core for core in os.sched_getaffinity(0)):x}",
        fabric=own_fabric(os.environ),
    )


def _stated_layout(text: str, world_size: int, world_ranks: Sequence[int]) -> Layout:
    stated = Layout.parse(text)
    if stated.size != world_size:
        raise UsageError(
            f'layout "{stated.shortened()}" has {stated.size} ranks, but MPI.COMM_WORLD has {world_size}'
        )
    if OUTSIDE in world_ranks:
        outside = [rank for rank, found in enumerate(world_ranks) if found == OUTSIDE]
        raise UsageError(
            f'layout "{stated.shortened()}" is about the ranks of MPI.COMM_WORLD, and '
            f"{format_ranks(outside)} of this communicator are not in it"
        )
    return stated


def check_layouts(records: Sequence[Record]) -> None:
    """The same UsageError on every rank when a layout is wrong somewhere, or not the same everywhere."""
    wrong = [rank for rank, record in enumerate(records) if record.error]
    if wrong:
        message = records[wrong[0]].error
        same = [rank for rank in wrong if records[rank].error == message]
        where = "" if len(same) == len(records) else f"{format_ranks(same)} of {len(records)}: "
        raise UsageError(where + message, suspects=wrong)
    ranks_of: dict[str, list[int]] = {}
    for rank, record in enumerate(records):
        ranks_of.setdefault(record.nodes, []).append(rank)
    if len(ranks_of) > 1:
        said = [
            (f'"{records[ranks[0]].layout}"' if nodes else "none") + f" on {format_ranks(ranks)}"
            for nodes, ranks in list(ranks_of.items())[:4]
        ]
        raise UsageError(
            f"the layout differs between ranks: {', '.join(said)}; set HPCCOLL_LAYOUT, or the option layout, "
            "to the same text on all of them",
            suspects=min(ranks_of.values(), key=len),
        )
