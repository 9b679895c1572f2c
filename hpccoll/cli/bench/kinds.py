"""Where the arrays of a run are, as --device says: what is there of memory, and who can carry a call out."""

from __future__ import annotations

import platform
import sys
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from mpi4py import MPI

from hpccoll.cli.bench.buffers import GuardedBuffer
from hpccoll.cli.bench.contenders import Contender, check_plain
from hpccoll.cli.bench.modes import Mode
from hpccoll.cli.bench.on_device.packages import lacking
from hpccoll.cli.bench.options import PLAIN
from hpccoll.cli.bench.results import Case
from hpccoll.errors import UsageError
from hpccoll.memory.limits import memory_limit


class Cpu:
    """Arrays in host memory; what ours are compared with is MPI's own call.  `on_device.Cuda` is the other.

    `settle` waits for calls that only enqueue, of which there are none here.
    """

    plain_name = PLAIN
    settle: Callable[[], None] | None = None
    nccl_version: int | None = None
    ordinal: int | None = None
    address = ""  # on the machine's bus

    def __init__(self, world: MPI.Intracomm) -> None:
        self._world = world

    def buffer(self, nbytes: int) -> GuardedBuffer:
        """Memory for arrays of at most so many bytes."""
        return GuardedBuffer(nbytes)

    def room(self, same_host: int) -> int:
        """Bytes that new buffers of this rank can have; `same_host` ranks share this host."""
        return _available_bytes() // same_host

    def notes(self, comm: Any) -> tuple[str, ...]:
        """What the header says besides."""
        source = comm.explain("barrier", 0).source
        return (f"Plans by measurement: {source}",) if source else ()

    def algorithms(self, comm: Any, collective: str) -> tuple[str, ...]:
        """The plans that there are."""
        found: tuple[str, ...] = comm.algorithms(collective)
        return found

    def contender(
        self, comm: Any, algorithm: str | None, mode: Mode, reproducible: bool, case: Case
    ) -> Contender:
        """Ours, by selection or by a plan."""
        return Contender(comm, algorithm, mode, reproducible)

    def plain(self, comm: Any, mode: Mode, case: Case) -> Contender:
        """What ours are compared with.  Raises: UsageError where it does not know the case."""
        check_plain(case, mode)
        return Contender(self._world, PLAIN, mode)

    @property
    def processor(self) -> str:
        """The name of what holds the arrays."""
        for line in _text("/proc/cpuinfo").splitlines():
            if line.startswith("model name"):
                return line.partition(":")[2].strip()
        return platform.machine()

    def close(self) -> None:
        """Let go of what was opened.  Collective."""


def open_kind(world: MPI.Intracomm, comm: Any, *, on_device: bool, redops: Sequence[str] = ()) -> Cpu:
    """Where arrays are to be.  Collective; raises UsageError on all ranks where that cannot be."""
    if not on_device:
        return Cpu(world)
    told = [f"rank {rank}: {text}" for rank, text in enumerate(world.allgather(lacking(redops))) if text]
    if told:
        raise UsageError(f"--device cuda: {told[0]}")
    from hpccoll.cli.bench.on_device.cuda import Cuda

    return Cuda(world, comm)


def _available_bytes() -> int:
    """Memory that new buffers can have: the machine's, or what the control group leaves."""
    found = [sys.maxsize]
    for line in _text("/proc/meminfo").splitlines():
        if line.startswith("MemAvailable:"):
            found.append(int(line.split()[1]) * 1024)
    if (limit := memory_limit()) is not None:
        found.append(limit.left)
    return min(found)


def _text(path: str) -> str:
    try:
        return Path(path).read_text(encoding="utf-8", errors="replace")
    except OSError:
        return ""
