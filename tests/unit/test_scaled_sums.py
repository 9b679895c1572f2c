"""Sums with a factor for each rank, and operators that accumulate in a wider type."""

from __future__ import annotations

from functools import reduce as fold
from typing import Any

import ml_dtypes
import numpy as np
import pytest
from mpi4py import MPI

import hpccoll
from hpccoll.ops.table import Operator, accumulate, arithmetic, scaled_sum
from tests.support.arithmetic import (
    BOOL,
    COMPLEX,
    FLOATS,
    INTEGERS,
    NUMBERS,
    Array,
    collective,
    data,
    op_of,
    same,
)


@pytest.mark.parametrize("dtype", [one for one in NUMBERS if one not in BOOL], ids=str)
def test_a_scaled_sum_multiplies_each_ranks_elements_by_its_own_factor(dtype: np.dtype[Any]) -> None:
    factors = (2, 3, 1) if dtype in INTEGERS else (0.5, -0.1, 3)
    parts = [data(dtype, 40, rank) for rank in range(3)]
    rules = [arithmetic(scaled_sum(factor), dtype) for factor in factors]
    working = rules[0].working
    started = [rule.start(part) for rule, part in zip(rules, parts, strict=True)]
    real = np.zeros(0, working).real.dtype.type
    for part, factor, found in zip(parts, factors, started, strict=True):
        with np.errstate(all="ignore"):
            wide = part.astype(working)
            wanted = wide * working.type(factor)
            if dtype in COMPLEX:
                wanted = (wide.view(real) * real(factor)).view(working)
        assert same(found, wanted)
    out = np.empty(40, dtype)
    for one in started[1:]:
        rules[0].combine(started[0], one, started[0])
    with np.errstate(all="ignore"):
        rules[0].finish(started[0], 3, out)
        wanted = fold(np.add, [rule.start(part) for rule, part in zip(rules, parts, strict=True)]).astype(
            dtype
        )
    assert same(out, wanted)


def test_factors_may_be_any_kind_of_number_and_share_a_code() -> None:
    for factor in (2, 2.0, np.float32(2), np.int8(2), ml_dtypes.bfloat16(2), np.array(2), 2 + 0j):
        operator = scaled_sum(factor)
        assert operator.code == scaled_sum(0.25).code
        for dtype in (*INTEGERS, *FLOATS, *COMPLEX):
            assert (arithmetic(operator, dtype).start(np.ones(3, dtype)) == 2).all(), f"{factor!r} {dtype}"
    turned = arithmetic(scaled_sum(1j), np.dtype(complex)).start(np.array([3 + 4j]))
    assert turned.tolist() == [-4 + 3j]


def test_a_factor_multiplies_in_the_wide_type() -> None:
    rule = arithmetic(scaled_sum(0.25), np.dtype(np.float16))
    parts = [np.array([60000], np.float16)] * 4
    assert collective(rule, parts) == np.float16(60000)


@pytest.mark.parametrize(
    ("factor", "dtype"),
    [
        (0.5, "i4"),
        (np.nan, "i8"),
        (300, "i1"),
        (-1, "u4"),
        (2.0**64, "i8"),
        (1e300, "f4"),
        (1e300, "f2"),
        (1e-300, "c8"),
        (1j, "f8"),
        (1j, "i4"),
    ],
    ids=str,
)
def test_a_factor_that_the_type_cannot_hold_is_refused(factor: Any, dtype: str) -> None:
    with pytest.raises(hpccoll.UsageTypeError, match=r"scaled_sum.*factor"):
        arithmetic(scaled_sum(factor), np.dtype(dtype))


@pytest.mark.parametrize("factor", ["2", None, True, [2], np.ones(1), 2**70, np.datetime64(1, "s")], ids=repr)
def test_a_factor_that_is_no_number_is_refused(factor: Any) -> None:
    with pytest.raises(hpccoll.UsageTypeError, match="must be a number"):
        scaled_sum(factor)


def test_no_scaled_sum_of_truth_values() -> None:
    with pytest.raises(hpccoll.UsageTypeError, match=r"hpccoll.scaled_sum is not defined for dtype bool"):
        arithmetic(scaled_sum(2), np.dtype(bool))


def test_accumulating() -> None:
    def found(op: Operator, dtype: Any, *values: Any) -> Array:
        parts = [np.array([value], dtype) for value in values]
        return collective(arithmetic(op, op.result(parts[0].dtype)), parts)

    assert found(accumulate(hpccoll.AVG, "f8"), np.int8, 1, 2).tolist() == [1.5]
    assert found(accumulate(MPI.SUM, "i8"), bool, True, False, True, True).tolist() == [3]
    assert found(accumulate(MPI.PROD, "f8"), ">f4", 1e30, 1e30).tolist() == [float(np.float32(1e30)) ** 2]
    assert found(accumulate(MPI.MAX, "f4"), ml_dtypes.bfloat16, 3, 5).tolist() == [5]
    assert found(accumulate(scaled_sum(0.5), "f4"), np.int16, 3, 4).tolist() == [3.5]
    # A rank that has the wide type already meets the others.
    assert accumulate(MPI.SUM, "i8").code == op_of("SUM").code
    assert accumulate(MPI.SUM, "i8").result(np.dtype("i8")) == np.dtype("i8")


def test_what_cannot_be_accumulated() -> None:
    for dtype, into in (("i8", "i4"), ("u1", "i1"), ("f8", "f4"), ("c8", "f8"), ("M8[s]", "i8")):
        with pytest.raises(
            hpccoll.UsageTypeError, match=rf"accumulate\(MPI.SUM, '{np.dtype(into)}'\): .*cannot hold all"
        ):
            accumulate(MPI.SUM, into).result(np.dtype(dtype))
    for wrong in (None, "number", 3):
        with pytest.raises(hpccoll.UsageTypeError, match="must be a NumPy dtype"):
            accumulate(MPI.SUM, wrong)  # type: ignore[arg-type]
    with pytest.raises(
        hpccoll.UsageTypeError, match=r"accumulate\(MPI.BAND, 'float64'\) is not defined for dtype"
    ):
        arithmetic(accumulate(MPI.BAND, "f8"), np.dtype("f8"))
