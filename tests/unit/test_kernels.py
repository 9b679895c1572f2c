"""Kernels of the C engine against the operators' table, bit by bit, NaN for NaN."""

from __future__ import annotations

import itertools
import random
from collections.abc import Iterator
from typing import TYPE_CHECKING

import ml_dtypes  # noqa: F401  which lets NumPy know its dtypes by name
import numpy as np
import pytest

from hpccoll import _native
from hpccoll.dtypes import ROWS
from hpccoll.errors import UsageTypeError
from hpccoll.ops.table import TABLE, Arithmetic, arithmetic
from hpccoll.runtime import engine
from hpccoll.transports.base import Array, Combine

if TYPE_CHECKING:
    from hpccoll._native._core import Kernel

pytestmark = pytest.mark.skipif(not _native.available(), reason=f"no extension: {_native.reason()}")

LENGTHS = (1, 2, 3, 4, 5, 7, 8, 9, 15, 16, 17, 31, 33, 63, 64, 65, 67, 129, 1000, 4097)
SPECIAL = (0.0, -0.0, np.inf, -np.inf, np.nan, 1e-40, 3e38)


def pairs() -> Iterator[Arithmetic]:
    """Every row of the two tables that go together."""
    for operator in TABLE:
        for name in ROWS:
            try:
                yield arithmetic(operator, np.dtype(name))
            except UsageTypeError:
                continue


def name_of(one: Arithmetic) -> str:
    return f"{one.operator.name}-{one.dtype}"


COMPILED = [one for one in pairs() if one.kernel is not None]
OTHERS = [one for one in pairs() if one.kernel is None]


def kernel_of(one: Arithmetic) -> Kernel:
    return engine.kernel(one.combine, one.working, one.kernel)


def drawn(chance: np.random.Generator, dtype: np.dtype, count: int) -> Array:
    """Any bits for integers; for others numbers of all sizes, a third of them special."""
    if dtype.kind in "iu":
        values = chance.integers(0, 256, count * dtype.itemsize, np.uint8).view(dtype)
        values[chance.random(count) < 0.2] = 0
        return values
    if dtype.kind == "b":
        return chance.random(count) < 0.5
    parts = chance.normal(size=count * (2 if dtype.kind == "c" else 1))
    special = chance.random(parts.size) < 1 / 3
    parts[special] = chance.choice(SPECIAL, special.sum())
    with np.errstate(over="ignore", under="ignore"):
        return parts.view(complex).astype(dtype) if dtype.kind == "c" else parts.astype(dtype)


def bits(values: Array) -> bytes:
    """The bytes, with one NaN for all of them."""
    parts = values.copy().view(values.real.dtype)
    if parts.dtype.kind == "f":
        parts[np.isnan(parts)] = np.nan
    width = parts.itemsize
    padded = parts.dtype.char == "g" and np.finfo(parts.dtype).nmant == 63  # 10 bytes and nothing more
    return parts.view(np.uint8).reshape(-1, width)[:, : 10 if padded else width].tobytes()


def combined(how: Kernel | Combine, left: Array, right: Array, alias: str) -> Array:
    """By a kernel, or by a function of arrays; the target is memory of its own, or one of the operands."""
    left, right = left.copy(), right.copy()
    target = {"": np.empty_like(left), "left": left, "right": right}[alias]
    if callable(how):
        how(left, right, target)
    else:
        how.combine(*(array.view(np.uint8) for array in (left, right, target)))
    return target


def test_the_table_has_what_is_compiled() -> None:
    named = {one.kernel for one in COMPILED}
    assert {("sum", "float32"), ("max", "float64"), ("prod", "complex64"), ("lxor", "uint16")} <= named
    assert ("land", "bool") in named


@pytest.mark.parametrize("one", COMPILED, ids=name_of)
@pytest.mark.parametrize("alias", ["", "left", "right"])
def test_same_bits_as_numpy(one: Arithmetic, alias: str) -> None:
    kernel = kernel_of(one)
    assert kernel.native
    chance = np.random.default_rng(len(name_of(one)))
    with np.errstate(all="ignore"):
        for count in LENGTHS:
            left, right = (drawn(chance, one.working, count) for _ in range(2))
            found = combined(kernel, left, right, alias)
            wanted = combined(one.combine, left, right, alias)
            assert bits(found) == bits(wanted), (count, found, wanted)


@pytest.mark.parametrize("one", COMPILED, ids=name_of)
def test_nothing_beside_the_target_is_touched(one: Arithmetic) -> None:
    kernel = kernel_of(one)
    chance = random.Random(1)
    width = one.working.itemsize
    for _ in range(10):
        count, begin = chance.randrange(70), chance.randrange(1, 9)
        guarded = np.full((count + 20) * width, 0xA5, np.uint8)
        inside = slice(begin * width, (begin + count) * width)
        left, right = (drawn(np.random.default_rng(count), one.working, count).view(np.uint8) for _ in "lr")
        kernel.combine(left, right, guarded[inside])
        guarded[inside] = 0xA5
        assert (guarded == 0xA5).all()


@pytest.mark.parametrize("one", OTHERS, ids=name_of)
def test_what_is_not_compiled_is_done_by_the_table(one: Arithmetic) -> None:
    kernel = kernel_of(one)
    assert not kernel.native
    if one.working.fields is None and one.operator.ufunc is not None:
        chance = np.random.default_rng(3)
        left, right = (drawn(chance, one.working, 33) for _ in range(2))
        with np.errstate(all="ignore"):
            for alias in ("", "left", "right"):
                wanted = combined(one.combine, left, right, alias)
                assert bits(combined(kernel, left, right, alias)) == bits(wanted)


def test_a_kernel_that_disagrees_with_the_table_is_not_used() -> None:
    def subtract(left: Array, right: Array, target: Array) -> None:
        np.subtract(left, right, out=target)

    kernel = engine.kernel(subtract, np.dtype(np.float32), ("sum", "float32"))
    assert not kernel.native
    left, right = np.float32([5, 7]), np.float32([1, 2])
    assert combined(kernel, left, right, "").tolist() == [4, 5]


def test_a_kernel_of_another_dtype_is_not_used() -> None:
    def add(left: Array, right: Array, target: Array) -> None:
        np.add(left, right, out=target)

    assert not engine.kernel(add, np.dtype(np.float32).newbyteorder(), ("sum", "float32")).native
    assert not engine.kernel(add, np.dtype(np.float64), ("sum", "float32")).native


def test_what_a_python_function_raises_is_raised() -> None:
    def fail(left: Array, right: Array, target: Array) -> None:
        raise ZeroDivisionError("as asked")

    elements = np.zeros(4, np.float32)
    with pytest.raises(ZeroDivisionError, match="as asked"):
        combined(engine.kernel(fail, elements.dtype), elements, elements, "")


def test_operands_of_unequal_length_are_refused() -> None:
    kernel = kernel_of(COMPILED[0])
    width = kernel.itemsize
    three, four = bytes(3 * width), bytes(4 * width)
    for left, right, room in ((three, four, 4), (four, three, 4), (four, four, 3)):
        with pytest.raises(ValueError, match="equally many"):
            kernel.combine(left, right, bytearray(room * width))
    with pytest.raises(TypeError, match="read-write"):
        kernel.combine(four, four, four)


def test_what_is_no_ufunc_is_refused() -> None:
    from hpccoll._native import _core

    number = np.dtype(np.float32).num
    add = np.add.types.index("ff->f")
    for ufunc, index in ((np.negative, 0), (np.add, -1), (np.add, 10**6), (np.add, add + 1), (add, 0)):
        with pytest.raises((ValueError, AttributeError)):
            _core.ufunc_kernel(ufunc, index, number, 4)
    with pytest.raises(ValueError, match="no logical operator"):
        _core.logical_kernel("land", 3)
    with pytest.raises(ValueError, match="no logical operator"):
        _core.logical_kernel("nand", 4)
    with pytest.raises(TypeError, match="callable"):
        _core.python_kernel(3, 4)


@pytest.mark.parametrize("dtype", ["float16", "float32", "float64", "complex64", "complex128"])
@pytest.mark.parametrize("ufunc", [np.add, np.multiply, np.minimum, np.maximum])
def test_bits_do_not_go_by_where_elements_lie(ufunc: np.ufunc, dtype: str) -> None:
    """Two ranks that combine the same elements, each in its memory, get the same: zeros, NaN and tails."""
    count, itemsize = 1003, np.dtype(dtype).itemsize
    numbers = np.random.default_rng(1).normal(size=(2, 2, count))
    given = (numbers[0] + 1j * numbers[1] if np.dtype(dtype).kind == "c" else numbers[0]).astype(dtype)
    given[0, ::3], given[1, ::3], given[0, 1::9], given[1, 1::9] = 0.0, -0.0, -0.0, 0.0
    given[0, 5::17], given[1, 7::19] = np.nan, -np.nan
    found = set()
    for left_at, target_at in itertools.product(range(0, 64, itemsize), repeat=2):
        places = []
        for at in (left_at, 0, target_at):
            memory = np.empty(count * itemsize + 128, np.uint8)
            begin = -memory.ctypes.data % 64 + at
            places.append(memory[begin : begin + count * itemsize].view(dtype))
        places[0][:], places[1][:] = given
        with np.errstate(all="ignore"):
            ufunc(places[0], places[1], out=places[2])
        found.add(places[2].tobytes())
    assert len(found) == 1
