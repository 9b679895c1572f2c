"""Buffers with guards before and after, which tell when something wrote out of bounds.

Data are made and checked in host memory.  Where calls take arrays in other memory (on_device/buffers.py),
`push` and `pull` copy between the two, and `passed` is what a call gets.
"""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

GUARD_BYTES = 256
_ALIGNMENT = 64
_GUARD = (np.arange(GUARD_BYTES) * 37 + 11).astype(np.uint8)


class GuardedBuffer:
    """Memory for views of at most `nbytes` bytes; the guards lie right beside the present view."""

    def __init__(self, nbytes: int) -> None:
        memory = np.empty(nbytes + 2 * GUARD_BYTES + _ALIGNMENT, np.uint8)
        memory.fill(0)  # touch the pages now, not in the first call that is timed
        self._memory = memory[-memory.ctypes.data % _ALIGNMENT :]
        self._first = GUARD_BYTES
        self._last = GUARD_BYTES
        self._set_guards()

    def view(self, dtype: np.dtype[Any], count: int, skip: int = 0) -> NDArray[Any]:
        """`count` elements, all zero; the first is `skip` elements behind a cache line's begin."""
        self._first = GUARD_BYTES + skip * dtype.itemsize
        self._last = self._first + count * dtype.itemsize
        array = self._memory[self._first : self._last].view(dtype)
        array[...] = 0
        self._set_guards()
        return array

    def passed(self, array: NDArray[Any]) -> Any:
        """What a call gets for a view: here the view itself."""
        return array

    def push(self) -> None:
        """Bring the present view, guards included, to where calls find it."""

    def pull(self) -> None:
        """Bring it back."""

    def overwritten(self) -> int:
        """How many bytes of the guards are not what they were; they are restored."""
        count = sum(int(np.count_nonzero(guard != _GUARD)) for guard in self._guards())
        self._set_guards()
        return count

    def _guards(self) -> tuple[NDArray[np.uint8], NDArray[np.uint8]]:
        before = self._memory[self._first - GUARD_BYTES : self._first]
        return before, self._memory[self._last : self._last + GUARD_BYTES]

    def _set_guards(self) -> None:
        for guard in self._guards():
            guard[...] = _GUARD
