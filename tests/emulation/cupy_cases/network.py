"""A network of two layers: what a program that trains does with CuPy."""

from __future__ import annotations

from typing import Any

import cupy
import numpy as np


def train(xp: Any, ranks: int = 1, rank: int = 0, steps: int = 3) -> list[float]:
    """Losses of some steps of gradient descent on this rank's part of the data, in float32."""
    random = np.random.default_rng(7)
    inputs = xp.asarray(random.random((64, 20), "f4")[rank::ranks])
    classes = xp.asarray(random.integers(0, 5, 64)[rank::ranks])
    first = xp.asarray(random.standard_normal((20, 16), "f4") * np.float32(0.3))
    second = xp.asarray(random.standard_normal((16, 5), "f4") * np.float32(0.3))
    bias = xp.zeros(16, "f4")
    rows = xp.arange(len(inputs))
    losses = []
    for _ in range(steps):
        before = inputs @ first + bias
        hidden = xp.maximum(before, 0)
        scores = hidden @ second
        scores = xp.exp(scores - scores.max(axis=1, keepdims=True))
        chances = scores / scores.sum(axis=1, keepdims=True)
        losses.append(float(-xp.log(chances[rows, classes]).mean()))
        wrong = chances.copy()
        wrong[rows, classes] -= 1
        wrong /= np.float32(len(inputs))
        back = (wrong @ second.T) * (before > 0)
        second = second - np.float32(0.5) * (hidden.T @ wrong)
        first = first - np.float32(0.5) * (inputs.T @ back)
        bias = bias - np.float32(0.5) * back.sum(axis=0)
    return losses


def case_training() -> None:
    found, want = train(cupy), train(np)
    assert want[-1] < want[0]
    np.testing.assert_allclose(found, want, rtol=1e-5)


def main() -> None:
    """Under mpiexec: each rank on its own part of the data and its own device."""
    from mpi4py import MPI

    world = MPI.COMM_WORLD
    cupy.cuda.Device(world.rank).use()
    found = train(cupy, world.size, world.rank)
    np.testing.assert_allclose(found, train(np, world.size, world.rank), rtol=1e-5)
    print(f"rank {world.rank} on device {cupy.cuda.runtime.getDevice()}: {found}", flush=True)


if __name__ == "__main__":
    main()
