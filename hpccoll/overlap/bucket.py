"""One bucket: its elements, and the all-reduce that moves them."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING, Any

import numpy as np
from mpi4py import MPI

from hpccoll.overlap.memory import DeviceMemory, HostMemory, Memory, Span
from hpccoll.overlap.short import CARRIED, DeviceShort, Short

if TYPE_CHECKING:
    from hpccoll.ops.table import Operator


class Bucket:
    """What buckets on hosts and on devices share.  `missing`: arrays that are not ready in this step."""

    memory: Memory

    def __init__(self, memory: Memory) -> None:
        self.memory = memory
        self.missing = len(memory.group.members)
        self.began: float | None = None
        self.ended: float | None = None

    @property
    def started(self) -> bool:
        """In this step."""
        return self.began is not None

    def start(self) -> None:
        """Begin the all-reduce.  The next call of all ranks on the communicator."""
        self.ended = None
        begin = time.perf_counter()
        self._start()
        self.began = begin

    def finish(self, factor: float | None = None) -> None:
        """Return when the results are with the callers, times `factor`.  Raises the errors of the call."""
        raise NotImplementedError

    def reset(self) -> None:
        """Ready for the next step."""
        self.missing = len(self.memory.group.members)
        self.began = None

    def settle(self) -> None:
        """Return when nothing is under way that other ranks take part in."""

    def close(self) -> None:
        """Let go of the arrays."""

    def _start(self) -> None:
        raise NotImplementedError

    def _note_end(self) -> None:
        self.ended = time.perf_counter()


class HostBucket(Bucket):
    """In memory of the host: one persistent all-reduce, which the progress worker moves on."""

    memory: HostMemory

    def __init__(
        self, comm: Any, memory: HostMemory, op: MPI.Op | Operator, short: np.dtype[Any] | None
    ) -> None:
        super().__init__(memory)
        self._short = None
        if short is not None and memory.flat.dtype in CARRIED:
            self._short = Short(memory.flat, short)
        buffer = memory.flat if self._short is None else self._short.elements
        self._request = comm.Allreduce_init(MPI.IN_PLACE, buffer, op=op)
        self._request._when_over = self._note_end

    def _start(self) -> None:
        if self._short is not None:
            self._short.round()
        self._request.Start()

    def finish(self, factor: float | None = None) -> None:
        self._request.Wait()
        if self._short is not None:
            self._short.widen()
        if factor is not None:
            self.memory.scale(factor)
        self.memory.deliver()

    def close(self) -> None:
        self._request.Free()


class DeviceBucket(Bucket):
    """On a device: an all-reduce on the communicator's own stream; streams wait for it, and hosts do not."""

    memory: DeviceMemory

    def __init__(
        self, comm: Any, memory: DeviceMemory, op: MPI.Op | Operator, short: np.dtype[Any] | None
    ) -> None:
        super().__init__(memory)
        self._comm = comm
        self._op = op
        self._request: Any = None
        self._short = None
        self._buffer = memory.buffer
        if short is not None and memory.group.dtype in CARRIED:
            self._short = DeviceShort(memory.elements, short, memory.stream)
            self._buffer = Span(self._short.elements, memory.things[0])

    def _start(self) -> None:
        self.settle()  # of the step before
        stream = self.memory.gather()
        if self._short is not None:
            self._short.round(stream)
        self._request = self._comm.Iallreduce(MPI.IN_PLACE, self._buffer, op=self._op)
        if self._request._running is not None:
            self._request._running.tell(self._note_end)

    def finish(self, factor: float | None = None) -> None:
        stream = self.memory.stream
        running = self._request._running
        if running is None or running.block is None:  # complete, or over the host
            self.settle()
        else:
            self._request.block_stream(stream)
        if self._short is not None:
            self._short.widen(stream)
        if factor is not None:
            self.memory.scale(factor)
        self.memory.deliver()

    def settle(self) -> None:
        request, self._request = self._request, None
        if request is not None:
            request.Wait()

    def close(self) -> None:
        self.settle()
        self.memory.close()
