"""Exchanges with a deadline, with which all ranks of a communicator come to one verdict.

Used before there is any topology to use: every call is non-blocking and tested under one deadline, and
a rank that waits gives its core to the others.

The first step is a roll call, because only point-to-point messages can tell who is missing::

    rank 1 .. n-1   -- "here, t s left" -->  rank 0    counts, until the first rank has no time left
    rank 1 .. n-1   <----- verdict --------  rank 0    "all n are here", or "k of n came; missing: ..."
"""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence

import numpy as np
import numpy.typing as npt
from mpi4py import MPI

from hpccoll.cores import give_core
from hpccoll.errors import CollectiveTimeoutError, ResourceError, TopologyError
from hpccoll.topology.notation import format_ranks

Tags = tuple[int, int]
HERE_AND_VERDICT: Tags = (32765, 32766)  # MPI promises tags up to 32767

VERDICT_GRACE_S = 2.0
"""How long after its own deadline a rank still waits for what rank 0 has found."""

MOST_BYTES = 1 << 24  # that a rank may say: room for what others say is made on their word

_NAMED = 30  # so many missing ranks are named; a verdict is always an eager message

Numbers = npt.NDArray[np.int64]

# An operation given up cannot be cancelled if it is collective, and MPI may still write into its buffers
# when the missing rank comes after all: they must outlive the error.
_abandoned: list[object] = []


def call_roll(
    comm: MPI.Intracomm,
    deadline: float,
    purpose: str,
    tags: Tags = HERE_AND_VERDICT,
    began: float | None = None,
) -> None:
    """Returns on every rank once every rank has called it.

    Collective.  2 messages per rank, all of them to or from rank 0.

    Args:
        comm: a communicator on which nothing else is going on, with these tags at least.
        deadline: on the clock of `time.monotonic`, seconds.
        purpose: what is being done, for the error.
        tags: of its two kinds of messages.
        began: since when this rank has waited, if not since now.

    Raises:
        CollectiveTimeoutError: not everybody came before the earliest deadline: on every rank that came,
            with the missing ranks in `suspects`.  Without rank 0 the others wait `VERDICT_GRACE_S` longer
            and name it.  A rank that comes later gets rank 0's verdict at once.

    """
    started = time.monotonic() if began is None else began
    if comm.size == 1:
        return
    verdict: Numbers = np.zeros(1 + _NAMED, dtype=np.int64)  # how many came, then who did not
    if comm.rank == 0:
        missing = _collect(comm, deadline, tags)
        verdict[0] = comm.size - len(missing)
        verdict[1 : 1 + len(missing[:_NAMED])] = missing[:_NAMED]
        sends = [comm.Isend(verdict, dest=rank, tag=tags[1]) for rank in range(1, comm.size)]
        if missing:
            _abandoned.append((sends, verdict))
        else:
            wait_all(sends, deadline, f"{purpose}: roll call", comm.rank)
    else:
        _report_and_listen(comm, verdict, deadline, purpose, tags)
    arrived = int(verdict[0])
    if arrived < comm.size:
        named = [int(rank) for rank in verdict[1 : 1 + comm.size - arrived]]
        raise CollectiveTimeoutError(
            f"{purpose}: {arrived} of {comm.size} ranks arrived within {time.monotonic() - started:.1f} s; "
            f"missing: {_name_missing(named, comm.size - arrived)}",
            rank=comm.rank,
            suspects=named,
        )


def gather(comm: MPI.Intracomm, payload: bytes, deadline: float, step: str) -> list[bytes]:
    """The payloads of all ranks, in rank order; they may differ in length.

    Collective.  On the wire: one number, then size x longest payload per rank.

    Raises:
        CollectiveTimeoutError: it is not complete at `deadline`; the message has `step`.
        TopologyError: on all ranks, when one has more than MOST_BYTES to say.

    """
    longest = np.array([len(payload)], dtype=np.int64)
    comm_longest = np.zeros(1, dtype=np.int64)
    wait_all([comm.Iallreduce(longest, comm_longest, MPI.MAX)], deadline, step, comm.rank)
    room = int(comm_longest[0])
    if not 0 <= room <= MOST_BYTES:
        raise TopologyError(
            f"{step}: a rank has {room} bytes to say, of at most {MOST_BYTES}", rank=comm.rank
        )
    # The length travels along, since zero bytes at the end could belong to the payload.
    record = np.zeros(8 + room, dtype=np.uint8)
    record[:8] = np.frombuffer(len(payload).to_bytes(8, "little"), np.uint8)
    record[8 : 8 + len(payload)] = np.frombuffer(payload, np.uint8)
    records = np.zeros((comm.size, 8 + room), dtype=np.uint8)
    wait_all([comm.Iallgather(record, records)], deadline, step, comm.rank)
    lengths = [int.from_bytes(row[:8].tobytes(), "little") for row in records]
    return [row[8 : 8 + length].tobytes() for row, length in zip(records, lengths, strict=True)]


def gather_numbers(comm: MPI.Intracomm, number: int, deadline: float, step: str) -> list[int]:
    """One 64-bit number of every rank, in rank order.  Collective; raises what `gather` raises."""
    numbers = np.zeros(comm.size, dtype=np.int64)
    own = np.array([number], dtype=np.int64)
    wait_all([comm.Iallgather(own, numbers)], deadline, step, comm.rank)
    return [int(found) for found in numbers]


def tell_failure(comm: MPI.Intracomm, failed: str, deadline: float, what: str) -> None:
    """Each rank says what went wrong while it made `what`, or nothing.  Collective.

    Raises:
        ResourceError: on all ranks, when one has failed; with the words of the first.
        CollectiveTimeoutError: as `gather`.

    """
    said = gather(comm, failed.encode(), deadline, f"making {what}")
    failures = [rank for rank, text in enumerate(said) if text]
    if failures:
        raise ResourceError(
            f"no {what}: {format_ranks(failures)}: {said[failures[0]].decode()}",
            rank=comm.rank,
            suspects=failures,
        )


def wait_all(requests: Sequence[MPI.Request], deadline: float, step: str, rank: int) -> None:
    """Tests until all requests are complete, yielding the core in between.

    Raises:
        CollectiveTimeoutError: they are not at `deadline`.  What was given up can still complete: the
            communicator is not to be used again.

    """
    pending = list(requests)
    if not _poll(lambda: MPI.Request.Testall(pending), deadline):
        _abandoned.append(requests)
        raise CollectiveTimeoutError(
            f"{step}: not complete at the deadline; all ranks arrived, so one has since stopped or died",
            rank=rank,
        )


def _poll(done: Callable[[], object], deadline: float) -> bool:
    while not done():
        if time.monotonic() > deadline:
            return False
        give_core()
    return True


def roll_is_called(comm: MPI.Intracomm, tags: Tags) -> bool:
    """Whether others call the roll, or have: rank 0 hears who is there, the others its verdict."""
    status = MPI.Status()
    here, verdict = tags
    source, tag, nbytes = (MPI.ANY_SOURCE, here, 8) if comm.rank == 0 else (0, verdict, 8 * (1 + _NAMED))
    return comm.Iprobe(source, tag, status) and status.Get_count(MPI.BYTE) == nbytes


def _collect(comm: MPI.Intracomm, deadline: float, tags: Tags) -> list[int]:
    """Ranks that have not said "here" at the earliest deadline of those that have."""
    missing = set(range(1, comm.size))
    status = MPI.Status()
    time_left = np.zeros(1)
    while missing and _poll(lambda: comm.Iprobe(MPI.ANY_SOURCE, tags[0], status), deadline):
        source = status.Get_source()
        comm.Recv(time_left, source=source, tag=tags[0])  # the message is there: nothing to wait for
        deadline = min(deadline, time.monotonic() + float(time_left[0]))
        missing.discard(source)
    return sorted(missing)


def _report_and_listen(
    comm: MPI.Intracomm, verdict: Numbers, deadline: float, purpose: str, tags: Tags
) -> None:
    started = time.monotonic()
    time_left = np.array([deadline - started])
    here = comm.Isend(time_left, dest=0, tag=tags[0])
    listening = comm.Irecv(verdict, source=0, tag=tags[1])
    if not _poll(listening.Test, deadline + VERDICT_GRACE_S):
        status = MPI.Status()
        listening.Cancel()
        listening.Wait(status)  # local, for a cancelled receive
        if status.Is_cancelled():
            _abandoned.append((here, time_left))
            raise CollectiveTimeoutError(
                f"{purpose}: rank 0, which calls the roll, has not answered "
                f"within {time.monotonic() - started:.1f} s",
                rank=comm.rank,
                suspects=(0,),
            )
    wait_all([here], deadline + VERDICT_GRACE_S, f"{purpose}: roll call", comm.rank)


def _name_missing(named: Sequence[int], count: int) -> str:
    more = count - len(named)
    return format_ranks(named) + (f" and {more} more" if more else "")
