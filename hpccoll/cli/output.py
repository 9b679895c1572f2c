"""What commands write besides the table."""

from __future__ import annotations

from pathlib import Path

from hpccoll.errors import UsageError


def write_text(path: str, text: str) -> None:
    """Write a file.  Raises: UsageError, saying which and why, where that cannot be."""
    try:
        Path(path).write_text(text, encoding="utf-8")
    except OSError as error:
        raise UsageError(f"cannot write {path}: {error.strerror}") from None
