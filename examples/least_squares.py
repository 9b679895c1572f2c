"""Least squares with rows of the matrix on many ranks: pylops-mpi, a code that exists, on our communicator.

    mpirun -n 4 python examples/least_squares.py                   # on mpi4py's communicator
    mpirun -n 4 python -m hpccoll examples/least_squares.py        # on ours, in the place of MPI.COMM_WORLD
    mpirun -n 4 python examples/least_squares.py --hand-over       # on ours, as an argument

Each rank has a block of rows (`MPIVStack`); a product with the transposed matrix is summed over the ranks by
Allreduce in every step of CGLS.  `pip install pylops-mpi`.  The answer is compared with numpy.linalg.lstsq.
"""

from __future__ import annotations

import argparse
import sys

import numpy as np
from mpi4py import MPI

try:
    import pylops
    import pylops_mpi
except ImportError as error:
    sys.exit(f"least_squares.py needs pylops-mpi: pip install pylops-mpi ({error})")

ROWS, COLUMNS = 60, 40  # rows of each rank
STEPS = 80
CLOSE = 1e-8


def block(rank: int) -> np.ndarray:
    """A rank's rows of the matrix; alike enough that CGLS comes to its end."""
    return np.random.default_rng(rank).normal(size=(ROWS, COLUMNS)) + 4 * np.eye(ROWS, COLUMNS)


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--hand-over", action="store_true", help="give pylops-mpi our communicator")
    options = parser.parse_args()
    world: MPI.Intracomm = MPI.COMM_WORLD
    comm = world
    if options.hand_over:
        import hpccoll

        comm = hpccoll.Communicator(world)
    matrix = block(comm.rank)
    wanted = np.sin(np.arange(COLUMNS))
    noise = np.random.default_rng(comm.size + comm.rank).normal(size=ROWS)
    operator = pylops_mpi.MPIVStack([pylops.MatrixMult(matrix)], base_comm=comm)
    data = pylops_mpi.DistributedArray(global_shape=comm.size * ROWS, base_comm=comm)
    data[:] = matrix @ wanted + noise
    start = pylops_mpi.DistributedArray(
        global_shape=COLUMNS, partition=pylops_mpi.Partition.BROADCAST, base_comm=comm
    )
    start[:] = 0.0
    found = pylops_mpi.cgls(operator, data, x0=start, niter=STEPS, tol=1e-12)[0].local_array
    matrices, rights = comm.gather(matrix), comm.gather(data.local_array)
    status = 0
    if matrices is not None and rights is not None:
        exact = np.linalg.lstsq(np.vstack(matrices), np.concatenate(rights), rcond=None)[0]
        error = float(np.abs(found - exact).max() / np.abs(exact).max())
        status = int(not error < CLOSE)
        print(f"communicator: {type(comm).__name__} of {comm.size} ranks")
        print(f"relative difference from numpy.linalg.lstsq: {error:.1e}")
        print("WRONG: not the least-squares solution" if status else "OK: the least-squares solution")
    status = comm.bcast(status)
    if options.hand_over:
        comm.close()
    return status


if __name__ == "__main__":
    sys.exit(main())
