"""Which reductions NCCL does as the table of operators wants them; the others go over the host.

    SUM, PROD            numbers of 32 and 64 bits, int8, uint8; 16-bit floats, rounded at every step
    SUM of complex       as two real numbers
    AVG                  of floats and complex numbers: NCCL's sum, then one division
    scaled_sum           floats, by NCCL's operator that multiplies first
    MIN, MAX             integers; NCCL drops a NaN, so floats go over the host
    all others           over the host

Docs: docs/types.md.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import lru_cache
from typing import Any

import numpy as np

from hpccoll.dtypes import ROWS, Row, row_of, tag
from hpccoll.ops.table import AVG, Arithmetic

SCALED = "SCALED"
_PARTS = {"complex64": "float32", "complex128": "float64"}


@dataclass(frozen=True)
class Travel:
    """How elements travel over NCCL: `width` of its elements of type `nccl` for each one of `itemsize` bytes.

    `operator`: of NCCL, SCALED, or empty where nothing is combined.  `divides`: the sum is divided
    afterwards.
    """

    nccl: str
    itemsize: int
    width: int = 1
    operator: str = ""
    divides: bool = False


BYTES = Travel("uint8", 1)


def travel(arithmetic: Arithmetic | None, dtype: np.dtype[Any]) -> Travel | None:
    """How a call's elements travel over NCCL; None where NCCL cannot do it as the table says."""
    if arithmetic is None:
        return BYTES
    operator = arithmetic.operator
    if operator.into is not None or operator.function is not None or not operator.commutes:
        return None
    return _travel(operator.name, dtype)


@lru_cache(maxsize=256)
def _travel(name: str, dtype: np.dtype[Any]) -> Travel | None:
    row = row_of(dtype)
    if row is None or tag(dtype) != row.name.encode():  # not of this machine's byte order
        return None
    return over_nccl(name, row)


def over_nccl(name: str, row: Row) -> Travel | None:
    """How elements of a type travel over NCCL to be combined; None where they go over the host."""
    part = ROWS[_PARTS[row.name]] if row.name in _PARTS else row
    if part.nccl is None or (part.kind == "float" and part.itemsize == 1) or not _agrees(name, row):
        return None
    operator = {AVG.name: "SUM", "scaled_sum": SCALED}.get(name, name)
    return Travel(part.nccl, row.itemsize, row.itemsize // part.itemsize, operator, name == AVG.name)


def _agrees(name: str, row: Row) -> bool:
    """Whether NCCL's answer is the table's, after a division where it is an average."""
    if name in ("MIN", "MAX"):
        return row.kind in ("int", "uint")
    if row.kind == "complex":
        return name in ("SUM", AVG.name)
    if name in (AVG.name, "scaled_sum"):
        return row.kind == "float"
    return name in ("SUM", "PROD")
