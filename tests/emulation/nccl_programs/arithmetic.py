"""All data types and operators, to the last bit."""

from __future__ import annotations

from typing import Any

import ml_dtypes
import numpy as np
from nccl import core
from nccl.bindings import nccl as low
from nccl.core import Communicator

from tests.emulation.nccl_programs.support import (
    ARGUMENT,
    AVG,
    MAX,
    MIN,
    PROD,
    RANK,
    SIZE,
    SUM,
    TYPES,
    WORLD,
    Array,
    opened,
    program,
    ramp,
    same,
    status,
)


def rounded(values: np.ndarray, dtype: np.dtype) -> np.ndarray:
    """To an 8-bit float through half precision, saturated, as NCCL's device code does."""
    with np.errstate(over="ignore"):
        half = values.astype(np.float16)
    most = float(ml_dtypes.finfo(dtype).max)
    return np.clip(half.astype(np.float32), -most, most).astype(dtype)


def combined(op: int, left: np.ndarray, right: np.ndarray) -> np.ndarray:
    dtype = left.dtype
    if op in (MAX, MIN):
        wide = (left, right) if dtype.kind in "iu" else (left.astype("f8"), right.astype("f8"))
        if dtype.kind in "iu":
            return (np.maximum if op == MAX else np.minimum)(*wide)
        return (np.fmax if op == MAX else np.fmin)(*wide).astype(dtype)
    function = np.multiply if op == PROD else np.add
    if dtype.kind in "iu":
        with np.errstate(over="ignore"):
            return function(left, right)
    if dtype.itemsize == 1:
        return rounded(function(left.astype("f4"), right.astype("f4")), dtype)
    with np.errstate(over="ignore"):
        return function(left, right).astype(dtype)


def samples(dtype: np.dtype, count: int, rank: int) -> np.ndarray:
    draw = np.random.default_rng(100 * rank + count)
    if dtype.kind in "iu":
        facts = np.iinfo(dtype)
        return draw.integers(facts.min, facts.max, count, dtype, endpoint=True)
    return (draw.standard_normal(count) * 3).astype(dtype)


def folds(op: int, dtype: np.dtype, count: int) -> list[np.ndarray]:
    """What an element may be: the ranks' elements combined along the ring, from each rank on."""
    parts = [samples(dtype, count, rank) for rank in range(SIZE)]
    if op == AVG and dtype.kind not in "iu":
        part = np.float64(1 / SIZE) if dtype == np.float64 else np.float32(1 / SIZE)
        parts = [combined(PROD, mine, np.full(count, part).astype(dtype)) for mine in parts]
    results = []
    for first in range(SIZE):
        value = parts[first]
        for step in range(1, SIZE):
            value = combined(SUM if op == AVG else op, value, parts[(first + step) % SIZE])
        if op == AVG and dtype.kind in "iu":
            wide = [int(number) for number in value]
            value = np.array([abs(number) // SIZE * (1 if number > 0 else -1) for number in wide]).astype(
                dtype
            )
        results.append(value)
    return results


def bits(values: np.ndarray) -> np.ndarray:
    return values.view(f"u{values.dtype.itemsize}")


@program
def arithmetic() -> None:
    """All data types with all operators: to the last bit a sum along the ring, the same on all."""
    count = 1001
    with opened() as (comm, stream):
        for dtype in TYPES:
            for op in (SUM, PROD, MAX, MIN, AVG):
                send, recv = Array(samples(dtype, count, RANK)), Array(np.zeros(count, dtype))
                low.all_reduce(
                    send.address, recv.address, count, send.type, op, comm._comm, int(stream.handle)
                )
                stream.sync()
                found = recv.get()
                fits = np.any([bits(found) == bits(fold) for fold in folds(op, dtype, count)], axis=0)
                assert fits.all(), (RANK, dtype, op, np.flatnonzero(~fits)[:5], found[~fits][:5])
                assert len(set(WORLD.allgather(found.tobytes()))) == 1, (dtype, op)


@program
def special_values() -> None:
    """NaN, signed zeros, overflow of 8-bit floats, wrapping, rounding after each 16-bit addition."""
    assert SIZE == 2
    with opened() as (comm, stream):

        def reduced(values: list[list[float]], dtype: Any, op: int) -> np.ndarray:
            send = Array(np.array(values[RANK]).astype(dtype))
            recv = Array(np.zeros_like(send.host))
            low.all_reduce(
                send.address, recv.address, send.host.size, send.type, op, comm._comm, int(stream.handle)
            )
            stream.sync()
            return recv.get()

        nan = float("nan")
        for dtype in ("f2", "f4", "f8", ml_dtypes.bfloat16, ml_dtypes.float8_e4m3fn, ml_dtypes.float8_e5m2):
            pairs = [[nan, 1.0, nan, -0.0], [2.0, nan, nan, 0.0]]
            same(reduced(pairs, dtype, MAX).astype("f8"), [2.0, 1.0, nan, 0.0], f"max of {dtype}")
            least = reduced(pairs, dtype, MIN).astype("f8")
            same(least, [2.0, 1.0, nan, 0.0], f"min of {dtype}")
            assert np.signbit(least[3])
            assert not np.signbit(reduced(pairs, dtype, MAX).astype("f8")[3])
            assert np.isnan(reduced(pairs, dtype, SUM).astype("f8")[:3]).all()
        same(reduced([[400.0, -448.0]] * 2, ml_dtypes.float8_e4m3fn, SUM).astype("f8"), [448.0, -448.0])
        same(reduced([[50000.0, -57344.0]] * 2, ml_dtypes.float8_e5m2, SUM).astype("f8"), [57344.0, -57344.0])
        same(reduced([[60000.0]] * 2, "f2", SUM), [np.inf])
        same(reduced([[2048.0], [1.0]], "f2", SUM), [2048.0])
        same(reduced([[256.0], [1.0]], ml_dtypes.bfloat16, SUM).astype("f8"), [256.0])
        same(reduced([[100, -128]] * 2, "i1", SUM), [-56, 0])
        same(reduced([[100, -7], [100, 0]], "i1", AVG), [-28, -3])
        same(reduced([[200, 7], [100, 0]], "u1", AVG), [22, 3])


@program
def scaled_sums() -> None:
    """PreMulSum with the scalar on the host and on the device, and its errors."""
    with opened() as (comm, stream):
        send, recv = Array(ramp(1000, RANK)), Array(np.zeros(1000))
        wanted = np.sum([(rank + 1) * ramp(1000, rank) for rank in range(SIZE)], axis=0)
        on_host = comm.create_pre_mul_sum(np.array([RANK + 1.0]))
        scalar = Array(np.array([0.0]))
        on_device = comm.create_pre_mul_sum(scalar)
        scalar.put(np.array([RANK + 1.0]))  # it is read when the operation runs
        for op in (on_host, on_device):
            recv.put(np.zeros(1000))
            comm.allreduce(send, recv, op, stream=stream)
            stream.sync()
            same(recv.get(), wanted, str(op))
        same(scalar.get(), [RANK + 1.0])
        handle = int(on_host)
        short = Array(np.zeros(4, "f4"))
        code, text = status(
            lambda: low.all_reduce(short.address, short.address, 4, 7, handle, comm._comm, int(stream.handle))
        )
        assert (code, "does not match type" in text) == (ARGUMENT, True), (code, text)
        on_host.close()
        code, text = status(
            lambda: low.all_reduce(send.address, recv.address, 4, 8, handle, comm._comm, int(stream.handle))
        )
        assert (code, "unknown to this communicator" in text) == (ARGUMENT, True), (code, text)
        assert status(lambda: low.red_op_destroy(SUM, comm._comm))[0] == ARGUMENT
        one = Communicator.init(1, 0, core.get_unique_id())
        op = one.create_pre_mul_sum(np.array([3.0]))
        one.allreduce(send, recv, op, stream=stream)
        one.allreduce(send, send, core.AVG, stream=stream)
        stream.sync()
        same(recv.get(), 3 * ramp(1000, RANK), "one rank")
        same(send.get(), ramp(1000, RANK), "average of one rank")
        one.destroy()
