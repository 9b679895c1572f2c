"""Files that are written as a whole or not at all, and one word for those that cannot be."""

from __future__ import annotations

import errno
import os
import secrets
import stat
import tempfile
from contextlib import suppress
from pathlib import Path

from hpccoll.errors import UsageError

# Where only the file itself can be written: its directory cannot, or it is a mount of its own.
_IN_PLACE = (errno.EACCES, errno.EPERM, errno.EROFS, errno.EBUSY)


def write_text(path: str | os.PathLike[str], text: str) -> None:
    """Write a file, so that nobody reads a part of it and a full disk leaves the one that was there.

    A link stays a link, a file keeps its mode, a new file has the umask's.  What is no plain file (a pipe,
    /dev/stdout) is written as it stands, and so is a file beside which no other can be made.

    Raises: UsageError, which says what cannot be written, and why.
    """
    place = Path(os.path.realpath(path))
    data = text.encode("utf-8", "backslashreplace")  # host names may hold bytes that are no text
    try:
        if place.exists() and not place.is_file():
            place.write_bytes(data)
            return
        try:
            _replace(place, data)
        except OSError as error:
            if error.errno not in _IN_PLACE or not place.is_file():
                raise
            place.write_bytes(data)
    except OSError as error:
        raise _cannot(path, error) from None


def check_writable(path: str | os.PathLike[str]) -> None:
    """Raises: UsageError as `write_text` would, before hours of work; writes nothing."""
    place = Path(os.path.realpath(path))
    try:
        if place.is_dir():
            raise IsADirectoryError(errno.EISDIR, os.strerror(errno.EISDIR))
        if place.exists() and os.access(place, os.W_OK):
            return
        with tempfile.TemporaryFile(dir=place.parent):
            pass
    except OSError as error:
        raise _cannot(path, error) from None


def _replace(place: Path, data: bytes) -> None:
    beside = place.with_name(f".{place.name[:200]}-{secrets.token_hex(6)}.part")
    descriptor = os.open(beside, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o666)
    try:
        with os.fdopen(descriptor, "wb") as file:
            with suppress(FileNotFoundError):
                os.fchmod(descriptor, stat.S_IMODE(place.stat().st_mode))
            file.write(data)
        os.replace(beside, place)
    except BaseException:
        with suppress(OSError):
            os.unlink(beside)
        raise


def _cannot(path: str | os.PathLike[str], error: OSError) -> UsageError:
    return UsageError(f"cannot write {os.fspath(path)}: {error.strerror}")
