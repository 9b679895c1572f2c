"""64-bit flags in shared memory, through which ranks of a node tell each other what is ready.

A flag is an unsigned 64-bit word at an index counted from the start of the buffer.  A rank writes its
data, then *stores* a sequence number; whoever *loads* that number sees the data::

    writer                        reader
      data[...] = x                 flags.wait_reached(first=3, 1, 1, 7, timeout_s)
      flags.store(3, 7)   ------->  use data[...]
            release                       acquire

The order comes from C11 atomics where the extension is built, else from ``MPI_Win_sync``.  Both kinds
obey `Flags` and pass the same tests; only `Flags.store_first` is weaker without the extension.
"""

from __future__ import annotations

import functools
import math
import os
import time
from typing import TYPE_CHECKING, Any, ClassVar, Protocol, runtime_checkable

import numpy as np

from hpccoll import _native
from hpccoll.cores import give_core
from hpccoll.errors import ResourceError

if TYPE_CHECKING:
    from mpi4py import MPI

    from hpccoll._native._core import NativeFlags

__all__ = ["Flags", "WindowFlags", "open_flags", "spin_time_us"]

_WORD_BYTES = 8
_LARGEST = 2**64 - 1
_LONG_SPIN_US = 50.0
_SHORT_SPIN_US = 2.0


@runtime_checkable
class Flags(Protocol):
    """What both kinds do.  All arguments are positional.

    A *row* is `count` flags ``first, first + stride, ...``; the flags of a row only grow while somebody
    waits for them.  Values are compared as unsigned numbers.

    Raises: IndexError when a flag is outside the buffer (nothing wraps round), OverflowError when a
    value does not fit into 64 unsigned bits.
    """

    native: ClassVar[bool]
    """True for C11 atomics, False for the fallback on ``MPI_Win_sync``."""

    def __len__(self) -> int:
        """Number of whole 64-bit words in the buffer."""

    def load(self, index: int, /) -> int:
        """The flag's value, with acquire order."""

    def store(self, index: int, value: int, /) -> None:
        """Sets the flag with release order: who loads `value` sees all that was written before."""

    def store_first(self, index: int, value: int, /) -> int:
        """Sets the flag unless it is set already; returns what is there afterwards.

        For a reason that sticks: the first one wins.  `value` is not 0 (else ValueError).  One atomic
        compare-and-swap in the extension.  **Best effort in the fallback**: two ranks that store within
        the same microsecond can both believe to be first, and the later value stays; so the fallback
        gives one reason to every rank that looks afterwards, but not surely the first one.
        """

    def reached(self, first: int, count: int, stride: int, value: int, /) -> bool:
        """Whether every flag of the row is at `value` or above.  True for an empty row."""

    def first_below(self, first: int, count: int, stride: int, value: int, /) -> int:
        """Position in the row (0 is `first`) of the first flag below `value`; -1 when none is."""

    def wait_reached(self, first: int, count: int, stride: int, value: int, timeout_s: float, /) -> bool:
        """Waits until `reached`; False when `timeout_s` seconds went by before.

        Spins for the time given at opening, then yields the core at every turn.  `timeout_s` of 0 or
        less looks once; ``math.inf`` waits for ever.  Signal handlers run, so Ctrl-C raises
        KeyboardInterrupt within about 50 ms.  Raises ValueError when `timeout_s` is not a number.
        """


def open_flags(
    buffer: memoryview | np.ndarray[Any, Any], *, native: bool | None = None, spin_us: float | None = None
) -> Flags:
    """Flags over a shared buffer.

    `buffer`: writable, contiguous, aligned to 8 bytes; it stays alive as long as the flags do.
    `native`: True for the extension, False for the fallback; unset, the extension where
    `hpccoll._native.available()`.  Ranks that share a buffer may differ in it.
    `spin_us`: microseconds that a wait spins before it yields the core; unset, ``spin_time_us()``.

    Raises: ResourceError when `native` is True and the extension is not available; BufferError or
    ValueError when the buffer is read-only, not contiguous or not aligned.
    """
    if spin_us is None:
        spin_us = spin_time_us()
    if native is None:
        native = _native.available()
    if not native:
        return WindowFlags(buffer, spin_us)
    return _native_class()(buffer, spin_us)


def spin_time_us(local_size: int | None = None, cores: int | None = None) -> float:
    """How many microseconds a wait spins before it yields its core.

    A rank with a core to itself spins for 50 us, which spares it the system call.  Where ranks share
    cores, the rank waited for may need this very core, and each microsecond of spin is lost: 2 us.

    `local_size`: ranks on this node; unset, 8.
    `cores`: cores they may use altogether; unset, those that this process may use (right for ranks
    that are not bound; for bound ones pass the size of the union of their sets).
    """
    if cores is None:
        cores = len(os.sched_getaffinity(0))
    return _LONG_SPIN_US if cores >= (local_size or 8) else _SHORT_SPIN_US


def _native_class() -> type[NativeFlags]:
    if not _native.available():
        raise ResourceError(f"native flags are not available: {_native.reason()}")
    from hpccoll._native._core import NativeFlags

    return NativeFlags


@functools.cache
def _fence_window() -> MPI.Win:
    """A window whose ``Sync`` is a full memory barrier.

    MPI-4 (section 12.7) lets load/store access to shared memory be ordered by ``MPI_Win_sync`` inside
    a passive-target epoch; it is the one portable barrier that Python can reach.  A *shared* window
    is used because MPICH and Open MPI both make its sync a plain fence, and MPICH finalises silently
    with it open (with an allocated one UCX warns of leaks).  It belongs to COMM_SELF, so that opening
    it is local.  One a process, made on first use, which is why it is cached: windows are scarce.
    """
    from mpi4py import MPI

    window = MPI.Win.Allocate_shared(_WORD_BYTES, 1, comm=MPI.COMM_SELF)
    window.Lock_all(MPI.MODE_NOCHECK)
    return window


class WindowFlags(Flags):
    """Flags without a compiler: plain 8-byte loads and stores by Python, ordered by ``MPI_Win_sync``.

    An aligned 8-byte access is one machine instruction here, as memoryview copies items by a memcpy of
    constant size.  ``Sync`` lets go of the GIL; next to a thread that computes, every call that
    orders may thus take up to the interpreter's switch interval (5 ms).
    """

    native: ClassVar[bool] = False

    def __init__(self, buffer: memoryview | np.ndarray[Any, Any], spin_us: float) -> None:
        view = buffer.data if isinstance(buffer, np.ndarray) else buffer
        if view.readonly:
            raise BufferError("flags need a writable buffer")
        if not view.c_contiguous:
            raise BufferError("flags need a contiguous buffer")
        words = np.ndarray((view.nbytes // _WORD_BYTES,), np.uint64, view)
        if words.ctypes.data % _WORD_BYTES:
            raise ValueError("flags need a buffer aligned to 8 bytes")
        self._view = view  # NumPy holds no export, so that the owner could be closed
        self._words: memoryview = words.data  # whose items cost half of what NumPy's do
        self._spin_s = 1e-6 * spin_us
        self._fence = _fence_window().Sync

    def __len__(self) -> int:
        return len(self._words)

    def load(self, index: int, /) -> int:
        """As in `Flags`; the barrier comes after the load."""
        value: int = self._words[self._checked(index)]
        self._fence()
        return value

    def store(self, index: int, value: int, /) -> None:
        """As in `Flags`; the barrier comes before the store."""
        index, value = self._checked(index), _unsigned(value)
        self._fence()
        self._words[index] = value

    def store_first(self, index: int, value: int, /) -> int:
        """Best effort: looks, stores, and looks again."""
        if value == 0:
            raise ValueError("store_first takes a value other than 0")
        if self.load(index) == 0:
            self.store(index, value)
            self._fence()
        return self.load(index)

    def reached(self, first: int, count: int, stride: int, value: int, /) -> bool:
        """As in `Flags`."""
        return self.first_below(first, count, stride, value) < 0

    def first_below(self, first: int, count: int, stride: int, value: int, /) -> int:
        """As in `Flags`; one barrier after all loads orders what the caller reads next behind each."""
        below = _first_below(self._row(first, count, stride), _unsigned(value))
        self._fence()
        return below

    def wait_reached(self, first: int, count: int, stride: int, value: int, timeout_s: float, /) -> bool:
        """As in `Flags`; looks without a barrier, which would let go of the GIL, and ends with one."""
        if math.isnan(timeout_s):
            raise ValueError("timeout_s is not a number")
        row, value = self._row(first, count, stride), _unsigned(value)
        below = _first_below(row, value)
        now = time.monotonic()
        spin_end, deadline = now + self._spin_s, now + timeout_s
        while below >= 0 and now < deadline:
            if now >= spin_end:
                give_core()
            now = time.monotonic()
            below = _first_below(row, value)  # after the clock: a late look still counts
        self._fence()
        return below < 0

    def _row(self, first: int, count: int, stride: int) -> memoryview:
        words = self._words
        end = first + (count - 1) * stride + 1 if count else first
        if first < 0 or count < 0 or stride < 1 or end > len(words):
            raise IndexError(f"{count} flags from {first}, {stride} apart, are outside 0..{len(words) - 1}")
        return words[first:end:stride]

    def _checked(self, index: int) -> int:
        if not 0 <= index < len(self._words):
            raise IndexError(f"flag {index} is outside 0..{len(self._words) - 1}")
        return index


def _first_below(row: memoryview, value: int) -> int:
    for position, flag in enumerate(row.tolist()):
        if flag < value:
            return position
    return -1


def _unsigned(value: int) -> int:
    if not 0 <= value <= _LARGEST:
        raise OverflowError(f"{value} does not fit into 64 unsigned bits")
    return value
