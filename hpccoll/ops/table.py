"""One table of reduction operators: which dtypes they take and how elements are combined on hosts.

The answer of every allowed pair is NumPy's: NaN propagates through MIN and MAX, integers wrap.  Each
element is combined at one place, or by all ranks in the same order, so that every rank gets the
same bits.  docs/types.md has the table; `hpccoll topo --types` prints it.

AVG is the sum followed by one division by the number of ranks: never in stages.  Averages of integers
are summed in 64 bits and rounded toward zero, as NCCL does.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field, replace
from functools import lru_cache
from typing import TYPE_CHECKING, Any

import numpy as np
from mpi4py import MPI

from hpccoll.dtypes import ROWS, Row, native, row_of
from hpccoll.errors import UsageTypeError
from hpccoll.ops import user, value_index
from hpccoll.ops.wire import CARRIED, WIRES
from hpccoll.transports.base import Array, Combine

if TYPE_CHECKING:
    from numpy.typing import DTypeLike

INTEGERS = frozenset({"int", "uint"})
REALS = INTEGERS | {"float"}
NUMBERS = REALS | {"complex"}
BITS = INTEGERS | {"bool"}
PAIRS = frozenset({"pair"})
NONE: frozenset[str] = frozenset()
_OURS = (11, 14)  # codes of operators that MPI does not have


@dataclass(frozen=True)
class Operator:
    """A row of the table, or one made by `scaled_sum`, `accumulate` or `on_wire`; `code` stands for it in the
    agreement.

    `mpi_exact`: kinds for which MPI's own operator has the same answer on every MPI (MPICH and Open MPI
    drop or keep a NaN under MIN and MAX depending on where it is, so floats are left out there).
    `commutes`: False when elements must be combined in rank order.  `factor`: what this rank's elements are
    multiplied by.  `into`: the dtype of the results, where it is not that of the elements.  `wire`: the dtype
    in which elements travel between nodes, "" for their own, None for that of the communicator's setting.
    `function`: the caller's operator.
    """

    name: str
    code: int
    ufunc: Callable[..., Any] | None = field(hash=False)
    kinds: frozenset[str] = field(hash=False)
    mpi_exact: frozenset[str] = field(default=NONE, hash=False)
    average: bool = False
    commutes: bool = True
    factor: Any = None
    into: np.dtype[Any] | None = None
    wire: str | None = None
    function: MPI.Op | None = field(default=None, hash=False)

    def result(self, dtype: np.dtype[Any]) -> np.dtype[Any]:
        """The dtype of the results for elements of `dtype`, which all ranks' arguments are compared by.

        Raises: UsageTypeError when `accumulate` was given a dtype that cannot hold the elements.
        """
        if self.into is None:
            return dtype
        if not np.can_cast(dtype, self.into, "safe"):
            raise UsageTypeError(f"{self!r}: {self.into} cannot hold all elements of dtype {dtype}")
        return self.into

    @property
    def sums(self) -> bool:
        """It is a sum, or made from one."""
        return self.ufunc is np.add

    def __repr__(self) -> str:
        if self.wire is not None:
            return f"hpccoll.on_wire({replace(self, wire=None)!r}, {self.wire or 'float32'!r})"
        if self.into is not None:
            return f"hpccoll.accumulate({replace(self, into=None)!r}, '{self.into}')"
        if self.factor is not None:
            return f"hpccoll.scaled_sum({self.factor!s})"
        if self.function is not None:
            return f"the {self.name}"
        return f"{'hpccoll' if self.code in _OURS else 'MPI'}.{self.name}"


AVG = Operator("AVG", 11, np.add, NUMBERS, average=True)
"""Average over the ranks: the sum, then one division by their number."""

SCALED_SUM = Operator("scaled_sum", 14, np.add, NUMBERS)  # its factor is each rank's own
USER = Operator("user operator", 15, None, NONE)
USER_IN_ORDER = Operator("user operator (not commutative)", 16, None, NONE, commutes=False)

_MPI_TABLE = (
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
    (MPI.MINLOC, Operator("MINLOC", 12, None, PAIRS)),
    (MPI.MAXLOC, Operator("MAXLOC", 13, None, PAIRS)),
)
_BY_HANDLE = {handle.handle: operator for handle, operator in _MPI_TABLE}
_MPI_BY_CODE = {operator.code: handle for handle, operator in _MPI_TABLE}
_NOT_REDUCING = {
    MPI.OP_NULL.handle: "MPI.OP_NULL",
    MPI.REPLACE.handle: "MPI.REPLACE",
    MPI.NO_OP.handle: "MPI.NO_OP",
}
TABLE = (*(operator for _, operator in _MPI_TABLE), AVG, SCALED_SUM)
NAMES = {0: "-"} | {operator.code: operator.name for operator in (*TABLE, USER, USER_IN_ORDER)}

_KERNELS: dict[Callable[..., Any], str] = {
    operator.ufunc: operator.name.lower() for _, operator in _MPI_TABLE if operator.ufunc is not None
}
_KERNEL_DTYPES = {name for name, row in ROWS.items() if row.kind in BITS} | {
    "float32",
    "float64",
    "complex64",
    "complex128",
}


def operator_of(op: MPI.Op | Operator) -> Operator:
    """The operator that a caller passed: a row of the table, or one of the caller's own.

    Raises: UsageTypeError when `op` is no operator, or one that MPI has for one-sided calls only.
    """
    if isinstance(op, Operator):
        return op
    if not isinstance(op, MPI.Op) or op.handle in _NOT_REDUCING:
        shown = _NOT_REDUCING[op.handle] if isinstance(op, MPI.Op) else repr(op)
        raise UsageTypeError(f"op is {shown}: must be an MPI operator that reduces, or one of hpccoll")
    row = _BY_HANDLE.get(op.handle)
    return row if row is not None else replace(USER if op.Is_commutative() else USER_IN_ORDER, function=op)


def scaled_sum(factor: Any) -> Operator:
    """The sum of all ranks' elements, each multiplied by its own rank's factor first.

    Factors may differ between ranks.  They are taken in the dtype in which the elements are combined (float32
    for 16-bit and 8-bit floats), where the products are made too.  A real factor multiplies both parts of
    complex elements.  A call raises UsageTypeError when that dtype cannot hold the factor: a fraction
    for integers, a complex one for real elements, one that becomes infinite or zero.

    Args:
        factor: a number, or a NumPy array of one and no dimensions.

    Raises:
        UsageTypeError: `factor` is no number.

    As NCCL's pre-multiplied sum (ncclRedOpCreatePreMulSum).

    """
    number = np.asarray(factor)
    row = row_of(number.dtype)
    if number.ndim or row is None or row.kind == "bool":
        raise UsageTypeError(f"the factor of a scaled sum is {factor!r}: must be a number")
    return replace(SCALED_SUM, factor=number[()])


def accumulate(op: MPI.Op | Operator, dtype: DTypeLike) -> Operator:
    """An operator on elements of a smaller dtype with results in `dtype`: they are converted, then combined.

    Send buffers have any dtype that NumPy casts to `dtype` safely, not the same on all ranks; receive buffers
    have `dtype`.  In place there is only the receive buffer, which has `dtype` then.  For sums of
    int8 that need int32, averages of integers with a fraction, the number of ranks where a flag is set.

    Raises:
        UsageTypeError: an operator of the caller's, which takes elements as they are; `dtype` is no dtype.

    """
    operator = operator_of(op)
    if operator.function is not None:
        raise UsageTypeError(f"{operator!r} combines elements as they are: it cannot accumulate in {dtype!r}")
    try:
        into = np.dtype(dtype) if dtype is not None else None
    except TypeError:
        into = None
    if into is None:
        raise UsageTypeError(f"the dtype to accumulate in is {dtype!r}: must be a NumPy dtype")
    return replace(operator, into=into)


def on_wire(op: MPI.Op | Operator, dtype: DTypeLike) -> Operator:
    """A sum or average in float32 whose elements travel between nodes in half as many bytes.

    For all-reduce, reduce and reduce-scatter of NumPy arrays, whatever `wire_dtype` of the communicator says.
    Inside a node, and where the payload travels with the agreement check (`small_bytes`), all of float32 is
    kept.  All ranks get the same bits.  Each time that a partial sum goes from node to node it is rounded, by
    at most u times its value; u is 2**-8 for bfloat16, 2**-11 for float16, whose sums must stay below 65504.
    With N nodes the error is at most N u times the sum of the elements' magnitudes (docs/types.md).

    Args:
        op: MPI.SUM, hpccoll.AVG, or what `scaled_sum` or `accumulate` made of a sum.
        dtype: "bfloat16", "float16", or "float32" for elements as they are.

    Raises:
        UsageTypeError: another operator or dtype; in a call: elements that are not summed in float32.

    """
    operator = operator_of(op)
    name = dtype if isinstance(dtype, str) else getattr(dtype, "name", getattr(dtype, "__name__", ""))
    if not operator.sums:
        raise UsageTypeError(f"{operator!r} is no sum: its elements cannot be rounded on their way")
    if name not in (*WIRES, CARRIED.name):
        raise UsageTypeError(f"dtype is {dtype!r}: must be one of {', '.join((*WIRES, CARRIED.name))}")
    return replace(operator, wire="" if name == CARRIED.name else name)


@dataclass(frozen=True)
class Arithmetic:
    """How one operator works on one dtype on hosts.

    `working`: the dtype in which elements are combined and travel, in this machine's byte order (of user
    operators: the dtype itself).  `mpi`: MPI's operator where it has the same answer, else None.
    `factor`: of a scaled sum, in the working dtype.  `kernel`: name of operator and working dtype
    where a compiled loop over plain numbers can combine them, else None.
    """

    operator: Operator
    dtype: np.dtype[Any]
    working: np.dtype[Any]
    combine: Combine
    mpi: MPI.Op | None = None
    factor: Any = None
    kernel: tuple[str, str] | None = None

    def start(self, give: Array) -> Array:
        """The elements to combine for the caller's: in the working dtype, and scaled.

        The array itself when there is nothing to do, otherwise another one.
        """
        if give.dtype == self.working and self.factor is None:
            return give
        with np.errstate(all="ignore"):
            values = give if give.dtype == self.working else give.astype(self.working)
            if self.factor is None:
                return values
            # Part by part: the product with a number of no imaginary part would make inf + 1j to inf + nan j.
            by_parts = self.working.kind == "c" and self.factor.dtype.kind != "c"
            numbers = values.view(self.factor.dtype) if by_parts else values
            scaled: Array = np.multiply(numbers, self.factor)
            return scaled.view(self.working)

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


def arithmetic(operator: Operator, dtype: np.dtype[Any], datatype: MPI.Datatype | None = None) -> Arithmetic:
    """How an operator combines elements of a dtype (that of the results; see `Operator.result`).

    `datatype`: what the function of a user operator gets, where the caller passed one; elements of a derived
    datatype are as MPI packs them, an item for each element.

    Raises: UsageTypeError for a pair that has no answer, naming what the operator takes.
    """
    if operator.wire is not None:
        found = arithmetic(replace(operator, wire=None), dtype, datatype)
        if operator.wire and found.working != CARRIED:
            raise UsageTypeError(f"{operator!r}: elements of dtype {dtype} are summed in {found.working}")
        return replace(found, operator=operator)
    if operator.function is not None:
        combine = user.combiner(operator.function, dtype, datatype)
        return Arithmetic(operator, dtype, dtype, combine)
    if operator.factor is None:
        return _of_table(operator, dtype)
    plain = _of_table(SCALED_SUM if operator.into is None else replace(operator, factor=None), dtype)
    return replace(plain, operator=operator, factor=_factor_in(operator, plain.working))


def working_name(operator: Operator, row: Row) -> str | None:
    """The name of the dtype in which an operator combines elements of a row; None when it does not."""
    if row.kind not in operator.kinds:
        return None
    if operator.average and row.kind in INTEGERS:
        return f"{row.kind}64"
    return row.working or row.name


@lru_cache(maxsize=512)
def _of_table(operator: Operator, dtype: np.dtype[Any]) -> Arithmetic:
    if operator.kinds == PAIRS and value_index.is_pair(dtype):
        combine = value_index.combiner(dtype, largest=operator.name == "MAXLOC")
        return Arithmetic(operator, dtype, native(dtype), combine)
    row = row_of(dtype)
    name = None if row is None else working_name(operator, row)
    if row is None or name is None or operator.ufunc is None:
        raise UsageTypeError(f"{operator!r} is not defined for dtype {dtype}; it takes {_taken(operator)}")
    working = native(dtype) if name == row.name else np.dtype(name)
    mpi = None
    if operator.average or operator.code == SCALED_SUM.code:
        mpi = MPI.SUM
    elif row.kind in operator.mpi_exact:
        mpi = _MPI_BY_CODE[operator.code]
    kernel = (_KERNELS[operator.ufunc], working.name) if working.name in _KERNEL_DTYPES else None
    return Arithmetic(operator, dtype, working, _combiner(operator.ufunc), mpi, kernel=kernel)


def _taken(operator: Operator) -> str:
    if operator.kinds == PAIRS:
        return value_index.TAKES
    return ", ".join(name for name, row in ROWS.items() if row.kind in operator.kinds)


def _factor_in(operator: Operator, working: np.dtype[Any]) -> Any:
    """The factor as a number of the working dtype, or of its parts."""
    factor = operator.factor
    if factor.dtype.kind == "c":
        factor = factor if factor.imag else factor.real
    if working.kind == "c" and factor.dtype.kind != "c":
        working = np.empty(0, working).real.dtype
    if working.kind != "c" and factor.dtype.kind == "c":
        raise UsageTypeError(f"{operator!r}: the factor is complex, the elements are not ({working})")
    with np.errstate(all="ignore"):
        found = factor.astype(working)
        same = bool(found == factor)
        kept = bool(np.isfinite(found) or not np.isfinite(factor)) and bool(found) == bool(factor)
    if not (same if working.kind in "iu" else kept):
        raise UsageTypeError(
            f"{operator!r}: elements are combined in {working}, which cannot hold the factor"
        )
    return found


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
