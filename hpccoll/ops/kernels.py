"""Kernels for what NCCL does not combine as the table of operators wants it.

A kernel gets the elements of all members of a group, a row for each, and combines them in the order of the
members, ((x0 x1) x2) ...; so the result depends neither on layout nor on plan.  CuPy compiles them at
first use and keeps them.  Floats of 16 bits and fewer are compared by their bits.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cache, lru_cache
from typing import Any

import numpy as np

from hpccoll.dtypes import ROWS, Row, row_of, tag
from hpccoll.memory.device import working_in_cupy
from hpccoll.ops.table import AVG, TABLE
from hpccoll.ops.value_index import is_pair

THREADS = 256
MOST_BLOCKS = 65_535

_C_TYPES = {
    "bool": "unsigned char", "int8": "signed char", "int16": "short", "int32": "int", "int64": "long long",
    "uint8": "unsigned char", "uint16": "unsigned short", "uint32": "unsigned int",
    "uint64": "unsigned long long", "float32": "float", "float64": "double",
}  # fmt: skip
_EXPRESSIONS = {
    "SUM": "left + right",
    "PROD": "left * right",
    # The second test is for a NaN on the left; one on the right makes the first test false.
    "MAX": "left >= right || left != left ? left : right",
    "MIN": "left <= right || left != left ? left : right",
    "LAND": "left && right",
    "LOR": "left || right",
    "LXOR": "!left != !right",
    "BAND": "left & right",
    "BOR": "left | right",
    "BXOR": "left ^ right",
}
# Of small floats: the type of their bits, the sign's, and the largest that are no NaN, without the sign.
_BITS = {
    "float16": ("unsigned short", 0x8000, 0x7C00),
    "bfloat16": ("unsigned short", 0x8000, 0x7F80),
    "float8_e4m3fn": ("unsigned char", 0x80, 0x7E),
    "float8_e5m2": ("unsigned char", 0x80, 0x7C),
}

_TEMPLATES = """
template <class Op, class T>
static __device__ void fold(const T *rows, T *out, long long count, long long stride, long long members)
{
    long long step = (long long)gridDim.x * blockDim.x;
    for (long long i = (long long)blockIdx.x * blockDim.x + threadIdx.x; i < count; i += step) {
        typename Op::A left = (typename Op::A)rows[i];
        for (long long m = 1; m < members; ++m)
            left = Op::combine(left, (typename Op::A)rows[m * stride + i]);
        out[i] = Op::finish(left, members);
    }
}

/* Row m becomes what the rows up to m, or before it, combine to. */
template <class Op, class T>
static __device__ void prefixes(
    T *rows, long long count, long long stride, long long members, long long before)
{
    long long step = (long long)gridDim.x * blockDim.x;
    for (long long i = (long long)blockIdx.x * blockDim.x + threadIdx.x; i < count; i += step) {
        typename Op::A left = (typename Op::A)rows[i];
        for (long long m = 1; m < members; ++m) {
            typename Op::A right = (typename Op::A)rows[m * stride + i];
            if (before)
                rows[m * stride + i] = Op::finish(left, m);
            left = Op::combine(left, right);
            if (!before)
                rows[m * stride + i] = Op::finish(left, m + 1);
        }
    }
}
"""
# T: an element.  A: what it is combined in.
_OPERATOR = """
struct {name} {{
    typedef {work} A;
    static __device__ A combine(A left, A right) {{ {combine} }}
    static __device__ T finish(A left, long long members) {{ return {finish}; }}
}};
extern "C" __global__ void fold_{name}(
    const T *rows, T *out, long long count, long long stride, long long members)
{{
    fold<{name}>(rows, out, count, stride, members);
}}
extern "C" __global__ void prefixes_{name}(
    T *rows, long long count, long long stride, long long members, long long before)
{{
    prefixes<{name}>(rows, count, stride, members, before);
}}
"""


@dataclass(frozen=True)
class Kernel:
    """How a device combines elements of `itemsize` bytes, which lie at multiples of `alignment`.

    `source`: CUDA C++ of all operators that there are for a dtype; `name`: this one's in it.
    """

    name: str
    source: str
    itemsize: int
    alignment: int

    def fold(
        self, rows: int, out: int, count: int, stride: int, members: int, device: int, stream: int
    ) -> None:
        """Enqueue: `count` elements at `out`, of rows that begin `stride` elements apart."""
        self._launch("fold", count, device, stream, rows, out, count, stride, members)

    def prefixes(
        self, rows: int, count: int, stride: int, members: int, before: bool, device: int, stream: int
    ) -> None:
        """Enqueue: each row becomes what the rows up to it, or `before` it, combine to."""
        self._launch("prefixes", count, device, stream, rows, count, stride, members, before)

    def _launch(self, name: str, count: int, device: int, stream: int, *numbers: int) -> None:
        if count:
            with working_in_cupy(device, stream):
                blocks = min(-(-count // THREADS), MOST_BLOCKS)
                kernel = _compiled(self.source, f"{name}_{self.name}")
                kernel((blocks,), (THREADS,), tuple(map(np.int64, numbers)))


@cache
def _module(source: str) -> Any:
    import cupy

    # Without fused multiply-add: a product and a sum are rounded as on the host.
    return cupy.RawModule(code=source, options=("--fmad=false",))


@cache
def _compiled(source: str, name: str) -> Any:
    return _module(source).get_function(name)


@lru_cache(maxsize=256)
def kernel_for(name: str, dtype: np.dtype[Any]) -> Kernel | None:
    """The kernel for an operator of the table on a dtype, which it takes; None where there is none."""
    if is_pair(dtype):
        source = _for_pairs(dtype)
        return _kernel(name, source, dtype.itemsize, 1)
    row = row_of(dtype)
    if row is None or tag(dtype) != row.name.encode():  # not of this machine's byte order
        return None
    return kernel_for_row(name, row)


def kernel_for_row(name: str, row: Row) -> Kernel | None:
    """The same by the operator's name and the dtype's row."""
    alignment = row.itemsize // (2 if row.kind == "complex" else 1)
    return _kernel(name, _for_row(row), row.itemsize, alignment)


def _kernel(name: str, source: str, itemsize: int, alignment: int) -> Kernel | None:
    return Kernel(name, source, itemsize, alignment) if f"fold_{name}(" in source else None


@cache
def _for_row(row: Row) -> str:
    """All kernels of a dtype; none for those that devices do not have."""
    if row.name in _BITS:
        return _for_bits(row)
    if row.kind == "complex" and row.itemsize <= ROWS["complex128"].itemsize:
        return _for_complex(row)
    return _for_numbers(row) if row.name in _C_TYPES else ""


def _operator(name: str, combine: str, work: str = "T", finish: str = "(T)left") -> str:
    return _OPERATOR.format(name=name, combine=combine, work=work, finish=finish)


def _for_numbers(row: Row) -> str:
    source = f"typedef {_C_TYPES[row.name]} T;\n{_TEMPLATES}"
    for operator in TABLE:
        if row.kind in operator.kinds and operator.name in _EXPRESSIONS:
            source += _operator(operator.name, f"return (A)({_EXPRESSIONS[operator.name]});")
    if row.kind in AVG.kinds:
        # Of integers: summed in 64 bits, rounded toward zero.
        work = "T" if row.kind == "float" else _C_TYPES[f"{row.kind}64"]
        source += _operator(AVG.name, "return (A)(left + right);", work, "(T)(left / (A)members)")
    return source


def _for_complex(row: Row) -> str:
    real = "float" if row.itemsize == ROWS["complex64"].itemsize else "double"
    total = "A result = {left.re + right.re, left.im + right.im}; return result;"
    product = (
        "A result = {left.re * right.re - left.im * right.im, left.re * right.im + left.im * right.re}; "
        "return result;"
    )
    average = f"T{{left.re / ({real})members, left.im / ({real})members}}"
    return (
        f"struct T {{ {real} re, im; }};\n{_TEMPLATES}"
        + _operator("SUM", total)
        + _operator("PROD", product)
        + _operator(AVG.name, total, finish=average)
    )


def _for_bits(row: Row) -> str:
    """Comparisons: bits, but for the sign, are in the order of the numbers."""
    element, sign, most = _BITS[row.name]
    source = (
        f"typedef {element} T;\n{_TEMPLATES}"
        f"static __device__ int rank(int bits) {{ return bits & {sign} ? -(bits & {sign - 1}) : bits; }}\n"
    )
    for name, test in (("MAX", ">="), ("MIN", "<=")):
        source += _operator(
            name,
            f"if ((left & {sign - 1}) > {most}) return left; "
            f"if ((right & {sign - 1}) > {most}) return right; "
            f"return rank(left) {test} rank(right) ? left : right;",
        )
    return source


@cache
def _for_pairs(dtype: np.dtype[Any]) -> str:
    """MINLOC and MAXLOC; see value_index.py."""
    fields = [(dtype[name], dtype.fields[name][1]) for name in dtype.names or ()]  # type: ignore[index]
    kinds = [_C_TYPES.get(field.name) if field.isnative else None for field, _ in fields]
    if None in kinds:
        return ""
    source = f"struct T {{ unsigned char bytes[{dtype.itemsize}]; }};\n{_TEMPLATES}"
    for what, kind, (_, place) in zip(("value", "index"), kinds, fields, strict=True):
        source += (
            f"static __device__ {kind} {what}(const T &pair) {{ {kind} found; "
            f"memcpy(&found, pair.bytes + {place}, sizeof found); return found; }}\n"
        )
    for name, test in (("MAXLOC", ">"), ("MINLOC", "<")):
        source += _operator(
            name,
            f"{kinds[0]} l = value(left), r = value(right); "
            f"bool beats = r {test} l || (r != r && l == l); bool equal = r == l || (r != r && l != l); "
            "return beats || (equal && index(right) < index(left)) ? right : left;",
            finish="left",
        )
    return source
