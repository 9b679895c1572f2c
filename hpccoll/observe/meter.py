"""The counts and times of calls of one kind: added up by the C extension where it makes the calls, else here.

Both have the same methods, and no number belongs to another call than the others: in C all happens with the
GIL, here under a lock.
"""

from __future__ import annotations

import threading
from typing import TYPE_CHECKING, NamedTuple

from hpccoll import _native

if TYPE_CHECKING:
    from hpccoll._native import _core

TIME_BINS = 48  # the number is that of _native/meter.h


class Sums(NamedTuple):
    """What is added up.

    `nbytes`: as nccl-tests counts them; `inside`, `between`: bytes that move inside a node, and leave it.
    `ns`: from a call's begin to its end; `agreeing_ns`: of it, until all ranks had come, where elements move
    after that; `waited_ns`: that callers stood in waits for started calls.
    """

    calls: int = 0
    nbytes: int = 0
    inside: int = 0
    between: int = 0
    ns: int = 0
    agreeing_ns: int = 0
    waited_ns: int = 0
    shortest_ns: int = 0
    longest_ns: int = 0


class PythonMeter:
    """As `_core.Meter`."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._clear()

    def _clear(self) -> None:
        self._sums = list(Sums())
        self._bins = [0] * TIME_BINS

    def count(self, nbytes: int, inside: int, between: int, nanoseconds: int, agreeing_ns: int, /) -> None:
        """Add a call; `nanoseconds` below 0: how long it took is not known."""
        with self._lock:
            sums = self._sums
            sums[1] += nbytes
            sums[2] += inside
            sums[3] += between
            if nanoseconds >= 0:
                sums[4] += nanoseconds
                sums[5] += agreeing_ns
                if not sums[0] or nanoseconds < sums[7]:
                    sums[7] = nanoseconds
                if nanoseconds > sums[8]:
                    sums[8] = nanoseconds
                self._bins[min(max(1, nanoseconds).bit_length(), TIME_BINS) - 1] += 1
            sums[0] += 1

    def waited(self, nanoseconds: int, /) -> None:
        """Add the time of a wait."""
        with self._lock:
            self._sums[6] += nanoseconds

    def read(self, reset: bool, /) -> tuple[tuple[int, ...], tuple[int, ...]]:
        """The sums, as in `Sums`, and how many calls took 2**b ns and more; `reset`: zero from now on."""
        with self._lock:
            found = tuple(self._sums), tuple(self._bins)
            if reset:
                self._clear()
        return found


def new_meter(native: bool) -> PythonMeter | _core.Meter:
    """A meter: the extension's, or where it is not used one of Python."""
    if native and _native.available():
        from hpccoll._native import _core

        return _core.Meter()
    return PythonMeter()
