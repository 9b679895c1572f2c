"""Buckets that travel in 16 bits an element, with the error of the rounding kept for the next step.

What a rank rounds away in one step it adds to the next step's elements, so that over many steps everything
arrives.  Source: F. Seide et al. (2014), 1-bit stochastic gradient descent; S. P. Karimireddy et al. (2019),
Error feedback fixes SignSGD.  The sum itself is rounded once more, and that error is not kept.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from hpccoll.arrays.device import home_of
from hpccoll.errors import UsageTypeError
from hpccoll.memory import device
from hpccoll.ops import gradients
from hpccoll.transports.base import Array

SHORT = ("bfloat16", "float16")
CARRIED = (np.dtype(np.float32), np.dtype(np.float64))


def short_dtype(name: Any) -> np.dtype[Any]:
    """The dtype that `dtype_on_wire` stands for.

    Raises: UsageTypeError for any but bfloat16 and float16.
    """
    import ml_dtypes

    known: dict[str, np.dtype[Any]] = {
        "bfloat16": np.dtype(ml_dtypes.bfloat16),
        "float16": np.dtype(np.float16),
    }
    text = name if isinstance(name, str) else getattr(name, "name", getattr(name, "__name__", ""))
    if text not in known:
        raise UsageTypeError(f"dtype_on_wire is {name!r}: must be one of {', '.join(SHORT)}")
    return known[text]


def largest(dtype: np.dtype[Any]) -> float:
    """The largest number of a short dtype."""
    import ml_dtypes

    return float(ml_dtypes.finfo(dtype).max)  # type: ignore[no-untyped-call]


class Short:
    """The short form of one bucket, and what rounding has left over (`rest`)."""

    def __init__(self, flat: Array, dtype: np.dtype[Any]) -> None:
        self._flat = flat
        self.elements: Array = np.zeros(flat.size, dtype)
        self.rest: Array = np.zeros_like(flat)
        self._largest = flat.dtype.type(largest(dtype))

    def round(self) -> None:
        """Elements, and what was left over before, to the short form; what is left over now is kept.

        Values beyond the range of the short dtype are sent as its largest, and the remainder kept.
        """
        rest = self.rest
        np.add(rest, self._flat, out=rest)
        np.clip(rest, -self._largest, self._largest, out=self._flat)  # NaN stays NaN
        with np.errstate(over="ignore", under="ignore"):
            self.elements[...] = self._flat
        np.subtract(rest, self.elements.astype(rest.dtype), out=rest)
        # An infinity or a NaN is sent once, and not for ever.
        np.copyto(rest, 0, where=~np.isfinite(rest))

    def widen(self) -> None:
        """The result back to the bucket."""
        self._flat[...] = self.elements


class DeviceShort:
    """The same on a device."""

    def __init__(self, flat: Array, dtype: np.dtype[Any], stream: int) -> None:
        home = home_of(flat)._replace(stream=stream)
        self._flat = flat
        self.elements = device.empty(flat.size, dtype, home)
        self.rest = device.empty(flat.size, flat.dtype, home)
        self._largest = largest(dtype)
        device.clear(self.rest, stream)

    def round(self, stream: int) -> None:
        """As `Short.round`, on a stream."""
        gradients.shorten(self._flat, self.rest, self.elements, self._largest, stream)

    def widen(self, stream: int) -> None:
        """The result back to the bucket, on a stream."""
        gradients.lengthen(self._flat, self.elements, stream)
