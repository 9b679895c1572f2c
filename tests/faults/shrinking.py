"""A program that goes on without a rank that was killed: `shrinking.py RANK DIRECTORY`.

Each survivor writes what came of it to DIRECTORY/<rank>.json.
"""

from __future__ import annotations

import json
import os
import signal
import sys
import time
from pathlib import Path
from typing import Any

import numpy as np
from mpi4py import MPI

import hpccoll


def gone_on(comm: hpccoll.Communicator) -> dict[str, Any]:
    """What the ranks that are left make together."""
    smaller = comm.Shrink()
    comm.close()
    sums = np.full((3, 5000), smaller.rank + 1.0)
    for row in sums:
        smaller.Allreduce(MPI.IN_PLACE, row)
    nodes, plans = smaller.node_count, sorted(plan for _, plan in smaller.tally())
    smaller.Free()
    return {"size": smaller_size(sums), "nodes": nodes, "plans": plans}


def smaller_size(sums: np.ndarray) -> int:
    """Of how many ranks 1 + 2 + ... are summed, in every element; -1 where they differ."""
    sizes = [size for size in range(9) if (sums == size * (size + 1) / 2).all()]
    return sizes[0] if sizes else -1


def main(culprit: int, directory: Path) -> None:
    comm = hpccoll.Communicator(MPI.COMM_WORLD, timeout_s=20)
    values = np.ones(5000)
    found: dict[str, Any] = {}
    try:
        for number in range(1000):
            if number == 10 and comm.rank == culprit:
                (directory / "struck").write_text(str(time.monotonic()))
                os.kill(os.getpid(), signal.SIGKILL)
            comm.Allreduce(values, np.empty_like(values))
    except hpccoll.PeerLostError as error:
        found = {"lost": error.suspects, "learned": time.monotonic()}
        try:
            found |= gone_on(comm)
        except hpccoll.UsageError as refusal:
            found |= {"refused": str(refusal)}
    report = directory / f"{MPI.COMM_WORLD.rank}.json"
    report.with_suffix(".part").write_text(json.dumps(found | {"at": time.monotonic()}))
    report.with_suffix(".part").rename(report)


if __name__ == "__main__":
    main(int(sys.argv[1]), Path(sys.argv[2]))
