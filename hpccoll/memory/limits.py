"""How much memory the control groups of this process leave it, of either version of Linux's.

What goes over such a limit is no error of a call: the kernel kills a process of the group, also for pages of
a tmpfs that `posix_fallocate` reserves.  So it has to be known before.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

NONE_BYTES = 2**60  # a limit above this is none: version 1 says so with a very large number


class Limit(NamedTuple):
    """`left` bytes of a limit of `total`, which stands in the directory of a control group."""

    left: int
    total: int
    directory: str


class Version(NamedTuple):
    """The names of the files in a control group's directory, and of what `memory.stat` counts."""

    limit: str
    used: str
    files: tuple[str, str]  # pages of files, which the kernel takes back before it kills


FIRST = Version(
    "memory.limit_in_bytes", "memory.usage_in_bytes", ("total_inactive_file", "total_active_file")
)
SECOND = Version("memory.max", "memory.current", ("inactive_file", "active_file"))


def memory_limit(root: Path = Path("/")) -> Limit | None:
    """The limit of this process's control groups that leaves least; None where none is known.

    `root`: where the system's files are.
    """
    found = []
    for version, mount, directory in memory_groups(root):
        for one in (directory, *directory.parents):
            if (limit := _limit_in(one, version)) is not None:
                found.append(limit)
            if one == mount:
                break
    return min(found, default=None)


def _limit_in(directory: Path, version: Version) -> Limit | None:
    with contextlib.suppress(OSError, ValueError):
        total = int((directory / version.limit).read_text())  # version 2 says "max" where there is none
        if total >= NONE_BYTES:
            return None
        used = int((directory / version.used).read_text())
        counts = dict(line.split() for line in (directory / "memory.stat").read_text().splitlines())
        kept = used - sum(int(counts.get(name, 0)) for name in version.files)
        return Limit(max(0, total - max(0, kept)), total, str(directory))
    return None


def memory_groups(root: Path = Path("/")) -> Iterator[tuple[Version, Path, Path]]:
    """Each hierarchy that limits memory: where it is mounted, and the directory of this process's group."""
    paths = {}
    for line in _lines(root / "proc/self/cgroup"):
        number, controllers, path = line.split(":", 2)
        if number == "0" and not controllers:
            paths["cgroup2"] = path
        elif "memory" in controllers.split(","):
            paths["cgroup"] = path
    for line in _lines(root / "proc/self/mountinfo"):
        before, _, after = line.partition(" - ")
        kind, _, options = after.split(" ", 2)
        if kind == "cgroup2" or (kind == "cgroup" and "memory" in options.split(",")):
            mount = root / before.split(" ")[4].lstrip("/")
            if kind in paths:
                directory = mount / paths[kind].lstrip("/")
                # A container may see its own group only, as the mounted directory.
                found = directory if directory.is_dir() else mount
                yield SECOND if kind == "cgroup2" else FIRST, mount, found


def _lines(path: Path) -> list[str]:
    with contextlib.suppress(OSError):
        return path.read_text(encoding="utf-8", errors="replace").splitlines()
    return []
