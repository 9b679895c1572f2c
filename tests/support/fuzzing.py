"""Random cases from a seed: the same ones each time, more of them where HPCCOLL_FUZZ asks for it."""

from __future__ import annotations

import os
import random
from collections.abc import Iterator

__all__ = ["EDGES", "TIMES", "rounds"]

TIMES = int(os.environ.get("HPCCOLL_FUZZ", "1"))
"""So many times the cases of an ordinary run."""

EDGES = (
    -(2**63),
    -(2**62),
    -(2**31),
    -2,
    -1,
    0,
    1,
    2,
    3,
    7,
    8,
    64,
    2**31 - 1,
    2**31,
    2**32,
    2**62,
    2**63 - 1,
)
"""Integers at which 32- and 64-bit arithmetic goes wrong."""


def rounds(count: int, name: str) -> Iterator[tuple[int, random.Random]]:
    """Number and source of chance of each case; case n is the same in a run of any length."""
    for number in range(count * TIMES):
        yield number, random.Random(f"{name} {number}")
