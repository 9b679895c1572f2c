"""Checksums of what moves between ranks: CRC-32, as zlib, gzip and Ethernet have it.

It sees every change of one or two bits and of bits within a run of 32, and all but one in 2^32 of others. The
extension computes the value of `zlib.crc32`, sooner, so that ranks with it and without understand each other.
"""

from __future__ import annotations

import zlib
from collections.abc import Callable
from typing import Any

import numpy as np

from hpccoll import _native

Array = np.ndarray[Any, np.dtype[Any]]
Checksum = Callable[[Array, int], int]
"""Of contiguous elements; the second argument tells apart what is equal: a number of
32 bits, or the value of the elements before."""

WORD = 0xFFFFFFFF  # the bits of a checksum


def checksum_function(native: bool) -> Checksum:
    """The function, of the extension where it is there and `native` asks for it."""
    crc32: Callable[[Any, int], int] = zlib.crc32
    if native and _native.available():
        from hpccoll._native import _core

        crc32 = _core.crc32

    def checksum(data: Array, start: int) -> int:
        return crc32(data.view(np.uint8), start)

    return checksum
