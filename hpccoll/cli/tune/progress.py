"""How far it is, and how long it will take."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import TextIO

_WIDTH = 24
_CLEAR = "\r\x1b[K"


class Progress:
    """A bar with the time left, on one line of a terminal, else a line for each part that is done.

    Args:
        stream: None: nothing is said.
        total_s: what all parts are expected to take.  Only the parts' proportions count: the time that those
            done have taken says how wrong it is.

    """

    def __init__(
        self, stream: TextIO | None, total_s: float, clock: Callable[[], float] = time.monotonic
    ) -> None:
        self._stream = stream
        self._total_s = total_s
        self._done_s = 0.0
        self._clock = clock
        self._begin = clock()
        self._on_one_line = stream is not None and stream.isatty()

    def done(self, expected_s: float, text: str) -> None:
        """A part is done that was expected to take so long; `text` says what came of it."""
        self._done_s += expected_s
        if self._stream is None:
            return
        line = f"{self.bar()}  {text}"
        begin, end = (_CLEAR, "") if self._on_one_line else ("", "\n")
        print(f"{begin}{line}", end=end, file=self._stream, flush=True)

    def say(self, text: str) -> None:
        """A line that stays."""
        if self._stream is not None:
            print(f"{_CLEAR if self._on_one_line else ''}{text}", file=self._stream, flush=True)

    def clear(self) -> None:
        """Take the bar away, before others write to the terminal."""
        if self._on_one_line:
            print(_CLEAR, end="", file=self._stream, flush=True)

    def bar(self) -> str:
        """`[######..................]  25 %,  1 min 30 s left`."""
        share = min(1.0, self._done_s / self._total_s) if self._total_s > 0 else 1.0
        full = int(share * _WIDTH)
        left_s = (self._clock() - self._begin) * (1 - share) / share if share > 0 else self._total_s
        return f"[{'#' * full}{'.' * (_WIDTH - full)}] {100 * share:3.0f} %, {time_left(left_s)} left"


def time_left(seconds: float) -> str:
    """In words of two units at most: `45 s`, `3 min 20 s`, `2 h 5 min`."""
    whole = round(seconds)
    if whole < 60:
        return f"{whole} s"
    if whole < 3600:
        return f"{whole // 60} min {whole % 60} s"
    return f"{whole // 3600} h {whole % 3600 // 60} min"
