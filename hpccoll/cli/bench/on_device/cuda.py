"""Arrays in the memory of each rank's GPU: one stream, on which calls are enqueued and waited for."""

from __future__ import annotations

import os
import time
from typing import Any

import numpy as np
from cuda.bindings import driver
from mpi4py import MPI

from hpccoll.arrays.device import Home
from hpccoll.cli.bench.contenders import Contender
from hpccoll.cli.bench.kinds import Cpu
from hpccoll.cli.bench.modes import Mode
from hpccoll.cli.bench.on_device.buffers import DeviceBuffer
from hpccoll.cli.bench.on_device.contenders import OnDevice
from hpccoll.cli.bench.on_device.plain import Plain, PlainNccl, why_not
from hpccoll.cli.bench.options import PLAIN_ON_DEVICE
from hpccoll.cli.bench.results import Case
from hpccoll.errors import CollectiveTimeoutError, ResourceError, UsageError
from hpccoll.runtime.streams import Device, checked
from hpccoll.topology.gpus import identity, name_of
from hpccoll.transports import nccl


class Cuda(Cpu):
    """Arrays in the memory of `comm.device`; what ours are compared with are plain calls of nccl4py.

    Collective.  Raises: UsageError on all ranks where one has no device.
    """

    plain_name = PLAIN_ON_DEVICE

    def __init__(self, world: MPI.Intracomm, comm: Any) -> None:
        super().__init__(world)
        try:
            self.ordinal = comm.device
        except ResourceError as error:
            raise UsageError(f"--device cuda: {error}") from error
        self._patience_s = comm.config.timeout_s
        self._device = Device(self.ordinal)
        self._device.__enter__()
        self._stream = self._device.stream()
        self._home = Home(self.ordinal, self._stream, None)
        self._plain: Plain | None = None
        self.settle = self._wait
        self.nccl_version = None if nccl.available() else nccl.version()
        handle = checked(driver.cuDeviceGet(self.ordinal), "cuDeviceGet")
        self._name = name_of(self.ordinal)
        self.address = _text(checked(driver.cuDeviceGetPCIBusId(32, handle), "cuDeviceGetPCIBusId"))
        where = MPI.Get_processor_name(), identity(self.ordinal)
        self._same_device = world.allgather(where).count(where)
        # Whether NCCL can be used is known with the first call.
        start = self.buffer(8)
        one = start.passed(start.view(np.dtype(np.float32), 1))
        comm.Allreduce(MPI.IN_PLACE, one)
        self._wait()
        self._by_nccl = comm.device_path == "nccl"

    def buffer(self, nbytes: int) -> DeviceBuffer:
        return DeviceBuffer(nbytes, self._home, self._wait)

    def room(self, same_host: int) -> int:
        """Of the device, and of the host for the mirrors."""
        free, _ = checked(driver.cuMemGetInfo(), "cuMemGetInfo")
        return min(super().room(same_host), int(free) // self._same_device)

    def notes(self, comm: Any) -> tuple[str, ...]:
        told = [*super().notes(comm), f"Arrays on devices travel by {comm.device_path}"]
        if "stand-in" in self._name:
            told.append("CPU stand-in for CUDA and NCCL: its times say nothing about GPUs")
        return tuple(told)

    def algorithms(self, comm: Any, collective: str) -> tuple[str, ...]:
        ours = super().algorithms(comm, collective)
        if not self._by_nccl:
            return ours
        by_nccl = comm._context.on_devices.side.names(collective)
        return by_nccl or ours

    def contender(
        self, comm: Any, algorithm: str | None, mode: Mode, reproducible: bool, case: Case
    ) -> Contender:
        names = self.algorithms(comm, case.operation.explained_as) if self._by_nccl else ()
        return OnDevice(comm, algorithm, mode, by_nccl=names)

    def plain(self, comm: Any, mode: Mode, case: Case) -> Contender:
        reason = why_not(case, self._world.size) if self._by_nccl else f"NCCL: {comm.device_path}"
        if reason:
            raise UsageError(reason)
        if self._plain is None:
            self._plain = Plain(self._world, self._stream)
        return PlainNccl(self._plain, PLAIN_ON_DEVICE, mode, settle=self._wait)

    @property
    def processor(self) -> str:
        return self._name

    def close(self) -> None:
        if self._plain is not None:
            self._plain.close()
            self._plain = None
        self._wait()
        self._device.__exit__()
        self._device.close((self._stream,))

    def _wait(self) -> None:
        """Until all that is on the stream is done, as nccl-tests does: by asking, with a time limit."""
        event = self._device.mark(self._stream)
        deadline = time.monotonic() + self._patience_s
        while not self._device.reached(event):
            if time.monotonic() > deadline:
                raise CollectiveTimeoutError(f"calls on the device are not done after {self._patience_s:g} s")
            os.sched_yield()
        self._device.give_back(event)


def _text(raw: Any) -> str:
    return bytes(raw).partition(b"\0")[0].decode(errors="replace")
