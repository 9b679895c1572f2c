"""Buckets of arrays that are computed, and read, on several streams, none of which the host waits for."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np
import pytest
from cuda.bindings import driver

from hpccoll import GradientBuckets, NotFiniteError, UsageError
from hpccoll.overlap import broadcast
from tests.collectives.conftest import Make
from tests.gpu.memory import Mirror, checked, mirror, synchronize
from tests.gpu.test_buckets import DTYPES, FEW, SHAPES, SOME, given, put
from tests.support.oracle import Array


class Later:
    """Arrays, and copies in the order of their streams, which the host does not wait for."""

    def __init__(self) -> None:
        self._kept: list[Any] = []

    def array(self, elements: Any, stream: int, dtype: Any = None) -> Mirror:
        """One that lives until all is through."""
        made = mirror(elements, stream, dtype)
        self._kept.append(made)
        return made

    def value(self, elements: Array, stream: int) -> Mirror:
        """One whose elements come on a stream."""
        made = Mirror(np.array(elements), stream, filled=False)
        self._kept.append(made)
        self.send(made, elements)
        return made

    def send(self, one: Mirror, elements: Array) -> None:
        """An array's elements, on its stream."""
        host = np.array(elements, one.dtype)
        self._kept.append(host)
        if host.nbytes:
            checked(driver.cuMemcpyHtoDAsync(one.address, host.ctypes.data, host.nbytes, one.stream))

    def read(self, one: Mirror) -> Mirror:
        """A copy of an array, made on its stream: what a program does with results first."""
        made = Mirror(np.empty_like(one.view), one.stream, filled=False)
        self._kept.append(made)
        if one.view.nbytes:
            checked(driver.cuMemcpyDtoDAsync(made.address, one.address, one.view.nbytes, one.stream))
        return made


def values(copies: Sequence[Mirror]) -> list[set[float]]:
    """What is in each."""
    return [set(one.download().tolist()) for one in copies]


@pytest.fixture
def later(streams: list[int]) -> Iterator[Later]:
    """Ends when all streams are through."""
    made = Later()
    yield made
    for stream in streams:
        synchronize(stream)


def one_step(buckets: GradientBuckets, later: Later, length: int, streams: Sequence[int]) -> None:
    """Every array is computed on a stream of its own: all of array k are 1 + k."""
    for k, stream in enumerate(streams):
        buckets.ready(k, later.value(np.full(length, 1.0 + k), stream))
    buckets.wait()


def sometimes(rng: np.random.Generator, streams: Sequence[int]) -> None:
    """One stream comes through before the others."""
    if rng.integers(3) == 0:
        synchronize(streams[rng.integers(len(streams))])


@pytest.mark.parametrize("together", [False, True])
@SOME
def test_streams_that_compute_in_turn(
    communicator: Make, layout: str, streams: list[int], together: bool
) -> None:
    """Each array is computed on a stream, another one in each step, and its average read there."""
    comm = communicator(layout=layout)
    mirrors = [mirror(np.zeros(s), streams[0], d) for s, d in zip(SHAPES, DTYPES, strict=True)]
    with GradientBuckets(comm, mirrors, average=False, bucket_bytes=1 << 20 if together else 2500) as buckets:
        for step in range(4):
            for number, one in enumerate(mirrors):
                one.stream = streams[(number + step) % 3]
            put(mirrors, given(comm.rank, step))
            for number in np.random.default_rng((step, comm.rank)).permutation(len(mirrors)):
                buckets.ready(int(number))
            buckets.wait()
            totals = [sum(of) for of in zip(*(given(r, step) for r in range(comm.size)), strict=True)]
            # The last first: the first one's stream is that of the call, and behind all of it anyway.
            for number in reversed(range(len(mirrors))):
                found = mirrors[number].download()
                assert np.array_equal(found, totals[number]), f"array {number} in step {step}"


@FEW
def test_streams_and_values_from_elsewhere(communicator: Make, layout: str, streams: list[int]) -> None:
    """What a stream has not read of the last step's results is not overwritten by another one's values."""
    comm = communicator(layout=layout)
    first, second, third = streams
    mirrors = [mirror(np.zeros(200_000), first), mirror(np.zeros(7), first)]
    values = [mirror(np.zeros(200_000), second), mirror(np.zeros(7), third)]
    with GradientBuckets(comm, mirrors, average=False) as buckets:
        for step in range(3):
            for one in values:
                one.view[...] = comm.rank + step
                one.upload_later()
            buckets.ready(0, values[0])
            buckets.ready(1, values[1])
            buckets.wait()
            if step == 1:
                continue  # read, if at all, after the next step's values were taken
            total = sum(rank + step for rank in range(comm.size))
            assert all((one.download() == total).all() for one in mirrors)


@pytest.mark.parametrize("together", [False, True])
@pytest.mark.parametrize("unused", ["error", "zero"])
@SOME
def test_nothing_is_waited_for(
    communicator: Make, layout: str, streams: list[int], later: Later, unused: str, together: bool
) -> None:
    """Values come on any stream; results are read late, on the streams of their arrays."""
    comm = communicator(layout=layout)
    size = comm.size
    arrays = [
        later.array(np.zeros(s), streams[k % 3], d)
        for k, (s, d) in enumerate(zip(SHAPES, DTYPES, strict=True))
    ]
    bytes_ = 1 << 20 if together else 1200
    rng = np.random.default_rng((7, comm.rank))
    wanted, found = [], []
    with GradientBuckets(comm, arrays, average=False, bucket_bytes=bytes_, unused=unused) as buckets:
        for step in range(10):
            uses = np.random.default_rng(step).integers(0, 2, (size, len(arrays)))  # the same on all ranks
            if unused == "error":
                uses[...] = 1
            values = [given(rank, step) for rank in range(size)]
            for k in rng.permutation(len(arrays)):
                if uses[comm.rank, k]:
                    stream = streams[rng.integers(3)]
                    buckets.ready(int(k), later.value(values[comm.rank][k], stream))
                    sometimes(rng, streams)
            buckets.wait()
            sometimes(rng, streams)
            wanted.append([sum(values[r][k] * uses[r, k] for r in range(size)) for k in range(len(arrays))])
            found.append([later.read(one) for one in arrays])
            sometimes(rng, streams)
    for stream in streams:
        synchronize(stream)
    for step, (right, got) in enumerate(zip(wanted, found, strict=True)):
        for k, (one, other) in enumerate(zip(right, got, strict=True)):
            assert np.array_equal(one, other.download()), f"array {k} in step {step}"


@FEW
def test_results_are_read_before_the_next_values_come(
    communicator: Make, layout: str, streams: list[int], later: Later
) -> None:
    """Where the next step's values come on a stream that has results of its own."""
    comm = communicator(layout=layout)
    arrays = [later.array(np.zeros(3000), streams[0]), later.array(np.zeros(3000), streams[1])]
    with GradientBuckets(comm, arrays, average=False) as buckets:
        one_step(buckets, later, 3000, streams[:2])
        found = [later.read(one) for one in arrays]
        for k in range(2):
            buckets.ready(k, later.value(np.full(3000, 50.0), streams[1 - k]))
        for stream in streams:
            synchronize(stream)
        buckets.wait()
    assert values(found) == [{comm.size}, {2 * comm.size}]


@FEW
def test_results_are_read_before_unused_arrays_become_zeros(
    communicator: Make, layout: str, streams: list[int], later: Later
) -> None:
    comm = communicator(layout=layout)
    arrays = [later.array(np.zeros(3000), streams[k]) for k in range(3)]
    with GradientBuckets(comm, arrays, average=False, unused="zero") as buckets:
        one_step(buckets, later, 3000, streams)
        found = [later.read(one) for one in arrays]
        buckets.wait()
    for stream in reversed(streams):
        synchronize(stream)
    assert values(found) == [{(1 + k) * comm.size} for k in range(3)]


@FEW
def test_results_outlive_the_buckets(
    communicator: Make, layout: str, streams: list[int], later: Later
) -> None:
    """Their memory is given back behind all copies of results."""
    comm = communicator(layout=layout)
    arrays = [later.array(np.zeros(5000), streams[0]), later.array(np.zeros(5000), streams[1])]
    with GradientBuckets(comm, arrays, average=False) as buckets:
        one_step(buckets, later, 5000, streams[:2])
    del buckets
    found = [later.read(one) for one in arrays]
    used_again(80_000, streams[0])
    synchronize(streams[1])
    assert values(found) == [{comm.size}, {2 * comm.size}]


def used_again(nbytes: int, stream: int) -> None:
    """Memory of the device's pool is taken and written on a stream, which comes through."""
    pieces = [checked(driver.cuMemAllocAsync(nbytes, stream)) for _ in range(4)]
    for piece in pieces:
        checked(driver.cuMemsetD8Async(piece, 0xFF, nbytes, stream))
    synchronize(stream)
    for piece in pieces:
        checked(driver.cuMemFreeAsync(piece, stream))


@FEW
def test_broadcast_of_arrays_of_several_streams(
    communicator: Make, layout: str, streams: list[int], later: Later
) -> None:
    comm = communicator(layout=layout)
    root = comm.size - 1
    arrays = [later.array(np.zeros(4000), streams[k % 2]) for k in range(4)]
    for turn in range(3):
        for k, one in enumerate(arrays):
            later.send(one, np.full(4000, 100.0 * comm.rank + 10 * turn + k))
        broadcast(comm, arrays, root=root)
        found = [later.read(one) for one in arrays]
        used_again(128_000, streams[0])
        if turn != 1:
            synchronize(streams[1])
    assert values(found) == [{100.0 * root + 20 + k} for k in range(4)]


@FEW
def test_views_are_filled_from_any_stream(
    communicator: Make, layout: str, streams: list[int], later: Later
) -> None:
    """Views have what the arrays had, whatever stream that came on."""
    comm = communicator(layout=layout)
    arrays = [later.array(np.zeros(4000), streams[k % 2]) for k in range(4)]
    for k, one in enumerate(arrays):
        later.send(one, np.full(4000, comm.rank + 10.0 * k))
    with GradientBuckets(comm, arrays, average=False, views=True) as buckets:
        for k in range(4):
            buckets.ready(k)
        buckets.wait()
        sums = [buckets.arrays[k].get() for k in range(4)]
    total = sum(range(comm.size))
    assert [set(one.tolist()) for one in sums] == [{total + comm.size * 10.0 * k} for k in range(4)]


@FEW
def test_a_nan_on_any_stream_is_seen_and_only_in_its_step(
    communicator: Make, layout: str, streams: list[int], later: Later
) -> None:
    comm = communicator(layout=layout)
    size = comm.size
    kinds = ("f4", "f4", "f8", "f8")
    arrays = [later.array(np.zeros(300), streams[k % 2], kind) for k, kind in enumerate(kinds)]
    rng = np.random.default_rng((11, comm.rank))
    with GradientBuckets(comm, arrays, check_finite=True, average=False) as buckets:
        assert len(buckets) == 2
        for step in range(16):
            shared = np.random.default_rng(step)  # the same on all ranks
            bad, culprit = int(shared.integers(-2, 4)), int(shared.integers(size))
            missing = step % 4 == 3
            for k in rng.permutation(4):
                if missing and k == 0:
                    continue
                elements = np.ones(300)
                if k == bad and comm.rank == culprit:
                    elements[299] = np.nan
                # What the first array of a bucket is on is current for the bucket.
                arrays[k].stream = streams[rng.integers(3)]
                buckets.ready(int(k), later.value(elements.astype(kinds[k]), streams[rng.integers(3)]))
                sometimes(rng, streams)
            if missing:
                with pytest.raises(UsageError, match="before these arrays were ready: 0"):
                    buckets.wait()
                synchronize(streams[rng.integers(3)])
            elif bad >= 0:
                with pytest.raises(NotFiniteError, match=rf"array {bad} of rank {culprit}$"):
                    buckets.wait()
            else:
                buckets.wait()


@FEW
def test_what_was_seen_in_one_step_is_forgotten_before_the_next(
    communicator: Make, layout: str, streams: list[int], later: Later
) -> None:
    """Where no stream of the one step is used in the other."""
    comm = communicator(layout=layout)
    first, second, third = streams
    arrays = [later.array(np.zeros(300), first, kind) for kind in ("f4", "f8")]
    with GradientBuckets(comm, arrays, check_finite=True, average=False) as buckets:
        assert len(buckets) == 2
        for bad in (0, 1):
            for of_step, is_bad in (((first, first), False), ((second, third), True)):
                for k, stream in enumerate(of_step):
                    elements = np.full(300, np.nan if is_bad and (k, comm.rank) == (bad, 0) else 1.0)
                    arrays[k].stream = stream
                    buckets.ready(k, later.value(elements.astype(arrays[k].dtype), stream))
                if not is_bad:
                    buckets.wait()
                    continue
                with pytest.raises(NotFiniteError, match=rf"array {bad} of rank 0"):
                    buckets.wait()
                synchronize(first)


@FEW
def test_the_norm_on_another_stream(
    communicator: Make, layout: str, streams: list[int], later: Later
) -> None:
    comm = communicator(layout=layout)
    arrays = [later.array(np.zeros(3000), streams[0]), later.array(np.zeros(3000), streams[1])]
    with GradientBuckets(comm, arrays) as buckets:
        for step in range(1, 5):
            arrays[0].stream, arrays[1].stream = streams[step % 3], streams[(step + 1) % 3]
            for k in range(2):
                buckets.ready(k, later.value(np.full(3000, float(step + k)), streams[k]))
            buckets.wait()
            arrays[0].stream = streams[(step + 2) % 3]
            whole = np.sqrt(3000 * (step**2 + (step + 1) ** 2))
            assert buckets.clip_norm(1.0) == pytest.approx(whole, rel=1e-12)
            found = [later.read(one) for one in arrays]
            for k in range(2):
                np.testing.assert_allclose(found[k].download(), (step + k) / whole, rtol=1e-12)
