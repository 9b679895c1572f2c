"""Elements: number types, operators, the data of each rank, and what they come to under an operator."""

from __future__ import annotations

from collections.abc import Sequence
from functools import reduce as fold
from typing import Any

import ml_dtypes
import numpy as np
from mpi4py import MPI

import hpccoll

Array = np.ndarray[Any, np.dtype[Any]]

BFLOAT16 = np.dtype(ml_dtypes.bfloat16)
FLOAT16 = np.dtype(np.float16)
INT64 = np.dtype(np.int64)
BOOL = np.dtype(np.bool_)
INTEGERS = tuple(np.dtype(code) for code in ("i1", "i2", "i4", "i8", "u1", "u2", "u4", "u8"))
REALS = (FLOAT16, BFLOAT16, *(np.dtype(code) for code in ("f4", "f8", "g")))
COMPLEX = tuple(np.dtype(code) for code in ("c8", "c16", "G"))
NUMBERS = INTEGERS + REALS + COMPLEX

ARITHMETIC = ("SUM", "PROD", "AVG")
ORDER = ("MAX", "MIN")
LOGICAL = ("LAND", "LOR", "LXOR")
BITWISE = ("BAND", "BOR", "BXOR")
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
OPERATORS = (*UFUNCS, "AVG")
# What lies in memory that a call must not touch: no rank's data, and no zero.
GUARD = 0xA5
MARGIN = 64


def operators(dtype: np.dtype[Any]) -> tuple[str, ...]:
    """The operators that a dtype takes."""
    if dtype == BOOL:
        return LOGICAL + BITWISE
    if dtype in COMPLEX:
        return ARITHMETIC
    return ARITHMETIC + ORDER + (LOGICAL + BITWISE if dtype in INTEGERS else ())


def operator(name: str) -> Any:
    """The operator to pass to a call."""
    return hpccoll.AVG if name == "AVG" else getattr(MPI, name)


def data(dtype: np.dtype[Any], count: int, rank: int, op: str = "SUM", salt: int = 0) -> Array:
    """The elements of one rank: different for every rank, place and salt, exact under `op` in any order."""
    random = np.random.default_rng([rank, salt, count])
    if not dtype.isnative and dtype.newbyteorder("=") in NUMBERS:
        return data(dtype.newbyteorder("="), count, rank, op, salt).astype(dtype)
    if dtype == BOOL:
        return random.integers(0, 2, count).astype(dtype)
    if op in LOGICAL:
        return random.integers(0, 3, count).astype(dtype)
    if dtype not in NUMBERS or (dtype in INTEGERS and (op != "AVG" or dtype.itemsize < 8)):
        # All bits: integers wrap, in the same way whatever the order.
        return random.integers(0, 256, count * dtype.itemsize, dtype=np.uint8).view(dtype)
    # For products powers of two with a sign, else at most 3 significant bits for each of a few ranks.
    signs = 1 if dtype.kind == "u" else random.choice([-1, 1], count)
    values = signs * (random.choice([1, 2], count) if op == "PROD" else random.integers(0, 8, count))
    if dtype in COMPLEX:
        turned = values * random.choice([1, 1j], count)
        return (turned if op == "PROD" else values + 1j * random.integers(-7, 8, count)).astype(dtype)
    return values.astype(dtype)


def combined(op: str, parts: Sequence[Array]) -> Array:
    """All ranks' elements under an operator; 16-bit floats in float32, rounded once."""
    dtype = parts[0].dtype.newbyteorder("=")
    if op == "AVG" and dtype in INTEGERS:
        totals = [sum(column) for column in zip(*(part.tolist() for part in parts), strict=True)]
        return np.array([abs(one) // len(parts) * (1 if one > 0 else -1) for one in totals], dtype)
    wide = np.dtype(np.float32) if dtype in (BFLOAT16, FLOAT16) else dtype
    with np.errstate(all="ignore"):
        result = np.asarray(fold(UFUNCS.get(op, np.add), [part.astype(wide) for part in parts]))
        if op == "AVG":
            numbers = result.view(result.real.dtype)
            result = (numbers / numbers.dtype.type(len(parts))).view(result.dtype)
        return result.astype(dtype)


def untouched(dtype: np.dtype[Any], count: int) -> Array:
    """Elements that no rank sends."""
    return np.full(count * dtype.itemsize, GUARD % 2 if dtype == BOOL else GUARD, np.uint8).view(dtype)


def equal(one: Array, other: Array, *, bits: bool) -> bool:
    """The same bits, or else the same numbers, among which a zero has no sign.

    The bits of the longest types are not all part of the number.
    """
    padded = one.dtype.char in "gG"
    if padded or (not bits and (one.dtype.kind in "fc" or one.dtype == BFLOAT16)):
        return one.dtype == other.dtype and bool(np.array_equal(one, other, equal_nan=True))
    return one.dtype == other.dtype and one.tobytes() == other.tobytes()


def difference(found: Array, wanted: Array, bits: bool) -> str:
    """Where two arrays differ that are not equal, in words."""
    if found.size != wanted.size:
        return f"{found.size} elements, wanted {wanted.size}"
    one_by_one = [slice(k, k + 1) for k in range(found.size)]
    wrong = [k for k, one in enumerate(one_by_one) if not equal(found[one], wanted[one], bits=bits)]
    values = f"{found[wrong[0]]!r}, wanted {wanted[wrong[0]]!r}" if wrong else ""
    return f"{len(wrong)} of {found.size} wrong, first at {wrong[:1]}: {values}"
