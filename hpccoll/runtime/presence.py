"""Whether the others are there: who died or left, and why a communicator was given up, on all its nodes."""

from __future__ import annotations

import atexit
import os
import time
import weakref
from collections.abc import Callable, Sequence

from mpi4py import MPI

from hpccoll.config import Config
from hpccoll.runtime import ending
from hpccoll.runtime.connecting import open_lifelines
from hpccoll.runtime.control import Control, Farewell
from hpccoll.runtime.counts import Counts
from hpccoll.runtime.device_checks import DeviceChecks
from hpccoll.runtime.lifelines import Lifelines
from hpccoll.runtime.peers import Farewells, Peers, absent, absent_on_devices
from hpccoll.runtime.reason import LOST, Reason
from hpccoll.topology.hosts import HostFacts
from hpccoll.topology.layout import Layout

LOOK_S = 0.25  # between two looks at the processes of the node

_PROCESS_FAILED = (MPI.ERR_PROC_FAILED, MPI.ERR_PROC_FAILED_PENDING, MPI.ERR_REVOKED)

_open: weakref.WeakSet[Presence] = weakref.WeakSet()


class Presence:
    """That of a rank, among those of one communicator.  Made collectively.

    `counts`, `on_devices`: of the calls that this rank makes.  `peers`: the other ranks of its node.
    Raises: CollectiveTimeoutError when the others do not come before `deadline`.
    """

    def __init__(
        self,
        comm: MPI.Intracomm,
        layout: Layout,
        hosts: Sequence[HostFacts],
        config: Config,
        control: Control,
        counts: Counts,
        on_devices: DeviceChecks,
        deadline: float,
    ) -> None:
        self._rank = comm.rank
        self._control = control
        self.peers = Peers(control, comm.rank)
        self._looked = time.monotonic()
        self._lifelines: Lifelines | None = None
        if config.lifelines == "on":
            self._lifelines = open_lifelines(comm, layout, hosts, control, self.peers, deadline)
        self._first_unfinished: Callable[[], Callable[[], int | None] | None] = lambda: None
        _open.add(self)
        ending.watch()
        self._parts = (control, counts, on_devices, self._lifelines, os.getpid())
        # Where the communicator's object goes without a word; at exit `_leave_all` knows more.
        self._gone = weakref.finalize(self, _leave, *self._parts, "its communicator object is gone")
        self._gone.atexit = False

    def reason(self, sequence: int) -> Reason | None:
        """Why a call that waits cannot be completed, if that is known."""
        found = self._control.aborted()
        if found is None and time.monotonic() - self._looked > LOOK_S:
            self._looked = time.monotonic()
            found = absent(self._farewells(), sequence, self._rank) or self.peers.dead()
            if found is not None:
                self.give_up(found)
        return found

    def reason_on_devices(self, enqueued: int) -> Reason | None:
        """Why what devices wait for cannot be completed; `enqueued`: how many calls there are, from here."""
        found = self._control.aborted()
        if found is None:
            found = absent_on_devices(self._farewells(), enqueued, self._rank) or self.peers.dead()
            if found is not None:
                self.give_up(found)
        return found

    def _farewells(self) -> Farewells:
        found = self.peers.farewells()
        return found if self._lifelines is None else found | self._lifelines.farewells

    def why_mpi_failed(self, error: MPI.Exception, sequence: int) -> Reason | None:
        """The loss of a rank that made MPI fail, if it was that; MPI may notice it before we do."""
        deadline = time.monotonic() + 3 * LOOK_S
        while time.monotonic() < deadline:
            if (reason := self.reason(sequence)) is not None:
                return reason
            time.sleep(LOOK_S / 10)
        if error.Get_error_class() in _PROCESS_FAILED:
            return Reason(self._rank, LOST, f"MPI says that a process failed: {error}")
        return None

    def to_blame(self, awaited: int) -> int:
        """Which leader holds up the one that this leader waits for, as far as they have said; asks them."""
        if self._lifelines is not None:
            self._lifelines.say_who_waits()
            seen = {self._rank}
            while awaited not in seen and (further := self._lifelines.waits_for(awaited)) is not None:
                seen.add(awaited)
                awaited = further
        return awaited

    def asks(self, awaited: Callable[[], int | None]) -> None:
        """By what to learn which rank this leader waits for."""
        if self._lifelines is not None:
            self._lifelines.asks(awaited)

    def give_up(self, reason: Reason) -> None:
        """Tell all ranks why; the first reason stays."""
        self._control.abort(reason)
        if self._lifelines is not None:
            self._lifelines.tell(self._control.aborted() or reason)

    def leaves_behind(self, first_unfinished: Callable[[], Callable[[], int | None] | None]) -> None:
        """By what to learn which started call is the first that is not complete; a weak reference."""
        self._first_unfinished = first_unfinished

    def leave(self, why: str) -> None:
        """Tell all ranks that this one makes no more calls.  A second time does nothing.

        What it has started and not ended it does not make either.
        """
        if self._gone.detach() is None or os.getpid() != self._parts[-1]:
            return
        find = self._first_unfinished()
        first = None if find is None else find()
        if first is not None:
            why = f"{why}; call #{first} was started and not waited for"
        _leave(*self._parts, why, first)


def _leave(
    control: Control,
    counts: Counts,
    on_devices: DeviceChecks,
    lifelines: Lifelines | None,
    process: int,
    why: str,
    first_unfinished: int | None = None,
) -> None:
    if os.getpid() != process:
        return
    calls = counts.last + 1 if first_unfinished is None else first_unfinished
    farewell = Farewell(calls, on_devices.made, why)
    control.leave(farewell)
    if lifelines is not None:
        lifelines.leave(farewell)


def _leave_all() -> None:
    why = ending.why()
    for one in list(_open):
        one.leave(why)
    ending.end_the_job()


atexit.register(_leave_all)
