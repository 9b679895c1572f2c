"""Where trace files lie, and when they go.

A file is taken away when its communicator is closed or its process ends, unless something went wrong.
A process that is killed leaves it behind.
"""

from __future__ import annotations

import atexit
import contextlib
import functools
import os
import stat
import sys
import tempfile
import weakref
from typing import TYPE_CHECKING

from hpccoll import _native
from hpccoll.errors import ResourceError
from hpccoll.memory.segments import TRACE, Segment, create_segment, sweep

if TYPE_CHECKING:
    from hpccoll.observe.recorder import Recorder

KEPT_S = 3 * 86400.0  # so long the default directory keeps what dead processes have left

open_recorders: weakref.WeakSet[Recorder] = weakref.WeakSet()


def default_directory() -> str:
    """The directory of trace files, a user's own, where none is set."""
    return os.path.join(tempfile.gettempdir(), f"hpccoll-trace-{os.geteuid()}")


def new_file(directory: str, total: int, communicator: str, rank: int) -> Segment:
    """Makes a trace file of so many bytes, readable by this user only.

    `directory`: "" for the default one.  It is made if it is not there.
    Raises: ResourceError when there is no room, or the default directory is somebody else's.
    """
    _open_directory(directory)
    place = directory or default_directory()
    segment = create_segment(total, directory=place, purpose=f"{TRACE}{communicator}.{rank}")
    segment.keep()
    return segment


@functools.cache
def _open_directory(directory: str) -> None:
    """Make a directory; once for a process, take old files out of the default one."""
    place = directory or default_directory()
    try:
        os.makedirs(place, 0o700, exist_ok=True)
        found = os.lstat(place)
    except OSError as error:
        raise ResourceError(
            f"{place}: {error.strerror}; set HPCCOLL_TRACE_DIR to another directory"
        ) from error
    if directory:
        return
    if not stat.S_ISDIR(found.st_mode) or found.st_uid != os.geteuid() or found.st_mode & 0o077:
        raise ResourceError(
            f"{place} is not a directory of this user alone (mode 0700); set HPCCOLL_TRACE_DIR to another"
        )
    sweep(place, older_than_s=KEPT_S)


def replace(path: str | os.PathLike[str], data: bytes | memoryview) -> None:
    """Writes a file of this user alone, at once: whoever reads it finds it whole.  Raises: OSError."""
    partial = f"{os.fspath(path)}.part"
    with contextlib.suppress(FileNotFoundError):
        os.unlink(partial)
    flags = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC
    with open(os.open(partial, flags, 0o600), "wb") as file:
        file.write(data)
    os.replace(partial, path)


def remove(path: str) -> None:
    """Takes a file away, if it is there."""
    with contextlib.suppress(OSError):
        os.unlink(path)


def remove_at_end(path: str) -> None:
    """Takes a file away when the process has ended well, after MPI_Finalize; now where that cannot be."""
    if _native.available():
        from hpccoll._native import _core

        _core.remove_at_end(os.fsencode(path))
    else:
        remove(path)


def _leave() -> None:
    """The program has come to its end; after an uncaught error its files stay."""
    from hpccoll.observe import parts

    failed = hasattr(sys, "last_value")
    for recorder in list(open_recorders):
        recorder.leave(failed)
    if not failed:
        parts.leave()


atexit.register(_leave)
