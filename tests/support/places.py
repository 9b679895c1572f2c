"""Arrays in memory of all kinds, for the oracle's `perform`: strided, reversed, transposed, unaligned.

Each function takes contiguous elements and gives an array that holds them in C order, in the midst of other
memory, and a function that says whether that other memory is as it was.
"""

from __future__ import annotations

from collections.abc import Callable

import numpy as np

from tests.support.oracle import GUARD, Array, Placed, in_line

__all__ = ["PLACES"]


def rows(count: int) -> int:
    """A divisor of `count` near its root."""
    return max((k for k in range(1, int(count**0.5) + 1) if count % k == 0), default=1)


def cut(values: Array, shape: tuple[int, ...], view_of: Callable[[Array], Array], offset: int = 0) -> Placed:
    """A view of an array of that shape, which begins at `offset` in its memory."""
    memory = np.full(offset + int(np.prod(shape)) * values.itemsize, GUARD, np.uint8)
    view = view_of(memory[offset:].view(values.dtype).reshape(shape))
    view[...] = values.reshape(view.shape)

    def intact() -> bool:
        after = memory.copy()
        there = view_of(after[offset:].view(values.dtype).reshape(shape))
        # As bytes without meaning: assigned as a number a long double would lose its padding.
        plain = f"V{values.itemsize}"
        there.view(plain)[...] = np.full(values.itemsize, GUARD, np.uint8).view(plain)[0]
        return bool((after == GUARD).all())

    return view, intact


def every_second(values: Array) -> Placed:
    return cut(values, (2 * values.size + 1,), lambda whole: whole[1::2])


def columns(values: Array) -> Placed:
    n = rows(values.size)
    return cut(values, (n, 3 * (values.size // n)), lambda whole: whole[:, ::3])


def backwards(values: Array) -> Placed:
    return cut(values, (values.size,), lambda whole: whole[::-1])


def transposed(values: Array) -> Placed:
    n = rows(values.size)
    return cut(values, (values.size // n, n), lambda whole: whole.T)


def one_of_the_last_axis(values: Array) -> Placed:
    n = rows(values.size)
    return cut(values, (n, values.size // n, 2), lambda whole: whole[..., 1])


def inner_axis_reversed(values: Array) -> Placed:
    n = rows(values.size)
    return cut(values, (n, values.size // n, 2), lambda whole: whole[:, ::-1, 0])


def unaligned(values: Array) -> Placed:
    return cut(values, (values.size,), lambda whole: whole, offset=1)


PLACES = {
    place.__name__: place
    for place in (
        in_line,
        every_second,
        columns,
        backwards,
        transposed,
        one_of_the_last_axis,
        inner_axis_reversed,
        unaligned,
    )
}
