"""Sizes as people write them: 8, 64K, 16M, 1G, in powers of 1024."""

from __future__ import annotations

import re

from hpccoll.errors import UsageError

_SIZE = re.compile(r"(\d{1,18})\s*([kmgt]?)(?:i?b)?", re.IGNORECASE)
_UNITS = "kmgt"


def parse_bytes(text: str) -> int:
    """The number of bytes that a text stands for.

    Raises: UsageError, naming the text, for anything but a whole number with an optional K, M, G or T.
    """
    match = _SIZE.fullmatch(text.strip())
    if match is None:
        raise UsageError(f"size {text!r}: must be a whole number of bytes, or one with K, M, G or T (1024)")
    number, unit = match.groups()
    return int(number) << 10 * (_UNITS.index(unit.lower()) + 1 if unit else 0)


def format_bytes(count: int) -> str:
    """The shortest text: 64M where it is whole, else the bytes."""
    for place in reversed(range(len(_UNITS))):
        size = 1 << 10 * (place + 1)
        if count and count % size == 0:
            return f"{count // size}{_UNITS[place].upper()}"
    return str(count)
