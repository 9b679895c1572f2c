"""Calls of all kinds in any order, many under way at once, on several communicators, devices and streams."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from mpi4py import MPI

import hpccoll
from tests.collectives.conftest import Make
from tests.gpu.memory import DeviceAttempt, device_count, make_stream, perform, using
from tests.support.layouts import layouts
from tests.support.oracle import COLLECTIVES, Job, in_line
from tests.support.oracle.elements import BOOL, NUMBERS, operators
from tests.support.places import PLACES

SETTINGS = {
    "nccl": {},
    "host": {"device_path": "host"},
    "mpi between nodes": {"internode": "mpi"},
    "in order": {"reproducible": True},
}
# Which keep the order of the elements, whatever buffer they meet.
MEMORIES = [in_line, *(PLACES[name] for name in ("every_second", "backwards", "unaligned"))]
CALLS, AT_ONCE = 60, 12


@layouts({"": (2,), "1+1": (2,), "2+2": (4,)})
@pytest.mark.parametrize("settings", SETTINGS)
@pytest.mark.parametrize("seed", [1])
def test_random_calls(
    communicator: Make, layout: str, device: int, stream: int, settings: str, seed: int
) -> None:
    comm = communicator(layout=layout, **SETTINGS[settings])
    comms = [comm, hpccoll.Communicator(comm.Dup()), comm.Dup()]
    for one in comms:
        perform(one, Job("allreduce", 1), stream)  # finds its device
    of_all = np.random.default_rng([seed, 0])  # what the ranks agree on
    own = np.random.default_rng([seed, 1 + comm.rank])
    homes = [(device, stream), (device, make_stream())]
    if device_count() > 1:
        other = (device + 1) % device_count()
        with using(other):
            homes.append((other, make_stream()))
    under_way: list[tuple[DeviceAttempt, Any]] = []
    for _ in range(CALLS):
        job = _job(of_all, comm.size)
        comm, started = comms[of_all.integers(len(comms))], bool(of_all.integers(2))
        ordinal, where = homes[of_all.integers(len(homes))]  # lazy streams run when they are waited for
        with using(ordinal):
            attempt = DeviceAttempt(comm, job, MEMORIES[own.integers(len(MEMORIES))], where)
        if started:
            under_way.append((attempt, attempt.start()))
        else:
            attempt.call()
            under_way.append((attempt, None))
        if len(under_way) == AT_ONCE:
            _check(under_way, own)
    _check(under_way, own)
    for one in comms[1:]:
        one.close()


def _job(random: np.random.Generator, size: int) -> Job:
    kinds = [*NUMBERS, BOOL]
    dtype = kinds[random.integers(len(kinds))]
    known = operators(dtype)
    collective = COLLECTIVES[random.integers(len(COLLECTIVES))]
    return Job(
        collective,
        int(random.choice([0, 1, 3, 17, 1003, 20_000])),
        dtype,
        known[random.integers(len(known))],
        root=int(random.integers(size)) if collective in ("reduce", "broadcast", "gather", "scatter") else 0,
        in_place=bool(random.integers(2)) and collective != "broadcast",
        salt=int(random.integers(100)),
    )


def _check(under_way: list[tuple[DeviceAttempt, Any]], random: np.random.Generator) -> None:
    """In any order; some requests are waited for, some by the stream alone."""
    for index in random.permutation(len(under_way)):
        attempt, request = under_way[index]
        if request is not None:
            if random.integers(2):
                request.block_stream()
                attempt.check()
            request.Wait()
        attempt.check()
    under_way.clear()
    MPI.COMM_WORLD.Barrier()
