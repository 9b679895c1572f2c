"""Calls on devices in the timeline: when they were enqueued, and when the device did them."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from tempfile import TemporaryDirectory

import numpy as np
import pytest
from mpi4py import MPI

import hpccoll
from tests.collectives.conftest import Make
from tests.gpu.memory import mirror
from tests.support.layouts import layouts
from tests.support.timeline import shown

CALLS = 5
COUNT = 3000


@pytest.fixture
def directory(world: MPI.Intracomm) -> Iterator[Path]:
    """The same on all ranks."""
    with TemporaryDirectory(prefix="hpccoll-timeline-") as own:
        yield Path(world.bcast(own))


@layouts({"": (2,), "1+1": (2,)})
def test_calls_are_timed_on_host_and_device(
    communicator: Make, directory: Path, layout: str, stream: int
) -> None:
    comm = communicator(layout=layout, trace=str(directory))
    give, take = mirror(np.ones(COUNT), stream, "f4"), mirror(np.zeros(COUNT), stream, "f4")
    for turn in range(CALLS):
        give.view[...] = turn + comm.rank
        give.upload_later()
        comm.Allreduce(give, take)
    request = comm.Iallreduce(give, take)
    request.Wait()
    persistent = comm.Allreduce_init(give, take)
    for _ in range(CALLS):
        persistent.Start()
        persistent.Wait()
    total = sum(CALLS - 1 + rank for rank in range(comm.size))
    assert (take.download(stream) == total).all()
    persistent.Free()
    rank, size = comm.rank, comm.size
    comm.close()
    if rank == 0:
        found = shown(next(directory.glob("timeline-*.json")))
        for process in range(size):
            enqueued = [one for one in found.of(process, "program") if one["cat"] == "enqueue"]
            done = found.of(process, "device")
            assert len(enqueued) == len(done) == 2 * CALLS + 1
            for host, device in zip(enqueued, done, strict=True):
                assert host["name"] == f"enqueue {device['name']}"
                assert device["name"].startswith("allreduce (nccl, ")
                assert host["args"]["bytes"] == device["args"]["bytes"] == COUNT * 4
                # A float of milliseconds, on a clock that the host has read once.
                assert device["ts"] + device["dur"] >= host["ts"] - device["args"]["clock_error_us"] - 10


@layouts({"": (2,)})
def test_buckets_on_devices(communicator: Make, directory: Path, layout: str, stream: int) -> None:
    comm = communicator(layout=layout, trace=str(directory))
    mirrors = [mirror(np.zeros(500), stream, "f4") for _ in range(4)]
    with hpccoll.GradientBuckets(comm, mirrors, bucket_bytes=4000) as buckets:
        for _ in range(2):
            for number in reversed(range(4)):
                buckets.ready(number)
            buckets.wait()
        mirrors[0].download(stream)
    rank, size = comm.rank, comm.size
    comm.close()
    if rank == 0:
        found = shown(next(directory.glob("timeline-*.json")))
        for process in range(size):
            assert sum(one["cat"] == "bucket" for one in found.of(process, "buckets")) == 4
            assert len(found.of(process, "device")) == 4
