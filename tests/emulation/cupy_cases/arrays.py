"""Arrays: making, copying, arithmetic, reductions, products."""

from __future__ import annotations

import cupy
import ml_dtypes
import numpy as np

from tests.emulation.cupy_cases import FLOATS, NUMBERS, both, numbers, raises, same, tolerance


def case_there_and_back() -> None:
    for dtype in (*NUMBERS, "bool", "complex64", "complex128", ml_dtypes.bfloat16):
        array = numbers(dtype, 3, 5)
        first = cupy.asarray(array)
        second = first.copy()
        assert first.data.ptr != second.data.ptr
        same(second, array)


def case_making() -> None:
    for dtype in ("int32", "float32", "float64"):
        same(cupy.zeros((2, 3), dtype), np.zeros((2, 3), dtype))
        same(cupy.ones((2, 3), dtype), np.ones((2, 3), dtype))
        same(cupy.full((2, 3), 7, dtype), np.full((2, 3), 7, dtype))
        same(cupy.arange(11, dtype=dtype), np.arange(11, dtype=dtype))
    same(cupy.eye(3, dtype="f4"), np.eye(3, dtype="f4"))
    assert cupy.empty((0, 3)).get().shape == (0, 3)


def case_new_memory_is_poisoned() -> None:
    with cupy.cuda.using_allocator(None):
        assert set(cupy.empty(1000, "u1").get()) == {0xA5}


def case_arithmetic() -> None:
    for dtype in ("int32", "float16", "float32", "float64"):
        a, b = numbers(dtype, 7, 13), numbers(dtype, 7, 13, seed=2)
        within = tolerance(dtype)
        both(lambda xp, a, b: xp.add(a, b), a, b, within=within)
        both(lambda xp, a, b: a - b, a, b, within=within)
        both(lambda xp, a, b: xp.multiply(a, b), a, b, within=within)
        both(lambda xp, a, b: xp.true_divide(a, b), a, b, within=within)
        both(lambda xp, a, b: xp.where(a > b, a, b), a, b)
        both(lambda xp, a, b: xp.maximum(a, b), a, b)


def case_bfloat16() -> None:
    a, b = (numbers(ml_dtypes.bfloat16, 100, seed=seed) for seed in (1, 2))
    same(cupy.asarray(a) + cupy.asarray(b), a + b, 1e-2)
    same(cupy.asarray(a).astype("f4"), a.astype("f4"))


def case_in_place_and_broadcast() -> None:
    def change(xp, a, row):
        a = a.copy()
        a += row
        a[1:3] *= 2
        a[:, ::2] = 5
        return a - row[:, None]

    both(change, numbers("f8", 6, 6), numbers("f8", 6))


def case_floating_functions() -> None:
    for dtype in FLOATS:
        a = numbers(dtype, 100)
        for name in ("exp", "log", "sqrt", "tanh"):
            both(lambda xp, a, name=name: getattr(xp, name)(a), a, within=tolerance(dtype))
    both(lambda xp, a: xp.maximum(a, 0), np.array([-1, 2, np.nan], "f4"))


def case_types_change() -> None:
    for dtype in NUMBERS:
        both(lambda xp, a: a.astype("f8"), numbers(dtype, 50))
        both(lambda xp, a, dtype=dtype: a.astype(dtype), numbers("f8", 50))


def case_comparisons() -> None:
    a, b = numbers("i4", 60), numbers("i4", 60, seed=2)
    both(lambda xp, a, b: (a < b, a <= b, a == b, a != b)[0], a, b)
    for name in ("less_equal", "equal", "not_equal"):
        both(lambda xp, a, b, name=name: getattr(xp, name)(a, b), a, b)
    assert bool(cupy.allclose(cupy.asarray(a), cupy.asarray(a)))


def case_views_are_brought_together() -> None:
    a = numbers("f4", 8, 9, 10)
    both(lambda xp, a: xp.ascontiguousarray(a[::2, 1:, ::-3]), a)
    both(lambda xp, a: xp.ascontiguousarray(a.transpose(2, 0, 1)), a)
    both(lambda xp, a: a.reshape(72, 10).T.ravel(), a)
    both(lambda xp, a: xp.concatenate([a, a[:2]]), a)
    part = cupy.asarray(a)[:, 2]
    part[...] = 3
    assert float(part.sum()) == 3 * 80


def case_reductions() -> None:
    for dtype in ("int32", *FLOATS):
        for size in (1, 31, 32, 33, 1000):
            both(lambda xp, a: a.sum(), numbers(dtype, size), within=tolerance(dtype))
        a = numbers(dtype, 40, 50)
        for axis in (0, 1):
            both(lambda xp, a, axis=axis: a.sum(axis=axis, keepdims=True), a, within=tolerance(dtype))
            both(lambda xp, a, axis=axis: a.mean(axis=axis), a, within=tolerance(dtype))
            both(lambda xp, a, axis=axis: a.max(axis=axis), a)
            both(lambda xp, a, axis=axis: a.argmax(axis=axis), a)
    both(lambda xp, a: a.max(), np.array([1, np.nan, 2], "f4"))


def case_half_is_summed_as_numpy_does() -> None:
    both(lambda xp, a: a.sum(axis=0), numbers("f2", 30, 20), within=1e-2)


def case_scans_and_selections() -> None:
    a = numbers("f8", 1500)
    both(lambda xp, a: xp.cumsum(a), a, within=1e-9)
    both(lambda xp, a: a[a > 5], a)
    both(lambda xp, a: xp.nonzero(a > 5)[0], a)
    both(lambda xp, a: xp.take(a, xp.asarray([3, 1, 4])), a)
    both(lambda xp, a: a.reshape(30, 50)[xp.arange(30), xp.arange(30) % 7], a)


def case_atomics() -> None:
    both(lambda xp, a: xp.bincount(a), numbers("i8", 3000))
    target = cupy.zeros(3, "f4")
    cupy.add.at(target, cupy.asarray(np.arange(300) % 3), cupy.ones(300, "f4"))
    same(target, np.full(3, 100, "f4"))


def case_products() -> None:
    for dtype in FLOATS:
        a, b = numbers(dtype, 17, 23), numbers(dtype, 23, 9, seed=2)
        within = tolerance(dtype)
        both(lambda xp, a, b: a @ b, a, b, within=within)
        both(lambda xp, a, b: xp.dot(b.T, a.T), a, b, within=within)
        both(lambda xp, a, b: a.T @ b[:17], a, b, within=within)
        both(lambda xp, a, b: a[::2, ::-1] @ b, a, b, within=within)
        both(lambda xp, a, b: a @ b[:, 0], a, b, within=within)
        both(lambda xp, a, b: a[0] @ b[:, 0], a, b, within=within)
        both(lambda xp, a, b: xp.matmul(a, b, out=xp.empty((17, 9), a.dtype)), a, b, within=within)
    both(lambda xp, a, b: a @ b, numbers("f2", 5, 6), numbers("f2", 6, 4), within=1e-2)
    both(lambda xp, a, b: a @ b, numbers("i4", 5, 6), numbers("i4", 6, 4))
    both(lambda xp, a, b: a @ b, numbers("f4", 3, 5, 6), numbers("f4", 3, 6, 4), within=1e-5)


def case_what_is_not_there_is_said() -> None:
    a = cupy.asarray(numbers("f4", 4, 4))
    raises(ImportError, "curand", lambda: cupy.random.rand(3))
    raises(RuntimeError, "CUBLAS_STATUS_NOT_SUPPORTED", lambda: a.astype("c8") @ a.astype("c8"))
    raises(RuntimeError, "failed inside CUB", lambda: cupy.sort(a))
