"""What a test process tells the runner: one JSON object a line, appended as it happens.

Events, in their order:

    begin         rank, size, pid
    collected     tests: [{id, file, ranks, timeout_s}, ...] chosen here; deselected: how many were not
    not_collected id, outcome ("failed" or "skipped"), text   a module that cannot be imported or skips itself
    start         id
    report        id, when, outcome, seconds, text, reason      one for each of setup, call and teardown
    finish        id                                            all ranks have ended this test
    end

A killed process leaves a file that simply stops, its last line perhaps cut.
"""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Any

import pytest

__all__ = ["Reading", "Recorder", "output_file", "record_file", "report_event", "stacks_file"]

Event = dict[str, Any]


def record_file(folder: Path, rank: int) -> Path:
    """Where a rank appends its events."""
    return folder / f"rank-{rank}.jsonl"


def output_file(folder: Path, rank: int) -> Path:
    """Where standard output and error of a rank go."""
    return folder / f"rank-{rank}.out"


def stacks_file(folder: Path, rank: int) -> Path:
    """Where a rank writes its stacks on `lockstep.STACK_SIGNAL`."""
    return folder / f"rank-{rank}.stacks"


class Recorder:
    """Appends events to a rank's file; what has returned from `write` survives the death of the process."""

    def __init__(self, path: Path) -> None:
        self._descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_APPEND | os.O_CLOEXEC, 0o600)

    def write(self, event: str, **fields: Any) -> None:
        """Append one event."""
        data = json.dumps({"event": event, **fields}).encode() + b"\n"
        while data:
            data = data[os.write(self._descriptor, data) :]


class Reading:
    """Follows a rank's file while it grows."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._offset = 0

    def fresh(self) -> list[Event]:
        """The events completed since the last call."""
        try:
            with self._path.open("rb") as file:
                file.seek(self._offset)
                data = file.read()
        except FileNotFoundError:
            return []
        whole = data[: data.rfind(b"\n") + 1]
        self._offset += len(whole)
        return [json.loads(line) for line in whole.splitlines()]


def report_event(report: pytest.TestReport) -> Event:
    """The fields of a `report` event; text and captured output only where the test failed."""
    reason = getattr(report, "wasxfail", None)
    outcome: str = report.outcome
    if reason is not None:
        outcome = "xfailed" if report.skipped else "xpassed"
    elif report.skipped:
        reason = skip_reason(report)
    text = ""
    if report.failed:
        captured = [f"---- {title} ----\n{content}" for title, content in report.sections]
        text = "\n".join([report.longreprtext, *captured])
    return {
        "id": report.nodeid,
        "when": report.when,
        "outcome": outcome,
        "seconds": round(report.duration, 4),
        "text": text,
        "reason": reason or "",
    }


def skip_reason(report: pytest.TestReport | pytest.CollectReport) -> str:
    """Why pytest skipped, without its "Skipped: "."""
    longrepr = report.longrepr
    text = longrepr[2] if isinstance(longrepr, tuple) else report.longreprtext
    return text.removeprefix("Skipped: ")
