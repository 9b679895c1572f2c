"""A program in which one rank, or all, lack something: `scarce.py WHAT RANK DIRECTORY`; RANK -1 means all.

Each rank writes what it got to DIRECTORY/<rank>.json.
"""

from __future__ import annotations

import gc
import json
import os
import resource
import sys
import threading
import time
from pathlib import Path
from typing import Any

import numpy as np
from mpi4py import MPI

import hpccoll
from tests.support.control_groups import set_limit

ROOM_BYTES = 24 << 20
SPACE_LEFT = int(os.environ.get("SCARCE_SPACE_LEFT", "0"))


def limit(what: str) -> None:
    """Take something away from this process."""
    if what == "descriptors":
        opened = max(map(int, os.listdir("/proc/self/fd"))) + 1
        hard = resource.getrlimit(resource.RLIMIT_NOFILE)[1]
        resource.setrlimit(resource.RLIMIT_NOFILE, (opened, hard))
    elif what == "address-space":
        status = dict(line.split(":", 1) for line in Path("/proc/self/status").read_text().splitlines())
        used = 1024 * int(status["VmSize"].split()[0])
        resource.setrlimit(resource.RLIMIT_AS, (used + SPACE_LEFT, resource.RLIM_INFINITY))
    elif what == "file-size":
        resource.setrlimit(resource.RLIMIT_FSIZE, (4096, resource.RLIM_INFINITY))


def within(group: Path) -> dict[str, Any]:
    """What becomes of arrays of which all ranks together may have fewer than they ask for.

    Rank 0 sets the limit of the control group of all ranks to what they have, and ROOM_BYTES more.
    """
    world = MPI.COMM_WORLD
    comm = hpccoll.Communicator(world, timeout_s=15)
    values = np.ones(1000)
    comm.Allreduce(MPI.IN_PLACE, values)
    comm.Barrier()
    if world.rank == 0:
        used = (group / "memory.usage_in_bytes", group / "memory.current")
        set_limit(group, next(int(one.read_text()) for one in used if one.exists()) + ROOM_BYTES)
    comm.Barrier()
    began = time.monotonic()
    found: dict[str, Any] = {"kind": "", "text": ""}
    try:
        comm.empty(2 * ROOM_BYTES // values.itemsize)[:] = 1
    except hpccoll.HpccollError as error:
        found = {"kind": type(error).__name__, "text": str(error), "seconds": time.monotonic() - began}
    small = comm.empty(1000)
    small[:] = world.rank
    comm.Allreduce(MPI.IN_PLACE, small)
    comm.close()
    return found | {"right": bool((small == sum(range(world.size))).all())}


def without(what: str, rank: int) -> dict[str, Any]:
    """One call of a communicator, and how it ends."""
    world = MPI.COMM_WORLD
    values = np.ones(200_000)
    world.Barrier()
    if rank in (-1, world.rank):
        limit(what)
    began = time.monotonic()
    try:
        hpccoll.Communicator(world, timeout_s=15, init_timeout_s=15).Allreduce(MPI.IN_PLACE, values)
    except hpccoll.HpccollError as error:
        return {"kind": type(error).__name__, "text": str(error), "seconds": time.monotonic() - began}
    return {"kind": "", "text": "", "right": bool((values == world.size).all())}


def counts() -> dict[str, int]:
    """What this process has of each resource, without garbage."""
    gc.collect()
    maps = Path("/proc/self/maps").read_text().splitlines()
    status = dict(line.split(":", 1) for line in Path("/proc/self/status").read_text().splitlines())
    return {
        "descriptors": len(os.listdir("/proc/self/fd")),
        "threads": threading.active_count(),
        "files of ours": sum("/hpccoll-" in line for line in maps),
        "KiB": int(status["VmRSS"].split()[0]),
    }


def lasting(communicators: int, calls: int) -> dict[str, Any]:
    """What many communicators, and many calls on one, leave behind."""
    world = MPI.COMM_WORLD

    def use(number: int) -> None:
        with hpccoll.Communicator(world) as comm:
            comm.Allreduce(MPI.IN_PLACE, np.ones(1 + 5000 * (number % 3)))

    for number in range(10):
        use(number)
    before = counts()
    for number in range(communicators):
        use(number)
    after_communicators = counts()
    with hpccoll.Communicator(world) as comm:
        values = np.ones(1000)
        for _ in range(100):
            comm.Allreduce(values, np.empty_like(values))
        comm.Iallreduce(values, np.empty_like(values)).Wait()  # which the worker thread is made for
        warm = counts()
        for number in range(calls):
            comm.Allreduce(values, np.empty_like(values))
            if number % 10 == 0:
                comm.Iallreduce(values, np.empty_like(values)).Wait()
                comm.allgather(number)
        after_calls = counts()
    return {"communicators": [before, after_communicators], "calls": [warm, after_calls]}


def main() -> None:
    what, rank, directory = sys.argv[1], int(sys.argv[2]), Path(sys.argv[3])
    if what == "lasting":
        found = lasting(int(sys.argv[4]), int(sys.argv[5]))
    elif what == "group":
        found = within(Path(sys.argv[4]))
    else:
        found = without(what, rank)
        for kind in (resource.RLIMIT_NOFILE, resource.RLIMIT_FSIZE, resource.RLIMIT_AS):
            hard = resource.getrlimit(kind)[1]
            resource.setrlimit(kind, (hard, hard))
    (directory / f"{MPI.COMM_WORLD.rank}.json").write_text(json.dumps(found))
    MPI.COMM_WORLD.Barrier()


if __name__ == "__main__":
    main()
