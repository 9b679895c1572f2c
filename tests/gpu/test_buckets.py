"""Buckets of device arrays: results as on the host, in the order of the caller's stream."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from hpccoll import GradientBuckets, MismatchError, NotFiniteError, UsageError
from hpccoll.overlap import broadcast
from tests.collectives.conftest import Make
from tests.gpu.memory import Mirror, mirror
from tests.support.layouts import layouts

SOME = layouts({"": (1, 2, 3), "1+1": (2,)})
FEW = layouts({"": (2,), "1+1": (2,)})
SHAPES = ((3, 4), (500,), (), (20, 30), (7,))
DTYPES = ("f4", "f8", "i4", "f4", "f4")


def given(rank: int, step: int) -> list[np.ndarray[Any, Any]]:
    rng = np.random.default_rng((rank, step))
    return [
        np.asarray(rng.integers(-9, 9, shape), dtype) for shape, dtype in zip(SHAPES, DTYPES, strict=True)
    ]


def put(mirrors: list[Mirror], values: list[np.ndarray[Any, Any]]) -> None:
    for one, value in zip(mirrors, values, strict=True):
        one.view[...] = value
        one.upload_later()


def check(mirrors: list[Mirror], size: int, step: int, stream: int) -> None:
    totals = [sum(of_ranks) for of_ranks in zip(*(given(rank, step) for rank in range(size)), strict=True)]
    for number, (one, total) in enumerate(zip(mirrors, totals, strict=True)):
        assert np.array_equal(one.download(stream), total), f"array {number}"


@SOME
def test_random_orders(communicator: Make, layout: str, stream: int) -> None:
    comm = communicator(layout=layout)
    mirrors = [mirror(np.zeros(s), stream, d) for s, d in zip(SHAPES, DTYPES, strict=True)]
    with GradientBuckets(comm, mirrors, average=False, bucket_bytes=2500) as buckets:
        assert len(buckets) > 2
        for step in range(4):
            put(mirrors, given(comm.rank, step))
            for number in np.random.default_rng((step, comm.rank)).permutation(len(mirrors)):
                buckets.ready(int(number))
            buckets.wait()
            check(mirrors, comm.size, step, stream)


@FEW
def test_parts_of_one_array_are_not_copied(communicator: Make, layout: str, device: int) -> None:
    import cupy

    comm = communicator(layout=layout)
    with cupy.cuda.Stream(non_blocking=True):
        flat = cupy.zeros(100, "f4")
        parts = [flat[:10].reshape(2, 5), flat[10:60], flat[60:]]
        with GradientBuckets(comm, parts, average=True) as buckets:
            assert "in place" in str(buckets)
            for step in range(2):
                flat[...] = cupy.asarray(np.arange(100, dtype="f4") * (comm.rank + 1 + step))
                for number in (1, 2, 0):
                    buckets.ready(number)
                buckets.wait()
                found = cupy.asnumpy(flat)
                assert np.array_equal(found, np.arange(100, dtype="f4") * ((comm.size + 1) / 2 + step))


@FEW
def test_views_and_broadcast(communicator: Make, layout: str, device: int) -> None:
    import cupy

    comm = communicator(layout=layout)
    with cupy.cuda.Stream(non_blocking=True):
        first = {"a": cupy.full((2, 3), 1.0 + comm.rank), "b": cupy.full(4, 5.0 * comm.rank)}
        broadcast(comm, first, root=1)
        assert cupy.asnumpy(first["a"]).tolist() == [[2.0] * 3] * 2
        assert cupy.asnumpy(first["b"]).tolist() == [5.0] * 4
        with GradientBuckets(comm, first, views=True, average=False) as buckets:
            buckets.arrays["a"] *= comm.rank + 1
            buckets.ready("a")
            buckets.ready("b", cupy.full(4, 3.0))
            buckets.wait()
            assert cupy.asnumpy(buckets.arrays["a"]).tolist() == [[6.0] * 3] * 2
            assert cupy.asnumpy(buckets.arrays["b"]).tolist() == [6.0] * 4
            assert cupy.asnumpy(first["a"]).tolist() == [[2.0] * 3] * 2


@pytest.mark.ranks(2)
def test_unused_arrays_count_as_zeros(communicator: Make, stream: int) -> None:
    comm = communicator()
    mirrors = [mirror(np.ones(5), stream), mirror(np.ones(3), stream), mirror(np.ones(2), stream)]
    with GradientBuckets(comm, mirrors, unused="zero", average=False) as buckets:
        buckets.ready(0)
        if comm.rank:
            buckets.ready(1)
        buckets.wait()
        assert buckets.unused_keys == (2,)
    assert [one.download(stream).tolist() for one in mirrors] == [[2.0] * 5, [1.0] * 3, [0.0] * 2]


@pytest.mark.ranks(2)
def test_what_is_refused(communicator: Make, stream: int) -> None:
    comm = communicator()
    array, host = mirror(np.zeros(3), stream), np.zeros(3)
    with pytest.raises(
        MismatchError, match="array 0 differs in place: a device on rank 0; the host on rank 1"
    ):
        GradientBuckets(comm, [array if comm.rank == 0 else host])
    with pytest.raises(UsageError, match="must all be in one place"):
        GradientBuckets(comm, [array, host])
    with pytest.raises(UsageError, match="array 0 of int32 has no exact averages"):
        GradientBuckets(comm, [mirror(np.zeros(3), stream, "i4")], uneven=True)
    with (
        GradientBuckets(comm, [mirror(np.zeros(3), stream, "i4")]) as buckets,
        pytest.raises(UsageError, match="cannot scale arrays of int32"),
    ):
        buckets.clip_norm(1.0)


@pytest.mark.parametrize("short", ["bfloat16", "float16"])
@SOME
def test_what_rounding_leaves_over_is_sent_later(
    communicator: Make, layout: str, streams: list[int], short: str
) -> None:
    comm = communicator(layout=layout)
    values = [np.random.default_rng(rank).normal(size=400) for rank in range(comm.size)]
    exact, steps = np.mean(values, axis=0), 64
    arrays = [mirror(np.zeros(400), streams[0], "f4"), mirror(np.zeros(400), streams[1], "f8")]
    whole = mirror(np.zeros(6), streams[0], "i4")
    totals, once = [np.zeros(400), np.zeros(400)], np.zeros(400)
    with GradientBuckets(comm, [*arrays, whole], dtype_on_wire=short) as buckets:
        for step in range(steps):
            put(arrays, [values[comm.rank].astype("f4")] * 2)
            put([whole], [np.arange(6)])
            for number in range(3):
                buckets.ready(number)
            buckets.wait()
            for total, one in zip(totals, arrays, strict=True):
                total += one.download()
            if step == 0:
                once = np.abs(totals[0] - exact)
            assert (whole.download() == np.arange(6)).all()
    unit = 2.0**-8 if short == "bfloat16" else 2.0**-11
    assert once.max() > unit / 8, "nothing was rounded"
    for total in totals:
        left = np.abs(total / steps - exact)
        if comm.size == 1:  # nothing but the kept remainders: all of it has arrived
            assert (left <= 4 * unit / steps).all()
        # The rounding of each rank's elements averages out; that of the sum and of the average does not.
        assert (left <= 2 * unit * (np.abs(exact) + np.abs(values).max(axis=0)) + 4 * unit / steps).all()


@pytest.mark.ranks(2)
def test_beyond_the_range_of_float16(communicator: Make, stream: int) -> None:
    comm = communicator()
    array = mirror([1e5, -1e5, np.nan], stream, "f4")
    with GradientBuckets(comm, [array], dtype_on_wire="float16") as buckets:
        buckets.ready(0)
        buckets.wait()
        found = array.download()
        assert found[:2].tolist() == [65504, -65504]
        assert np.isnan(found[2])
        put([array], [np.zeros(3, "f4")])
        buckets.ready(0)
        buckets.wait()
        assert array.download().tolist() == [np.float16(1e5 - 65504), -np.float16(1e5 - 65504), 0]


@FEW
def test_a_value_that_is_not_finite_is_named_on_all_ranks(
    communicator: Make, layout: str, streams: list[int]
) -> None:
    import ml_dtypes

    comm = communicator(layout=layout)
    arrays = {
        "weight": mirror(np.ones(300), streams[0], "f4"),
        "bias": mirror(np.ones(2), streams[1], ml_dtypes.bfloat16),
        "phase": mirror(np.ones(3), streams[0], "c8"),
        "count": mirror(np.ones(2), streams[0], "i4"),
    }
    with GradientBuckets(comm, arrays, check_finite=True, average=False, unused="zero") as buckets:
        for bad, key in ((np.nan, "weight"), (np.inf, "bias"), (1 - 1j * np.inf, "phase")):
            put(list(arrays.values()), [np.ones(one.view.shape) for one in arrays.values()])
            if comm.rank == 1:
                arrays[key].view[-1] = bad
                arrays[key].upload_later()
            for name in arrays:
                buckets.ready(name)
            with pytest.raises(NotFiniteError, match=rf"array '{key}' of rank 1$") as caught:
                buckets.wait()
            assert caught.value.suspects == (1,)
            assert (arrays["count"].download() == comm.size).all()
            put(list(arrays.values()), [np.ones(one.view.shape) for one in arrays.values()])
            for name in ("weight", "bias", "phase"):
                buckets.ready(name)
            buckets.wait()
            assert buckets.unused_keys == ("count",)
            assert all((arrays[name].download() == comm.size).all() for name in ("weight", "bias", "phase"))


@FEW
def test_the_norm_of_all_arrays_is_clipped(communicator: Make, layout: str, streams: list[int]) -> None:
    import ml_dtypes

    comm = communicator(layout=layout)
    rng = np.random.default_rng(5)
    dtypes = ("f4", "f8", "c8", ml_dtypes.bfloat16, "f2")
    values = [
        rng.integers(-9, 9, size).astype(d) for size, d in zip((60, 70_000, 7, 30, 5), dtypes, strict=True)
    ]
    values[2] += 1j * values[2].real
    whole = np.sqrt(sum(float((np.abs(one.astype(complex)) ** 2).sum()) for one in values))
    arrays = [mirror(np.zeros(v.shape), streams[k % 2], v.dtype) for k, v in enumerate(values)]
    put(arrays, values)
    with GradientBuckets(comm, arrays) as buckets:
        for number in range(len(arrays)):
            buckets.ready(number)
        buckets.wait()
        assert buckets.clip_norm(1e9) == pytest.approx(whole, rel=1e-12)
        for one, value in zip(arrays, values, strict=True):
            assert (one.download() == value).all()
        norm = buckets.clip_norm(2.0)
        assert set(comm.allgather(norm)) == {norm}
        for one, value in zip(arrays, values, strict=True):
            near = 1e-2 if one.dtype.itemsize == 2 else 1e-6
            wide = complex if one.dtype.kind == "c" else float
            np.testing.assert_allclose(
                one.download().astype(wide), value.astype(wide) * (2 / norm), rtol=near
            )
        assert buckets.clip_norm(3.0) == pytest.approx(2.0, rel=1e-2)


@FEW
def test_ranks_with_different_numbers_of_steps(communicator: Make, layout: str, streams: list[int]) -> None:
    comm = communicator(layout=layout)
    size, rank = comm.size, comm.rank
    gradients = [mirror(np.zeros(5), streams[0]), mirror(np.zeros(3), streams[1], "f4")]
    seen = []
    with GradientBuckets(comm, gradients, uneven=True) as buckets:
        for epoch in range(2):
            for step in range(2 * rank + epoch):
                put(gradients, [np.full(5, 10.0 * (rank + 1) + step), np.full(3, rank)])
                buckets.ready(1)
                buckets.ready(0)
                buckets.wait()
                seen.append((gradients[0].download()[4], gradients[1].download()[0]))
            for _ in buckets.join():
                seen.append((gradients[0].download()[4], gradients[1].download()[0]))
    wanted = []
    for epoch in range(2):
        for step in range(2 * (size - 1) + epoch):
            active = [r for r in range(size) if step < 2 * r + epoch]
            wanted.append((sum(10.0 * (r + 1) + step for r in active) / len(active), np.mean(active)))
    np.testing.assert_allclose(seen, wanted, rtol=1e-6)
