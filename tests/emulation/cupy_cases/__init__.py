"""What CuPy has to do on the CUDA stand-in: `python -m tests.emulation.cupy_cases [names]`.

`test_cupy.py` runs all cases in one process for each mode and reads the answers. A case is a function
`case_...` of a module here; device 0 is current and nothing is under way.
"""

from __future__ import annotations

import os
from collections.abc import Callable
from typing import Any

import numpy as np

MODE = os.environ.get("STANDIN_MODE", "lazy")
LAZY = MODE == "lazy"
FLOATS = ("float32", "float64")
NUMBERS = ("int8", "uint8", "int32", "int64", "float16", "float32", "float64")


def numbers(dtype: str, *shape: int, seed: int = 1) -> np.ndarray:
    """Small positive numbers, none of them 0, that all types can hold."""
    return (np.random.default_rng(seed).random(shape) * 9 + 1).astype(dtype)


def tolerance(dtype: str) -> float:
    return {"float16": 5e-3, "bfloat16": 2e-2, "float32": 1e-5}.get(np.dtype(dtype).name, 1e-12)


def same(got: Any, want: Any, within: float = 0) -> None:
    """A device array holds what NumPy gives, of the same type and shape."""
    want = np.asarray(want)
    found = got.get()
    assert (found.dtype, found.shape) == (want.dtype, want.shape), (
        found.dtype,
        found.shape,
        want.dtype,
        want.shape,
    )
    if want.dtype.kind == "V":
        found, want = found.astype("f4"), want.astype("f4")
    np.testing.assert_allclose(found, want, rtol=within, atol=within)


def both(function: Callable[..., Any], *arrays: np.ndarray, within: float = 0) -> None:
    """`function(module, *arrays)` gives the same with CuPy's arrays as with NumPy's."""
    import cupy

    same(function(cupy, *map(cupy.asarray, arrays)), function(np, *arrays), within)


def raises(error: type[BaseException], text: str, call: Callable[[], Any]) -> None:
    try:
        call()
    except error as caught:
        said = str(caught)
    else:
        raise AssertionError(f"no {error.__name__}")
    assert text in said, f"{text!r} is not in {said!r}"
