"""CRC-32 of the extension is zlib's, whatever the length and where the bytes lie."""

from __future__ import annotations

import zlib

import numpy as np
import pytest

from hpccoll import _native
from hpccoll.memory.checksums import checksum_function
from hpccoll.transports.streams import Stream

pytestmark = pytest.mark.skipif(not _native.available(), reason="no extension")
LENGTHS = [*range(200), 255, 256, 1000, 4095, 4096, 4097, 65_537, 1_000_003]


def test_the_value_is_that_of_zlib() -> None:
    memory = np.random.default_rng(1).integers(0, 256, LENGTHS[-1] + 64, np.uint8)
    checksum = checksum_function(native=True)
    for length in LENGTHS:
        for offset, start in ((0, 0), (1, 1), (7, 0xFFFFFFFF), (33, 0x12345678)):
            data = memory[offset : offset + length]
            assert checksum(data, start) == zlib.crc32(data, start), (length, offset, start)


def test_known_values() -> None:
    digits = np.frombuffer(b"123456789", np.uint8)
    for native in (True, False):
        assert checksum_function(native)(digits, 0) == 0xCBF43926


def test_pieces_come_to_the_same_as_the_whole() -> None:
    values = np.arange(1000.0)
    pieces = Stream([values[:10], values[10:10], values[10:700], values[700:]])
    for native in (True, False):
        checksum = checksum_function(native)
        assert pieces.checksum(checksum, 3, 990, 5) == checksum(values[3:990], 5)


@pytest.mark.parametrize("nbytes", [1, 63, 64, 100, 5000])
def test_each_bit_counts(nbytes: int) -> None:
    data = np.random.default_rng(nbytes).integers(0, 256, nbytes, np.uint8)
    checksum = checksum_function(native=True)
    right = checksum(data, 9)
    for bit in range(0, 8 * nbytes, max(1, nbytes // 50)):
        data[bit // 8] ^= 1 << bit % 8
        assert checksum(data, 9) != right
        data[bit // 8] ^= 1 << bit % 8
    assert checksum(data, 9) == right
    assert checksum(data, 8) != right


def test_wrong_arguments() -> None:
    crc32 = _native._core.crc32  # type: ignore[attr-defined]
    for wrong in ((), ("text",), (b"", "1"), (b"", 1, 2), (np.zeros((3, 3))[:, 1],)):
        with pytest.raises((TypeError, ValueError, BufferError)):
            crc32(*wrong)
