"""The blocks that exchange: products of spread matrices, cross entropy, stages, the sharded optimizer."""

from __future__ import annotations

import time
from collections.abc import Iterator

import numpy as np
import pytest
from mpi4py import MPI

import hpccoll
from hpccoll.parallel.optimizer import ShardedAdam
from hpccoll.parallel.pipeline import BACKWARD, FORWARD, Stage
from hpccoll.parallel.tensor import (
    column_parallel,
    column_parallel_backward,
    cross_entropy,
    reduce_scatter,
    row_parallel,
    row_parallel_backward,
)

ROWS, BATCH, INPUTS, HIDDEN = 12, 2, 5, 12  # rows and hidden divide by 1 to 4


@pytest.fixture(scope="module")
def comm() -> Iterator[hpccoll.Communicator]:
    with hpccoll.Communicator(MPI.COMM_WORLD, timeout_s=30.0) as made:
        yield made


def integers(seed: int, *shape: int) -> np.ndarray:
    """The same on all ranks; sums and products of them are exact in any order."""
    return np.random.default_rng(seed).integers(-4, 5, shape).astype(float)


def mine(comm: hpccoll.Communicator, array: np.ndarray, axis: int) -> np.ndarray:
    return np.split(array, comm.size, axis)[comm.rank]


@pytest.mark.ranks(1, 2, 3, 4)
@pytest.mark.parametrize("sequence", [False, True])
def test_a_pair_of_layers_is_that_of_one_process(comm: hpccoll.Communicator, sequence: bool) -> None:
    x, first = integers(1, ROWS, BATCH, INPUTS), integers(2, INPUTS, HIDDEN)
    second = integers(3, HIDDEN, INPUTS)
    by_out = integers(4, ROWS, BATCH, INPUTS)
    hidden = np.maximum(x @ first, 0.0)
    by_hidden = (by_out @ second.T) * (hidden > 0)
    right = {
        "out": hidden @ second,
        "x": by_hidden @ first.T,
        "first": np.tensordot(x, by_hidden, ((0, 1), (0, 1))),
        "second": np.tensordot(hidden, by_out, ((0, 1), (0, 1))),
    }

    def block(array: np.ndarray) -> np.ndarray:
        return mine(comm, array, 0) if sequence else array

    a, b = mine(comm, first, 1), mine(comm, second, 0)
    h = np.maximum(column_parallel(comm, block(x), a, sequence=sequence), 0.0)
    assert (h == mine(comm, hidden, 2)).all()
    assert (row_parallel(comm, h, b, sequence=sequence) == block(right["out"])).all()
    by_h, by_b = row_parallel_backward(comm, h, b, block(by_out), sequence=sequence)
    by_x, by_a = column_parallel_backward(comm, block(x), a, by_h * (h > 0), sequence=sequence)
    assert (by_b == mine(comm, right["second"], 0)).all()
    assert (by_a == mine(comm, right["first"], 1)).all()
    assert (by_x == block(right["x"])).all()


@pytest.mark.ranks(2, 3)
def test_rows_that_do_not_divide_are_an_error_on_all_ranks(comm: hpccoll.Communicator) -> None:
    with pytest.raises(hpccoll.UsageError, match="elements"):
        reduce_scatter(comm, np.ones((ROWS + 1, 3)))
    comm.Barrier()


@pytest.mark.ranks(1, 2, 3, 4)
def test_cross_entropy_of_a_vocabulary_that_is_spread(comm: hpccoll.Communicator) -> None:
    rng = np.random.default_rng(5)
    logits, targets = 30 * rng.normal(size=(ROWS, BATCH, HIDDEN)), rng.integers(HIDDEN, size=(ROWS, BATCH))
    chosen = np.eye(HIDDEN)[targets]
    exponentials = np.exp(logits - logits.max(axis=-1, keepdims=True))
    right = exponentials / exponentials.sum(axis=-1, keepdims=True)
    loss, gradient = cross_entropy(comm, mine(comm, logits, 2), targets)
    np.testing.assert_allclose(loss, -np.log((right * chosen).sum(axis=-1)), rtol=1e-12, atol=1e-12)
    np.testing.assert_allclose(gradient, mine(comm, right - chosen, 2), rtol=1e-12, atol=1e-15)


@pytest.mark.ranks(1)
def test_the_gradient_of_cross_entropy_is_its_slope(comm: hpccoll.Communicator) -> None:
    logits, targets = np.random.default_rng(6).normal(size=(3, 4)), np.array([0, 3, 1])
    _, gradient = cross_entropy(comm, logits, targets)
    for at in np.ndindex(logits.shape):
        step = np.zeros_like(logits)
        step[at] = 1e-6
        up, down = (cross_entropy(comm, logits + sign * step, targets)[0].sum() for sign in (1, -1))
        assert gradient[at] == pytest.approx((up - down) / 2e-6, abs=1e-8)


@pytest.mark.ranks(1, 2, 3, 4)
@pytest.mark.parametrize("micro_batches", [1, 2, 5])
def test_a_pipeline_is_its_stages_in_turn(comm: hpccoll.Communicator, micro_batches: int) -> None:
    """Stage k multiplies by k + 2; what comes back is the product of the factors of the stages after it."""
    stage, factor = Stage(comm), comm.rank + 2.0
    seen: list[tuple[str, int]] = []
    results, gradients = {}, {}

    def forward(number: int, x: np.ndarray) -> np.ndarray:
        seen.append((FORWARD, number))
        if stage.is_first:
            x = np.full((3, 2), 1.0 + number)
        results[number] = x * factor
        return results[number]

    def backward(number: int, by_y: np.ndarray) -> np.ndarray:
        seen.append((BACKWARD, number))
        if stage.is_last:
            by_y = np.ones((3, 2))
        gradients[number] = by_y * factor
        return gradients[number]

    stage.run(micro_batches, forward, backward, lambda: np.empty((3, 2)))
    before = np.prod([k + 2.0 for k in range(comm.rank + 1)])
    after = np.prod([k + 2.0 for k in range(comm.rank, comm.size)])
    for number in range(micro_batches):
        assert (results[number] == (1.0 + number) * before).all()
        assert (gradients[number] == after).all()
    assert len(seen) == 2 * micro_batches


@pytest.mark.ranks(2)
def test_large_messages_both_ways_do_not_wait_for_each_other(comm: hpccoll.Communicator) -> None:
    stage, room = Stage(comm), np.empty(1 << 20)
    for _ in range(2):
        kind, other = (FORWARD, BACKWARD) if stage.is_first else (BACKWARD, FORWARD)
        stage.send(kind, np.full(1 << 20, 1.0 + comm.rank))
        assert (stage.receive(other, room) == 2.0 - comm.rank).all()
        stage.finish()


@pytest.mark.ranks(2)
def test_a_message_that_does_not_come_is_an_error() -> None:
    comm = hpccoll.Communicator(MPI.COMM_WORLD, timeout_s=1.0)
    stage, begin = Stage(comm), time.monotonic()
    if stage.is_last:
        with pytest.raises(hpccoll.CollectiveTimeoutError, match="a forward message of stage 0"):
            stage.receive(FORWARD, np.empty(4))
        assert time.monotonic() - begin >= 1.0
    MPI.COMM_WORLD.Barrier()
    if stage.is_first:
        stage.send(FORWARD, np.ones(4))  # for the receive that is still there
        stage.finish()
    MPI.COMM_WORLD.Barrier()
    comm.close()


@pytest.mark.ranks(1, 2, 3, 4)
def test_the_sharded_optimizer_is_adam(comm: hpccoll.Communicator) -> None:
    count, rate = 11, 0.01  # does not divide by 2, 3 or 4
    parameters = integers(7, count)
    adam = ShardedAdam(comm, parameters, rate=rate)
    right, first, second = parameters.copy(), np.zeros(count), np.zeros(count)
    for step in range(1, 6):
        gradients = [integers(100 * step + rank, count) for rank in range(comm.size)]
        adam.step(gradients[comm.rank])
        total = sum(gradients)
        first = 0.9 * first + 0.1 * total
        second = 0.999 * second + 0.001 * total**2
        right -= rate * (first / (1 - 0.9**step)) / (np.sqrt(second / (1 - 0.999**step)) + 1e-8)
        np.testing.assert_allclose(parameters, right, rtol=1e-10, atol=1e-12)
    assert adam.state_bytes == 2 * 8 * -(-count // comm.size)
    everybody = np.empty((comm.size, count))
    comm.Allgather(parameters, everybody)
    assert (everybody == parameters).all()
