"""Particles in a periodic square, each moved to the rank that owns its place, by mpipartition.

    mpirun -n 4 python examples/particles.py                       # on mpi4py's communicator
    mpirun -n 4 python -m hpccoll examples/particles.py            # on ours, in the place of MPI.COMM_WORLD
    mpirun -n 4 python examples/particles.py --hand-over           # on ours, as an argument

mpipartition (cosmology at Argonne; `pip install mpipartition`) deals them out by Alltoall and Alltoallv on a
Cartesian communicator, and gives copies of those near an edge to the neighbours.  The three runs must print
the same fingerprint: the bytes of all particles on all ranks.
"""

from __future__ import annotations

import argparse
import hashlib
import sys
from typing import Any

import numpy as np
from mpi4py import MPI

try:
    from mpipartition import Partition, distribute, overload
except ImportError as error:
    sys.exit(f"particles.py needs mpipartition: pip install mpipartition ({error})")

BOX = 256.0
NEAR = 4.0  # an edge: such particles are the neighbours' too
AXES = ("x", "y")


def begin(rank: int, count: int) -> dict[str, np.ndarray[Any, Any]]:
    """The particles of a rank, all over the square, at places that 32 bits hold exactly."""
    numbers = np.random.default_rng(rank).integers(0, int(BOX) * 256, (len(AXES), count))
    found = {axis: (row / 256).astype(np.float32) for axis, row in zip(AXES, numbers, strict=True)}
    return {**found, "id": rank * count + np.arange(count)}


def fingerprint(particles: dict[str, np.ndarray[Any, Any]]) -> str:
    """Of a set of particles, whatever their order."""
    order = np.lexsort([particles[axis] for axis in (*AXES, "id")])
    digest = hashlib.sha256()
    for name in sorted(particles):
        digest.update(particles[name][order].tobytes())
    return digest.hexdigest()


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--count", type=int, default=20000, help="particles that each rank begins with")
    parser.add_argument("--hand-over", action="store_true", help="give mpipartition our communicator")
    options = parser.parse_args()
    comm: MPI.Intracomm | None = None  # mpipartition then takes MPI.COMM_WORLD
    if options.hand_over:
        import hpccoll

        comm = hpccoll.Communicator(MPI.COMM_WORLD)
    partition = Partition(len(AXES), comm=comm)
    world = partition.comm
    given = begin(world.rank, options.count)
    mine = distribute(partition, BOX, given, list(AXES))
    # It can where each axis is shared: by 4 ranks, 6, 8, 9, ...
    shared = min(partition.decomposition) > 1
    around = overload(partition, BOX, mine, NEAR, list(AXES)) if shared else mine
    inside = all(
        bool(np.all((mine[axis] >= BOX * low) & (mine[axis] < BOX * (low + extent))))
        for axis, low, extent in zip(AXES, partition.origin, partition.extent, strict=True)
    )
    there = world.allgather((inside, len(mine["id"]), int(mine["id"].sum()), len(around["id"])))
    prints = world.gather((fingerprint(mine), fingerprint(around)))
    if comm is not None:
        comm.close()
    total = world.size * options.count
    good = all(one[0] for one in there) and sum(one[1] for one in there) == total
    good = good and sum(one[2] for one in there) == total * (total - 1) // 2
    if prints is not None:
        print(f"communicator: {type(world).__name__} of {world.size} ranks, {partition.decomposition}")
        print(f"particles: {total} dealt out, {sum(one[3] for one in there) - total} copies near edges")
        print(f"fingerprint: {hashlib.sha256(repr(prints).encode()).hexdigest()[:16]}")
        print("OK: each particle is on the rank that owns its place" if good else "WRONG: particles astray")
    return 0 if good else 1


if __name__ == "__main__":
    sys.exit(main())
