"""The data of `hpccoll bench`: exact in any order, different everywhere; every wrong element is counted."""

from __future__ import annotations

import itertools
from fractions import Fraction
from functools import reduce
from math import prod
from typing import Any

import numpy as np
import pytest

from hpccoll.cli.bench.buffers import GuardedBuffer
from hpccoll.cli.bench.elements import DATATYPES, REDOPS, dtype_of, mulsum_factor
from hpccoll.cli.bench.pattern import PERIOD, Pattern, count_wrong, fill, spoil

LENGTH = 101
SIZES = [1, 2, 3, 5, 64]
UFUNCS = {"sum": np.add, "mulsum": np.add, "prod": np.multiply, "max": np.maximum, "min": np.minimum}


def redops(name: str) -> list[str]:
    return [redop for redop in REDOPS if not (name.startswith("complex") and redop in ("max", "min"))]


def exact(values: np.ndarray[Any, Any]) -> list[Fraction]:
    """As Python's exact numbers; complex ones as both parts."""
    values = values.view(values.real.dtype)
    return [Fraction(float(one)) if values.dtype.kind not in "iu" else Fraction(int(one)) for one in values]


@pytest.mark.parametrize("name", DATATYPES)
@pytest.mark.parametrize("size", SIZES)
def test_combining_in_the_type_itself_is_exact_in_any_order(name: str, size: int) -> None:
    # More numbers than a float of 8 bits holds whole ones are combined in a wider type, and rounded once.
    wide = np.dtype(np.float32) if name.startswith("f8") and size > 5 else dtype_of(name)
    for redop in set(redops(name)) - {"avg"}:
        pattern = Pattern(dtype_of(name), redop, size, 7, LENGTH)
        tables = [pattern.given(rank).astype(wide) for rank in range(size)]
        if redop == "mulsum":
            tables = [table * wide.type(mulsum_factor(rank)) for rank, table in enumerate(tables)]
        expected = pattern.expected(tuple(range(size)))
        assert expected.dtype == dtype_of(name)
        for order in (tables, tables[::-1], [*tables[1::2], *tables[::2]]):
            assert np.array_equal(reduce(UFUNCS[redop], order).astype(expected.dtype), expected)


@pytest.mark.parametrize("name", [name for name in DATATYPES if not name.startswith("complex")])
def test_sums_and_products_are_those_of_whole_numbers(name: str) -> None:
    for redop, combine in (("sum", sum), ("prod", prod), ("max", max), ("min", min)):
        for size in SIZES if not name.startswith("f8") else SIZES[:4]:
            pattern = Pattern(dtype_of(name), redop, size, 3, LENGTH)
            columns = zip(*(exact(pattern.given(rank)) for rank in range(size)), strict=True)
            assert exact(pattern.expected(tuple(range(size)))) == [combine(column) for column in columns]


@pytest.mark.parametrize("size", [1, 3, 5])
@pytest.mark.parametrize("name", ["int8", "int32", "uint64"])
def test_averages_of_integers_are_rounded_toward_zero(name: str, size: int) -> None:
    pattern = Pattern(dtype_of(name), "avg", size, 3, LENGTH)
    columns = zip(*(exact(pattern.given(rank)) for rank in range(size)), strict=True)
    assert exact(pattern.expected(tuple(range(size)))) == [int(sum(column) / size) for column in columns]


@pytest.mark.parametrize("size", [1, 3, 5])
@pytest.mark.parametrize(
    "name", ["float", "double", "half", "bfloat16", "f8e4m3", "f8e5m2", "complex64", "complex128"]
)
def test_averages_of_floats_are_rounded_once(name: str, size: int) -> None:
    pattern = Pattern(dtype_of(name), "avg", size, 3, LENGTH)
    columns = zip(*(exact(pattern.given(rank)) for rank in range(size)), strict=True)
    quotients = [float(sum(column) / size) for column in columns]
    expected = pattern.expected(tuple(range(size)))
    digits = {"double": 53, "complex128": 53, "half": 11, "bfloat16": 8, "f8e4m3": 4, "f8e5m2": 3}
    mantissa = digits.get(name, 24)
    pairs = zip(exact(expected), quotients, strict=True)
    # Half a unit in the last place, and what rounding the quotient here and in float32 adds.
    assert all(abs(float(got) - want) <= 1.001 * 2.0**-mantissa * abs(want) for got, want in pairs)


@pytest.mark.parametrize("name", DATATYPES)
def test_data_differs_by_rank_and_iteration(name: str) -> None:
    for redop in (*redops(name), None):
        tables = [
            Pattern(dtype_of(name), redop, 3, iteration, LENGTH).given(rank)
            for iteration in range(3)
            for rank in range(2)
        ]
        pairs = itertools.combinations(tables, 2)
        same = [np.count_nonzero(one == other) for one, other in pairs]
        # Factors are only one and two, with or without a sign; floats of 8 bits hold few whole numbers.
        few = 0.7 if name.startswith("f8") else 0.2
        assert max(same) < LENGTH * (0.9 if redop == "prod" else few)


def test_a_sum_misses_no_rank() -> None:
    for name in DATATYPES:
        for size in SIZES:
            assert not np.any(Pattern(dtype_of(name), "sum", size, 1, LENGTH).given(size - 1) == 0)


@pytest.mark.parametrize("name", DATATYPES)
def test_buffers_repeat_the_table_and_every_other_value_is_counted(name: str) -> None:
    dtype = dtype_of(name)
    table = Pattern(dtype, "sum", 3, 5, LENGTH).given(1)
    for count, start in itertools.product((0, 1, 100, 101, 102, 505), (0, 1, 100, 101, 250)):
        array = np.zeros(count, dtype)
        fill(array, table, start)
        assert np.array_equal(array, table[(start + np.arange(count)) % LENGTH])
        assert count_wrong(array, table, start) == 0
        for index in {0, count // 2, count - 1} if count else ():
            kept = array[index].copy()
            array[index] = kept + dtype.type(1)
            assert count_wrong(array, table, start) == 1
            array[index] = kept
        spoil(array, table, start)
        assert count_wrong(array, table, start) == count


def test_nan_is_wrong() -> None:
    table = Pattern(np.dtype(np.float32), "sum", 2, 0, LENGTH).given(0)
    array = table.copy()
    array[7] = np.nan
    assert count_wrong(array, table) == 1


def test_a_block_at_the_wrong_place_is_wrong() -> None:
    pattern = Pattern(np.dtype(np.float32), "sum", 4, 0, 4 * PERIOD)
    expected = pattern.expected((0, 1, 2, 3))
    assert expected.size == PERIOD
    array = np.zeros(2 * PERIOD, np.float32)
    fill(array, expected)
    half = array.size // 2
    shifted = np.concatenate([array[half + 1 :], array[: half + 1]])
    assert count_wrong(shifted, expected) > 0.99 * array.size


@pytest.mark.parametrize("where", [-1, 40])
def test_a_write_out_of_bounds_is_seen(where: int) -> None:
    buffer = GuardedBuffer(4096)
    view = buffer.view(np.dtype(np.float32), 10, skip=1)
    assert view.ctypes.data % 64 == 4
    assert not view.any()
    view[...] = 3.0
    assert buffer.overwritten() == 0
    whole = np.frombuffer(view.base, np.uint8)
    first = view.ctypes.data - whole.ctypes.data
    whole[first + where] ^= 0x40
    assert buffer.overwritten() == 1
    assert buffer.overwritten() == 0


def test_the_guard_follows_the_view() -> None:
    buffer = GuardedBuffer(4096)
    buffer.view(np.dtype(np.float64), 512)[...] = 1.0
    small = buffer.view(np.dtype(np.float64), 4)
    np.frombuffer(small.base, np.uint8)[small.ctypes.data - small.base.ctypes.data + 32] ^= 1
    assert buffer.overwritten() == 1
