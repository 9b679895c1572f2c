"""Heat in a square plate, by finite differences on a Cartesian grid of ranks.

    mpirun -n 4 python examples/heat.py
    HPCCOLL_LAYOUT=2+2 mpirun -n 4 python examples/heat.py --save heat.png
    mpirun -n 4 python examples/heat.py --plain              # on MPI.COMM_WORLD: the same answer
    mpirun -n 4 python examples/heat.py --device cuda

An mpi4py program of the usual kind; the one line that makes it a program of hpccoll is marked.  Create_cart,
Shift, Sendrecv with a derived datatype, and Gatherv work as before; the residual's Allreduce is hpccoll's.
With `--device cuda` the plate is in arrays of CuPy, on the GPU that `comm.device` says: the calls are the
same, but columns are passed as they are, strided.

u_t = u_xx + u_yy on the unit square, u = 0 at its border.  Explicit steps (forward in time, central in space)
until the residual, the 2-norm of the change in a step, is below --tolerance times the first one.

It checks itself: the result must equal the exact solution of the difference equations, which is known in
closed form, and a run in one process, in NumPy, that takes as many steps.  Exit status: 0 all of that holds,
1 it does not, 2 wrong arguments or something is missing.
"""

from __future__ import annotations

import argparse
import contextlib
import hashlib
import importlib.util
import io
import math
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

Floats = NDArray[np.float64]  # or CuPy's
Module = Any  # numpy or cupy

# The initial temperature: waves (half waves in y, half waves in x, amplitude), without any symmetry.
WAVES = ((1, 1, 1.0), (2, 1, 0.5), (3, 2, 0.25))
SAFETY = 0.9  # of the longest stable time step
CHECK_EVERY = 20  # steps between two looks at the residual
LARGEST_ERROR = 1e-12  # of temperatures up to about 1


@dataclass(frozen=True)
class Problem:
    """ny x nx points inside the border, at distances 1/(ny + 1) and 1/(nx + 1)."""

    ny: int
    nx: int
    tolerance: float
    most_steps: int

    @property
    def ratios(self) -> tuple[float, float]:
        """Time step over distance squared, in y and in x; stable as long as their sum is at most 1/2."""
        wy, wx = (self.ny + 1.0) ** 2, (self.nx + 1.0) ** 2
        return SAFETY * 0.5 * wy / (wy + wx), SAFETY * 0.5 * wx / (wy + wx)

    def wave(self, ky: int, kx: int) -> Floats:
        """A wave at all inner points: an eigenvector of the difference equations."""
        y, x = np.arange(1, self.ny + 1) / (self.ny + 1), np.arange(1, self.nx + 1) / (self.nx + 1)
        return np.outer(np.sin(ky * np.pi * y), np.sin(kx * np.pi * x))

    def exact(self, steps: int) -> Floats:
        """The solution of the difference equations: in a step each wave shrinks by its own factor."""
        ry, rx = self.ratios
        total = np.zeros((self.ny, self.nx))
        for ky, kx, amplitude in WAVES:
            by_y = 2 * ry * (1 - np.cos(ky * np.pi / (self.ny + 1)))
            by_x = 2 * rx * (1 - np.cos(kx * np.pi / (self.nx + 1)))
            total += amplitude * (1 - by_y - by_x) ** steps * self.wave(ky, kx)
        return total


def split(points: int, parts: int, part: int) -> slice:
    """The points of one part; the first parts have one more where it does not come out even."""
    each, more = divmod(points, parts)
    begin = part * each + min(part, more)
    return slice(begin, begin + each + (part < more))


class Block:
    """One rank's share of the plate, in a halo one point wide: the neighbours' points, or the border."""

    def __init__(self, cart: MPI.Cartcomm, problem: Problem, xp: Module) -> None:
        self.cart = cart
        self.xp = xp
        self.where = self.place(problem, cart.coords)
        inner = problem.exact(0)[self.where]
        self.u = xp.zeros((inner.shape[0] + 2, inner.shape[1] + 2))
        self.u[1:-1, 1:-1] = xp.asarray(inner)
        self.column = MPI.DOUBLE.Create_vector(inner.shape[0], 1, self.u.shape[1]).Commit()

    def place(self, problem: Problem, coords: list[int]) -> tuple[slice, slice]:
        """The rows and columns of the plate that the rank at these coordinates has."""
        (py, px), (cy, cx) = self.cart.dims, coords
        return split(problem.ny, py, cy), split(problem.nx, px, cx)

    def exchange(self) -> None:
        """Fill the halo: first rows and last rows with the neighbours in y, then columns with those in x."""
        u, flat, width = self.u, self.u.reshape(-1), self.u.shape[1]
        up, down = self.cart.Shift(0, 1)  # MPI.PROC_NULL at the border: nothing is sent, the halo stays 0
        left, right = self.cart.Shift(1, 1)
        self.cart.Sendrecv(u[1, 1:-1], dest=up, recvbuf=u[-1, 1:-1], source=down)
        self.cart.Sendrecv(u[-2, 1:-1], dest=down, recvbuf=u[0, 1:-1], source=up)

        def inner_column(index: int) -> Any:
            if self.xp is not np:  # hpccoll takes strided arrays on a GPU, and there no derived datatypes
                return u[1:-1, index]
            return [flat[width + index :], 1, self.column]

        self.cart.Sendrecv(inner_column(1), dest=left, recvbuf=inner_column(width - 1), source=right)
        self.cart.Sendrecv(inner_column(width - 2), dest=right, recvbuf=inner_column(0), source=left)

    def norm(self, change: Floats) -> float:
        """The 2-norm of an array that is spread over the ranks."""
        total = self.xp.sum(change * change).reshape(1)
        self.cart.Allreduce(MPI.IN_PLACE, total, op=MPI.SUM)
        return math.sqrt(float(total[0]))

    def gather(self, problem: Problem) -> Floats | None:
        """The whole plate, on rank 0; None elsewhere."""
        inner = self.u[1:-1, 1:-1]
        mine = np.ascontiguousarray(inner if self.xp is np else self.xp.asnumpy(inner))
        places = [self.place(problem, self.cart.Get_coords(rank)) for rank in range(self.cart.size)]
        counts = [(rows.stop - rows.start) * (cols.stop - cols.start) for rows, cols in places]
        if self.cart.rank != 0:
            self.cart.Gatherv(mine, None, root=0)
            return None
        pieces, plate = np.empty(sum(counts)), np.empty((problem.ny, problem.nx))
        self.cart.Gatherv(mine, [pieces, counts], root=0)
        begin = 0
        for (rows, cols), count in zip(places, counts, strict=True):
            plate[rows, cols] = pieces[begin : begin + count].reshape(plate[rows, cols].shape)
            begin += count
        return plate

    def free(self) -> None:
        """Free the datatype."""
        self.column.Free()


def advance(u: Floats, ratios: tuple[float, float]) -> Floats:
    """One time step of the inner points, in place; returns their change."""
    ry, rx = ratios
    inner = u[1:-1, 1:-1]
    change = ry * (u[:-2, 1:-1] - 2 * inner + u[2:, 1:-1]) + rx * (u[1:-1, :-2] - 2 * inner + u[1:-1, 2:])
    inner += change
    return change


def solve(
    problem: Problem, u: Floats, exchange: Callable[[], None], norm: Callable[[Floats], float]
) -> tuple[int, float]:
    """Step until the residual is small, or for `most_steps`; steps, and the last residual over the first."""
    first = residual = 0.0
    for step in range(problem.most_steps):
        exchange()
        change = advance(u, problem.ratios)
        if step % CHECK_EVERY == 0:
            residual = norm(change)
            first = first or residual
            if residual <= problem.tolerance * first:
                break
    return step + 1, residual / first


def solve_alone(problem: Problem, steps: int) -> Floats:
    """The same in one process, without MPI."""
    u: Floats = np.pad(problem.exact(0), 1)
    for _ in range(steps):
        advance(u, problem.ratios)
    return u[1:-1, 1:-1]


def check(problem: Problem, steps: int, reduction: float, plate: Floats) -> list[str]:
    """What is wrong; nothing, if all is well.  Prints what was compared."""
    wrong = []
    if not reduction <= problem.tolerance:  # so that NaN is wrong, here and below
        wrong.append(f"no convergence in {steps} steps: the residual is {reduction:.3g} of the first one")
    references = {"the exact solution": problem.exact(steps), "one process": solve_alone(problem, steps)}
    for name, reference in references.items():
        error = float(np.max(np.abs(plate - reference)))
        print(f"largest difference from {name}: {error:.1e}")
        if not error <= LARGEST_ERROR:
            wrong.append(f"the result differs from {name} by {error:.1e}, more than {LARGEST_ERROR:g}")
    return wrong


def save_picture(path: str, problem: Problem, plate: Floats) -> None:
    """The temperature at the start and at the end; PNG, PDF or SVG by the name of the file."""
    import matplotlib

    matplotlib.use("agg")
    from matplotlib import pyplot

    figure, both = pyplot.subplots(1, 2, figsize=(9, 4), layout="constrained")
    for axes, title, values in zip(both, ("start", "end"), (problem.exact(0), plate), strict=True):
        picture = axes.imshow(values, origin="lower", extent=(0, 1, 0, 1), cmap="inferno")
        axes.set(title=title, xlabel="x", ylabel="y")
        figure.colorbar(picture, ax=axes, label="temperature")
    figure.savefig(path, dpi=150)


def parse_arguments(rank: int) -> argparse.Namespace:
    """The command line; of what is wrong with it rank 0 alone tells."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n\n")[0])
    parser.add_argument("--size", type=int, nargs=2, default=(40, 54), metavar=("NY", "NX"))
    parser.add_argument("--tolerance", type=float, default=0.05, help="default: 0.05 of the first residual")
    parser.add_argument("--steps", type=int, default=20000, metavar="N", help="at most (default: 20000)")
    parser.add_argument("--plain", action="store_true", help="run on MPI.COMM_WORLD, without hpccoll")
    parser.add_argument("--device", choices=("cpu", "cuda"), default="cpu", help="default: cpu")
    parser.add_argument("--save", metavar="FILE", help="draw the plate (needs matplotlib)")
    with contextlib.ExitStack() as stack:
        if rank != 0:
            stack.enter_context(contextlib.redirect_stdout(io.StringIO()))
            stack.enter_context(contextlib.redirect_stderr(io.StringIO()))
        args = parser.parse_args()
        if min(args.size) < MPI.COMM_WORLD.size or args.steps < 1:
            parser.error("--size takes two numbers, not below the number of ranks; --steps one, at least 1")
        if args.device == "cuda" and args.plain:
            parser.error("--device cuda: MPI may not take arrays on a GPU; leave out --plain")
        if args.device == "cuda" and importlib.util.find_spec("cupy") is None:
            parser.error("--device cuda: CuPy is missing; install it with: pip install 'hpccoll[cuda12]'")
        if args.save and importlib.util.find_spec("matplotlib") is None:
            parser.error("matplotlib is missing; install it with: pip install matplotlib")
    return args


class NoGpuError(Exception):
    """A rank has no GPU, or no CuPy that runs."""


def module_for(comm: Any, device: str) -> Module:
    """The module whose arrays are on `device`; a GPU becomes the current one.  Raises NoGpuError."""
    if device == "cpu":
        return np
    try:
        ordinal = comm.device
        import cupy

        cupy.cuda.Device(ordinal).use()
    except (hpccoll.ResourceError, ImportError) as error:
        raise NoGpuError(f"--device cuda: {error}") from error
    return cupy


def run(problem: Problem, comm: MPI.Intracomm, xp: Module) -> tuple[Floats | None, bool]:
    """Solve, gather and check; the plate on rank 0, and on every rank whether all is well."""
    cart = comm.Create_cart(MPI.Compute_dims(comm.size, 2), periods=(False, False))
    block = Block(cart, problem, xp)
    begin = time.perf_counter()
    steps, reduction = solve(problem, block.u, block.exchange, block.norm)
    seconds = time.perf_counter() - begin
    plate = block.gather(problem)
    good = True
    if plate is not None:
        ranks = " x ".join(map(str, cart.dims))
        print(f"{ranks} ranks in a {type(cart).__name__}, {problem.ny} x {problem.nx} points")
        if xp is not np:
            print(f"arrays on GPUs; messages travel by {cart.message_path}")
        print(f"{steps} steps in {seconds:.2f} s; residual: {reduction!r} of the first")
        print(f"sha256 of the result: {hashlib.sha256(plate.tobytes()).hexdigest()}")
        wrong = check(problem, steps, reduction, plate)
        for reason in wrong:
            print(f"WRONG: {reason}", file=sys.stderr)
        if not wrong:
            print(f"OK: the result of {comm.size} ranks is the exact solution, and that of one process")
        good = not wrong
    good = cart.bcast(good, root=0)
    block.free()
    cart.Free()
    return plate, good


def main() -> int:
    rank = MPI.COMM_WORLD.rank
    args = parse_arguments(rank)
    problem = Problem(args.size[0], args.size[1], args.tolerance, args.steps)

    comm = MPI.COMM_WORLD
    if not args.plain:
        comm = hpccoll.Communicator(MPI.COMM_WORLD)  # <-- from mpi4py to hpccoll: this line

    try:
        plate, good = run(problem, comm, module_for(comm, args.device))
    except (hpccoll.UsageError, NoGpuError) as error:  # a wrong HPCCOLL_LAYOUT, on every rank
        if rank == 0:
            print(f"heat.py: {error}", file=sys.stderr)
        return 2
    if args.save and plate is not None:
        try:
            save_picture(args.save, problem, plate)
        except (OSError, ValueError) as error:  # no such directory; no such image format
            print(f"heat.py: cannot draw {args.save}: {error}", file=sys.stderr)
            return 2
        print(f"picture: {args.save}")
    return 0 if good else 1


if __name__ == "__main__":
    try:
        status = main()
    except Exception:
        # The others may wait for this rank: end them too.
        traceback.print_exc()
        MPI.COMM_WORLD.Abort(1)
    sys.exit(status)
