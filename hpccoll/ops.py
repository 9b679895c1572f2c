"""One table of reduction operators: which dtypes they take and how elements are combined on hosts.

The answer of every allowed pair is NumPy's: NaN propagates through MIN and MAX, integers wrap.  Each
element is combined at one place, or by all ranks in the same order, so that every rank gets the
same bits.

AVG is the sum followed by one division by the number of ranks: never in stages.  Averages of integers
are summed in 64 bits and rounded toward zero, as NCCL does.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import lru_cache
from typing import Any

import numpy as np
from mpi4py import MPI

from hpccoll.dtypes import ROWS, row_of
from hpccoll.errors import UsageTypeError
from hpccoll.transports.base import Array, Combine

INTEGERS = frozenset({"int", "uint"})
REALS = INTEGERS | {"float"}
NUMBERS = REALS | {"complex"}
BITS = INTEGERS | {"bool"}


@dataclass(frozen=True)
class Operator:
    """A row of the table; `code` stands for it in the agreement check.

    `mpi_exact`: kinds for which MPI's own operator has the same answer on every MPI (MPICH and Open MPI
    drop or keep a NaN under MIN and MAX depending on where it is, so floats are left out there).
    """

    name: str
    code: int
    ufunc: Callable[..., Any]
    kinds: frozenset[str]
    mpi_exact: frozenset[str]
    average: bool = False

    def __repr__(self) -> str:
        return f"hpccoll.{self.name}" if self.average else f"MPI.{self.name}"


AVG = Operator("AVG", 11, np.add, NUMBERS, frozenset(), average=True)
"""Average over the ranks: the sum, then one division by their number."""

_MPI_OPERATORS: dict[int, Operator] = {
    handle.handle: operator
    for handle, operator in (
        (MPI.SUM, Operator("SUM", 1, np.add, NUMBERS, NUMBERS)),
        (MPI.PROD, Operator("PROD", 2, np.multiply, NUMBERS, REALS)),
        (MPI.MAX, Operator("MAX", 3, np.maximum, REALS, INTEGERS)),
        (MPI.MIN, Operator("MIN", 4, np.minimum, REALS, INTEGERS)),
        (MPI.LAND, Operator("LAND", 5, np.logical_and, BITS, INTEGERS)),
        (MPI.LOR, Operator("LOR", 6, np.logical_or, BITS, INTEGERS)),
        (MPI.LXOR, Operator("LXOR", 7, np.logical_xor, BITS, INTEGERS)),
        (MPI.BAND, Operator("BAND", 8, np.bitwise_and, BITS, INTEGERS)),
        (MPI.BOR, Operator("BOR", 9, np.bitwise_or, BITS, INTEGERS)),
        (MPI.BXOR, Operator("BXOR", 10, np.bitwise_xor, BITS, INTEGERS)),
    )
}
_NOT_REDUCING = {
    MPI.OP_NULL.handle: "MPI.OP_NULL",
    MPI.REPLACE.handle: "MPI.REPLACE",
    MPI.NO_OP.handle: "MPI.NO_OP",
}
NAMES = {0: "-", AVG.code: AVG.name} | {row.code: row.name for row in _MPI_OPERATORS.values()}


def operator_of(op: MPI.Op | Operator) -> Operator | None:
    """The table's row; None for an MPI operator that is not in it (user operators, MINLOC, MAXLOC).

    Raises: UsageTypeError when `op` is no operator, or one that MPI has for one-sided calls only.
    """
    if isinstance(op, Operator):
        return op
    if not isinstance(op, MPI.Op) or op.handle in _NOT_REDUCING:
        shown = _NOT_REDUCING[op.handle] if isinstance(op, MPI.Op) else repr(op)
        raise UsageTypeError(f"op is {shown}: must be an MPI operator that reduces, or hpccoll.AVG")
    return _MPI_OPERATORS.get(op.handle)


@dataclass(frozen=True)
class Arithmetic:
    """How one operator works on one dtype on hosts.

    `working`: the dtype in which elements are combined and travel.  `mpi`: MPI's operator where it has
    the same answer, else None.
    """

    operator: Operator
    dtype: np.dtype[Any]
    working: np.dtype[Any]
    combine: Combine
    mpi: MPI.Op | None

    def finish(self, total: Array, ranks: int, out: Array) -> None:
        """From the combined elements to the caller's: divide if it is an average, round to the dtype."""
        if self.operator.average:
            if self.dtype.kind in "iu":
                _divide_toward_zero(total, ranks)
            else:
                _divide(total, ranks)
        if out is not total:
            with np.errstate(over="ignore", invalid="ignore"):
                np.copyto(out, total, casting="unsafe")


@lru_cache(maxsize=512)
def arithmetic(operator: Operator, dtype: np.dtype[Any]) -> Arithmetic:
    """How an operator combines elements of a dtype.

    Raises: UsageTypeError for a pair that has no answer, naming what the operator takes.
    """
    row = row_of(dtype)
    if row is None or row.kind not in operator.kinds:
        allowed = ", ".join(name for name, one in ROWS.items() if one.kind in operator.kinds)
        raise UsageTypeError(f"{operator!r} is not defined for dtype {dtype}; it takes {allowed}")
    working = dtype if row.working is None else np.dtype(row.working)
    if operator.average and row.kind in INTEGERS:
        working = np.dtype(np.int64 if row.kind == "int" else np.uint64)
    mpi = None
    if row.kind in operator.mpi_exact and working.isnative:
        mpi = next(MPI.Op.fromhandle(h) for h, one in _MPI_OPERATORS.items() if one is operator)
    elif operator.average and working.isnative:
        mpi = MPI.SUM
    return Arithmetic(operator, dtype, working, _combiner(operator.ufunc), mpi)


@lru_cache(maxsize=32)
def _combiner(ufunc: Callable[..., Any]) -> Combine:
    def combine(left: Array, right: Array, target: Array) -> None:
        with np.errstate(all="ignore"):
            if target.size == 1 and target.dtype.kind in "fc":
                # In place NumPy takes one element for a reduction, whose last bit differs in complex products
                # from that of the same product with another output; ranks differ in which operand is theirs.
                target[...] = ufunc(left, right)
            else:
                ufunc(left, right, out=target, casting="unsafe")

    return combine


def _divide(total: Array, ranks: int) -> None:
    # Part by part: a division by a complex number rounds twice and makes inf + 1j to inf + nan j.
    parts = total.view(total.real.dtype)
    np.divide(parts, parts.dtype.type(ranks), out=parts)


def _divide_toward_zero(total: Array, ranks: int) -> None:
    remainder = np.remainder(total, total.dtype.type(ranks))
    np.floor_divide(total, total.dtype.type(ranks), out=total)
    total += ((remainder != 0) & (total < 0)).astype(total.dtype)
