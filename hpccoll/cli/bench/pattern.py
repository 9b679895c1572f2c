"""Test data whose results are known exactly, and the comparison of every element with them.

Each rank gives small whole numbers that differ by rank, position and iteration.  They repeat with a prime
period, so that filling and comparing cost one pass, whatever the number of ranks, and a block that
lands at a wrong place, which is never a multiple of the period away, differs.  Ranges are such that
no sum, product or partial result of them is rounded (but averages, once): whatever the order, the
result is the same.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
from numpy.typing import NDArray

from hpccoll.cli.bench.elements import mulsum_factor

Table = NDArray[Any]

PERIOD = 65521
# Largest whole number up to which sums stay exact in the type itself; other types: _WIDE_TOP.
_TOPS = {
    "int8": 127,
    "uint8": 255,
    "int16": 32767,
    "uint16": 65535,
    "float16": 2048,
    "bfloat16": 256,
    "float8_e4m3fn": 16,
    "float8_e5m2": 8,
}
_WIDE_TOP = 2**20
# Largest power of two that a product may reach.
_TWOS = {
    "int8": 6,
    "uint8": 7,
    "int16": 14,
    "uint16": 15,
    "float16": 10,
    "float8_e4m3fn": 8,
    "float8_e5m2": 10,
}
_WIDE_TWOS = 20
_COMBINE: dict[str, Callable[..., Any]] = {
    "sum": np.add,
    "prod": np.multiply,
    "max": np.maximum,
    "min": np.minimum,
    "avg": np.add,
    "mulsum": np.add,
}


class Pattern:
    """What all ranks give in one iteration, and what comes of it.

    Tables of at most PERIOD elements stand for whole buffers: element i is `table[i % table.size]`.
    `redop` is None for collectives that only move elements; `length` is that of the longest buffer.
    """

    def __init__(
        self, dtype: np.dtype[Any], redop: str | None, size: int, iteration: int, length: int
    ) -> None:
        self._dtype = dtype
        self._redop = redop
        self._size = size
        self._iteration = iteration
        self._length = min(PERIOD, length)

    def given(self, rank: int) -> Table:
        """The elements that a rank gives."""
        chance = np.random.default_rng((self._iteration, rank))
        if self._redop == "prod":
            return self._factors(chance, rank).astype(self._dtype)
        values = self._whole_numbers(chance)
        if self._dtype.kind == "c":
            values = values + 1j * self._whole_numbers(chance)
        return values.astype(self._dtype)

    def expected(self, ranks: tuple[int, ...]) -> Table:
        """What comes of the elements of some ranks: one rank's as they are, several combined."""
        if self._redop is None:
            return self.given(ranks[0])
        total = self._exactly(ranks[0])
        for rank in ranks[1:]:
            _COMBINE[self._redop](total, self._exactly(rank), out=total)
        if self._redop == "avg":
            total = _divided(total, self._size, self._dtype)
        return total.astype(self._dtype)

    def _exactly(self, rank: int) -> Table:
        """The elements that a rank brings in."""
        given = self.given(rank).astype(_exact(self._dtype))
        return given * given.dtype.type(mulsum_factor(rank)) if self._redop == "mulsum" else given

    def _whole_numbers(self, chance: np.random.Generator) -> Table:
        top = _TOPS.get(self._dtype.name, _WIDE_TOP)
        if self._redop in ("sum", "avg", "mulsum"):
            top = max(1, top // (self._size * (2 if self._redop == "mulsum" else 1)))
        values = chance.integers(1, top, self._length, np.int64, endpoint=True)
        if self._dtype.kind == "u":
            return values
        return np.where(chance.random(self._length) < 0.5, -values, values)

    def _factors(self, chance: np.random.Generator, rank: int) -> Table:
        """One or two, with any sign; no more twos in a place, over the ranks, than the type can hold."""
        shift = np.random.default_rng((self._iteration, self._size)).integers(0, self._size, self._length)
        twos = _TWOS.get(self._dtype.name, _WIDE_TWOS)
        doubled = ((rank + shift) % self._size < twos) & (chance.random(self._length) < 0.5)
        values = np.where(doubled, 2, 1)
        if self._dtype.kind == "u":
            return values
        units = np.array([1, -1, 1j, -1j]) if self._dtype.kind == "c" else np.array([1, -1])
        factors: Table = values * units[chance.integers(0, units.size, self._length)]
        return factors


def fill(array: Table, table: Table, start: int = 0) -> None:
    """Write the elements of a pattern from position `start` on."""
    for part, piece in _parts(array, table, start):
        part[...] = piece


def spoil(array: Table, table: Table, start: int = 0) -> None:
    """Write what differs from a pattern in every element: all its bits inverted."""
    fill(array, (~table.view(np.uint8)).view(table.dtype), start)


def count_wrong(array: Table, table: Table, start: int = 0) -> int:
    """How many elements are not those of a pattern from position `start` on."""
    return sum(int(np.count_nonzero(part != piece)) for part, piece in _parts(array, table, start))


def _parts(array: Table, table: Table, start: int) -> list[tuple[Table, Table]]:
    """The array as whole periods and a rest, each with what belongs there."""
    if array.size == 0:
        return []
    period = np.roll(table, -(start % table.size)) if start % table.size else table
    whole = array.size // table.size
    cut = whole * table.size
    return [(array[:cut].reshape(whole, table.size), period), (array[cut:], period[: array.size - cut])]


def _exact(dtype: np.dtype[Any]) -> np.dtype[Any]:
    """A type in which whole numbers of the pattern are combined without rounding."""
    return np.dtype({"i": np.int64, "u": np.uint64, "c": np.complex128}.get(dtype.kind, np.float64))


def _divided(total: Table, ranks: int, dtype: np.dtype[Any]) -> Table:
    """The average as documented: one division, integers toward zero, complex numbers part by part.

    16-bit floats are divided in float32.
    """
    if dtype.kind in "iu":
        quotient: Table = np.abs(total) // total.dtype.type(ranks)
        return np.where(total < 0, -quotient, quotient) if dtype.kind == "i" else quotient
    working = dtype if dtype.kind == "c" or dtype.itemsize >= 4 else np.dtype(np.float32)
    average = total.astype(working)
    parts = average.view(average.real.dtype)
    np.divide(parts, parts.dtype.type(ranks), out=parts)
    return average
