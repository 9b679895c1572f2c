"""The end of a run on several ranks: what is wrong on any of them, the numbers in a file, the exit status."""

from __future__ import annotations

import json
import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from tests.conformance.replace import PLAIN


def left_in_shared_memory() -> list[str]:
    """What this process made there and did not remove."""
    found = Path("/dev/shm").glob(f"hpccoll-{os.getuid()}-{os.getpid()}-*")
    return [f"left in /dev/shm: {path.name}" for path in found]


def finish(report: Mapping[str, Any], result: Mapping[str, Any], file: Path | None) -> int:
    """Print what `report` calls wrong on any rank, on rank 0 and write the numbers; the exit status.

    Collective. The file gets `result`, the calls of rank 0 and what is wrong.
    """
    by_rank = enumerate(PLAIN.allgather(report["wrong"]))
    wrong = [f"rank {rank}: {line}" for rank, lines in by_rank for line in lines]
    if PLAIN.rank == 0:
        for line in wrong:
            print(f"WRONG on {line}")
        print("all well" if not wrong else f"{len(wrong)} WRONG", flush=True)
        if file is not None:
            counts = {key: report[key].total() for key in ("calls", "on_plans")}
            for key in ("inherited", "on_devices", "over_host"):
                counts[key] = report[key]
            numbers = {**result, **counts, "wrong": wrong}
            file.write_text(json.dumps(numbers))
    return 1 if wrong else 0
