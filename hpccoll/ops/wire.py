"""Elements on their way between nodes in half as many bytes: float32 as bfloat16 or float16.

Both round to the nearest, to even in the middle.  Rounding what has been rounded changes nothing.  bfloat16
has the range of float32 and rounds by at most 2**-8 of the value; float16 by 2**-11 of it, and by 2**-25
below 2**-14; from 65520 on it is infinite.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np

from hpccoll.transports.base import Array

# The dtype of elements that can travel so, and of the memory in which they do.
CARRIED = np.dtype(np.float32)
ON_WIRE = np.dtype(np.uint16)


@dataclass(frozen=True)
class Wire:
    """How elements travel.

    `round(values, target)`: from CARRIED to what travels, in memory of ON_WIRE; `widen(values)`: back.
    """

    name: str
    round: Callable[[Array, Array], None]
    widen: Callable[[Array], Array]


def _round_to_bfloat16(values: Array, target: Array) -> None:
    bits = values.view(np.uint32)
    nearest = bits + (np.uint32(0x7FFF) + ((bits >> np.uint32(16)) & np.uint32(1)))
    quiet = bits | np.uint32(0x400000)  # rounding could make infinity of a NaN, or zero
    np.copyto(target, np.where(np.isnan(values), quiet, nearest) >> np.uint32(16), casting="unsafe")


def _widen_bfloat16(values: Array) -> Array:
    bits: Array = values.astype(np.uint32) << np.uint32(16)
    return bits.view(CARRIED)


def _round_to_float16(values: Array, target: Array) -> None:
    with np.errstate(over="ignore", under="ignore"):
        target.view(np.float16)[...] = values


def _widen_float16(values: Array) -> Array:
    half: Array = values.view(np.float16)
    return half.astype(CARRIED)


WIRES = {
    "bfloat16": Wire("bfloat16", _round_to_bfloat16, _widen_bfloat16),
    "float16": Wire("float16", _round_to_float16, _widen_float16),
}
