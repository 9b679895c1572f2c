"""Data-parallel training of a small neural network, in NumPy or CuPy, on scikit-learn's handwritten digits.

    mpirun -n 4 python examples/train_digits.py
    mpirun -n 4 python examples/train_digits.py --layout 2+2 --epochs 40 --plot loss.png
    mpirun -n 4 python examples/train_digits.py --overlap
    mpirun -n 4 python examples/train_digits.py --checkpoint digits.npz
    mpirun -n 4 python examples/train_digits.py --device cuda

Every rank computes the gradient of its share of each batch; hpccoll averages them, so that all ranks take
the same step.  Any number of ranks will do: shares may differ by one image.  With `--overlap` the gradient of
a layer travels while that of the layer below is computed.  With `--device cuda` all arrays are CuPy's, on the
GPU that `comm.device` says; the lines that compute and the calls are the same.

With `--checkpoint FILE` the state is kept after every epoch, and a run that was stopped goes on from it: once
FILE.stop is there (slurm/train.sbatch makes it before the time limit) the epoch under way is the last.

It checks itself.  Rank 0 also trains alone, in NumPy, on the same batches, and the loss of every epoch must
agree to rounding; all ranks must end with the same bits in their weights; more than 95 % of the images held
out must be recognized.  Exit status: 0 all of that holds, 1 it does not, 2 wrong arguments or something is
missing.
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
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
from mpi4py import MPI
from numpy.typing import NDArray

import hpccoll

Floats = NDArray[np.float64]  # or CuPy's
Module = Any  # numpy or cupy

PIXELS, HIDDEN, CLASSES = 64, 128, 10
IMAGES, TRAINING_IMAGES = 1797, 1437  # the others are held out
BATCH = 100  # the last batch of an epoch has 37: neither divides by every number of ranks
LEARNING_RATE, MOMENTUM = 0.1, 0.9
LEAST_ACCURACY = 0.95
LOSS_TOLERANCE = 1e-9  # relative: sums of gradients in another order, over all steps
TABLE_ROWS, BAR_WIDTH = 12, 40
STOPPED = 75  # EX_TEMPFAIL of sysexits.h: try again
BUCKET_BYTES = 16 * 1024  # two buckets: one for each layer


@dataclass(frozen=True)
class Digits:
    """Images (n x 64, values 0 to 1) and their digits (n), for training and held out."""

    images: Floats
    digits: NDArray[np.int64]
    held_images: Floats
    held_digits: NDArray[np.int64]

    def on(self, xp: Module) -> Digits:
        """The same in arrays of `xp`."""
        return Digits(*(xp.asarray(one) for one in vars(self).values()))


def load_data(comm: hpccoll.Communicator) -> Digits:
    """The bundled 8 x 8 images in random order: rank 0 reads them, all ranks get them."""
    images = np.empty((IMAGES, PIXELS))
    digits = np.empty(IMAGES, np.int64)
    if comm.rank == 0:
        from sklearn.datasets import load_digits

        bundle = load_digits()
        order = np.random.default_rng(0).permutation(IMAGES)
        images[...] = bundle.data[order] / 16.0
        digits[...] = bundle.target[order]
    comm.Bcast(images, root=0)
    comm.Bcast(digits, root=0)
    n = TRAINING_IMAGES
    return Digits(images[:n], digits[:n], images[n:], digits[n:])


class Network:
    """64 pixels -> 128 tanh units -> softmax over 10 digits.

    All weights lie in one array, all gradients in another, so that one collective moves them.  `xp`: numpy,
    or cupy, which has the same functions for arrays on a GPU.
    """

    def __init__(self, xp: Module) -> None:
        self.xp = xp
        shapes = ((PIXELS, HIDDEN), (HIDDEN,), (HIDDEN, CLASSES), (CLASSES,))
        count = sum(math.prod(shape) for shape in shapes)
        self.weights = xp.zeros(count)
        self.gradient = xp.zeros(count)
        self._weights = list(_views(self.weights, shapes))
        self.gradients = list(_views(self.gradient, shapes))

    def initialize(self, seed: int) -> None:
        """Random weights, biases of zero."""
        rng = np.random.default_rng(seed)
        self.weights[:] = 0.0
        for part in self._weights:
            if part.ndim == 2:
                part[...] = self.xp.asarray(rng.normal(scale=1 / math.sqrt(part.shape[0]), size=part.shape))

    def forward(self, images: Floats) -> tuple[Floats, Floats]:
        """Activations of the hidden layer (n x 128), and the probability of each digit (n x 10)."""
        xp = self.xp
        w1, b1, w2, b2 = self._weights
        hidden = xp.tanh(images @ w1 + b1)
        scores = hidden @ w2 + b2
        scores = xp.exp(scores - scores.max(axis=1, keepdims=True))
        return hidden, scores / scores.sum(axis=1, keepdims=True)

    def backward(self, images: Floats, digits: NDArray[np.int64], done: Callable[[int], None]) -> Floats:
        """Put the gradient of these images' summed cross entropy into `gradient`; return that sum.

        `done(k)` is called when `gradients[k]` is computed: the last layer first.
        """
        xp = self.xp
        hidden, probability = self.forward(images)
        rows = xp.arange(len(digits))
        loss = -xp.log(probability[rows, digits]).sum()
        probability[rows, digits] -= 1.0  # now the derivative by the scores
        g1, gb1, g2, gb2 = self.gradients
        probability.sum(axis=0, out=gb2)
        done(3)
        xp.matmul(hidden.T, probability, out=g2)
        done(2)
        by_hidden = (probability @ self._weights[2].T) * (1.0 - hidden**2)
        by_hidden.sum(axis=0, out=gb1)
        done(1)
        xp.matmul(images.T, by_hidden, out=g1)
        done(0)
        return loss

    def accuracy(self, images: Floats, digits: NDArray[np.int64]) -> float:
        """The share of the images that are recognized."""
        return float((self.forward(images)[1].argmax(axis=1) == digits).mean())


def _views(flat: Floats, shapes: tuple[tuple[int, ...], ...]) -> Iterator[Floats]:
    begin = 0
    for shape in shapes:
        end = begin + math.prod(shape)
        yield flat[begin:end].reshape(shape)
        begin = end


class Alone:
    """One process: it has the whole of each batch, and nothing to exchange."""

    rank, size, seconds = 0, 1, 0.0

    def average(self, values: Floats) -> None:
        """The average over one rank."""

    def tell(self, values: Floats) -> Floats:
        """What rank 0 has, on every rank."""
        return values

    def ready(self, part: int) -> None:
        """A part of the gradient is computed."""

    def finish(self, gradient: Floats) -> None:
        """All of it is, and is averaged on return."""


class Ranks:
    """All ranks of a communicator.

    `seconds`: spent in collectives, waiting for the others included; on a GPU, where they are enqueued behind
    what computes the gradient, only to enqueue them.
    """

    def __init__(self, comm: hpccoll.Communicator) -> None:
        self.comm, self.rank, self.size, self.seconds = comm, comm.rank, comm.size, 0.0

    def average(self, values: Floats) -> None:
        """Replace `values` by their average over the ranks, in place."""
        begin = time.perf_counter()
        self.comm.Allreduce(MPI.IN_PLACE, values, op=hpccoll.AVG)
        self.seconds += time.perf_counter() - begin

    def tell(self, values: Floats) -> Floats:
        """What rank 0 has, on every rank."""
        self.comm.Bcast(values, root=0)
        return values

    def ready(self, part: int) -> None:
        """A part of the gradient is computed."""

    def finish(self, gradient: Floats) -> None:
        """All of it is, and is averaged on return."""
        self.average(gradient)


class Overlapping(Ranks):
    """All ranks; parts of the gradient travel while others are computed.  `seconds`: those waited for."""

    def __init__(self, comm: hpccoll.Communicator, network: Network) -> None:
        super().__init__(comm)
        self.buckets = hpccoll.GradientBuckets(comm, network.gradients, bucket_bytes=BUCKET_BYTES)

    def ready(self, part: int) -> None:
        self.buckets.ready(part)

    def finish(self, gradient: Floats) -> None:
        self.buckets.wait()
        self.seconds += self.buckets.times.wait_s


@dataclass
class History:
    """A row per epoch: mean loss of the training images, accuracy on those held out, seconds."""

    loss: list[float] = field(default_factory=list)
    accuracy: list[float] = field(default_factory=list)
    seconds: list[float] = field(default_factory=list)
    exchange_seconds: list[float] = field(default_factory=list)


class Checkpoint:
    """The state of a training run in a file, which rank 0 reads and writes; without a name, nowhere."""

    def __init__(self, group: Alone | Ranks, name: str | None) -> None:
        self._group = group
        self._file = None if name is None or group.rank else Path(name)

    def load(self, network: Network, velocity: Floats) -> History:
        """Put what was kept into weights and velocity of all ranks; the history of the epochs done."""
        state, rows = np.zeros((2, len(velocity))), np.zeros((4, 0))
        if self._file is not None and self._file.exists():
            with np.load(self._file) as kept:
                state, rows = kept["state"], kept["history"]
        done = self._group.tell(np.array([rows.shape[1]]))
        if not done:
            return History()
        rows = self._group.tell(rows if self._group.rank == 0 else np.zeros((4, int(done[0]))))
        state = self._group.tell(state)
        network.weights[:], velocity[:] = (network.xp.asarray(one) for one in state)
        return History(*(list(row) for row in rows))

    def keep(self, network: Network, velocity: Floats, history: History) -> None:
        """Replace the file, so that a job killed at any time leaves a whole one."""
        if self._file is not None:
            state = [one if network.xp is np else one.get() for one in (network.weights, velocity)]
            beside = self._file.with_name(f"{self._file.name}.part.npz")
            np.savez(beside, state=state, history=np.array(list(vars(history).values())))
            beside.replace(self._file)

    def is_wanted(self) -> bool:
        """Whether this rank has been told to stop."""
        return self._file is not None and self._file.with_name(f"{self._file.name}.stop").exists()


def train(
    network: Network, data: Digits, epochs: int, group: Alone | Ranks, checkpoint: Checkpoint
) -> tuple[History, bool]:
    """Stochastic gradient descent with momentum; `group` says which share of a batch is ours.

    The history, and whether it is to stop before all epochs are done.
    """
    xp = network.xp
    velocity = xp.zeros_like(network.weights)
    history = checkpoint.load(network, velocity)
    if len(history.loss) > epochs:
        raise hpccoll.UsageError(
            f"the checkpoint has {len(history.loss)} epochs, more than --epochs {epochs}"
        )
    for epoch in range(len(history.loss), epochs):
        begin, exchanged = time.perf_counter(), group.seconds
        order = xp.asarray(np.random.default_rng(epoch + 1).permutation(TRAINING_IMAGES))
        loss = xp.zeros(2)  # and whether a rank is to stop: all learn it with the loss
        for start in range(0, TRAINING_IMAGES, BATCH):
            batch = order[start : start + BATCH]
            # Ranks r, r + size, r + 2 size, ...: the shares of any batch differ by one image at most.
            mine = batch[group.rank :: group.size]
            # The average over ranks of (size / batch) x (sum over a share) is the mean over the batch,
            # whether the shares are equal or not.
            factor = group.size / len(batch)

            def done(part: int, factor: float = factor) -> None:
                network.gradients[part] *= factor
                group.ready(part)

            loss[0] += network.backward(data.images[mine], data.digits[mine], done)
            group.finish(network.gradient)
            velocity *= MOMENTUM
            velocity -= LEARNING_RATE * network.gradient
            network.weights += velocity
        loss[0] *= group.size / TRAINING_IMAGES
        loss[1] = checkpoint.is_wanted()
        group.average(loss)
        history.loss.append(float(loss[0]))  # waits for the GPU, if there is one
        history.seconds.append(time.perf_counter() - begin)
        history.exchange_seconds.append(group.seconds - exchanged)
        history.accuracy.append(network.accuracy(data.held_images, data.held_digits))
        checkpoint.keep(network, velocity, history)
        if loss[1] > 0 and epoch + 1 < epochs:
            return history, True
    return history, False


def check(history: History, serial: History, fingerprints: list[str]) -> list[str]:
    """What is wrong; nothing, if all is well.  Prints what was compared."""
    ours, theirs = np.array(history.loss), np.array(serial.loss)
    difference = float(np.max(np.abs(ours - theirs) / np.abs(theirs)))
    accuracy = history.accuracy[-1]
    print(f"loss, largest relative difference from one process: {difference:.1e}")
    print(f"accuracy on {IMAGES - TRAINING_IMAGES} images held out: {accuracy:.2%}")
    wrong = []
    if not difference <= LOSS_TOLERANCE:  # so that NaN is wrong
        wrong.append(f"the loss differs by {difference:.1e}, more than {LOSS_TOLERANCE:g}")
    if not accuracy > LEAST_ACCURACY:
        wrong.append(f"accuracy is {accuracy:.2%}, not above {LEAST_ACCURACY:.0%}")
    odd = [rank for rank, one in enumerate(fingerprints) if one != fingerprints[0]]
    if odd:
        wrong.append(f"the weights of ranks {odd} are not those of rank 0")
    return wrong


def print_table(history: History) -> None:
    """Some of the epochs; the bars are the loss on a logarithmic scale."""
    epochs = len(history.loss)
    lowest, highest = math.log(min(history.loss)), math.log(max(history.loss))
    print("epoch      loss  accuracy     time  of it in collectives")
    for epoch in sorted({round(row) for row in np.linspace(0, epochs - 1, min(epochs, TABLE_ROWS))}):
        span = (math.log(history.loss[epoch]) - lowest) / (highest - lowest or 1.0)
        print(
            f"{epoch + 1:5d}  {history.loss[epoch]:8.5f}  {history.accuracy[epoch]:8.2%}"
            f"  {history.seconds[epoch] * 1e3:4.0f} ms  {history.exchange_seconds[epoch] * 1e3:4.0f} ms"
            f"  {'#' * (1 + round((BAR_WIDTH - 1) * span))}"
        )


def print_plans(comm: hpccoll.Communicator, nbytes: int) -> None:
    """How the averages travel.  Every rank calls it; rank 0 prints."""
    machine = comm.machine
    if comm.device_path:  # a call on device arrays has been made
        if comm.rank == 0:
            print(f"ranks: {comm.size}, nodes: {comm.node_count}, layout: {machine.layout}")
            print(f"arrays on GPUs, which travel by {comm.device_path}")
        return
    plans = [comm.explain("allreduce", n, dtype="float64", op=hpccoll.AVG).plan for n in (nbytes, 16)]
    if comm.rank == 0:
        print(f"ranks: {comm.size}, nodes: {comm.node_count}, layout: {machine.layout}")
        print(f"plans: {plans[0]} for the gradient ({nbytes} bytes), {plans[1]} for the loss (16 bytes)")


def save_plot(path: str, history: History, serial: History) -> None:
    """The loss curves of both runs; PNG, PDF or SVG by the name of the file."""
    import matplotlib

    matplotlib.use("agg")
    from matplotlib import pyplot

    figure, axes = pyplot.subplots(figsize=(7, 4), layout="constrained")
    epochs = range(1, len(history.loss) + 1)
    axes.semilogy(epochs, serial.loss, linewidth=5, alpha=0.35, label="one process")
    axes.semilogy(epochs, history.loss, label="all ranks")
    axes.set(xlabel="epoch", ylabel="training loss")
    axes.legend()
    figure.savefig(path, dpi=150)


def parse_arguments(rank: int) -> argparse.Namespace:
    """The command line; of what is wrong with it rank 0 alone tells."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n\n")[0])
    parser.add_argument("--epochs", type=int, default=30, metavar="N", help="default: 30")
    parser.add_argument("--layout", metavar="TEXT", help='virtual nodes, such as "2+2" (default: real ones)')
    parser.add_argument("--plot", metavar="FILE", help="also draw the loss curves (needs matplotlib)")
    parser.add_argument("--checkpoint", metavar="FILE", help="keep the state in FILE, and go on from it")
    parser.add_argument("--overlap", action="store_true", help="gradients travel while others are computed")
    parser.add_argument("--device", choices=("cpu", "cuda"), default="cpu", help="default: cpu")
    with contextlib.ExitStack() as stack:
        if rank != 0:
            stack.enter_context(contextlib.redirect_stdout(io.StringIO()))
            stack.enter_context(contextlib.redirect_stderr(io.StringIO()))
        args = parser.parse_args()
        if args.epochs < 1:
            parser.error(f"--epochs is {args.epochs}: must be at least 1")
        if args.device == "cuda" and importlib.util.find_spec("cupy") is None:
            parser.error("--device cuda: CuPy is missing; install it with: pip install 'hpccoll[cuda12]'")
        if importlib.util.find_spec("sklearn") is None:
            parser.error("scikit-learn is missing; install it with: pip install scikit-learn")
        if args.plot and importlib.util.find_spec("matplotlib") is None:
            parser.error("matplotlib is missing; install it with: pip install matplotlib")
    return args


class NoGpuError(Exception):
    """A rank has no GPU, or no CuPy that runs."""


def module_for(comm: hpccoll.Communicator, device: str) -> Module:
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


def train_and_check(
    comm: hpccoll.Communicator, xp: Module, args: argparse.Namespace
) -> tuple[History, History, int]:
    """Train on all ranks, then on rank 0 alone; the two histories, and on every rank the exit status."""
    network = Network(xp)
    data = load_data(comm)
    if comm.rank == 0:
        network.initialize(seed=0)
    comm.Bcast(network.weights, root=0)
    print_plans(comm, network.gradient.nbytes)
    group = Overlapping(comm, network) if args.overlap else Ranks(comm)
    checkpoint, serial = Checkpoint(group, args.checkpoint), History()
    history, stopped = train(network, data.on(xp), args.epochs, group, checkpoint)
    if isinstance(group, Overlapping):
        group.buckets.close()
    if stopped:
        if comm.rank == 0:
            print(f"stopped after {len(history.loss)} of {args.epochs} epochs, kept in {args.checkpoint}")
        return history, serial, STOPPED
    fingerprint = hashlib.sha256(network.weights.tobytes()).hexdigest()
    fingerprints: list[str] | None = comm.gather(fingerprint, root=0)
    good = np.ones(1, np.int64)
    if fingerprints is not None:  # on rank 0
        print_table(history)
        print(f"weights: {fingerprint[:16]}")
        if isinstance(group, Overlapping):
            print(
                f"hidden: {group.buckets.total_times.hidden_percent:.0f} % of the gradients' time under way"
            )
        alone = Network(np)
        alone.initialize(seed=0)
        serial, _ = train(alone, data, args.epochs, Alone(), Checkpoint(Alone(), None))
        wrong = check(history, serial, fingerprints)
        for reason in wrong:
            print(f"WRONG: {reason}", file=sys.stderr)
        if not wrong:
            print(f"OK: training on {comm.size} ranks equals training in one process")
        good[0] = not wrong
    comm.Bcast(good, root=0)  # the others wait here without taking the cores from rank 0, as MPI's bcast may
    return history, serial, 0 if good[0] else 1


def main() -> int:
    rank = MPI.COMM_WORLD.rank
    args = parse_arguments(rank)
    options: dict[str, Any] = {} if args.layout is None else {"layout": args.layout}
    from threadpoolctl import threadpool_limits  # comes with scikit-learn

    try:
        # One BLAS thread a rank: with one per core in every rank, the ranks would fight for the cores.
        with threadpool_limits(1), hpccoll.Communicator(MPI.COMM_WORLD, **options) as comm:
            xp = module_for(comm, args.device)
            history, serial, status = train_and_check(comm, xp, args)
    except (hpccoll.UsageError, NoGpuError) as error:  # a wrong layout, on every rank
        if rank == 0:
            print(f"train_digits.py: {error}", file=sys.stderr)
        return 2
    if args.plot and rank == 0 and status != STOPPED:
        try:
            save_plot(args.plot, history, serial)
        except (OSError, ValueError) as error:  # no such directory; no such image format
            print(f"train_digits.py: cannot draw {args.plot}: {error}", file=sys.stderr)
            return 2
        print(f"loss curves: {args.plot}")
    return status


if __name__ == "__main__":
    try:
        status = main()
    except Exception:
        # The others may wait for this rank: end them too.
        traceback.print_exc()
        MPI.COMM_WORLD.Abort(1)
    sys.exit(status)
