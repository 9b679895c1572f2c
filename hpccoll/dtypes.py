"""One table of element types: NumPy and ml_dtypes, what NCCL calls them, how they are reduced on hosts.

Moving elements (broadcast, all-gather, ...) works for any dtype without object pointers.  Reductions work for
the rows below; `working` is the dtype in which the sums and products of a row are made and travel:
16-bit floats are combined in float32 and rounded once at the end.
"""

from __future__ import annotations

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
        Row("float16", "float", "float16", "float32"),
        Row("bfloat16", "float", "bfloat16", "float32"),
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
    """At most 16 bytes that tell dtypes apart and, for number types, can be read."""
    if dtype.fields is not None or len(dtype.name) > 16:
        text = f"{dtype.kind}{dtype.itemsize}:{zlib.crc32(repr(dtype).encode()):08x}"
    elif dtype.isnative:
        text = dtype.name
    else:
        text = dtype.str
    return text.encode()[:16]
