"""The extension's tape: calls through addresses, where it stops, and what it refuses."""

from __future__ import annotations

import ctypes

import pytest

from hpccoll import _native

if not _native.available():
    pytest.skip(_native.reason(), allow_module_level=True)

from hpccoll._native._core import Tape

COPY, MARK, FOLLOW, KERNEL = 9, 10, 11, 13
CODES = 13
BRACKET = ctypes.CFUNCTYPE(ctypes.c_int)
COPYING = ctypes.CFUNCTYPE(ctypes.c_int, ctypes.c_uint64, ctypes.c_uint64, ctypes.c_size_t, ctypes.c_void_p)


def functions(copying: object) -> tuple[int, ...]:
    """An address for each code; that of the copies is ours."""
    nothing = ctypes.cast(BRACKET(lambda: 0), ctypes.c_void_p).value or 0
    found = [nothing or 1] * CODES
    found[COPY] = ctypes.cast(copying, ctypes.c_void_p).value or 0  # type: ignore[arg-type]
    return tuple(found)


def test_numbers_and_streams_arrive_and_a_failure_stops_it() -> None:
    made: list[tuple[int, ...]] = []

    @COPYING
    def copying(target: int, source: int, nbytes: int, stream: int | None) -> int:
        made.append((target, source, nbytes, stream or 0))
        return 0 if nbytes < 100 else 700

    entries = ((COPY, 0, 0, 1, 2, 3), (KERNEL, 0, 0, 0), (COPY, 1, 0, 2**63, 5, 6), (COPY, 0, 0, 7, 8, 100))
    tape = Tape(functions(copying), entries, 99)
    assert tape.play(55, 0) == (1, 0)  # what Python is to enqueue
    assert tape.play(55, 2) == (3, 700)
    assert tape.play(55, 4) is None
    assert made == [(1, 2, 3, 55), (2**63, 5, 6, 99), (7, 8, 100, 55)]


@pytest.mark.parametrize(
    ("entries", "error"),
    [
        (((COPY, 0),), ValueError),
        (((12, 0, 0),), ValueError),
        (((99, 0, 0),), ValueError),
        (((COPY, 0, 0, 1, 2, 3, 4, 5, 6, 7),), ValueError),
        (((COPY, 0, 0, "1", 2, 3),), TypeError),
        (((COPY, 0, 0, -1, 2, 3),), OverflowError),
        (([COPY, 0, 0],), ValueError),
    ],
)
def test_what_is_no_entry_is_refused(entries: tuple[tuple[int, ...], ...], error: type[Exception]) -> None:
    with pytest.raises(error):
        Tape(functions(COPYING(lambda *numbers: 0)), entries, 0)


def test_addresses_and_places_are_checked() -> None:
    with pytest.raises(ValueError, match="an address for each code"):
        Tape((1,), (), 0)
    with pytest.raises(ValueError, match="address that is 0"):
        Tape((0,) * CODES, (), 0)
    tape = Tape((1,) * CODES, (), 0)
    assert tape.play(0, 0) is None
    for begin in (-1, 1):
        with pytest.raises(ValueError, match="outside the tape"):
            tape.play(0, begin)
    with pytest.raises(TypeError):
        tape.play(0)  # type: ignore[call-arg]
