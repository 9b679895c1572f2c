"""Tensor parallelism: products of matrices that are spread over the ranks of a group.

A pair of layers, y = f(x A) B, is computed with A by columns and B by rows, so that nothing is exchanged in
between (M. Shoeybi et al., "Megatron-LM", 2019, section 3)::

    forward                                         backward
    column_parallel    y_r = f(x A_r)               dx = sum over ranks of dy_r A_r^T
    row_parallel       y = sum over ranks of x_r B_r     dx_r = dy B_r^T

so an all-reduce of the activations forward and one backward for each pair.  With `sequence=True` what lies
between two pairs is spread over the ranks along the first axis, and each all-reduce becomes a
reduce-scatter here and an all-gather there, of the same bytes (V. Korthikanti et al., "Reducing Activation
Recomputation in Large Transformer Models", 2022).

All functions are collective over the group `comm`; arrays are of NumPy, or of CuPy on the communicator's
device, of any leading axes, alike on all ranks.  A wrong shape is an error of the collective, on all
ranks.  Bytes on the wire of n ranks: 2 (n-1)/n of the activations for each all-reduce and rank, half of it
for each of the others.
"""

from __future__ import annotations

import sys
from typing import Any

from mpi4py import MPI

from hpccoll.communicator import Communicator

Array = Any  # of NumPy, or of CuPy


def module_of(array: Array) -> Any:
    """The module whose array it is: numpy or cupy."""
    return sys.modules[type(array).__module__.partition(".")[0]]


def all_reduce(comm: Communicator, x: Array, op: MPI.Op = MPI.SUM) -> Array:
    """The elements of all ranks combined; `x` itself where it is contiguous, whose elements are replaced."""
    x = module_of(x).ascontiguousarray(x)
    if comm.size > 1:
        comm.Allreduce(MPI.IN_PLACE, x, op)
    return x


def all_gather(comm: Communicator, x: Array) -> Array:
    """The blocks of all ranks, in rank order along the first axis; `x` itself where there is one rank."""
    if comm.size == 1:
        return x
    xp = module_of(x)
    whole = xp.empty((comm.size * x.shape[0], *x.shape[1:]), x.dtype)
    comm.Allgather(xp.ascontiguousarray(x), whole)
    return whole


def reduce_scatter(comm: Communicator, x: Array) -> Array:
    """The sum over all ranks, of it this rank's block along the first axis; `x` itself for a single rank.

    The first axis is a multiple of the number of ranks.
    """
    if comm.size == 1:
        return x
    xp = module_of(x)
    block = xp.empty((x.shape[0] // comm.size, *x.shape[1:]), x.dtype)
    comm.Reduce_scatter_block(xp.ascontiguousarray(x), block)
    return block


def column_parallel(comm: Communicator, x: Array, weight: Array, *, sequence: bool = False) -> Array:
    """The columns of this rank of `x` times a matrix: x (..., k), weight (k, n/ranks) give (..., n/ranks).

    `sequence`: `x` is this rank's block along the first axis, and is gathered; else it is the whole,
    nothing moves.
    """
    return _product(all_gather(comm, x) if sequence else x, weight)


def column_parallel_backward(
    comm: Communicator, x: Array, weight: Array, by_y: Array, *, sequence: bool = False
) -> tuple[Array, Array]:
    """The gradients by `x` and by `weight`; as forward, and `by_y` (..., n/ranks) by this rank's columns.

    That by `x` is the sum over the ranks: the whole, or with `sequence` this rank's block.  `x` is gathered
    anew rather than kept.
    """
    whole = all_gather(comm, x) if sequence else x
    by_x = _product(by_y, weight.T)
    return (reduce_scatter if sequence else all_reduce)(comm, by_x), by_weight(whole, by_y)


def row_parallel(comm: Communicator, x: Array, weight: Array, *, sequence: bool = False) -> Array:
    """`x` times a matrix of which this rank has rows: x (..., k/ranks) by weight (k/ranks, n) gives (..., n).

    It is the sum over the ranks: the whole on every rank, or with `sequence` this rank's block of the first
    axis.
    """
    return (reduce_scatter if sequence else all_reduce)(comm, _product(x, weight))


def row_parallel_backward(
    comm: Communicator, x: Array, weight: Array, by_y: Array, *, sequence: bool = False
) -> tuple[Array, Array]:
    """The gradients by this rank's `x` and `weight`; with `sequence` `by_y` is a block, and is gathered."""
    whole = all_gather(comm, by_y) if sequence else by_y
    return _product(whole, weight.T), by_weight(x, whole)


def _product(x: Array, weight: Array) -> Array:
    """One product of two matrices, rather than one for each place of the leading axes."""
    return (x.reshape(-1, x.shape[-1]) @ weight).reshape(*x.shape[:-1], weight.shape[-1])


def by_weight(x: Array, by_y: Array) -> Array:
    """The gradient by the matrix of y = x @ matrix: the sum over all leading axes.  Local."""
    return x.reshape(-1, x.shape[-1]).T @ by_y.reshape(-1, by_y.shape[-1])


def cross_entropy(comm: Communicator, logits: Array, targets: Array) -> tuple[Array, Array]:
    """The loss of every token, and its gradient by this rank's logits, of a vocabulary spread over the ranks.

    logits (..., v/ranks): of this rank's part of the vocabulary, in rank order; targets (...): numbers of
    tokens in the whole vocabulary.  Two all-reduces, of one and of two numbers a token, rather than one of
    the vocabulary. Returns the loss (...), on all ranks, and the gradient (..., v/ranks) of the sum of all
    losses.
    """
    xp, part = module_of(logits), logits.shape[-1]
    local = targets - comm.rank * part
    mine = (local >= 0) & (local < part)
    local = xp.where(mine, local, 0)[..., None]
    largest = all_reduce(comm, logits.max(axis=-1), MPI.MAX)
    exponentials = xp.exp(logits - largest[..., None])
    hit = xp.take_along_axis(logits, local, axis=-1)[..., 0] - largest
    total, of_target = all_reduce(comm, xp.stack([exponentials.sum(axis=-1), xp.where(mine, hit, 0.0)]))
    gradient = exponentials / total[..., None]
    chosen = xp.arange(part) == local
    return xp.log(total) - of_target, gradient - (chosen & mine[..., None])
