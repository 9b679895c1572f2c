"""One table of element types: NumPy and ml_dtypes, what NCCL calls them, how they are reduced on hosts.

Moving elements (broadcast, all-gather, ...) works for any dtype without object pointers.  Reductions work for
the rows below and for pairs of them (value_index.py); `working` is the dtype in which the elements of a row
are combined and travel: 16-bit and 8-bit floats are combined in float32 and rounded once at the end.

The types of ml_dtypes are known by name, so that the package is imported only where a caller has such arrays.
"""

from __future__ import annotations

import sys
import zlib
from dataclasses import dataclass
from functools import lru_cache
from typing import Any

import numpy as np

from hpccoll.errors import UsageTypeError


@dataclass(frozen=True)
class Row:
    """A number type; `nccl` is None where NCCL has no such type."""

    name: str
    kind: str  # bool, int, uint, float, complex
    nccl: str | None = None
    working: str | None = None
    bits: int | None = None  # of a type of ml_dtypes

    @property
    def itemsize(self) -> int:
        """Bytes of an element, known also where ml_dtypes is not imported."""
        return np.dtype(self.name).itemsize if self.bits is None else self.bits // 8


ROWS: dict[str, Row] = {
    row.name: row
    for row in (
        Row("bool", "bool"),
        Row("int8", "int", "int8"),
        Row("int16", "int"),
        Row("int32", "int", "int32"),
        Row("int64", "int", "int64"),
        Row("uint8", "uint", "uint8"),
        Row("uint16", "uint"),
        Row("uint32", "uint", "uint32"),
        Row("uint64", "uint", "uint64"),
        Row("float8_e4m3fn", "float", "float8e4m3", "float32", bits=8),
        Row("float8_e5m2", "float", "float8e5m2", "float32", bits=8),
        Row("float16", "float", "float16", "float32"),
        Row("bfloat16", "float", "bfloat16", "float32", bits=16),
        Row("float32", "float", "float32"),
        Row("float64", "float", "float64"),
        Row("complex64", "complex"),
        Row("complex128", "complex"),
        # The longest types are named for their size, which differs between machines.
        Row(np.dtype(np.longdouble).name, "float"),
        Row(np.dtype(np.clongdouble).name, "complex"),
    )
}


def row_of(dtype: np.dtype[Any]) -> Row | None:
    """The table's row, or None for a dtype that can only be moved."""
    return ROWS.get(dtype.name) if dtype.fields is None else None


def native(dtype: np.dtype[Any]) -> np.dtype[Any]:
    """The dtype in this machine's byte order; of a structured one, all its fields."""
    return dtype if dtype.isnative or dtype.byteorder == "=" else dtype.newbyteorder("=")


def check_movable(dtype: np.dtype[Any], what: str) -> None:
    """Elements have bytes, and no pointers, which mean nothing to another process.

    Raises: UsageTypeError.
    """
    if dtype.hasobject:
        raise UsageTypeError(
            f"{what} has dtype {dtype}: Python objects cannot be moved as bytes; "
            "use the lower-case methods, which pickle"
        )
    if dtype.itemsize == 0:
        raise UsageTypeError(f"{what} has dtype {dtype}, whose elements have no bytes")


@lru_cache(maxsize=256)
def tag(dtype: np.dtype[Any]) -> bytes:
    """At most 16 bytes that tell dtypes apart and, for number types, can be read.

    The names of fields do not count: the elements are the same.
    """
    if dtype.fields is not None or len(dtype.name) > 16:
        text = f"{dtype.kind}{dtype.itemsize}:{zlib.crc32(_layout(dtype).encode()):08x}"
    elif _swapped(dtype):
        text = dtype.str
    else:
        text = dtype.name
    return text.encode()[:16]


def _swapped(dtype: np.dtype[Any]) -> bool:
    # Not dtype.isnative, which is False for the types of ml_dtypes.
    return dtype.byteorder == (">" if sys.byteorder == "little" else "<")


def _layout(dtype: np.dtype[Any]) -> str:
    """Types and places of all elements, in words."""
    if dtype.subdtype is not None:
        base, shape = dtype.subdtype
        return f"{_layout(base)}{shape}"
    if dtype.fields is None:
        return f"{'swapped ' * _swapped(dtype)}{dtype.name}"
    parts = [
        f"{_layout(field)}@{place}" for field, place, *_ in (dtype.fields[name] for name in dtype.names or ())
    ]
    return f"{dtype.itemsize}({', '.join(parts)})"
