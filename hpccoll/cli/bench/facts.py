"""Who takes part, and what there is of memory."""

from __future__ import annotations

import os
import platform
import socket
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import mpi4py
from mpi4py import MPI

from hpccoll._version import __version__

# A rank holds two buffers, and the library at most as much again for types that it works on in another one.
_BUFFERS = 4
_MEMORY_SHARE = 0.8


@dataclass(frozen=True)
class RankFacts:
    """One rank's line of the header."""

    rank: int
    pid: int
    host: str
    node: int
    local_rank: int
    processor: str


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

    @property
    def is_two_level(self) -> bool:
        """Several nodes, one of them of several ranks."""
        return 1 < self.node_count < len(self.ranks)


def gather_facts(world: MPI.Intracomm, comm: Any, max_bytes: int) -> RunFacts:
    """The facts of all ranks; `max_bytes` is lowered to what memory allows.  Collective."""
    machine = comm.machine
    own = RankFacts(
        world.rank, os.getpid(), socket.gethostname(), machine.node, machine.local_rank, _processor()
    )
    ranks = tuple(world.allgather(own))
    here = sum(one.host == own.host for one in ranks)
    room = world.allreduce(_available_bytes() // here, MPI.MIN)
    return RunFacts(
        version=__version__,
        mpi4py=mpi4py.__version__,
        mpi_library=_mpi_library(),
        layout=str(machine.layout),
        node_count=machine.node_count,
        max_bytes=min(max_bytes, int(room * _MEMORY_SHARE) // _BUFFERS),
        ranks=ranks,
    )


def _mpi_library() -> str:
    name, version = MPI.get_vendor()
    return f"{name} {'.'.join(str(part) for part in version)}"


def _available_bytes() -> int:
    """Memory that new buffers can have: the machine's, or what the control group leaves."""
    found = [sys.maxsize]
    for line in _text("/proc/meminfo").splitlines():
        if line.startswith("MemAvailable:"):
            found.append(int(line.split()[1]) * 1024)
    limit, used = (_text(f"/sys/fs/cgroup/memory.{name}").strip() for name in ("max", "current"))
    if limit.isdigit() and used.isdigit():
        found.append(max(0, int(limit) - int(used)))
    return min(found)


def _processor() -> str:
    for line in _text("/proc/cpuinfo").splitlines():
        if line.startswith("model name"):
            return line.partition(":")[2].strip()
    return platform.machine()


def _text(path: str) -> str:
    try:
        return Path(path).read_text(encoding="utf-8", errors="replace")
    except OSError:
        return ""
