"""One step of data-parallel training, as slow or as fast as its communication lets it be.

    mpirun -n 4 python examples/step.py            # averages one by one, after the backward pass
    mpirun -n 4 python examples/step.py --overlap  # in buckets, during it

Every rank has `--layers` gradients of `--kilobytes` each.  Computing them takes `--compute-ms` in all, for
which the process sleeps: so it is for a host whose GPU computes, and no core is missing to communication.
Each rank has as much to compute as with fewer ranks: the samples a second should grow as the ranks do.

The averages of the last step are compared with what they must be.  Exit status: 0 they are right, 1 not.
"""

from __future__ import annotations

import argparse
import statistics
import sys
import time

import numpy as np
from mpi4py import MPI

import hpccoll

SAMPLES_A_STEP = 8  # of each rank


def main() -> int:
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--layers", type=int, default=32, help="gradients (default: 32)")
    parser.add_argument("--kilobytes", type=int, default=256, help="of each gradient (default: 256)")
    parser.add_argument(
        "--compute-ms", type=float, default=150.0, help="to compute all gradients (default: 150)"
    )
    parser.add_argument("--steps", type=int, default=10, help="timed steps (default: 10)")
    parser.add_argument("--overlap", action="store_true", help="average in buckets while others are computed")
    args = parser.parse_args()
    with hpccoll.Communicator(MPI.COMM_WORLD) as comm:
        return train(comm, args)


def train(comm: hpccoll.Communicator, args: argparse.Namespace) -> int:
    """Time the steps; rank 0 prints.  Returns the exit status."""
    flat = np.zeros(args.layers * args.kilobytes * 256, np.float32)
    gradients = np.array_split(flat, args.layers)
    buckets = hpccoll.GradientBuckets(comm, gradients) if args.overlap else None
    times = []
    for step in range(args.steps + 1):  # one to warm up
        comm.Barrier()
        begin = time.perf_counter()
        for k in reversed(range(args.layers)):
            time.sleep(args.compute_ms / 1e3 / args.layers)
            gradients[k].fill(comm.rank + k + step)
            if buckets is not None:
                buckets.ready(k)
        if buckets is not None:
            buckets.wait()
        else:
            for gradient in gradients:
                comm.Allreduce(MPI.IN_PLACE, gradient, op=hpccoll.AVG)
        times.append(comm.allreduce(time.perf_counter() - begin, MPI.MAX))
    right = all(
        np.all(gradient == (comm.size - 1) / 2 + k + args.steps) for k, gradient in enumerate(gradients)
    )
    right = comm.allreduce(right, MPI.LAND)
    if comm.rank == 0:
        step_s = statistics.median(times[1:])
        print(
            f"{comm.size} ranks on {comm.node_count} nodes: a step takes {step_s * 1e3:.0f} ms, computing "
            f"{args.compute_ms:.0f} ms of them; {comm.size * SAMPLES_A_STEP / step_s:.0f} samples/s"
        )
        if not right:
            print("step.py: the averages are wrong", file=sys.stderr)
    return 0 if right else 1


if __name__ == "__main__":
    sys.exit(main())
