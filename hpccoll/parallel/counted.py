"""A communicator that counts the bytes its calls hand from rank to rank, by level of the machine."""

from __future__ import annotations

from collections import Counter
from typing import Any

import numpy as np
from mpi4py import MPI

from hpccoll.calls import Call, Where
from hpccoll.collectives.base import Prepare
from hpccoll.communicator import Communicator
from hpccoll.parallel.traffic import Bytes, level_between, plan_bytes
from hpccoll.plans.catalogue import make_plan
from hpccoll.plans.collective import LOCALLY_RAGGED, Collective
from hpccoll.runtime.repeats import Given
from hpccoll.runtime.request import PersistentRequest, Request

_Kind = tuple[object, ...]


class CountedCommunicator(Communicator):
    """A communicator of a mesh that counts what it carries.

    Counted are blocking and non-blocking collectives, with the plan that each call really takes, and
    messages by `Send`, `Isend`, `Ssend` and `Issend`.  Not counted, but noted in `uncounted`: persistent
    calls, and collectives of which no rank knows all lengths (`Gatherv`, `Scatterv`, `Alltoallv`,
    `Alltoallw`).  The plan of arrays on devices is NCCL's affair: their bytes are the fewest there can be.

    A call costs some microseconds more than on a communicator that does not count.
    """

    _calls: Counter[_Kind]
    _bytes_of: dict[_Kind, tuple[str, Bytes]]
    _sent: Bytes
    uncounted: int = 0

    def __init__(self, comm: MPI.Intracomm, **options: Any) -> None:
        super().__init__(comm, **options)
        self._calls, self._bytes_of, self._sent = Counter(), {}, Counter()

    @property
    def collected(self) -> Bytes:
        """Bytes of collectives by level, of all ranks of the group together.  Local."""
        total: Bytes = Counter()
        for kind, times in self._calls.items():
            for level, nbytes in self._bytes_of[kind][1].items():
                total[level] += times * nbytes
        return total

    @property
    def sent(self) -> Bytes:
        """Bytes of messages by level that this rank has sent.  Local."""
        return self._sent.copy()

    @property
    def plans(self) -> Counter[tuple[str, str]]:
        """How many calls were counted, by collective and plan, as in `tally`.  Local."""
        found: Counter[tuple[str, str]] = Counter()
        for kind, times in self._calls.items():
            found[str(kind[0]), self._bytes_of[kind][0]] += times
        return found

    def reset(self) -> None:
        """Count from zero.  Local."""
        self._calls.clear()
        self._sent.clear()
        self.uncounted = 0

    def _run(self, collective: str, prepare: Prepare, given: Given | None = None, stream: Any = None) -> None:
        super()._run(collective, prepare, given, stream)
        self._count(collective, prepare, given)

    def _start(self, collective: str, prepare: Prepare, given: Given | None = None) -> Request:
        request = super()._start(collective, prepare, given)
        self._count(collective, prepare, given)
        return request

    def _bind(
        self, collective: str, prepare: Prepare, given: Given | None = None, stream: Any = None
    ) -> PersistentRequest:
        self.uncounted += 1
        return super()._bind(collective, prepare, given, stream)

    def _count(self, collective: str, prepare: Prepare, given: Given | None) -> None:
        planner = self._used().planner
        plain = given is not None and _is_plain(given[0]) and _is_plain(given[1])
        kind: _Kind = (collective, planner.forced_name)
        if plain and given is not None:
            kind = (*kind, *map(_look, given))
        if not plain or kind not in self._bytes_of:
            call = prepare(Where(self.rank, self.size))
            unknown = collective in LOCALLY_RAGGED or (call.gives is None and call.takes is None)
            if call.ragged and unknown:
                self.uncounted += 1
                return
            if not plain:
                how = call.arithmetic
                combined = (
                    None if how is None else (how.operator.name, how.operator.commutes, how.mpi is None)
                )
                counts = call.count, call.gives, call.takes
                kind = (*kind, counts, call.dtype, call.working, call.root, call.on_device, combined)
            if kind not in self._bytes_of:
                call.asked = planner.forced_name
                self._bytes_of[kind] = self._look_up(call)
        self._calls[kind] += 1

    def _look_up(self, call: Call) -> tuple[str, Bytes]:
        """The name of the plan that a call has taken, and its bytes."""
        if call.on_device:
            made = Collective(call.collective, self.size, call.count, call.root)
            plan = make_plan("flat", made, self.machine.layout, segment=call.count or 1)
            return "device", plan_bytes(plan, call.working.itemsize)
        plan = self._used().planner.plan(call).plan
        return plan.name, plan_bytes(plan, 1 if call.arithmetic is None else call.working.itemsize)

    # --- messages -------------------------------------------------------------------------------

    def Send(self, buf: Any, dest: int, tag: int = 0) -> None:
        super().Send(buf, dest, tag)
        self._sends(buf, dest)

    def Ssend(self, buf: Any, dest: int, tag: int = 0) -> None:
        super().Ssend(buf, dest, tag)
        self._sends(buf, dest)

    def Isend(self, buf: Any, dest: int, tag: int = 0) -> Any:
        request = super().Isend(buf, dest, tag)
        self._sends(buf, dest)
        return request

    def Issend(self, buf: Any, dest: int, tag: int = 0) -> Any:
        request = super().Issend(buf, dest, tag)
        self._sends(buf, dest)
        return request

    def _sends(self, buf: Any, dest: int) -> None:
        nbytes = getattr(buf, "nbytes", None)
        if dest == MPI.PROC_NULL:
            return
        if nbytes is None:  # a list of mpi4py's, or a buffer that does not say how long it is
            self.uncounted += 1
        else:
            self._sent[level_between(self.machine.layout, self.rank, dest)] += nbytes


def _is_plain(buffer: Any) -> bool:
    return buffer is None or buffer is MPI.IN_PLACE or type(buffer) is np.ndarray


def _look(argument: Any) -> object:
    """What calls of one kind have in common."""
    if type(argument) is np.ndarray:
        return argument.dtype, argument.size
    if isinstance(argument, MPI.Op):
        return MPI.Op.py2f(argument)
    return "in place" if argument is MPI.IN_PLACE else argument
