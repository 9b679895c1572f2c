"""Data, tensor and pipeline parallelism at once: a small transformer, in NumPy or CuPy, on English text.

    mpirun -n 8 python examples/train_3d.py
    HPCCOLL_LAYOUT=4+4 mpirun -n 8 python examples/train_3d.py --steps 50
    HPCCOLL_LAYOUT=4+4 mpirun -n 8 python examples/train_3d.py --order pipeline,data,tensor
    mpirun -n 8 python examples/train_3d.py --tensor 4 --pipeline 1 --sequence

It learns to predict the next character of the help texts that come with Python (`pydoc_data.topics`).  Every
stage of a pipeline has some of the layers, every rank of a tensor group a part of each matrix, and every
data-parallel rank its share of each batch; the moments of Adam are spread over the latter.
`hpccoll.parallel.Mesh` lays the groups on the machine, and its blocks do the exchange.

It checks itself.  Rank 0 also trains alone on the same batches, and the loss of every step must agree to
1e-5; the bytes that crossed each level of the machine must be those that the mesh had said before the run.
Exit status: 0 all of that holds, 1 it does not, 2 wrong arguments or something is missing.
"""

from __future__ import annotations

import os

# One BLAS thread a rank: with one per core in every rank, the ranks would fight for the cores.
os.environ.setdefault("OPENBLAS_NUM_THREADS", "1")
os.environ.setdefault("MKL_NUM_THREADS", "1")

import argparse
import contextlib
import importlib.util
import io
import math
import sys
import time
import traceback
from collections import Counter
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np
from mpi4py import MPI

import hpccoll
from hpccoll.parallel import SHIFT, Mesh, Use
from hpccoll.parallel.optimizer import ShardedAdam
from hpccoll.parallel.pipeline import Stage
from hpccoll.parallel.tensor import (
    all_reduce,
    column_parallel,
    column_parallel_backward,
    cross_entropy,
    row_parallel,
    row_parallel_backward,
)

Array = Any  # of float64, of NumPy or CuPy
Module = Any  # numpy or cupy
LOSS_TOLERANCE = 1e-5  # relative
LEARNING_RATE = 3e-3
ITEMSIZE = 8


@dataclass(frozen=True)
class Shape:
    """Sizes of the model and of a batch, which all ranks share."""

    vocabulary: int
    hidden: int = 32
    heads: int = 4
    layers: int = 4
    length: int = 32  # characters of a sequence
    micro_batch: int = 2  # sequences
    batch: int = 16  # sequences of a step, all together

    @property
    def tokens(self) -> int:
        """Predictions of a step."""
        return self.batch * self.length

    @property
    def activations(self) -> int:
        """Bytes of the activations of a micro-batch between two layers."""
        return self.length * self.micro_batch * self.hidden * ITEMSIZE


def load_text() -> tuple[np.ndarray, int]:
    """The text as numbers of its characters; how many of these there are, up to a multiple of 8."""
    from pydoc_data.topics import topics

    text = "\n".join(topics[name] for name in sorted(topics))
    characters, numbers = np.unique(np.array(list(text)), return_inverse=True)
    return numbers.reshape(-1), -(-len(characters) // 8) * 8


# --- the model: parameters ------------------------------------------------------------------------


class Parameter(NamedTuple):
    """One parameter: its whole shape, the axis that is spread over a tensor group, and how it begins."""

    shape: tuple[int, ...]
    axis: int | None = None
    scale: float | None = None  # of normal random numbers; None: ones for gains, zeros for the rest


def parameters_of(shape: Shape, layers: range, first: bool, last: bool) -> dict[str, Parameter]:
    """The parameters of a stage with these layers, by name."""
    h, deep = shape.hidden, 1 / math.sqrt(2 * shape.layers)
    found: dict[str, Parameter] = {}
    if first:
        found["tokens"] = Parameter((shape.vocabulary, h), scale=0.5)
        found["places"] = Parameter((shape.length, h), scale=0.5)
    for layer in layers:
        found |= {
            f"{layer}.gain1": Parameter((h,)),
            f"{layer}.shift1": Parameter((h,)),
            f"{layer}.qkv": Parameter((h, 3, shape.heads, h // shape.heads), 2, 1 / math.sqrt(h)),
            f"{layer}.qkv_bias": Parameter((3, shape.heads, h // shape.heads), 1),
            f"{layer}.out": Parameter((h, h), 0, deep / math.sqrt(h)),
            f"{layer}.out_bias": Parameter((h,)),
            f"{layer}.gain2": Parameter((h,)),
            f"{layer}.shift2": Parameter((h,)),
            f"{layer}.up": Parameter((h, 4 * h), 1, 1 / math.sqrt(h)),
            f"{layer}.up_bias": Parameter((4 * h,), 0),
            f"{layer}.down": Parameter((4 * h, h), 0, deep / math.sqrt(4 * h)),
            f"{layer}.down_bias": Parameter((h,)),
        }
    if last:
        found |= {"gain": Parameter((h,)), "shift": Parameter((h,))}
        found["head"] = Parameter((h, shape.vocabulary), 1, 1 / math.sqrt(h))
    return found


def beginning(name: str, parameter: Parameter) -> np.ndarray:
    """The whole parameter at the start, the same for every way to spread it."""
    if parameter.scale is not None:
        seed = int.from_bytes(name.encode(), "big")
        return np.random.default_rng(seed).normal(scale=parameter.scale, size=parameter.shape)
    return np.full(parameter.shape, 1.0 if ".gain" in name or name == "gain" else 0.0)


class Vector:
    """Named arrays in one vector, so that one collective moves them."""

    def __init__(self, xp: Module, shapes: dict[str, tuple[int, ...]]) -> None:
        self.flat = xp.zeros(sum(math.prod(shape) for shape in shapes.values()))
        self.named: dict[str, Array] = {}
        begin = 0
        for name, shape in shapes.items():
            end = begin + math.prod(shape)
            self.named[name] = self.flat[begin:end].reshape(shape)
            begin = end

    def __getitem__(self, name: str) -> Array:
        return self.named[name]

    def add(self, name: str, values: Array) -> None:
        """Add to one of the arrays, in place."""
        view = self.named[name]
        view += values


# --- the model: layers, forward and backward -------------------------------------------------------


def normalize(x: Array, gain: Array, shift: Array, xp: Module) -> tuple[Array, tuple[Array, Array]]:
    """Layer norm over the last axis; also what its backward pass needs."""
    centred = x - x.mean(axis=-1, keepdims=True)
    inverse = 1 / xp.sqrt((centred**2).mean(axis=-1, keepdims=True) + 1e-5)
    normal = centred * inverse
    return normal * gain + shift, (normal, inverse)


def normalize_backward(by_y: Array, gain: Array, kept: tuple[Array, Array]) -> tuple[Array, Array, Array]:
    """The gradients by the input, the gain and the shift."""
    normal, inverse = kept
    by_normal = by_y * gain
    mean = by_normal.mean(axis=-1, keepdims=True)
    along = (by_normal * normal).mean(axis=-1, keepdims=True)
    return inverse * (by_normal - mean - normal * along), (by_y * normal).sum((0, 1)), by_y.sum((0, 1))


def gelu(x: Array, xp: Module) -> tuple[Array, Array]:
    """The activation (by tanh), and its derivative."""
    root = math.sqrt(2 / math.pi)
    tanh = xp.tanh(root * (x + 0.044715 * x**3))
    slope = 0.5 * (1 + tanh) + 0.5 * x * (1 - tanh**2) * root * (1 + 3 * 0.044715 * x**2)
    return 0.5 * x * (1 + tanh), slope


def attend(qkv: Array, xp: Module) -> tuple[Array, tuple[Array, ...]]:
    """Causal attention: qkv (length, batch, 3, heads, width) to (length, batch, heads * width)."""
    length, batch, _, heads, width = qkv.shape
    q, k, v = qkv.transpose(2, 1, 3, 0, 4)  # each (batch, heads, length, width)
    scores = q @ k.swapaxes(-1, -2) / math.sqrt(width)
    scores = xp.where(xp.tri(length, dtype=bool), scores, -xp.inf)
    weights = xp.exp(scores - scores.max(axis=-1, keepdims=True))
    weights /= weights.sum(axis=-1, keepdims=True)
    mixed = (weights @ v).transpose(2, 0, 1, 3).reshape(length, batch, heads * width)
    return mixed, (q, k, v, weights)


def attend_backward(by_mixed: Array, kept: tuple[Array, ...], xp: Module) -> Array:
    """The gradient by qkv."""
    q, k, v, weights = kept
    batch, heads, length, width = q.shape
    by_mixed = by_mixed.reshape(length, batch, heads, width).transpose(1, 2, 0, 3)
    by_weights = by_mixed @ v.swapaxes(-1, -2)
    by_scores = weights * (by_weights - (by_weights * weights).sum(axis=-1, keepdims=True)) / math.sqrt(width)
    by_v = weights.swapaxes(-1, -2) @ by_mixed
    by_q, by_k = by_scores @ k, by_scores.swapaxes(-1, -2) @ q
    return xp.stack([by_q, by_k, by_v]).transpose(3, 1, 0, 2, 4)


class Part:
    """What this rank has of the model: some layers, and of each matrix a part.

    Activations are (length, micro-batch, hidden); with `sequence` a rank has a block of the first axis
    between the pairs of parallel layers.
    """

    def __init__(self, shape: Shape, mesh: Mesh, xp: Module, sequence: bool) -> None:
        self.shape, self.xp, self.sequence = shape, xp, sequence
        self.tensor, self.stage = mesh.tensor, Stage(mesh.pipeline)
        each = shape.layers // self.stage.count
        self.layers = range(self.stage.number * each, (self.stage.number + 1) * each)
        whole = parameters_of(shape, self.layers, self.stage.is_first, self.stage.is_last)
        mine = {name: self._mine(beginning(name, one), one.axis) for name, one in whole.items()}
        self.weights = Vector(xp, {name: array.shape for name, array in mine.items()})
        self.gradient = Vector(xp, {name: array.shape for name, array in mine.items()})
        for name, array in mine.items():
            self.weights[name][...] = xp.asarray(array)
        self.shared = [name for name, one in whole.items() if one.axis is None]  # the same in a tensor group
        self.loss = xp.zeros(1)
        self.inputs: list[tuple[Array, Array]] = []  # and targets, of the micro-batches of a step
        self._kept: dict[int, list[Any]] = {}

    def _mine(self, array: np.ndarray, axis: int | None) -> np.ndarray:
        return array if axis is None else np.split(array, self.tensor.size, axis)[self.tensor.rank]

    def _block(self, x: Array) -> Array:
        """Of a sequence, what this rank has between the parallel layers."""
        if not self.sequence:
            return x
        each = len(x) // self.tensor.size
        return x[self.tensor.rank * each : (self.tensor.rank + 1) * each]

    def room(self) -> Array:
        """An array for the activations between two stages."""
        shape = self.shape
        rows = shape.length // self.tensor.size if self.sequence else shape.length
        return self.xp.empty((rows, shape.micro_batch, shape.hidden))

    def forward(self, number: int, x: Array) -> Array:
        """A micro-batch through this stage; keeps what the way back needs."""
        kept: list[Any] = []
        inputs, targets = self.inputs[number]
        if self.stage.is_first:
            x = self._block(self.weights["tokens"][inputs] + self.weights["places"][:, None])
            kept.append(inputs)
        for layer in self.layers:
            x = self._attention(layer, x, kept)
            x = self._perceptron(layer, x, kept)
        if self.stage.is_last:
            x, normal = normalize(x, self.weights["gain"], self.weights["shift"], self.xp)
            logits = column_parallel(self.tensor, x, self.weights["head"], sequence=self.sequence)
            losses, by_logits = cross_entropy(self.tensor, logits, targets)
            self.loss += losses.sum() / self.shape.tokens
            kept.append((x, normal, by_logits / self.shape.tokens))
        self._kept[number] = kept
        return x

    def backward(self, number: int, by_x: Array) -> Array:
        """The way back of a micro-batch; adds to the gradient."""
        kept = self._kept.pop(number)
        if self.stage.is_last:
            x, normal, by_logits = kept.pop()
            by_x = self._column_backward("head", x, by_logits)
            by_x = self._normalize_backward("gain", "shift", by_x, normal)
        for layer in reversed(self.layers):
            by_x = self._perceptron_backward(layer, by_x, kept.pop())
            by_x = self._attention_backward(layer, by_x, kept.pop())
        if self.stage.is_first:
            self._embedding_backward(by_x, kept.pop())
        return by_x

    def _attention(self, layer: int, x: Array, kept: list[Any]) -> Array:
        weights, xp = self.weights, self.xp
        y, normal = normalize(x, weights[f"{layer}.gain1"], weights[f"{layer}.shift1"], xp)
        matrix = weights[f"{layer}.qkv"]
        qkv = column_parallel(self.tensor, y, matrix.reshape(len(matrix), -1), sequence=self.sequence)
        qkv = qkv.reshape(*qkv.shape[:2], *matrix.shape[1:]) + weights[f"{layer}.qkv_bias"]
        mixed, heads = attend(qkv, xp)
        kept.append((y, normal, mixed, heads))
        out = row_parallel(self.tensor, mixed, weights[f"{layer}.out"], sequence=self.sequence)
        return x + out + weights[f"{layer}.out_bias"]

    def _attention_backward(self, layer: int, by_out: Array, kept: tuple[Any, ...]) -> Array:
        y, normal, mixed, heads = kept
        self.gradient.add(f"{layer}.out_bias", by_out.sum((0, 1)))
        by_mixed = self._row_backward(f"{layer}.out", mixed, by_out)
        by_qkv = attend_backward(by_mixed, heads, self.xp)
        self.gradient.add(f"{layer}.qkv_bias", by_qkv.sum((0, 1)))
        by_y = self._column_backward(f"{layer}.qkv", y, by_qkv.reshape(*by_qkv.shape[:2], -1))
        return by_out + self._normalize_backward(f"{layer}.gain1", f"{layer}.shift1", by_y, normal)

    def _perceptron(self, layer: int, x: Array, kept: list[Any]) -> Array:
        weights = self.weights
        y, normal = normalize(x, weights[f"{layer}.gain2"], weights[f"{layer}.shift2"], self.xp)
        up = column_parallel(self.tensor, y, weights[f"{layer}.up"], sequence=self.sequence)
        bent, slope = gelu(up + weights[f"{layer}.up_bias"], self.xp)
        kept.append((y, normal, bent, slope))
        down = row_parallel(self.tensor, bent, weights[f"{layer}.down"], sequence=self.sequence)
        return x + down + weights[f"{layer}.down_bias"]

    def _perceptron_backward(self, layer: int, by_out: Array, kept: tuple[Any, ...]) -> Array:
        y, normal, bent, slope = kept
        self.gradient.add(f"{layer}.down_bias", by_out.sum((0, 1)))
        by_up = self._row_backward(f"{layer}.down", bent, by_out) * slope
        self.gradient.add(f"{layer}.up_bias", by_up.sum((0, 1)))
        by_y = self._column_backward(f"{layer}.up", y, by_up)
        return by_out + self._normalize_backward(f"{layer}.gain2", f"{layer}.shift2", by_y, normal)

    def _embedding_backward(self, by_x: Array, inputs: Array) -> None:
        by_places = self._block(self.gradient["places"])
        by_places += by_x.sum(axis=1)
        # One row of ones for each token, so that equal tokens add up in NumPy and in CuPy alike.
        one_hot = (self._block(inputs).reshape(-1)[:, None] == self.xp.arange(self.shape.vocabulary)).astype(
            float
        )
        self.gradient.add("tokens", one_hot.T @ by_x.reshape(-1, by_x.shape[-1]))

    def _column_backward(self, name: str, x: Array, by_y: Array) -> Array:
        matrix = self.weights[name]
        flat = matrix.reshape(len(matrix), -1)
        by_x, by_matrix = column_parallel_backward(self.tensor, x, flat, by_y, sequence=self.sequence)
        self.gradient.add(name, by_matrix.reshape(matrix.shape))
        return by_x

    def _row_backward(self, name: str, x: Array, by_y: Array) -> Array:
        by_x, by_matrix = row_parallel_backward(
            self.tensor, x, self.weights[name], by_y, sequence=self.sequence
        )
        self.gradient.add(name, by_matrix)
        return by_x

    def _normalize_backward(self, gain: str, shift: str, by_y: Array, kept: tuple[Array, Array]) -> Array:
        by_x, by_gain, by_shift = normalize_backward(by_y, self.weights[gain], kept)
        self.gradient.add(gain, by_gain)
        self.gradient.add(shift, by_shift)
        return by_x

    def add_up_shared(self) -> None:
        """With `sequence`, each rank has the gradient of parameters it shares by its own block alone."""
        if self.sequence and self.tensor.size > 1:
            whole = all_reduce(
                self.tensor, self.xp.concatenate([self.gradient[name].reshape(-1) for name in self.shared])
            )
            begin = 0
            for name in self.shared:
                view = self.gradient[name]
                view[...] = whole[begin : begin + view.size].reshape(view.shape)
                begin += view.size


# --- training -------------------------------------------------------------------------------------


class Batches:
    """The same batches for any way to spread them."""

    def __init__(self, shape: Shape, text: np.ndarray, xp: Module, share: int, shares: int) -> None:
        self._shape, self._text, self._xp = shape, text, xp
        self._mine = slice(share * shape.batch // shares, (share + 1) * shape.batch // shares)

    def of_step(self, step: int) -> list[tuple[Array, Array]]:
        """Inputs and targets (length, micro-batch) of the micro-batches of this share."""
        shape = self._shape
        starts = np.random.default_rng(step + 1).integers(
            len(self._text) - shape.length - 1, size=shape.batch
        )
        rows = self._text[starts[self._mine, None] + np.arange(shape.length + 1)].T
        micro = [slice(at, at + shape.micro_batch) for at in range(0, rows.shape[1], shape.micro_batch)]
        return [(self._xp.asarray(rows[:-1, one]), self._xp.asarray(rows[1:, one])) for one in micro]


def train(shape: Shape, text: np.ndarray, mesh: Mesh, xp: Module, steps: int, sequence: bool) -> list[float]:
    """The loss of every step, on the last stage of a pipeline; on others it is 0."""
    part = Part(shape, mesh, xp, sequence)
    adam = ShardedAdam(mesh.data, part.weights.flat, rate=LEARNING_RATE)
    batches = Batches(shape, text, xp, mesh.data.rank, mesh.data.size)
    losses = xp.zeros(steps)
    for step in range(steps):
        part.gradient.flat[...] = 0.0
        part.loss[...] = 0.0
        part.inputs = batches.of_step(step)
        part.stage.run(len(part.inputs), part.forward, part.backward, part.room)
        part.add_up_shared()
        adam.step(part.gradient.flat)
        losses[step] = part.loss[0]
    return [float(loss) for loss in losses]


def uses_of(shape: Shape, sizes: dict[str, int], sequence: bool) -> list[Use]:
    """What a step exchanges, so that the mesh can say how many bytes cross each level."""
    t, d, p = sizes["tensor"], sizes["data"], sizes["pipeline"]
    micro = shape.batch // d // shape.micro_batch
    layers, bytes_, last = shape.layers // p * micro, shape.activations, {"pipeline": p - 1}
    tokens = shape.length * shape.micro_batch * ITEMSIZE
    found = [
        Use("pipeline", SHIFT, bytes_ // t if sequence else bytes_, 2 * micro, "float64"),
        Use("tensor", "allreduce", tokens, micro, "float64", last),  # largest logits
        Use(
            "tensor", "allreduce", 2 * tokens, micro, "float64", last
        ),  # their sums, and those of the targets
    ]
    if sequence:
        found += [
            Use("tensor", "allgather", bytes_, 6 * layers, "float64"),
            Use("tensor", "reduce_scatter", bytes_, 4 * layers, "float64"),
            Use("tensor", "allgather", bytes_, 2 * micro, "float64", last),
            Use("tensor", "reduce_scatter", bytes_, micro, "float64", last),
        ]
    else:
        found += [
            Use("tensor", "allreduce", bytes_, 4 * layers, "float64"),
            Use("tensor", "allreduce", bytes_, micro, "float64", last),
        ]
    for stage in range(p):
        each = shape.layers // p
        own = parameters_of(shape, range(stage * each, (stage + 1) * each), stage == 0, stage == p - 1)
        count = sum(math.prod(one.shape) // (1 if one.axis is None else t) for one in own.values())
        nbytes, at = -(-count // d) * d * ITEMSIZE, {"pipeline": stage}
        found += [Use("data", name, nbytes, 1, "float64", at) for name in ("reduce_scatter", "allgather")]
        if sequence:
            shared = sum(math.prod(one.shape) for one in own.values() if one.axis is None)
            found.append(Use("tensor", "allreduce", shared * ITEMSIZE, 1, "float64", at))
    return found


# --- the program ----------------------------------------------------------------------------------


@dataclass
class Run:
    """What a run of all ranks gave."""

    losses: np.ndarray
    seconds: float
    forecast: dict[str, Counter[str]]
    counted: dict[str, Counter[str]]


def run_on_all(
    comm: hpccoll.Communicator, args: argparse.Namespace, shape: Shape, text: np.ndarray, xp: Module
) -> Run:
    sizes = {"data": args.data, "tensor": args.tensor, "pipeline": args.pipeline}
    uses = uses_of(shape, sizes, args.sequence)
    with Mesh(comm, **sizes, order=args.order, uses=uses, counted=True) as mesh:
        forecast = {
            name: Counter({k: n * args.steps for k, n in one.items()})
            for name, one in mesh.forecast().items()
        }
        comm.Barrier()
        begin = time.perf_counter()
        losses = np.array(train(shape, text, mesh, xp, args.steps, args.sequence))
        if mesh.coordinates["tensor"]:
            losses[:] = 0.0  # all ranks of a tensor group have the same
        comm.Allreduce(MPI.IN_PLACE, losses)
        return Run(losses, time.perf_counter() - begin, forecast, mesh.traffic())


def check(
    comm: hpccoll.Communicator, run: Run, shape: Shape, text: np.ndarray, args: argparse.Namespace
) -> list[str]:
    """What is wrong; nothing, if all is well.  Prints what was compared."""
    begin = time.perf_counter()
    with Mesh(MPI.COMM_SELF) as alone:
        serial = np.array(train(shape, text, alone, np, args.steps, False))
    seconds = time.perf_counter() - begin
    difference = float(np.max(np.abs(run.losses - serial) / np.abs(serial)))
    print(f"{args.steps} steps: {run.seconds:.1f} s on {comm.size} ranks, {seconds:.1f} s in one process")
    for step in sorted({round(at) for at in np.linspace(0, args.steps - 1, 6)}):
        print(f"step {step + 1:4d}  loss {run.losses[step]:.6f}  in one process {serial[step]:.6f}")
    print(f"loss, largest relative difference from one process: {difference:.1e}")
    print("bytes by dimension and level, said before the run and counted in it:")
    wrong = []
    for name in ("tensor", "data", "pipeline"):
        said, counted = run.forecast.get(name, Counter()), run.counted.get(name, Counter())
        for level in sorted({*said, *counted}) or ["-"]:
            print(f"  {name:9s} {level:8s} {said[level]:14d} {counted[level]:14d}")
        if said != counted:
            wrong.append(f"the {name} groups moved {dict(counted)} bytes, not {dict(said)}")
    if not difference <= LOSS_TOLERANCE:  # so that NaN is wrong
        wrong.append(f"the loss differs by {difference:.1e}, more than {LOSS_TOLERANCE:g}")
    if args.steps >= 10 and not run.losses[-1] < run.losses[0]:
        wrong.append(f"the loss went from {run.losses[0]:.3f} to {run.losses[-1]:.3f}: nothing was learned")
    return wrong


def parse_arguments(rank: int, size: int) -> argparse.Namespace:
    """The command line; of what is wrong with it rank 0 alone tells."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n\n")[0])
    parser.add_argument("--data", type=int, metavar="N", help="default: what the others leave")
    parser.add_argument("--tensor", type=int, default=2, metavar="N", help="1, 2 or 4; default: 2")
    parser.add_argument("--pipeline", type=int, default=2, metavar="N", help="1, 2 or 4 stages; default: 2")
    parser.add_argument("--sequence", action="store_true", help="spread sequences over tensor groups, too")
    parser.add_argument(
        "--order", metavar="NAMES", help="dimensions, heaviest first (default: tensor,data,pipeline)"
    )
    parser.add_argument("--steps", type=int, default=20, metavar="N", help="default: 20")
    parser.add_argument("--device", choices=("cpu", "cuda"), default="cpu", help="default: cpu")
    with contextlib.ExitStack() as stack:
        if rank != 0:
            stack.enter_context(contextlib.redirect_stdout(io.StringIO()))
            stack.enter_context(contextlib.redirect_stderr(io.StringIO()))
        args = parser.parse_args()
        if args.steps < 1:
            parser.error(f"--steps is {args.steps}: must be at least 1")
        for name in ("tensor", "pipeline"):
            if getattr(args, name) not in (1, 2, 4):
                parser.error(f"--{name} is {getattr(args, name)}: must be 1, 2 or 4")
        if args.data is None:
            args.data = max(1, size // (args.tensor * args.pipeline))
        if args.data not in (1, 2, 4, 8):
            parser.error(f"--data is {args.data}: must be 1, 2, 4 or 8")
        if args.order is not None:
            args.order = args.order.split(",")
        if args.device == "cuda" and importlib.util.find_spec("cupy") is None:
            parser.error("--device cuda: CuPy is missing; install it with: pip install 'hpccoll[cuda12]'")
    return args


def module_for(comm: hpccoll.Communicator, device: str) -> Module:
    """The module whose arrays are on `device`; a GPU becomes the current one."""
    if device == "cpu":
        return np
    ordinal = comm.device
    import cupy

    cupy.cuda.Device(ordinal).use()
    return cupy


def main() -> int:
    world = MPI.COMM_WORLD
    args = parse_arguments(world.rank, world.size)
    text, vocabulary = load_text()
    shape = Shape(vocabulary)
    # Plans by price alone: a table of `hpccoll tune` may hold for some groups, which no forecast knows.
    with hpccoll.Communicator(world, tuning="off") as comm:
        try:
            xp = module_for(comm, args.device)
            run = run_on_all(comm, args, shape, text, xp)
        except (hpccoll.UsageError, hpccoll.ResourceError) as error:
            if comm.rank == 0:
                print(f"train_3d.py: {error}", file=sys.stderr)
            return 2
        good = np.ones(1, np.int64)
        if comm.rank == 0:
            print(f"ranks: {comm.size}, layout: {comm.machine.layout}")
            wrong = check(comm, run, shape, text, args)
            for reason in wrong:
                print(f"WRONG: {reason}", file=sys.stderr)
            if not wrong:
                print(f"OK: {args.data} x {args.tensor} x {args.pipeline} ranks train as one process does")
            good[0] = not wrong
        comm.Bcast(good, root=0)
        return 0 if good[0] else 1


if __name__ == "__main__":
    try:
        status = main()
    except Exception:
        # The others may wait for this rank: end them too.
        status = 1
        traceback.print_exc()
        MPI.COMM_WORLD.Abort(1)
    sys.exit(status)
