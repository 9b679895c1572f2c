"""Small files of the kernel below a root directory; nothing raises, what is missing is noted."""

from __future__ import annotations

import os
import re
import stat
from collections.abc import Callable
from pathlib import Path
from typing import TypeVar

from hpccoll.topology.hardware.model import Unknown

MAX_BYTES = 1 << 20
"""More than any of these files has; the rest of a longer one is not read."""

_MAX_UNKNOWN = 500
_MAX_CPUS = 1 << 16

T = TypeVar("T")


class Files:
    """Files below `root`, and the list of what could not be read.

    Args:
        root: the directory that stands for `/`.

    """

    def __init__(self, root: str | os.PathLike[str] = "/") -> None:
        self.root = Path(root)
        self.is_this_machine = os.path.realpath(root) == "/"
        self.unknown: list[Unknown] = []

    def note(self, what: str, reason: str) -> None:
        """Remember that a fact is unknown."""
        if len(self.unknown) < _MAX_UNKNOWN:
            self.unknown.append(Unknown(what, reason))

    def raw(self, path: str, what: str | None) -> bytes | None:
        """The beginning of a file; None, and noted under `what` (None: not noted), where it cannot be read.

        Pipes and devices are not waited for: only regular files are read.
        """
        try:
            descriptor = os.open(self.root / path, os.O_RDONLY | os.O_CLOEXEC | os.O_NONBLOCK)
            try:
                if not stat.S_ISREG(os.fstat(descriptor).st_mode):
                    raise OSError(0, "not a regular file")
                return _all(descriptor)
            finally:
                os.close(descriptor)
        except (OSError, ValueError) as error:
            self._failed(path, what, error)
            return None

    def text(self, path: str, what: str | None = None) -> str | None:
        """A file as text without blanks around it; None as in `raw`, and where it is empty or not text."""
        found = self.raw(path, what)
        if found is None:
            return None
        text = found.decode("utf-8", errors="replace").replace("\0", "\n").strip()
        if not text or not printable(text):
            if what is not None:
                self.note(what, f"/{path}: {'not text' if text else 'empty'}")
            return None
        return text

    def parsed(self, path: str, what: str | None, parse: Callable[[str], T]) -> T | None:
        """A file through `parse`, whose ValueError makes the fact unknown."""
        text = self.text(path, what)
        if text is None:
            return None
        try:
            return parse(text)
        except (ValueError, ArithmeticError):
            if what is not None:
                self.note(what, f"/{path}: cannot read {text[:40]!r}")
            return None

    def names(self, path: str, what: str | None = None) -> list[str]:
        """The entries of a directory, numbers in them in order; none, and noted, where it cannot be read."""
        try:
            return sorted(filter(printable, os.listdir(self.root / path)), key=in_order)
        except (OSError, ValueError) as error:
            self._failed(path, what, error)
            return []

    def exists(self, path: str) -> bool:
        """Whether there is a file or directory."""
        try:
            return (self.root / path).exists()
        except (OSError, ValueError):
            return False

    def target(self, path: str) -> list[str]:
        """The parts of the real path of a link below the root; none where it leads nowhere."""
        try:
            real = os.path.realpath(self.root / path, strict=True)
        except (OSError, ValueError):
            return []
        return real.split(os.sep)

    def _failed(self, path: str, what: str | None, error: Exception) -> None:
        if what is not None:
            self.note(what, f"/{path}: {getattr(error, 'strerror', None) or error}")


def _all(descriptor: int) -> bytes:
    parts, left = [], MAX_BYTES
    while left and (part := os.read(descriptor, left)):  # files of /proc come in pieces
        parts.append(part)
        left -= len(part)
    return b"".join(parts)


def printable(text: str) -> bool:
    """Whether it can be shown in a terminal and written to a file as it is."""
    return (
        all(char.isprintable() or char in "\n\t" for char in text) and "\N{REPLACEMENT CHARACTER}" not in text
    )


def in_order(name: str) -> tuple[tuple[int, int, str], ...]:
    """A key by which `node10` comes after `node9`."""
    parts = re.findall(r"[0-9]+|[^0-9]+", name)
    return tuple((0, int(part), "") if part.isdigit() else (1, 0, part) for part in parts)


def number_list(text: str) -> tuple[int, ...]:
    """The numbers in a list of the kernel such as `0-3,8`.  Raises: ValueError for anything else."""
    numbers: set[int] = set()
    for part in filter(None, text.strip().split(",")):
        first, dash, last = part.partition("-")
        begin, end = whole(first), whole(last if dash else first)
        if not 0 <= begin <= end < _MAX_CPUS:
            raise ValueError(part)
        numbers.update(range(begin, end + 1))
    return tuple(sorted(numbers))


def format_numbers(numbers: tuple[int, ...]) -> str:
    """The inverse of `number_list`."""
    runs: list[list[int]] = []
    for number in numbers:
        if runs and runs[-1][-1] + 1 == number:
            runs[-1][-1] = number
        else:
            runs.append([number, number])
    return ",".join(str(first) if first == last else f"{first}-{last}" for first, last in runs)


def whole(text: str) -> int:
    """A whole number of decimal digits.  Raises: ValueError for anything else."""
    if not re.fullmatch(r"-?[0-9]{1,18}", text.strip()):
        raise ValueError(text)
    return int(text)


def hexadecimal(text: str) -> int:
    """A number such as `0x10de`.  Raises: ValueError for anything else."""
    if not re.fullmatch(r"(0x)?[0-9a-fA-F]{1,16}", text.strip()):
        raise ValueError(text)
    return int(text, 16)
