"""Buckets give what Allreduce gives, whatever the arrays, the order in which they are ready, the layout."""

from __future__ import annotations

import gc
import time
from collections.abc import Sequence
from typing import Any

import numpy as np
import pytest
from mpi4py import MPI

import hpccoll
from hpccoll import GradientBuckets
from hpccoll.overlap import Times
from tests.collectives.conftest import Make
from tests.support.layouts import layouts

DTYPES = ("float32", "float64", "int32", "int64", "complex64", "float16", "bfloat16")
SOME = layouts({"": (1, 2, 3, 4), "1+1": (2,), "2+2": (4,), "3+1": (4,)})
FEW = layouts({"": (2,), "2+1": (3,), "2+2": (4,)})
Arrays = list[Any]


def drawn(seed: int, most: int = 12) -> Arrays:
    """Arrays of random shapes, dtypes and strides; the same on all ranks."""
    import ml_dtypes  # noqa: F401  makes "bfloat16" known

    rng = np.random.default_rng(seed)
    arrays = []
    for _ in range(rng.integers(1, most)):
        shape = tuple(
            rng.choice([0, 1, 2, 7, 40, 150], size=rng.integers(0, 4), p=[0.05, 0.2, 0.2, 0.2, 0.2, 0.15])
        )
        while np.prod(shape) > 60_000:
            shape = shape[1:]
        array = np.zeros(shape, np.dtype(rng.choice(DTYPES)))
        if array.ndim and rng.random() < 0.2:
            array = np.zeros((*shape[:-1], 2 * shape[-1]), array.dtype)[..., ::2]
        arrays.append(array)
    return arrays


def given(arrays: Arrays, step: int, rank: int) -> Arrays:
    """What a rank contributes in a step: integers, so that sums are exact in any order and in 16 bits."""
    values = []
    for number, array in enumerate(arrays):
        rng = np.random.default_rng((step, number, rank))
        values.append(rng.integers(-8, 9, array.shape).astype(array.dtype))
    return values


def reduced(comm: Any, arrays: Arrays, step: int, average: bool) -> Arrays:
    """What plain Allreduce makes of it."""
    results = []
    for values in given(arrays, step, comm.rank):
        result = np.empty_like(values)
        comm.Allreduce(values, result, op=hpccoll.AVG if average else MPI.SUM)
        results.append(result)
    return results


def same(found: Sequence[Any], wanted: Sequence[Any]) -> None:
    for number, (one, other) in enumerate(zip(found, wanted, strict=True)):
        assert np.array_equal(one, other), f"array {number}: {one} is not {other}"


def make_step(comm: Any, buckets: GradientBuckets, arrays: Arrays, step: int) -> None:
    """All arrays ready in an order of this rank's own, then wait."""
    for array, values in zip(arrays, given(arrays, step, comm.rank), strict=True):
        array[...] = values
    order = np.random.default_rng((step, comm.rank)).permutation(len(arrays))
    for number in order:
        buckets.ready(int(number))
    buckets.wait()


@pytest.mark.parametrize("seed", range(4))
@SOME
def test_random_arrays_in_random_orders(communicator: Make, layout: str, seed: int) -> None:
    comm = communicator(layout=layout)
    average = seed % 2 == 0
    arrays = drawn(seed)
    with GradientBuckets(
        comm, arrays, average=average, bucket_bytes=(100, 5_000, 300_000, 1 << 20)[seed]
    ) as buckets:
        for step in range(3):
            wanted = reduced(comm, arrays, step, average)
            make_step(comm, buckets, arrays, step)
            same(arrays, wanted)
        assert buckets.total_times.steps == 3


@FEW
def test_arrays_above_the_largest_call_of_c(communicator: Make, layout: str) -> None:
    comm = communicator(layout=layout)
    arrays = [np.zeros(count, np.float32) for count in (3, 300_000, 80_000, 150_001)]
    with GradientBuckets(comm, arrays, average=False, bucket_bytes=950_000) as buckets:
        assert len(buckets) == 3
        for step in range(3):
            wanted = reduced(comm, arrays, step, average=False)
            make_step(comm, buckets, arrays, step)
            same(arrays, wanted)


@FEW
def test_keys_pair_arrays_in_whatever_order_they_come(communicator: Make, layout: str) -> None:
    comm = communicator(layout=layout)
    keys = [f"layer{k}" for k in range(6)] + [7]
    mine = keys[comm.rank :] + keys[: comm.rank]
    arrays = {key: np.full(keys.index(key) + 1, float(keys.index(key) + 10 * comm.rank)) for key in mine}
    with GradientBuckets(comm, arrays, average=False, bucket_bytes=64) as buckets:
        assert list(buckets.arrays) == keys
        for key in mine:
            buckets.ready(key)
        buckets.wait()
    for number, key in enumerate(keys):
        total = sum(number + 10 * rank for rank in range(comm.size))
        same([arrays[key]], [np.full(number + 1, float(total))])


@FEW
def test_parts_of_one_array_are_not_copied(communicator: Make, layout: str) -> None:
    comm = communicator(layout=layout)
    flat = np.zeros(1000)
    parts = [flat[:100].reshape(10, 10), flat[100:700], flat[700:]]
    apart = [part.copy() for part in parts]
    # One rank's lie together, another's do not: that changes no result.
    arrays = parts if comm.rank == 0 else apart
    with GradientBuckets(comm, arrays, bucket_bytes=1 << 20) as buckets:
        assert ("in place" in str(buckets)) is (comm.rank == 0)
        for step in range(2):
            wanted = reduced(comm, arrays, step, average=True)
            make_step(comm, buckets, arrays, step)
            same(arrays, wanted)


@FEW
def test_views_are_the_buckets_memory(communicator: Make, layout: str) -> None:
    comm = communicator(layout=layout)
    arrays = drawn(11)
    for array in arrays:
        array[...] = comm.rank
    with GradientBuckets(comm, arrays, views=True, average=False, bucket_bytes=4000) as buckets:
        assert str(buckets).count("in place") == len(buckets)
        same(buckets.arrays, arrays)
        for step in range(2):
            wanted = reduced(comm, arrays, step, average=False)
            make_step(comm, buckets, buckets.arrays, step)
            same(buckets.arrays, wanted)
    same(arrays, [np.full_like(array, comm.rank) for array in arrays])


@FEW
def test_arrays_without_elements(communicator: Make, layout: str) -> None:
    comm = communicator(layout=layout)
    arrays = {
        "none": np.zeros((3, 0)),
        "some": np.full(3, comm.rank + 1.0),
        "nor here": np.zeros(0, np.int32),
    }
    with GradientBuckets(comm, arrays, average=False, check_finite=True, unused="zero") as buckets:
        for _ in range(2):
            arrays["some"][...] = comm.rank + 1
            for key in arrays:
                buckets.ready(key)
            buckets.wait()
            assert (arrays["some"] == comm.size * (comm.size + 1) / 2).all()
    with GradientBuckets(comm, [np.zeros(0), np.zeros((0, 2))]) as buckets:
        buckets.ready(1)
        buckets.ready(0)
        buckets.wait()


@FEW
def test_memory_that_nobody_holds_while_it_travels(communicator: Make, layout: str) -> None:
    """Arrays, values and the buckets themselves let go of in the midst of a step."""
    comm = communicator(layout=layout)
    count = 100_000
    result = np.zeros(count)
    buckets = GradientBuckets(comm, [result, np.zeros(count)], average=False, bucket_bytes=8 * count)
    for step in range(3):
        for number in (1, 0):
            buckets.ready(number, np.full(count, comm.rank + step + 1.0))
            rubbish = [np.full(count, np.nan) for _ in range(4)]  # where the values were
        del rubbish
        buckets.wait()
        assert (result == sum(rank + step + 1 for rank in range(comm.size))).all()
    buckets.ready(1)
    buckets.ready(0)
    del buckets, result
    gc.collect()
    one = np.full(count, comm.rank + 1.0)  # perhaps where they were
    comm.Allreduce(MPI.IN_PLACE, one)  # after those, in the order of all ranks
    assert (one == comm.size * (comm.size + 1) / 2).all()
    deadline = time.monotonic() + 30
    while comm._used().pending() and time.monotonic() < deadline:
        time.sleep(0.01)
    assert not comm._used().pending()


@FEW
def test_values_from_elsewhere(communicator: Make, layout: str) -> None:
    comm = communicator(layout=layout)
    arrays = [np.zeros((3, 4)), np.zeros(5)]
    with GradientBuckets(comm, arrays, average=False) as buckets:
        for number, array in enumerate(arrays):
            buckets.ready(number, np.full(array.shape, comm.rank + 1.0))
        buckets.wait()
    total = comm.size * (comm.size + 1) / 2
    same(arrays, [np.full((3, 4), total), np.full(5, total)])


@FEW
def test_reproducible_buckets_have_the_bits_of_one_call(communicator: Make, layout: str) -> None:
    comm = communicator(layout=layout, reproducible=True)
    flat = np.random.default_rng(comm.rank).normal(size=5000)
    wanted = np.empty_like(flat)
    comm.Allreduce(flat, wanted, op=hpccoll.AVG)
    parts = np.split(flat, [10, 500, 501, 3000])
    with GradientBuckets(comm, parts, bucket_bytes=3000) as buckets:
        assert len(buckets) > 1
        for number in range(len(parts)):
            buckets.ready(number)
        buckets.wait()
    same([flat], [wanted])


@FEW
def test_the_default_size_is_the_same_on_all_ranks(communicator: Make, layout: str) -> None:
    comm = communicator(layout=layout)
    with GradientBuckets(comm, [np.zeros(10, np.float32)]) as buckets:
        found = comm.allgather(buckets.bucket_bytes)
    assert set(found) == {found[0]}
    assert 64 << 10 <= found[0] <= 64 << 20

    def rate(nbytes: int) -> float:
        best = comm.explain("allreduce", nbytes, dtype="float32", op=hpccoll.AVG).candidates[0]
        return nbytes / best.time_s

    assert rate(found[0]) >= 0.9 * rate(64 << 20)


@FEW
def test_times(communicator: Make, layout: str) -> None:
    comm = communicator(layout=layout)
    arrays = [np.zeros(200_000) for _ in range(3)]
    with GradientBuckets(comm, arrays, bucket_bytes=1_000_000) as buckets:
        assert buckets.times == Times()
        make_step(comm, buckets, arrays, 0)
        times = buckets.times
        assert times.steps == 1
        assert times.in_flight_s > 0
        assert 0 <= times.exposed_s <= times.in_flight_s + 1e-9
        assert times.exposed_s <= times.wait_s + 1e-9
        make_step(comm, buckets, arrays, 1)
        assert buckets.total_times == times + buckets.times


@layouts({"": (2,)})
def test_metrics_have_the_steps_of_a_communicator(communicator: Make, layout: str) -> None:
    comm = communicator(layout=layout, metrics="count")
    gradients = [np.ones(5000) for _ in range(4)]
    with GradientBuckets(comm, gradients, bucket_bytes=40_000) as buckets:
        for step in range(1, 4):
            for number in reversed(range(4)):
                buckets.ready(number)
            buckets.wait()
            assert comm.metrics(reset=True).steps == buckets.times
            assert buckets.times.steps == 1
            assert comm.metrics().steps.steps == 0
            assert buckets.total_times.steps == step
        assert buckets.times.in_flight_s > 0
        rows = comm.metrics()
        assert rows.hidden_s >= 0
        assert rows.exposed_s >= 0
