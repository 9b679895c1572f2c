"""Steps of other kinds: accumulated, with unused arrays, short on the wire, clipped, uneven, not finite."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from hpccoll import GradientBuckets, NotFiniteError, UsageError
from tests.collectives.conftest import Make
from tests.support.layouts import layouts

FEW = layouts({"": (2,), "2+1": (3,)})


@FEW
def test_gradients_add_up_before_they_travel(communicator: Make, layout: str) -> None:
    comm = communicator(layout=layout)
    gradients = [np.zeros(4), np.zeros((2, 3))]
    with GradientBuckets(comm, gradients, average=False) as buckets:

        def backward() -> None:
            for number in (1, 0):
                gradients[number] += comm.rank + 1
                buckets.ready(number)
            buckets.wait()

        with buckets.no_sync():
            backward()
            backward()
        for gradient in gradients:
            assert (gradient == 2 * (comm.rank + 1)).all()
        backward()
        total = 3 * comm.size * (comm.size + 1) / 2
        for gradient in gradients:
            assert (gradient == total).all()
        buckets.ready(0)
        with pytest.raises(UsageError, match="midst of a step"), buckets.no_sync():
            pass
        buckets.ready(1)
        buckets.wait()


@FEW
def test_unused_arrays_count_as_zeros(communicator: Make, layout: str) -> None:
    comm = communicator(layout=layout)
    arrays = {name: np.full(3, 6.0) for name in ("everywhere", "on the last", "nowhere")}
    with GradientBuckets(comm, arrays, unused="zero", average=False, bucket_bytes=24) as buckets:
        for _ in range(2):
            for array in arrays.values():
                array[...] = 6
            buckets.ready("everywhere")
            if comm.rank == comm.size - 1:
                buckets.ready("on the last")
            buckets.wait()
            assert (arrays["everywhere"] == 6 * comm.size).all()
            assert (arrays["on the last"] == 6).all()
            assert (arrays["nowhere"] == 0).all()
            assert buckets.unused_keys == ("nowhere",)


@FEW
def test_a_value_that_is_not_finite_is_named_on_all_ranks(communicator: Make, layout: str) -> None:
    comm = communicator(layout=layout)
    arrays = {"weight": np.zeros(5, np.float32), "bias": np.zeros(2), "count": np.zeros(2, np.int64)}
    with GradientBuckets(comm, arrays, check_finite=True, average=False) as buckets:
        for bad in (np.nan, np.inf):
            for array in arrays.values():
                array[...] = 1
            if comm.rank == 1:
                arrays["weight"][3] = bad
            for name in arrays:
                buckets.ready(name)
            with pytest.raises(NotFiniteError, match=r"array 'weight' of rank 1$") as caught:
                buckets.wait()
            assert caught.value.suspects == (1,)
            assert (arrays["bias"] == comm.size).all()
        for array in arrays.values():
            array[...] = 1
        for name in arrays:
            buckets.ready(name)
        buckets.wait()
        assert (arrays["weight"] == comm.size).all()


@pytest.mark.parametrize("short", ["bfloat16", "float16"])
@FEW
def test_what_rounding_leaves_over_is_sent_later(communicator: Make, layout: str, short: str) -> None:
    comm = communicator(layout=layout)
    rng = np.random.default_rng(comm.rank)
    given = rng.normal(size=400).astype(np.float32)
    exact = np.zeros(400)
    comm.Allreduce(given.astype(np.float64), exact)
    exact /= comm.size
    array, whole = np.zeros_like(given), np.arange(6)
    steps, total = 64, np.zeros(400)
    with GradientBuckets(comm, [array, whole], dtype_on_wire=short) as buckets:
        for step in range(steps):
            array[...] = given
            whole[...] = np.arange(6)
            buckets.ready(0)
            buckets.ready(1)
            buckets.wait()
            total += array
            if step == 0:
                once = np.abs(array - exact)
            assert (whole == np.arange(6)).all()
    # The rounding of each rank's elements averages out; that of the result, of half a unit, does not.
    unit = 2.0**-8 if short == "bfloat16" else 2.0**-11
    assert once.max() > unit / 8, "nothing was rounded"
    assert (np.abs(total / steps - exact) <= unit * np.abs(exact) + 4 * unit / steps).all()
    assert np.abs(total / steps - exact).mean() < once.mean()


@FEW
def test_small_integers_travel_short_exactly(communicator: Make, layout: str) -> None:
    comm = communicator(layout=layout)
    arrays = [np.full(10, comm.rank + 1.0), np.full(3, 2.0, np.float32)]
    with GradientBuckets(comm, arrays, dtype_on_wire="bfloat16", average=False) as buckets:
        for number in (0, 1):
            buckets.ready(number)
        buckets.wait()
    assert (arrays[0] == comm.size * (comm.size + 1) / 2).all()
    assert (arrays[1] == 2 * comm.size).all()


@pytest.mark.ranks(2)
def test_beyond_the_range_of_float16(communicator: Make) -> None:
    comm = communicator()
    array = np.array([1e5, -1e5, np.nan], np.float32)
    with GradientBuckets(comm, [array], dtype_on_wire="float16") as buckets:
        buckets.ready(0)
        buckets.wait()
        assert array[:2].tolist() == [65504, -65504]
        assert np.isnan(array[2])
        array[...] = 0
        buckets.ready(0)
        buckets.wait()
        assert array[0] == np.float16(1e5 - 65504)
        assert array[2] == 0


@FEW
def test_the_norm_of_all_arrays_is_clipped(communicator: Make, layout: str) -> None:
    comm = communicator(layout=layout)
    rng = np.random.default_rng(5)
    arrays: list[Any] = [
        rng.normal(size=(20, 3)).astype(np.float32),
        rng.normal(size=100_000),
        (rng.normal(size=7) + 1j * rng.normal(size=7)).astype(np.complex64),
    ]
    whole = np.sqrt(sum(float((np.abs(array.astype(complex)) ** 2).sum()) for array in arrays))
    with GradientBuckets(comm, arrays) as buckets:
        for number in range(3):
            buckets.ready(number)
        buckets.wait()
        before = [array.copy() for array in arrays]
        assert buckets.clip_norm(1e9) == pytest.approx(whole, rel=1e-6)
        for array, same in zip(arrays, before, strict=True):
            assert (array == same).all()
        norm = buckets.clip_norm(2.0)
        assert set(comm.allgather(norm)) == {norm}
        for array, one in zip(arrays, before, strict=True):
            np.testing.assert_allclose(array, one * (2.0 / norm), rtol=1e-6)
        assert buckets.clip_norm(3.0) == pytest.approx(2.0)
        with pytest.raises(UsageError, match="must be positive"):
            buckets.clip_norm(0.0)


@FEW
def test_ranks_with_different_numbers_of_steps(communicator: Make, layout: str) -> None:
    comm = communicator(layout=layout)
    size, rank = comm.size, comm.rank
    gradient, weights = np.zeros(5), np.zeros(5)
    seen = []
    with GradientBuckets(comm, [gradient], uneven=True) as buckets:
        for epoch in range(2):
            steps = 2 * rank + epoch
            for step in range(steps):
                gradient[...] = 10.0 * (rank + 1) + step
                buckets.ready(0)
                buckets.wait()
                weights += gradient
                seen.append(gradient[0])
            for _ in buckets.join():
                weights += gradient
                seen.append(gradient[0])
    wanted = []
    for epoch in range(2):
        for step in range(2 * (size - 1) + epoch):
            active = [r for r in range(size) if step < 2 * r + epoch]
            wanted.append(sum(10.0 * (r + 1) + step for r in active) / len(active))
    assert seen == pytest.approx(wanted)
    assert len({tuple(one) for one in comm.allgather(weights.tolist())}) == 1


@pytest.mark.ranks(2)
def test_join_needs_to_be_agreed(communicator: Make) -> None:
    with (
        GradientBuckets(communicator(), [np.zeros(1)]) as buckets,
        pytest.raises(UsageError, match="uneven=True"),
    ):
        next(iter(buckets.join()))
