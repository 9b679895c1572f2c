"""The parts of a job's timeline, and when they become one file.

::

    close()    all ranks send their parts to rank 0 of the communicator, which keeps them as files
    then       the first rank of the job writes the timeline of all parts that have come so far, once it has
               no other communicator open
    exit       it waits a moment for ranks that have not closed theirs, and writes it again
    after an error, or a kill, files stay: `hpccoll trace DIR --timeline FILE` puts them together

Parts of one job are those that have a process in common, directly or by others.
"""

from __future__ import annotations

import contextlib
import glob
import logging
import os
import time
import zlib
from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING

from hpccoll.memory.segments import TRACE
from hpccoll.observe import files, form
from hpccoll.observe.reading import RankTrace, read_directory

if TYPE_CHECKING:
    from hpccoll.observe.recorder import Silent

MOST_BYTES = 1 << 28  # of a communicator's parts together, before they are packed
PATIENCE_S = 5.0  # at exit, for other ranks
KEPT = "hpccoll-closed-"  # what names of parts begin with that rank 0 keeps

_tokens: dict[str, str] = {}  # directory -> the first communicator of this process that goes there
_first_ranks: set[str] = set()  # directories in which this process is to write
_unwritten: set[str] = set()  # those where parts have come since
_kept: set[str] = set()  # those whose files are to stay


def begin(directory: str, token: str, world_rank: int, stays: bool) -> None:
    """A communicator's timeline goes to a directory, where `stays` is set beside its ranks' files."""
    _tokens.setdefault(directory, token)
    if world_rank == 0:
        _first_ranks.add(directory)
        _unwritten.add(directory)
    if stays:
        _kept.add(directory)


def packed(part: bytes) -> bytes:
    """A part as it travels."""
    return zlib.compress(part, 1)


def keep(directory: str, timelines: Sequence[bytes], own: Silent) -> None:
    """What the ranks of a communicator have sent; on its rank 0, whose recorder `own` is."""
    try:
        for number, part in enumerate(map(zlib.decompress, timelines)):
            if part:
                token = own.token
                files.replace(os.path.join(directory, f"{KEPT}{os.getpid()}-{TRACE}{token}.{number}"), part)
        _unwritten.add(directory)
        others = [one for one in files.open_recorders if one.events is not None and one is not own]
        if directory in _first_ranks and not others:
            write(directory)
    except (OSError, ValueError) as error:
        _warn(directory, error)


def leave() -> None:
    """The program has come to its end, well; what is not written by then is."""
    for directory in filter(os.path.isdir, list(_first_ranks)):
        try:
            if directory in _unwritten:
                _wait_for_others(directory)
                write(directory)
            if directory not in _kept:
                for one in _of_this_job(directory):
                    if one.state in (form.LEFT, form.OVER):
                        files.remove(one.path)
        except (OSError, ValueError) as error:
            _warn(directory, error)


def write(directory: str) -> None:
    """The timeline of the job that this process belongs to.  Raises: OSError."""
    from hpccoll.observe.chrome import lines

    traces = _of_this_job(directory)
    if traces:
        path = os.path.join(directory, f"timeline-{_tokens[directory][:8]}.json")
        write_lines(path, lines(traces))
        logging.getLogger("hpccoll").info("the timeline is in %s", path)
    _unwritten.discard(directory)


def _of_this_job(directory: str) -> list[RankTrace]:
    return of_job(read_directory(directory)[0], _tokens[directory])


def write_lines(path: str, lines: Iterable[str]) -> None:
    """A file of text of this user alone, at once.  Raises: OSError."""
    partial = f"{path}.part"
    with contextlib.suppress(FileNotFoundError):
        os.unlink(partial)
    flags = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC
    with open(os.open(partial, flags, 0o600), "w", encoding="utf-8") as file:
        file.writelines(f"{line}\n" for line in lines)
    os.replace(partial, path)


def of_job(traces: Sequence[RankTrace], token: str) -> list[RankTrace]:
    """Those of the job that a communicator belongs to."""
    communicators, processes = {token}, set[object]()
    before = -1
    while before != len(communicators) + len(processes):
        before = len(communicators) + len(processes)
        for one in traces:
            if one.communicator in communicators or one.process_key in processes:
                communicators.add(one.communicator)
                processes.add(one.process_key)
    return [one for one in traces if one.communicator in communicators]


def _wait_for_others(directory: str) -> None:
    """Until no rank of a communicator that is open here is at work any more, or for some seconds."""
    tokens = {one.token for one in files.open_recorders if one.events is not None}
    paths = [
        os.path.join(directory, name)
        for token in tokens
        for name in glob.glob(f"hpccoll-*-{TRACE}{token}.*", root_dir=directory)
    ]
    deadline = time.monotonic() + PATIENCE_S
    while any(map(_is_at_work, paths)) and time.monotonic() < deadline:
        time.sleep(0.05)


def _is_at_work(path: str) -> bool:
    try:
        with open(path, "rb") as file:
            file.seek(form.STATE)
            return int.from_bytes(file.read(8), "little") == form.AT_WORK
    except OSError:
        return False


def _warn(directory: str, error: Exception) -> None:
    logging.getLogger("hpccoll").warning("the timeline cannot be written to %s: %s", directory, error)


def _forget() -> None:
    for one in (_tokens, _first_ranks, _unwritten):
        one.clear()


os.register_at_fork(after_in_child=_forget)  # a forked child has none of its parent's communicators
