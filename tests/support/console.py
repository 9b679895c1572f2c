"""What a run of the tests prints: progress, failures, skips, and one closing line."""

from __future__ import annotations

import shutil
import sys
from collections import Counter
from collections.abc import Sequence
from typing import TextIO

from tests.support.verdict import BAD, Verdict

__all__ = ["Console", "closing_line"]

SIGNS = {"passed": ".", "failed": "F", "error": "E", "skipped": "s", "xfailed": "x", "xpassed": "X"}
ORDER = ("failed", "passed", "skipped", "deselected", "xfailed", "xpassed", "error")


class Console:
    """Prints as it goes; the whole output of a run comes from here."""

    def __init__(self, stream: TextIO = sys.stdout) -> None:
        self._stream = stream
        self._width = shutil.get_terminal_size().columns if stream.isatty() else 100
        self._place = ""
        self._column = 0

    def heading(self, text: str) -> None:
        """Start a part of the run."""
        self._new_line()
        self._stream.write(f"{text}\n")
        self._stream.flush()
        self._place = ""

    def progress(self, verdict: Verdict, note: str = "") -> None:
        """One sign for one verdict, a line for each test file."""
        place = verdict.id.split("::")[0]
        if place != self._place:
            self._new_line()
            self._place = place
            self._write(f"  {place} ")
        elif self._column >= self._width - 1:
            self._new_line()
            self._write("    ")
        self._write(SIGNS[verdict.outcome] + note)
        self._stream.flush()

    def summary(self, verdicts: Sequence[Verdict], deselected: int, seconds: float, durations: int) -> None:
        """Everything after the last test."""
        self._new_line()
        bad = [verdict for verdict in verdicts if verdict.outcome in BAD]
        if bad:
            self._rule("FAILURES")
        for verdict in bad:
            self._rule(verdict.name, "_")
            self._line(verdict.text)
        if durations:
            self._rule(f"slowest {durations}")
            for verdict in sorted(verdicts, key=lambda v: -v.seconds)[:durations]:
                self._line(f"{verdict.seconds:7.2f}s {verdict.name}")
        skips = Counter(
            (verdict.reason, verdict.id) for verdict in verdicts if verdict.outcome in ("skipped", "xfailed")
        )
        if bad or skips:
            self._rule("short test summary")
        for reason, ids in _by_reason(skips).items():
            self._line(f"SKIPPED [{ids.total()}] {', '.join(sorted(ids))}: {reason}")
        for verdict in bad:
            word = "FAILED" if verdict.outcome == "failed" else "ERROR"
            self._line(f"{word} {verdict.name}{_last_word(verdict.text)}")
        self._line(closing_line(verdicts, deselected, seconds, self._width))

    def _write(self, text: str) -> None:
        self._stream.write(text)
        self._column += len(text)

    def _new_line(self) -> None:
        if self._column:
            self._stream.write("\n")
        self._column = 0

    def _line(self, text: str) -> None:
        self._stream.write(text + "\n")
        self._stream.flush()

    def _rule(self, title: str, sign: str = "=") -> None:
        self._line(f" {title} ".center(self._width, sign))


def closing_line(verdicts: Sequence[Verdict], deselected: int, seconds: float, width: int = 100) -> str:
    """pytest's last line; a test counts once for each number of ranks it ran at."""
    counts = Counter(verdict.outcome for verdict in verdicts)
    counts["deselected"] = deselected
    parts = [
        f"{counts[word]} {word}{'s' if word == 'error' and counts[word] > 1 else ''}"
        for word in ORDER
        if counts[word]
    ]
    clock = (
        f" ({int(seconds) // 3600}:{int(seconds) // 60 % 60:02}:{int(seconds) % 60:02})"
        if seconds >= 60
        else ""
    )
    return f" {', '.join(parts) or 'no tests ran'} in {seconds:.2f}s{clock} ".center(width, "=")


def _by_reason(skips: Counter[tuple[str, str]]) -> dict[str, Counter[str]]:
    """Per reason, how often in which test files."""
    reasons: dict[str, Counter[str]] = {}
    for (reason, test), count in skips.items():
        reasons.setdefault(reason, Counter())[test.split("::")[0]] += count
    return reasons


def _last_word(text: str) -> str:
    """The line of a traceback that pytest marks with E, else the first line under a rank's heading."""
    lines = [line for line in text.splitlines() if line.strip() and not line.startswith("rank ")]
    marked = next((line[1:].strip() for line in lines if line.startswith("E ")), lines[0] if lines else "")
    return f" - {marked[:160]}" if marked else ""
