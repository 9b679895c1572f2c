"""Names of element types and operators, as nccl-tests spells them, with those that NCCL has not."""

from __future__ import annotations

from typing import Any

import numpy as np

from hpccoll.errors import UsageError

# Name in the table and for -d: the name in NumPy or ml_dtypes.
DATATYPES: dict[str, str] = {
    "int8": "int8",
    "uint8": "uint8",
    "int32": "int32",
    "uint32": "uint32",
    "int64": "int64",
    "uint64": "uint64",
    "half": "float16",
    "float": "float32",
    "double": "float64",
    "bfloat16": "bfloat16",
    "f8e4m3": "float8_e4m3fn",
    "f8e5m2": "float8_e5m2",
    "int16": "int16",
    "uint16": "uint16",
    "complex64": "complex64",
    "complex128": "complex128",
}
REDOPS = ("sum", "prod", "max", "min", "avg", "mulsum")


def datatypes(text: str) -> tuple[str, ...]:
    """The types that -d asks for, by their names in the table.

    Raises: UsageError for a name that is not in the table.
    """
    if text == "all":
        return tuple(DATATYPES)
    by_numpy = {numpy: name for name, numpy in DATATYPES.items()}
    name = by_numpy.get(text, text)
    if name not in DATATYPES:
        raise UsageError(_unknown("-d/--datatype", text, tuple(DATATYPES)))
    return (name,)


def redops(text: str) -> tuple[str, ...]:
    """The operators that -o asks for.  Raises: UsageError for a name that is not in the table."""
    if text == "all":
        return REDOPS
    if text not in REDOPS:
        raise UsageError(_unknown("-o/--op", text, REDOPS))
    return (text,)


def dtype_of(name: str) -> np.dtype[Any]:
    """The element type of a name in the table; bytes for "none"."""
    if name == "none":
        return np.dtype(np.uint8)
    if DATATYPES[name].startswith(("bfloat", "float8")):
        import ml_dtypes

        found: np.dtype[Any] = np.dtype(getattr(ml_dtypes, DATATYPES[name]))
        return found
    return np.dtype(DATATYPES[name])


def mulsum_factor(rank: int) -> int:
    """What a rank's elements are multiplied by in a mulsum."""
    return 1 + rank % 2


def _unknown(flag: str, text: str, known: tuple[str, ...]) -> str:
    return f"{flag} is {text!r}: must be one of {', '.join(known)}, all"
