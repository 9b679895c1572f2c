"""One reduction in this process alone: what ranks do to their elements; and NumPy's answer to compare."""

from __future__ import annotations

from collections.abc import Sequence
from functools import reduce as fold
from typing import Any

import ml_dtypes
import numpy as np
from mpi4py import MPI

import hpccoll
from hpccoll.ops.table import Arithmetic, Operator, operator_of

Array = np.ndarray[Any, np.dtype[Any]]

SMALL_FLOATS = tuple(
    np.dtype(one) for one in (ml_dtypes.float8_e4m3fn, ml_dtypes.float8_e5m2, np.float16, ml_dtypes.bfloat16)
)
BOOL = (np.dtype(bool),)
INTEGERS = tuple(np.dtype(code) for code in ("i1", "i2", "i4", "i8", "u1", "u2", "u4", "u8"))
FLOATS = (*SMALL_FLOATS, *(np.dtype(code) for code in "fdg"))
COMPLEX = tuple(np.dtype(code) for code in "FDG")
NUMBERS = BOOL + INTEGERS + FLOATS + COMPLEX

UFUNCS: dict[str, np.ufunc] = {
    "SUM": np.add,
    "PROD": np.multiply,
    "MAX": np.maximum,
    "MIN": np.minimum,
    "LAND": np.logical_and,
    "LOR": np.logical_or,
    "LXOR": np.logical_xor,
    "BAND": np.bitwise_and,
    "BOR": np.bitwise_or,
    "BXOR": np.bitwise_xor,
}
# What MPI 4.1 (section 6.9.2) allows, with truth values for the bitwise operators too, as in NumPy.
TAKES: dict[str, tuple[np.dtype[Any], ...]] = {
    **dict.fromkeys(("SUM", "PROD", "AVG"), INTEGERS + FLOATS + COMPLEX),
    **dict.fromkeys(("MAX", "MIN"), INTEGERS + FLOATS),
    **dict.fromkeys(("LAND", "LOR", "LXOR", "BAND", "BOR", "BXOR"), BOOL + INTEGERS),
    **dict.fromkeys(("MINLOC", "MAXLOC"), ()),
}
SPECIAL = (np.nan, np.inf, -np.inf, -0.0, 0.0, 1.0, -1.0)


def op_of(name: str) -> Operator:
    return hpccoll.AVG if name == "AVG" else operator_of(getattr(MPI, name))


def data(dtype: np.dtype[Any], count: int, rank: int) -> Array:
    """Integers and truth values of all bits; floats, some of them special, in other places on each rank."""
    random = np.random.default_rng([rank, count])
    if dtype in BOOL:
        return random.integers(0, 2, count).astype(dtype)
    if dtype in INTEGERS:
        bits = random.integers(0, 256, count * dtype.itemsize, dtype=np.uint8).view(dtype)
        return np.where(random.integers(0, 4, count) == 0, np.zeros(1, dtype), bits)
    values = random.normal(size=count) * 4
    values[random.integers(0, count, count // 3)] = random.choice(SPECIAL, count // 3)
    if dtype in COMPLEX:
        return (values + 1j * random.normal(size=count)).astype(dtype)
    return values.astype(dtype)


def collective(rule: Arithmetic, parts: Sequence[Array], aliased: str = "left") -> Array:
    """What a collective does with a rule: start on each rank, combine in rank order, finish."""
    started = [np.array(rule.start(part)) for part in parts]
    assert {one.dtype for one in started} == {rule.working}

    def combine(left: Array, right: Array) -> Array:
        target = {"left": left, "right": right}.get(aliased, np.empty_like(left))
        before = [one.tobytes() for one in (left, right)]
        rule.combine(left, right, target)
        for one, bits in zip((left, right), before, strict=True):
            assert one is target or one.tobytes() == bits, "an operand was written to"
        return target

    out = np.empty(parts[0].size, rule.dtype)
    rule.finish(fold(combine, started), len(parts), out)
    return out


def numpys(name: str, parts: Sequence[Array]) -> Array:
    """NumPy's answer; 8-bit and 16-bit floats in float32, rounded once."""
    dtype = parts[0].dtype
    wide = np.dtype(np.float32) if dtype in SMALL_FLOATS else dtype
    with np.errstate(all="ignore"):
        if name == "AVG" and dtype in INTEGERS:
            return np.array([mean(column) for column in zip(*parts, strict=True)], dtype)
        total = np.asarray(fold(UFUNCS.get(name, np.add), [part.astype(wide) for part in parts]))
        if name == "AVG" and dtype in COMPLEX:
            total = total.real / wide.type(len(parts)).real + 1j * (total.imag / wide.type(len(parts)).real)
        elif name == "AVG":
            total = total / wide.type(len(parts))
        return total.astype(dtype)


def mean(column: Sequence[Any]) -> int:
    """In 64 bits, which may wrap, rounded toward zero."""
    bits, signed = 64, np.asarray(column[0]).dtype.kind == "i"
    total = sum(map(int, column)) % 2**bits
    total -= 2**bits * (signed and total >= 2 ** (bits - 1))
    return abs(total) // len(column) * (-1 if total < 0 else 1)


def same(one: Array, other: Array) -> bool:
    numbers = one.dtype.kind in "fcV" and one.dtype.names is None
    return one.dtype == other.dtype and bool(np.array_equal(one, other, equal_nan=numbers))
