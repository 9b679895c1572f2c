"""Counting the calls of one communicator while the program runs: how many, how large, how long they took.

Calls are told apart by collective, plan, size class, by how they are made and where their arrays are; each
such kind has a meter (meter.py).  A known call is counted by the C code that makes it; what it moves on each
level is read from its plan once, when it becomes known.
"""

from __future__ import annotations

import atexit
import os
import sys
import time
import weakref
from collections.abc import Callable, Sequence
from functools import partial
from typing import TYPE_CHECKING, NamedTuple

from hpccoll.calls import Call
from hpccoll.observe.meter import PythonMeter, Sums, new_meter
from hpccoll.observe.output import Output
from hpccoll.observe.overlapped import Times
from hpccoll.observe.rates import Rate, Rates, nominal_rates, parse_rates
from hpccoll.observe.snapshot import BLOCKING, HOST, NCCL, STAGED, STARTED, Kind, Snapshot, row_of
from hpccoll.observe.summary import Summary, Told, together
from hpccoll.plans.collective import BLOCKED
from hpccoll.plans.select import describe
from hpccoll.runtime.ragged import partly_known, shared_counts
from hpccoll.topology.machine import Machine

if TYPE_CHECKING:
    from hpccoll._native import _core
    from hpccoll.config import Config
    from hpccoll.runtime.planning import Planned

    Meter = PythonMeter | _core.Meter


MOST_FOUND = 512  # calls that are known by their plan


class Metered(NamedTuple):
    """Where calls that are alike are counted, and what each of them adds."""

    blocking: Meter
    started: Meter
    nbytes: int
    inside: int
    between: int


class Metrics:
    """The meters of one communicator.  `rates`: what its links could carry, for whoever measures them."""

    def __init__(self, machine: Machine, config: Config, name: str = "") -> None:
        self._machine = machine
        self._name = name
        self._native = config.native
        self._output = Output(config.metrics, machine.rank)
        self._over = False
        self._process = os.getpid()
        self._meters: dict[Kind, Meter] = {}
        # With the plan, whose id is not given to another as long as it is here.
        self._found: dict[tuple[int, object, bool], tuple[Planned, Metered]] = {}
        self._began_ns = time.monotonic_ns()
        self._steps = Times()
        given = parse_rates(config.metrics_rates)
        self.rates = Rates(measured={level: Rate(gbs, "metrics_rates") for level, gbs in given.items()})

    # --- counting -------------------------------------------------------------------------------

    def begin(self, form: str, began_ns: int = 0, agreed_ns: int = 0) -> Timing:
        """A call begins, or has begun then; `agreed_ns`: when its ranks had agreed, if they have."""
        return Timing(self, form, began_ns or time.monotonic_ns(), agreed_ns)

    def metered(self, call: Call, planned: Planned) -> Metered:
        """The meters of a call on host memory, blocking and started."""
        if call.ragged:  # the lengths may be others in every call
            return self._new_metered(call, planned)
        key = (id(planned), call.dtype, call.staged)
        found = self._found.get(key)
        if found is None:
            if len(self._found) >= MOST_FOUND:
                self._found.clear()
            found = self._found[key] = (planned, self._new_metered(call, planned))
        return found[1]

    def _new_metered(self, call: Call, planned: Planned) -> Metered:
        levels = not partly_known(call)  # else this rank knows what its own node sends, or not even that
        memory = STAGED if call.staged else HOST
        cost = planned.cost if levels else None
        nbytes = size_of(call, self._machine.layout.size)
        kind = Kind(named(call), describe(planned.plan), BLOCKING, memory, class_of(nbytes), levels)
        inside, between = (0, 0) if cost is None else (cost.bytes_inside_node, cost.bytes_between_nodes)
        return Metered(self._meter(kind), self._meter(kind._replace(form=STARTED)), nbytes, inside, between)

    def on_device(self, call: Call, plan: str, form: str) -> Callable[[], None]:
        """What counts a call that NCCL does each time that it is enqueued; its time nobody here knows."""
        nbytes = size_of(call, self._machine.layout.size)
        kind = Kind(named(call), plan, form, NCCL, class_of(nbytes), False)
        return partial(self._meter(kind).count, nbytes, 0, 0, -1, 0)

    def step(self, times: Times) -> None:
        """A step of buckets is over."""
        self._steps += times

    def _know_rates(self) -> None:
        if not self.rates.nominal:
            virtual = self._machine.hosts_layout != self._machine.layout.by_node
            self.rates.nominal = nominal_rates(virtual, self._machine.node_count > 1)

    def _meter(self, kind: Kind) -> Meter:
        meter = self._meters.get(kind)
        if meter is None:
            meter = self._meters.setdefault(kind, new_meter(self._native))
        return meter

    # --- reading --------------------------------------------------------------------------------

    def snapshot(self, reset: bool = False) -> Snapshot:
        """What has been counted since the beginning, or the last reset.  Local."""
        machine = self._machine
        self._know_rates()
        told = self._told(reset)
        size = machine.layout.size
        return Snapshot(
            self._name, machine.rank, size, str(machine.layout), told.seconds,
            dict(self.rates.nominal), dict(self.rates.measured),
            tuple(row_of(kind, sums, bins, size, self.rates) for kind, sums, bins in told.counted),
            told.steps,
        )  # fmt: skip

    def _told(self, reset: bool = False) -> Told:
        now = time.monotonic_ns()
        read = [(kind, *meter.read(reset)) for kind, meter in list(self._meters.items())]
        counted = tuple((kind, Sums(*sums), bins) for kind, sums, bins in read if sums[0])
        seconds = (now - self._began_ns) / 1e9
        steps = self._steps
        if reset:
            self._began_ns, self._steps = now, Times()
        return Told(self._machine.rank, seconds, counted, steps)

    # --- the summary at the end -----------------------------------------------------------------

    @property
    def shows(self) -> bool:
        """A summary is to be made when the communicator is closed."""
        return self._output.shows

    def told(self) -> bytes:
        """What this rank has to tell rank 0, which makes the summary."""
        return self._told().to_bytes()

    def show(self, told: Sequence[bytes]) -> None:
        """Print or write the summary of what these ranks have told."""
        self._output.write(self._summary([Told.from_bytes(one) for one in told]))

    def end(self) -> None:
        """The communicator is closed, or given up: nothing is shown any more."""
        self._over = True

    def leave(self) -> None:
        """The program is at its end, and the communicator was not closed: what this rank saw alone."""
        own = self._told()
        mine = self._process == os.getpid() and not self._over
        writes = self.shows and (self._machine.rank == 0 or self._output.path)
        if mine and writes and own.counted:
            self._output.write(self._summary([own]))

    def _summary(self, told: list[Told]) -> Summary:
        self._know_rates()
        layout = self._machine.layout
        return together(self._name, layout.size, str(layout), self.rates, told)


open_metrics: weakref.WeakSet[Metrics] = weakref.WeakSet()


def measure(machine: Machine, config: Config, name: str) -> Metrics | None:
    """What measures the calls of a communicator; None where they are not to be measured."""
    if not config.metrics:
        return None
    metrics = Metrics(machine, config, name)
    open_metrics.add(metrics)
    return metrics


def _leave() -> None:
    """The program has come to its end; after an uncaught error nothing is said."""
    if not hasattr(sys, "last_value"):
        for metrics in list(open_metrics):
            metrics.leave()


atexit.register(_leave)


class Timing:
    """One call that is under way."""

    __slots__ = ("_agreed_ns", "_began_ns", "_form", "_meter", "_metrics")

    def __init__(self, metrics: Metrics, form: str, began_ns: int, agreed_ns: int) -> None:
        self._metrics = metrics
        self._form = form
        self._began_ns = began_ns
        self._agreed_ns = agreed_ns
        self._meter: Meter | None = None

    def agreed(self) -> None:
        """All ranks have come; from now on elements move."""
        self._agreed_ns = time.monotonic_ns()

    def ended(self, call: Call, planned: Planned) -> None:
        """The call has ended well."""
        took = time.monotonic_ns() - self._began_ns
        found = self._metrics.metered(call, planned)
        meter = found.started if self._form == STARTED else found.blocking
        moved = planned.schedule is not None and self._agreed_ns
        agreeing = self._agreed_ns - self._began_ns if moved else 0
        meter.count(found.nbytes, found.inside, found.between, took, agreeing)
        self._meter = meter

    def waited(self, nanoseconds: int) -> None:
        """A caller has waited so long for it, and it is over."""
        if self._meter is not None:
            self._meter.waited(nanoseconds)


def named(call: Call) -> str:
    """The collective, with a `v` where blocks have lengths of their own."""
    return call.collective + ("v" if call.ragged else "")


def size_of(call: Call, size: int) -> int:
    """The bytes of a call as nccl-tests counts them; the same on all ranks.

    Of a ragged all-to-all they are those of the mean buffer, of which alone all ranks know the length.
    """
    itemsize = call.dtype.itemsize
    if not call.ragged:
        return call.count * itemsize * (size if call.collective in BLOCKED else 1)
    if call.total is not None:
        return call.total * itemsize // (size if call.collective == "alltoall" else 1)
    counts = shared_counts(call)
    if counts is not None:
        return sum(counts) * itemsize
    return max(array.nbytes for array in call.arrays)  # with checks off, on devices


def class_of(nbytes: int) -> int:
    """The next power of two: calls above half of it, up to it, are counted together."""
    return 1 << (nbytes - 1).bit_length() if nbytes > 1 else nbytes
