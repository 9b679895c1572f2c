"""Kernels for gradients on devices: scaled, squared, looked through for NaN, rounded to 16 bits.

All are enqueued and nothing waits, but for `sum_of_squares`.  Elements lie one after the other; complex ones
are two numbers.  Floats of 16 bits and fewer are computed with in float32.
"""

from __future__ import annotations

import struct
from functools import cache
from importlib.util import find_spec
from typing import Any

import numpy as np

from hpccoll.arrays.device import home_of
from hpccoll.dtypes import Row, row_of
from hpccoll.errors import UsageError, UsageTypeError
from hpccoll.memory import device
from hpccoll.ops.kernels import BITS, C_TYPES, PARTS_OF, launch, small_floats
from hpccoll.transports.base import Array

# As many sums of squares, each of every so manieth element: the same bits on any device.
SUMS = 1 << 15

_LOOP = """
    long long step = (long long)gridDim.x * blockDim.x;
    for (long long i = (long long)blockIdx.x * blockDim.x + threadIdx.x; i < count; i += step)
"""
_SOURCE = (
    """
typedef {element} E;
typedef {work} W;
static __device__ W wide(E given) {{ return {wide}; }}
static __device__ E slim(W value) {{ return {slim}; }}

extern "C" __global__ void scale(E *elements, long long count, long long bits)
{{
    double factor;
    memcpy(&factor, &bits, sizeof factor);"""
    + _LOOP
    + """        elements[i] = slim(wide(elements[i]) * (W)factor);
}}

extern "C" __global__ void find_not_finite(const E *elements, long long count, int *mark, long long number)
{{"""
    + _LOOP
    + """        if (!(wide(elements[i]) - wide(elements[i]) == 0))
            *mark = (int)number; /* whoever writes writes the same */
}}

extern "C" __global__ void squares(
    double *sums, long long count, const E *elements, long long length, long long apart)
{{"""
    + _LOOP
    + """    {{
        double total = 0;
        for (long long k = i; k < length; k += apart)
            total += (double)wide(elements[k]) * (double)wide(elements[k]);
        sums[i] = total;
    }}
}}
"""
)
_SHORT = (
    """
typedef {element} E;

/* See overlap/short.py. */
extern "C" __global__ void shorten(const E *elements, long long count, E *rest, S *out, long long bits)
{{
    double largest;
    memcpy(&largest, &bits, sizeof largest);"""
    + _LOOP
    + """    {{
        E whole = rest[i] + elements[i], most = (E)largest;
        E sent = whole > most ? most : whole < -most ? -most : whole; /* NaN stays NaN */
        out[i] = narrow((float)sent);
        E left = whole - (E)widen(out[i]);
        rest[i] = left - left == 0 ? left : 0;
    }}
}}

extern "C" __global__ void lengthen(E *elements, long long count, const S *given)
{{"""
    + _LOOP
    + """        elements[i] = (E)widen(given[i]);
}}
"""
)


def check(dtype: np.dtype[Any]) -> None:
    """Raises: UsageError where there are no kernels: without CuPy, and for a dtype that devices have not."""
    if find_spec("cupy") is None:
        raise UsageError("this needs kernels on devices, and so CuPy: pip install cupy-cuda12x")
    if not _source(_row(dtype)):
        raise UsageTypeError(f"devices have no kernels for {dtype}")


def scale(values: Array, factor: float, stream: int) -> None:
    """Values *= factor, which is rounded to what they are computed in."""
    row, count = _row(values.dtype), _count(values)
    _launch(_source(row), "scale", count, values, stream, values.ctypes.data, count, _bits(factor))


def find_not_finite(values: Array, mark: int, number: int, stream: int) -> None:
    """The int32 at the address `mark` becomes `number` where a value is a NaN or an infinity."""
    row, count = _row(values.dtype), _count(values)
    _launch(_source(row), "find_not_finite", count, values, stream, values.ctypes.data, count, mark, number)


def sum_of_squares(values: Array, stream: int) -> float:
    """In float64, the same bits on any device.  Waits for the stream."""
    home = home_of(values)._replace(stream=stream)
    sums, count = device.empty(SUMS, np.dtype(np.float64), home), _count(values)
    _launch(
        _source(_row(values.dtype)), "squares", SUMS, values, stream,
        sums.ctypes.data, SUMS, values.ctypes.data, count, SUMS,
    )  # fmt: skip
    return float(np.add.reduce(device.to_host(sums, stream)))


def shorten(values: Array, rest: Array, out: Array, largest: float, stream: int) -> None:
    """Values and what was left over before, rounded to `out`; `rest` becomes what is left over now.

    `values`, `rest`: float32 or float64.  `out`: float16 or bfloat16, whose largest number is `largest`.
    """
    _launch(
        _short_source(_row(values.dtype), _row(out.dtype)), "shorten", values.size, values, stream,
        values.ctypes.data, values.size, rest.ctypes.data, out.ctypes.data, _bits(largest),
    )  # fmt: skip


def lengthen(values: Array, given: Array, stream: int) -> None:
    """Values become those of a shorter dtype."""
    source = _short_source(_row(values.dtype), _row(given.dtype))
    _launch(
        source, "lengthen", values.size, values, stream, values.ctypes.data, values.size, given.ctypes.data
    )


def _launch(source: str, name: str, count: int, like: Array, stream: int, *numbers: int) -> None:
    launch(source, name, count, home_of(like).device, stream, *numbers)


def _row(dtype: np.dtype[Any]) -> Row:
    row = row_of(dtype)
    assert row is not None
    return row


def _count(values: Array) -> int:
    """Numbers, of which a complex element has two."""
    return values.size * (2 if values.dtype.kind == "c" else 1)


def _bits(value: float) -> int:
    found: int = struct.unpack("<q", struct.pack("<d", value))[0]
    return found


@cache
def _source(row: Row) -> str:
    """Empty for a dtype that devices have not."""
    if row.name in BITS:
        parts = {
            "element": BITS[row.name][0],
            "work": "float",
            "wide": "widen(given)",
            "slim": "narrow(value)",
        }
        return small_floats(row) + _SOURCE.format(**parts)
    element = PARTS_OF.get(row.name) or C_TYPES.get(row.name)
    if element is None:
        return ""
    return _SOURCE.format(element=element, work=element, wide="given", slim="value")


@cache
def _short_source(row: Row, short: Row) -> str:
    return f"typedef {BITS[short.name][0]} S;\n{small_floats(short)}" + _SHORT.format(
        element=C_TYPES[row.name]
    )
