"""How elements travel on devices: combined by NCCL where it answers as the table does, else by kernels.

    SUM, PROD            numbers of 32 and 64 bits, int8, uint8; 16-bit floats, rounded at every step: NCCL
    SUM of complex       as two real numbers: NCCL
    AVG                  of floats, but float16, and complex numbers: NCCL's sum, then one division
    scaled_sum           floats, by NCCL's operator that multiplies first
    MIN, MAX             integers: NCCL; floats, of which NCCL drops a NaN: kernels
    all other pairs of the table, scans, and sums in a fixed order: kernels, where there are any
    accumulate           converted by a kernel, then as elements of the larger dtype
    the rest             over the host

Docs: docs/types.md.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import lru_cache
from typing import Any

import numpy as np

from hpccoll.dtypes import ROWS, Row, row_of, tag
from hpccoll.ops.kernels import Kernel, conversion, kernel_for
from hpccoll.ops.table import AVG, Arithmetic, Operator

SCALED = "SCALED"
_PARTS = {"complex64": "float32", "complex128": "float64"}


@dataclass(frozen=True)
class Travel:
    """How elements travel over NCCL: `width` of its elements of type `nccl` for each one of `itemsize` bytes.

    `operator`: of NCCL, SCALED, or empty where nothing is combined.  `divides`: the sum is divided
    afterwards.  `kernel`: what combines elements, which travel as bytes.  `whole`: it must have those of all
    ranks at once.
    """

    nccl: str
    itemsize: int
    width: int = 1
    operator: str = ""
    divides: bool = False
    kernel: Kernel | None = None
    whole: bool = False


BYTES = Travel("uint8", 1)


def travel(
    arithmetic: Arithmetic | None, dtype: np.dtype[Any], *, scans: bool = False, ordered: bool = False
) -> Travel | None:
    """How a call's elements travel on devices; None where they go over the host.

    `scans`: it is a scan.  `ordered`: elements must be combined in the order of the ranks.
    """
    if arithmetic is None:
        return BYTES
    operator = arithmetic.operator
    if operator.function is not None or not operator.commutes:
        return None
    if operator.into is not None and conversion(np.dtype(bool), dtype) is None:
        return None
    found = None if scans or ordered else _by_nccl(operator.name, dtype)
    return found if found is not None else _by_kernel(operator, dtype, whole=ordered)


@lru_cache(maxsize=256)
def _by_nccl(name: str, dtype: np.dtype[Any]) -> Travel | None:
    row = row_of(dtype)
    if row is None or tag(dtype) != row.name.encode():  # not of this machine's byte order
        return None
    return over_nccl(name, row)


def _by_kernel(operator: Operator, dtype: np.dtype[Any], *, whole: bool) -> Travel | None:
    kernel = kernel_for(operator.name, dtype)
    if kernel is None:
        return None
    row = row_of(dtype)
    # A sum in parts would be rounded, or divided, more than once.
    rounded = row is not None and row.working is not None and operator.name not in ("MIN", "MAX")
    whole = whole or operator.average or rounded
    return Travel(BYTES.nccl, kernel.itemsize, kernel.itemsize, kernel=kernel, whole=whole)


def over_nccl(name: str, row: Row) -> Travel | None:
    """How elements of a type travel that NCCL combines; None where it does not."""
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
    if name == AVG.name and row.name == "float16":
        return False  # whose sum is infinite where the average is not
    if name in (AVG.name, "scaled_sum"):
        return row.kind == "float"
    return name in ("SUM", "PROD")
