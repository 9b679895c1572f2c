"""Buckets of device arrays: results as on the host, in the order of the caller's stream."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from hpccoll import GradientBuckets, MismatchError, UsageError
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
    for option in ("check_finite", "uneven"):
        with pytest.raises(UsageError, match=f"{option} is for host arrays"):
            GradientBuckets(comm, [array], **{option: True})
    with GradientBuckets(comm, [array]) as buckets, pytest.raises(UsageError, match="for host arrays"):
        buckets.clip_norm(1.0)
