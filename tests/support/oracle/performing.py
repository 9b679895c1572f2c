"""One call made, in one of three forms, and compared: the result, what must not change, the memory around."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any, TypeVar

import numpy as np

from tests.support.oracle.elements import GUARD, MARGIN, Array, difference, equal
from tests.support.oracle.jobs import ROOTED, Job
from tests.support.oracle.ragged import Ragged

# What a caller has: an array whose elements, in C order, are those given; and whether the memory around it is
# still as it was.
Placed = tuple[Array, Callable[[], bool]]
Place = Callable[[Array], Placed]
AnyJob = TypeVar("AnyJob", Job, Ragged)


def in_line(array: Array) -> Placed:
    """Contiguous, between two margins."""
    memory = np.full(array.nbytes + 2 * MARGIN, GUARD, np.uint8)
    inner = memory[MARGIN : MARGIN + array.nbytes].view(array.dtype)
    inner[...] = array
    return inner, lambda: bool((memory[:MARGIN] == GUARD).all() and (memory[-MARGIN:] == GUARD).all())


class Attempt:
    """This rank's buffers for one job: `call()`, or `start()` and its request, then `check()`."""

    def __init__(self, comm: Any, job: Job | Ragged, place: Place = in_line) -> None:
        self.comm, self.job = comm, job
        self._given = job.given(comm.size)
        self._receive, self._receive_intact = place(job.before(self._given, comm.rank))
        self._send, self._send_intact = place(self._given[comm.rank])

    @property
    def arguments(self) -> tuple[Any, ...]:
        """What the method is called with."""
        return self.job.arguments(self.comm.rank, self._send, self._receive)

    @property
    def received(self) -> Array:
        """The receive buffer, to be looked at while a request is under way."""
        return self._receive

    def call(self) -> None:
        """Make the blocking call."""
        getattr(self.comm, self.job.method)(*self.arguments)

    def start(self) -> Any:
        """Start the non-blocking call; returns the request."""
        return getattr(self.comm, "I" + self.job.method.lower())(*self.arguments)

    def prepare(self) -> Any:
        """Make the persistent call; returns the request to start."""
        return getattr(self.comm, self.job.method + "_init")(*self.arguments)

    def renew(self, salt: int) -> None:
        """Put other data into the same buffers."""
        self.job = replace(self.job, salt=salt)
        self._given = self.job.given(self.comm.size)
        for buffer, values in (
            (self._receive, self.job.before(self._given, self.comm.rank)),
            (self._send, self._given[self.comm.rank]),
        ):
            buffer[...] = values.reshape(buffer.shape)

    def check(self) -> None:
        """Compare with what must be."""
        job, rank = self.job, self.comm.rank
        where = f"rank {rank} of {self.comm.size}: {job}"
        found, wanted = self._receive, job.after(self._given, rank)
        found = found.reshape(-1) if found.flags.c_contiguous else found.flatten()
        bits = not job.reduces
        assert equal(found, wanted, bits=bits), f"{where}: {difference(found, wanted, bits)}"
        sent = self._send.reshape(-1)
        assert equal(sent, self._given[rank], bits=True), f"{where}: the send buffer was written to"
        assert self._receive_intact(), f"{where}: memory around the receive buffer was written to"
        assert self._send_intact(), f"{where}: memory around the send buffer was written to"


def perform(comm: Any, job: Job | Ragged, place: Place = in_line) -> None:
    """Make a call and compare."""
    attempt = Attempt(comm, job, place)
    attempt.call()
    attempt.check()


def perform_all(comm: Any, jobs: Sequence[Job] | Sequence[Ragged], place: Place = in_line) -> None:
    """`perform` every job with every plan that its collective has on this layout."""
    assert jobs
    for job in jobs:
        for name in comm.algorithms(job.plans):
            try:
                with comm.forced(name):
                    perform(comm, job, place)
            except AssertionError as error:
                raise AssertionError(f"{name} on {comm.machine.layout}: {error}") from None


def every_place(jobs: Sequence[AnyJob]) -> list[AnyJob]:
    """Each job out of place and, where the collective has that, in place."""
    return [
        replace(job, in_place=in_place)
        for job in jobs
        for in_place in ((False,) if job.collective == "broadcast" else (False, True))
    ]


def every_root(jobs: Sequence[AnyJob], size: int) -> list[AnyJob]:
    """Each job for every root, where the collective has one."""
    return [
        replace(job, root=root)
        for job in jobs
        for root in (range(size) if job.collective in ROOTED else (0,))
    ]
