"""Kernels for what NCCL does not combine as the table of operators wants it.

A kernel gets the elements of all members of a group, a row for each, and combines them in the order of the
members, ((x0 x1) x2) ...; so the result depends neither on layout nor on plan.  CuPy compiles them at
first use and keeps them.  Floats of 16 bits and fewer are compared by their bits, and combined in float32.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cache, lru_cache
from typing import Any

import numpy as np

from hpccoll.dtypes import Row, row_of, tag
from hpccoll.memory.device import working_in_cupy
from hpccoll.ops.table import AVG, TABLE
from hpccoll.ops.value_index import is_pair

THREADS = 256
MOST_BLOCKS = 65_535

C_TYPES = {
    "bool": "unsigned char", "int8": "signed char", "int16": "short", "int32": "int", "int64": "long long",
    "uint8": "unsigned char", "uint16": "unsigned short", "uint32": "unsigned int",
    "uint64": "unsigned long long", "float32": "float", "float64": "double",
}  # fmt: skip
PARTS_OF = {"complex64": "float", "complex128": "double"}
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
# Of small floats: the type of their bits, bits of exponent and mantissa, and the largest that are no NaN,
# without the sign.
BITS = {
    "float16": ("unsigned short", 5, 10, 0x7C00),
    "bfloat16": ("unsigned short", 8, 7, 0x7F80),
    "float8_e4m3fn": ("unsigned char", 4, 3, 0x7E),
    "float8_e5m2": ("unsigned char", 5, 2, 0x7C),
}
_SMALL_FLOATS = """
enum {{ EXPONENT = {exponent}, MANTISSA = {mantissa}, LAST = {last} }};
enum {{ BIAS = (1 << (EXPONENT - 1)) - 1, SIGN = 1 << (EXPONENT + MANTISSA), LOST = 23 - MANTISSA }};
enum {{ HAS_INFINITY = LAST % (1 << MANTISSA) == 0 }};
enum {{ NOT_A_NUMBER = HAS_INFINITY ? LAST | 1 << (MANTISSA - 1) : LAST + 1 }};
enum {{ MOST = HAS_INFINITY ? LAST : NOT_A_NUMBER }}; /* what large numbers become */

static __device__ int rank(int bits) {{ return bits & SIGN ? -(bits & (SIGN - 1)) : bits; }}

static __device__ float as_float(unsigned bits)
{{
    float value;
    memcpy(&value, &bits, sizeof value);
    return value;
}}

static __device__ float widen({element} small)
{{
    unsigned sign = (unsigned)(small & SIGN) << (31 - EXPONENT - MANTISSA);
    unsigned magnitude = small & (SIGN - 1), exponent = magnitude >> MANTISSA;
    if (magnitude > LAST)
        return as_float(sign | 0x7FC00000u);
    if (HAS_INFINITY && magnitude == LAST)
        return as_float(sign | 0x7F800000u);
    if (exponent != 0)
        return as_float(sign | ((magnitude << LOST) + ((127u - BIAS) << 23)));
    /* 2 to the power of 1 - BIAS - MANTISSA, in two factors that are normal numbers. */
    float value = (float)magnitude * as_float((unsigned)(127 - MANTISSA) << 23);
    value *= as_float((unsigned)(127 + 1 - BIAS) << 23);
    return sign ? -value : value;
}}

/* To the nearest, ties to even. */
static __device__ {element} narrow(float value)
{{
    unsigned bits;
    memcpy(&bits, &value, sizeof bits);
    unsigned sign = bits >> 31 << (EXPONENT + MANTISSA), magnitude = bits & 0x7FFFFFFFu;
    if (magnitude > 0x7F800000u)
        return ({element})(sign | NOT_A_NUMBER);
    int exponent = (int)(magnitude >> 23) - 127 + BIAS, shift = LOST;
    unsigned number = magnitude;
    if (EXPONENT < 8 && exponent < 1) {{
        shift += 1 - exponent;
        number = (magnitude & 0x7FFFFFu) | 0x800000u;
        if (shift > 25)
            return ({element})sign;
    }}
    else
        number -= (127u - BIAS) << 23;
    unsigned kept = number >> shift, rest = number & ((1u << shift) - 1), half = 1u << (shift - 1);
    kept += rest > half || (rest == half && (kept & 1));
    return ({element})(sign | (kept < MOST ? kept : MOST));
}}
"""

_TEMPLATES = """
template <class Op, class T>
static __device__ void fold(const T *rows, T *out, long long count, long long stride, long long members)
{
    long long step = (long long)gridDim.x * blockDim.x;
    for (long long i = (long long)blockIdx.x * blockDim.x + threadIdx.x; i < count; i += step) {
        typename Op::A left = Op::start(rows[i]);
        for (long long m = 1; m < members; ++m)
            left = Op::combine(left, Op::start(rows[m * stride + i]));
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
        typename Op::A left = Op::start(rows[i]);
        for (long long m = 1; m < members; ++m) {
            typename Op::A right = Op::start(rows[m * stride + i]);
            if (before)
                rows[m * stride + i] = Op::finish(left, m);
            left = Op::combine(left, right);
            if (!before)
                rows[m * stride + i] = Op::finish(left, m + 1);
        }
    }
}
"""
# S: an element, of `PARTS` numbers, each of which may be of the other byte order.
_TURNED = """
static __device__ S turned(S given)
{{
    enum {{ PARTS = {parts}, SIZE = sizeof(S) / PARTS }};
    unsigned char bytes[sizeof(S)];
    S made;
    for (int i = 0; i < (int)sizeof(S); ++i)
        bytes[i] = ((const unsigned char *)&given)[i / SIZE * SIZE + SIZE - 1 - i % SIZE];
    memcpy(&made, bytes, sizeof made);
    return made;
}}
"""
_CONVERSION = """
extern "C" __global__ void to_{name}(const S *elements, {element} *out, long long count, long long swapped)
{{
    long long step = (long long)gridDim.x * blockDim.x;
    for (long long i = (long long)blockIdx.x * blockDim.x + threadIdx.x; i < count; i += step) {{
        S given = swapped ? turned(elements[i]) : elements[i];
        out[i] = {converted};
    }}
}}
"""
# T: an element.  A: what it is combined in.
_OPERATOR = """
struct {name} {{
    typedef {work} A;
    static __device__ A start(T element) {{ return {start}; }}
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
        launch(self.source, f"{name}_{self.name}", count, device, stream, *numbers)


@dataclass(frozen=True)
class Conversion:
    """How a device converts elements, `swapped` ones or not; all lie at multiples of their size."""

    name: str
    source: str
    swapped: bool

    def convert(self, given: int, out: int, count: int, device: int, stream: int) -> None:
        """Enqueue: `count` elements at one address to another."""
        launch(self.source, self.name, count, device, stream, given, out, count, self.swapped)


def launch(source: str, name: str, count: int, device: int, stream: int, *numbers: int) -> None:
    """Enqueue a kernel, a thread for each element, or for several of very many."""
    if count:
        with working_in_cupy(device, stream):
            blocks = min(-(-count // THREADS), MOST_BLOCKS)
            kernel = _compiled(source, name)
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


@lru_cache(maxsize=256)
def conversion(dtype: np.dtype[Any], into: np.dtype[Any]) -> Conversion | None:
    """How elements become ones of `into`, which holds them all; None where there is no kernel for it."""
    row, wanted = row_of(dtype), row_of(into)
    if row is None or wanted is None or tag(into) != wanted.name.encode():
        return None
    name, source = f"to_{wanted.name}", _conversions(row)
    return Conversion(name, source, tag(dtype) != row.name.encode()) if f" {name}(" in source else None


@cache
def _conversions(row: Row) -> str:
    """Kernels that convert elements of a dtype to each other one; none where devices do not have it."""
    parts, value = 1, "given"
    if row.name in BITS:
        source, value = f"typedef {BITS[row.name][0]} S;\n{small_floats(row)}", "widen(given)"
    elif row.name in PARTS_OF:
        source, parts = f"struct S {{ {PARTS_OF[row.name]} re, im; }};\n", 2
    elif row.name in C_TYPES:
        source = f"typedef {C_TYPES[row.name]} S;\n"
    else:
        return ""
    source += _TURNED.format(parts=parts)
    if parts == 1:
        for name, element in C_TYPES.items():
            source += _CONVERSION.format(name=name, element=element, converted=f"({element}){value}")
    for name, real in PARTS_OF.items():
        numbers = f"({real}){value}, 0" if parts == 1 else f"({real})given.re, ({real})given.im"
        source += f"struct {name} {{ {real} re, im; }};\n"
        source += _CONVERSION.format(name=name, element=name, converted=f"{name}{{{numbers}}}")
    return source


@cache
def _for_row(row: Row) -> str:
    """All kernels of a dtype; none for those that devices do not have."""
    if row.name in BITS:
        return _for_bits(row)
    if row.name in PARTS_OF:
        return _for_complex(row)
    return _for_numbers(row) if row.name in C_TYPES else ""


def _operator(
    name: str, combine: str, work: str = "T", start: str = "(A)element", finish: str = "(T)left"
) -> str:
    return _OPERATOR.format(name=name, combine=combine, work=work, start=start, finish=finish)


def _for_numbers(row: Row) -> str:
    source = f"typedef {C_TYPES[row.name]} T;\n{_TEMPLATES}"
    for operator in TABLE:
        if row.kind in operator.kinds and operator.name in _EXPRESSIONS:
            source += _operator(operator.name, f"return (A)({_EXPRESSIONS[operator.name]});")
    if row.kind in AVG.kinds:
        # Of integers: summed in 64 bits, rounded toward zero.
        work = "T" if row.kind == "float" else C_TYPES[f"{row.kind}64"]
        finish = "(T)(left / (A)members)"
        source += _operator(AVG.name, "return (A)(left + right);", work, finish=finish)
    return source


def _for_complex(row: Row) -> str:
    real = PARTS_OF[row.name]
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
    """Comparisons of bits, which are but for the sign in the order of the numbers; the rest in float32."""
    source = f"typedef {BITS[row.name][0]} T;\n{_TEMPLATES}{small_floats(row)}"
    for name, test in (("MAX", ">="), ("MIN", "<=")):
        source += _operator(
            name,
            "if ((left & (SIGN - 1)) > LAST) return left; "
            "if ((right & (SIGN - 1)) > LAST) return right; "
            f"return rank(left) {test} rank(right) ? left : right;",
        )
    for name, combine, finish in (
        ("SUM", "left + right", "narrow(left)"),
        ("PROD", "left * right", "narrow(left)"),
        (AVG.name, "left + right", "narrow(left / (float)members)"),
    ):
        source += _operator(name, f"return {combine};", "float", "widen(element)", finish)
    return source


def small_floats(row: Row) -> str:
    """How they become numbers of float32, and these such."""
    element, exponent, mantissa, last = BITS[row.name]
    return _SMALL_FLOATS.format(element=element, exponent=exponent, mantissa=mantissa, last=last)


@cache
def _for_pairs(dtype: np.dtype[Any]) -> str:
    """MINLOC and MAXLOC; see value_index.py."""
    fields = [(dtype[name], dtype.fields[name][1]) for name in dtype.names or ()]  # type: ignore[index]
    kinds = [C_TYPES.get(field.name) if field.isnative else None for field, _ in fields]
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
