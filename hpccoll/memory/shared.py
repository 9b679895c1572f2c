"""One segment for every node of a communicator, opened by all ranks together.

The first rank of each node creates it and tells the path; when all ranks of all nodes have attached, it is
unlinked.  A failure anywhere is an error everywhere, so that no rank goes on without memory that others
count on.
"""

from __future__ import annotations

import functools
from collections.abc import Generator
from typing import Any

import numpy as np
from mpi4py import MPI

from hpccoll.errors import HpccollError, ResourceError
from hpccoll.memory.segments import Segment, attach_segment, create_segment, sweep
from hpccoll.topology.layout import Layout
from hpccoll.transports.base import Array

_RECORD_BYTES = 512
MOST_BYTES = 1 << 24  # room is made on the others' word
_FINE, _FAILED = 0, 1


def open_shared(
    private: MPI.Intracomm, layout: Layout, nbytes: int, directory: str, purpose: str
) -> Generator[None, None, Segment | None]:
    """A segment that this rank shares with its node; None on a node of one rank.

    Collective over `private`; yields where it would wait.  `nbytes` is the size for this rank's node.

    Raises: ResourceError on every rank when any could not create or attach its node's segment.
    """
    rank = private.rank
    leader = layout.leader(layout.node(rank))
    alone = layout.local_size(rank) == 1
    segment: Segment | None = None
    own = b""
    failed = False
    if rank == leader and not alone:
        try:
            _swept(directory)
            segment = create_segment(nbytes, directory=directory, purpose=purpose)
            own = segment.path.encode()
        except HpccollError as error:
            own, failed = str(error).encode(), True
    try:
        records = yield from _exchange(private, own, failed)
        problem = _first_failure(records)
        if problem is None and rank != leader:
            try:
                segment = attach_segment(records[leader][1].decode(), nbytes)
            except HpccollError as error:
                own, failed = str(error).encode(), True
        records = yield from _exchange(private, own if failed else b"", failed)
        problem = problem or _first_failure(records)
    finally:
        if segment is not None and rank == leader:
            segment.unlink()
    if problem is not None:
        if segment is not None:
            segment.close()
        raise ResourceError(f"rank {problem[0]}: {problem[1]}", rank=rank, suspects=(problem[0],))
    return segment


@functools.cache
def _swept(directory: str) -> None:
    """Once for a process: takes away what programs left that were killed while they opened segments."""
    sweep(directory)


def _exchange(
    private: MPI.Intracomm, text: bytes, failed: bool
) -> Generator[None, None, list[tuple[bool, bytes]]]:
    """Every rank's text and whether it failed, in rank order."""
    text = text[: _RECORD_BYTES - 3]
    record = np.zeros(_RECORD_BYTES, np.uint8)
    record[0] = _FAILED if failed else _FINE
    record[1:3] = np.frombuffer(len(text).to_bytes(2, "little"), np.uint8)
    record[3 : 3 + len(text)] = np.frombuffer(text, np.uint8)
    records = np.zeros((private.size, _RECORD_BYTES), np.uint8)
    request = private.Iallgather(record, records)
    while not request.Test():
        yield
    return [_unpacked(row) for row in records]


def _unpacked(row: np.ndarray[Any, np.dtype[np.uint8]]) -> tuple[bool, bytes]:
    length = int.from_bytes(row[1:3].tobytes(), "little")
    return bool(row[0] == _FAILED), row[3 : 3 + length].tobytes()


def _first_failure(records: list[tuple[bool, bytes]]) -> tuple[int, str] | None:
    for rank, (failed, text) in enumerate(records):
        if failed:
            return rank, text.decode(errors="replace")
    return None


def gathered(private: MPI.Intracomm, own: Array) -> Generator[None, None, Array]:
    """What every rank says, a row each: as many numbers of one dtype from all.  Collective; yields."""
    table = np.empty((private.size, own.size), own.dtype)
    request = private.Iallgather(own, table)
    while not request.Test():
        yield None
    return table


def collected(private: MPI.Intracomm, own: bytes) -> Generator[None, None, list[bytes]]:
    """What every rank says, at most MOST_BYTES, on rank 0; nothing on the others.  Collective; yields.

    Raises: ResourceError on all ranks, when one says more.
    """
    length, lengths = np.array([len(own)], np.int64), np.zeros(private.size, np.int64)
    request = private.Iallgather(length, lengths)
    while not request.Test():
        yield None
    if lengths.min() < 0 or lengths.max() > MOST_BYTES:
        raise ResourceError(
            f"a rank has {lengths.max()} bytes to say, of at most {MOST_BYTES}", rank=private.rank
        )
    first = private.rank == 0
    room = np.zeros(int(lengths.sum()), np.uint8)
    take = [room, lengths.tolist()] if first else None
    request = private.Igatherv(np.frombuffer(own, np.uint8), take, root=0)
    while not request.Test():
        yield None
    ends = np.cumsum(lengths)
    pairs = zip(ends.tolist(), lengths.tolist(), strict=True)
    return [room[end - size : end].tobytes() for end, size in pairs] if first else []
