"""Conjugate gradients whose one reduction a step is hidden behind the product with the matrix.

    mpirun -n 4 python examples/pipelined_cg.py
    mpirun -n 4 python examples/pipelined_cg.py --layout 2+2 --size 400 300

A step of plain conjugate gradients ends twice in a sum over all ranks that everybody waits for.  The
pipelined form (P. Ghysels and W. Vanroose (2014), Hiding global synchronization latency in the preconditioned
conjugate gradient algorithm) keeps three more vectors, so that both sums are known at the start of a step:
they travel in one persistent all-reduce while the next product is computed.

    plain       A p   ──sum(p, A p)──   x, r   ──sum(r, r)──   p
    pipelined   Start(sum(r, r), sum(w, r))    A w    Wait     x, r, w, p, s, z

The matrix is that of the 5-point Laplacian on ny x nx points with zeros around; each rank has some rows of
points and exchanges those at its edges with its neighbours.

It checks itself: both solutions must be the one that the right-hand side was made from.  Whether hiding gains
time depends on what a sum costs: much between nodes, little inside one.  Exit status: 0 all of that holds, 1
it does not, 2 wrong arguments.
"""

from __future__ import annotations

import argparse
import contextlib
import io
import math
import statistics
import sys
import time
import traceback
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np
from mpi4py import MPI
from numpy.typing import NDArray

import hpccoll

Floats = NDArray[np.float64]

ERROR_PER_TOLERANCE = 1e3  # a relative residual of 1e-10 leaves a larger relative error in the solution


class Laplacian:
    """The rows of points that a rank has, and the product with the matrix."""

    def __init__(self, comm: hpccoll.Communicator, ny: int, nx: int) -> None:
        self.comm = comm
        each, more = divmod(ny, comm.size)
        self.rows, self.nx = each + (comm.rank < more), nx
        self.first = comm.rank * each + min(comm.rank, more)
        self._up = comm.rank - 1 if comm.rank > 0 else MPI.PROC_NULL
        self._down = comm.rank + 1 if comm.rank < comm.size - 1 else MPI.PROC_NULL
        self._halo = np.zeros((self.rows + 2, nx + 2))

    def times(self, v: Floats, out: Floats) -> None:
        """The product with v, of this rank's rows."""
        u = self._halo
        u[1:-1, 1:-1] = v
        self.comm.Sendrecv(u[1], dest=self._up, recvbuf=u[-1], source=self._down)
        self.comm.Sendrecv(u[-2], dest=self._down, recvbuf=u[0], source=self._up)
        np.multiply(v, 4.0, out=out)
        out -= u[:-2, 1:-1]
        out -= u[2:, 1:-1]
        out -= u[1:-1, :-2]
        out -= u[1:-1, 2:]


@dataclass(frozen=True)
class Solved:
    """A solution; steps, seconds of all and of waiting for sums."""

    x: Floats
    steps: int
    seconds: float
    waited_s: float


class Clock:
    """Adds up the time that is spent inside it."""

    def __init__(self) -> None:
        self.seconds = 0.0

    def __enter__(self) -> None:
        self._begin = time.perf_counter()

    def __exit__(self, *error: object) -> None:
        self.seconds += time.perf_counter() - self._begin


def plain(matrix: Laplacian, b: Floats, tolerance: float, most: int) -> Solved:
    """Conjugate gradients of M. Hestenes and E. Stiefel (1952): two sums a step."""
    comm, waiting, begin = matrix.comm, Clock(), time.perf_counter()
    total = np.empty(1)

    def dot(one: Floats, other: Floats) -> float:
        total[0] = np.vdot(one, other)
        with waiting:
            comm.Allreduce(MPI.IN_PLACE, total)
        return float(total[0])

    x, r, p, q = np.zeros_like(b), b.copy(), b.copy(), np.empty_like(b)
    rr = dot(r, r)
    limit, steps = tolerance**2 * rr, 0
    while rr > limit and steps < most:
        matrix.times(p, q)
        alpha = rr / dot(p, q)
        x += alpha * p
        r -= alpha * q
        before, rr = rr, dot(r, r)
        p *= rr / before
        p += r
        steps += 1
    return Solved(x, steps, time.perf_counter() - begin, waiting.seconds)


def pipelined(matrix: Laplacian, b: Floats, tolerance: float, most: int) -> Solved:
    """Algorithm 3 of Ghysels and Vanroose: one sum a step, beside the product with w."""
    comm, waiting, begin = matrix.comm, Clock(), time.perf_counter()
    sums = np.empty(2)
    reduction = comm.Allreduce_init(MPI.IN_PLACE, sums)
    x, r, w, q = np.zeros_like(b), b.copy(), np.empty_like(b), np.empty_like(b)
    p, s, z = np.zeros_like(b), np.zeros_like(b), np.zeros_like(b)
    matrix.times(r, w)
    alpha = gamma_before = 0.0
    limit, steps = -1.0, 0
    while True:
        sums[:] = np.vdot(r, r), np.vdot(w, r)
        reduction.Start()
        matrix.times(w, q)
        with waiting:
            reduction.Wait()
        gamma, delta = sums.tolist()
        if limit < 0:
            limit = tolerance**2 * gamma
        if gamma <= limit or steps == most:
            break
        beta = gamma / gamma_before if steps else 0.0
        alpha = gamma / (delta - beta * gamma / alpha) if steps else gamma / delta
        gamma_before = gamma
        for target, source in ((z, q), (s, w), (p, r)):
            target *= beta
            target += source
        x += alpha * p
        r -= alpha * s
        w -= alpha * z
        steps += 1
    reduction.Free()
    return Solved(x, steps, time.perf_counter() - begin, waiting.seconds)


METHODS: dict[str, Callable[[Laplacian, Floats, float, int], Solved]] = {
    "plain": plain,
    "pipelined": pipelined,
}


def relative(comm: hpccoll.Communicator, difference: Floats, of: Floats) -> float:
    """The 2-norm of one spread array by that of another."""
    sums = np.array([np.vdot(difference, difference), np.vdot(of, of)])
    comm.Allreduce(MPI.IN_PLACE, sums)
    return math.sqrt(sums[0] / sums[1])


def solve_and_check(comm: hpccoll.Communicator, args: argparse.Namespace) -> bool:
    """Both methods in turn, --rounds times; rank 0 prints a table.  Whether all is well, on every rank."""
    ny, nx = args.size
    matrix = Laplacian(comm, ny, nx)
    wanted = np.random.default_rng(7).normal(size=(ny, nx))[matrix.first : matrix.first + matrix.rows]
    b = np.empty_like(wanted)
    matrix.times(wanted, b)
    runs: dict[str, list[Solved]] = {name: [] for name in METHODS}
    for _ in range(args.rounds):
        for name, method in METHODS.items():
            comm.Barrier()
            runs[name].append(method(matrix, b, args.tolerance, ny * nx))
    good = True
    if comm.rank == 0:
        print(
            f"ranks: {comm.size}, layout: {comm.machine.layout}, points: {ny} x {nx}, rounds: {args.rounds}"
        )
        print("method      steps  sums a step     time  a step  of it waiting for sums     error")
    for name, found in runs.items():
        error = relative(comm, found[-1].x - wanted, wanted)
        time_s = statistics.median(one.seconds for one in found)
        waited = statistics.median(one.waited_s / max(1, one.steps) for one in found)
        steps = found[-1].steps
        good = good and error <= ERROR_PER_TOLERANCE * args.tolerance  # NaN is no less than anything
        if comm.rank == 0:
            print(
                f"{name:10s} {steps:6d}  {2 if name == 'plain' else 1:11d}  {time_s * 1e3:6.1f} ms"
                f"  {time_s / max(1, steps) * 1e6:4.0f} us  {waited * 1e6:19.0f} us  {error:9.1e}"
            )
    apart = relative(comm, runs["plain"][-1].x - runs["pipelined"][-1].x, wanted)
    good = good and apart <= 2 * ERROR_PER_TOLERANCE * args.tolerance
    if comm.rank == 0:
        print(f"difference between both solutions: {apart:.1e}")
        if good:
            print("OK: both found the solution that the right-hand side was made from")
        else:
            print("WRONG: a solution is not the one that the right-hand side was made from", file=sys.stderr)
    return good


def parse_arguments(rank: int) -> argparse.Namespace:
    """The command line; of what is wrong with it rank 0 alone tells."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n\n")[0])
    parser.add_argument("--size", type=int, nargs=2, default=(120, 100), metavar="N", help="default: 120 100")
    parser.add_argument("--tolerance", type=float, default=1e-10, help="of the residual (default: 1e-10)")
    parser.add_argument("--rounds", type=int, default=3, metavar="N", help="of both methods (default: 3)")
    parser.add_argument("--layout", metavar="TEXT", help='virtual nodes, such as "2+2" (default: real ones)')
    with contextlib.ExitStack() as stack:
        if rank != 0:
            stack.enter_context(contextlib.redirect_stdout(io.StringIO()))
            stack.enter_context(contextlib.redirect_stderr(io.StringIO()))
        args = parser.parse_args()
        if min(args.size) < 1 or args.size[0] < MPI.COMM_WORLD.size:
            parser.error(
                f"--size is {args.size[0]} {args.size[1]}: every rank needs at least a row of points"
            )
        if not 1e-12 <= args.tolerance < 1:
            parser.error(f"--tolerance is {args.tolerance}: must be from 1e-12 to 1")
        if args.rounds < 1:
            parser.error(f"--rounds is {args.rounds}: must be at least 1")
    return args


def main() -> int:
    rank = MPI.COMM_WORLD.rank
    args = parse_arguments(rank)
    options: dict[str, Any] = {} if args.layout is None else {"layout": args.layout}
    try:
        with hpccoll.Communicator(MPI.COMM_WORLD, **options) as comm:
            good = solve_and_check(comm, args)
    except hpccoll.UsageError as error:  # a wrong layout, on every rank
        if rank == 0:
            print(f"pipelined_cg.py: {error}", file=sys.stderr)
        return 2
    return 0 if good else 1


if __name__ == "__main__":
    try:
        status = main()
    except Exception:
        # The others may wait for this rank: end them too.
        traceback.print_exc()
        MPI.COMM_WORLD.Abort(1)
    sys.exit(status)
