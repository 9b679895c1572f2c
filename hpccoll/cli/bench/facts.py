"""Who takes part, and what there is of memory."""

from __future__ import annotations

import os
import socket
from dataclasses import dataclass
from typing import Any

import mpi4py
from mpi4py import MPI

from hpccoll._version import __version__
from hpccoll.cli.bench.kinds import Cpu

# A rank holds two buffers, and the library at most as much again for types that it works on in another one.
_BUFFERS = 4
_MEMORY_SHARE = 0.8


@dataclass(frozen=True)
class RankFacts:
    """One rank's line of the header.

    `device`: its ordinal, with its `address` on the bus; None where the arrays are in host memory.
    """

    rank: int
    pid: int
    host: str
    node: int
    local_rank: int
    processor: str
    device: int | None = None
    address: str = ""


@dataclass(frozen=True)
class RunFacts:
    """What the header says of the run."""

    version: str
    mpi4py: str
    mpi_library: str
    layout: str
    node_count: int
    max_bytes: int  # smaller than asked for where memory does not suffice
    ranks: tuple[RankFacts, ...]
    nccl_version: int | None = None
    notes: tuple[str, ...] = ()

    @property
    def is_stand_in(self) -> bool:
        """The devices are a CPU that stands in for them."""
        return any(one.device is not None and "stand-in" in one.processor for one in self.ranks)

    @property
    def is_two_level(self) -> bool:
        """Several nodes, one of them of several ranks."""
        return 1 < self.node_count < len(self.ranks)


def gather_facts(world: MPI.Intracomm, comm: Any, kind: Cpu, max_bytes: int) -> RunFacts:
    """The facts of all ranks; `max_bytes` is lowered to what memory allows.  Collective."""
    machine = comm.machine
    place = (machine.node, machine.local_rank, kind.processor, kind.ordinal, kind.address)
    own = RankFacts(world.rank, os.getpid(), socket.gethostname(), *place)
    ranks = tuple(world.allgather(own))
    here = sum(one.host == own.host for one in ranks)
    room = world.allreduce(kind.room(here), MPI.MIN)
    return RunFacts(
        version=__version__,
        mpi4py=mpi4py.__version__,
        mpi_library=mpi_library(),
        layout=str(machine.layout),
        node_count=machine.node_count,
        max_bytes=min(max_bytes, int(room * _MEMORY_SHARE) // _BUFFERS),
        ranks=ranks,
        nccl_version=kind.nccl_version,
        notes=kind.notes(comm),
    )


def mpi_library() -> str:
    """MPI's name and version, such as "MPICH 5.0.2"."""
    name, version = MPI.get_vendor()
    return f"{name} {'.'.join(str(part) for part in version)}"
