"""A control group of our own that limits memory, below that of this process; by either version of Linux's."""

from __future__ import annotations

import contextlib
import os
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from hpccoll.memory.limits import SECOND, memory_groups

JOIN = 'echo $$ > "$0" && exec "$@"'


@contextlib.contextmanager
def limited_group(nbytes: int) -> Iterator[Path]:
    """The directory of a new group, empty at the end; skips where none can be made."""
    found = next(iter(memory_groups()), None)
    if found is None:
        pytest.skip("no control group limits memory here")
    version, _, own = found
    group = own / f"hpccoll-test-{os.getpid()}-{time.monotonic_ns()}"
    try:
        group.mkdir()
    except OSError as error:
        pytest.skip(f"no control group can be made here: {error}")
    try:
        try:
            set_limit(group, nbytes)
            if version is SECOND:
                (group / "memory.swap.max").write_text("0")
        except OSError as error:
            pytest.skip(f"the memory of a new control group cannot be limited here: {error}")
        yield group
    finally:
        deadline = time.monotonic() + 20
        while (group / "cgroup.procs").read_text().strip() and time.monotonic() < deadline:
            time.sleep(0.05)
        group.rmdir()


def set_limit(group: Path, nbytes: int) -> None:
    """Of a group, in bytes."""
    name = "memory.limit_in_bytes" if (group / "memory.limit_in_bytes").exists() else "memory.max"
    (group / name).write_text(str(nbytes))


def join(group: Path) -> None:
    """Have this process belong to it; what it has already counts for the group that it leaves."""
    (group / "cgroup.procs").write_text(str(os.getpid()))


def inside(group: Path) -> list[str]:
    """A command that runs another one, whose words follow, in the group."""
    return ["sh", "-c", JOIN, str(group / "cgroup.procs")]
