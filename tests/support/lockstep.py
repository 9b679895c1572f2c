"""Ranks that test together stay together, and none waits for ever for one that left."""

from __future__ import annotations

import contextlib
import os
import signal
import time
from collections.abc import Callable
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from mpi4py import MPI

__all__ = ["STACK_SIGNAL", "Lockstep"]

# A rank that gets it writes the stacks of its threads, also when it is stuck inside an MPI call.
STACK_SIGNAL = signal.SIGUSR2
SPIN_S = 0.002
PAUSE_S = 0.0005


class Lockstep:
    """Bounded meetings of all ranks of `comm`, on a communicator that no test ever sees.

    Making one is collective. After a meeting that failed only `abort()` is of use.
    """

    def __init__(self, comm: MPI.Intracomm) -> None:
        self._comm = comm.Dup()
        self._pids = self._comm.allgather(os.getpid())

    def meet(self, timeout_s: float) -> bool:
        """Wait until all ranks are here; False when one is still missing after `timeout_s`."""
        return _completed(self._comm.Ibarrier().Test, timeout_s)

    def agree(self, digest: bytes, timeout_s: float) -> bool:
        """Whether all ranks came, within `timeout_s`, with the same `digest` (of the same length)."""
        every = bytearray(self._comm.size * len(digest))
        return (
            _completed(self._comm.Iallgather(digest, every).Test, timeout_s)
            and every == digest * self._comm.size
        )

    def abort(self) -> None:
        """End all ranks, with the stacks of the others asked for first."""
        for rank, pid in enumerate(self._pids):
            if rank != self._comm.rank:
                with contextlib.suppress(ProcessLookupError):
                    os.kill(pid, STACK_SIGNAL)
        time.sleep(0.3)
        self._comm.Abort(1)


def _completed(test: Callable[[], bool], timeout_s: float) -> bool:
    begin = time.monotonic()
    while not test():
        waited_s = time.monotonic() - begin
        if waited_s > timeout_s:
            return False
        if waited_s < SPIN_S:
            os.sched_yield()
        else:
            time.sleep(PAUSE_S)
    return True
