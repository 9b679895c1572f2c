"""Calls on host arrays that were made before, made again by the C extension (_native/repeats.c).

What all calls of a kind have in common (fingerprint, plan, program, kernel) is noted after the first of
them, where it is plain: NumPy arrays in C order of NumPy's own dtypes, combined by a loop of C in the
caller's dtype.  From then on `again` makes such a call, or begins it, without Python.
"""

from __future__ import annotations

import os
import sys
import threading
import weakref
from array import array
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

import numpy as np
from mpi4py import MPI

from hpccoll.calls import Call
from hpccoll.observe.metrics import Metered
from hpccoll.observe.recorder import Silent
from hpccoll.ops.table import Arithmetic
from hpccoll.plans.flat import payload_elements
from hpccoll.plans.hazards import IN_PLACE
from hpccoll.plans.steps import Plan
from hpccoll.runtime import engine
from hpccoll.runtime.control import Control
from hpccoll.runtime.counts import Counts
from hpccoll.runtime.movement import CALLS_IN_FLIGHT, FIRST_CHANNEL, STEPS_PER_CALL, travelling
from hpccoll.runtime.one_shot import Part, mode_of, part_of
from hpccoll.runtime.planning import Planned
from hpccoll.topology.layout import Layout
from hpccoll.transports.base import Array

if TYPE_CHECKING:
    from hpccoll._native import _core

PATIENCE_S = 2e-3  # what takes longer is left to Python, which has deadlines and words for errors
STARTED_BYTES = 262144  # the number is that of _native/repeats.h
TRAVEL = ("", "reduce", "gather", "broadcast")  # the order is that of _native/repeats.h
Given = tuple[Any, Any, Any, int]  # buffers, operator and root, as the caller passed them

_open: weakref.WeakSet[Repeats] = weakref.WeakSet()


class Repeats:
    """The calls of one communicator that may be made again.

    `again(collective, given)` returns False where the call is not known, or cannot be made now: nothing is
    done.  True: it is complete.  Otherwise it is begun, and `lock` is held: None, where this rank has arrived
    and others have not, or with another call; a Spread, where its node has, and the leaders are telling one
    another; or the execution that moves its elements, as all have agreed.
    """

    def __init__(
        self,
        control: Control,
        layout: Layout,
        rank: int,
        counts: Counts,
        pending: array[int],
        lock: threading.Lock,
        network: _core.Network,
        channel: int,
        spin_s: float,
        checks: bool,
        recorder: Silent,
    ) -> None:
        self._native: _core.Repeats = engine.core().Repeats(
            **control.geometry(),
            numbers=counts.words,
            pending=pending,
            lock=lock,
            spin_s=spin_s,
            patience_s=PATIENCE_S,
            network=network,
            channel=FIRST_CHANNEL,
            channels=STEPS_PER_CALL,
            calls_in_flight=CALLS_IN_FLIGHT,
            in_place=MPI.IN_PLACE,
            sample=np.zeros((2, 3)),
            nodes=layout.nodes,
            node=layout.node(rank),
            agreement_channel=channel,
            ring=recorder.ring,
        )
        self._rank, self._size = rank, layout.size
        self._one_node = layout.node_count == 1
        self._checks = checks
        self._recorder = recorder
        self._keys = _Keys()
        self.again: Callable[[str, Given], Any] = self._native.again
        self.start: Callable[[str, Given, Callable[[], Call]], Any] = self._native.start
        self.move: Callable[[], float] = self._native.move
        self.await_started: Callable[[float], bool] = self._native.await_started
        self.take_over: Callable[[], list[_core.Started]] = self._native.take_over
        _open.add(self)

    def note(
        self,
        given: Given,
        call: Call,
        planned: Planned,
        fingerprint: bytes,
        group: _core.Group | None,
        metered: Metered | None,
    ) -> None:
        """Keep what is to be known of a call that has been made, if it is plain."""
        arithmetic, plan = call.arithmetic, planned.plan
        if call.ragged or not all(map(_is_plain, given[:2])):
            return
        kernel = None
        if arithmetic is not None:
            kernel = _kernel_of(arithmetic)
            if kernel is None:
                return
        give = travelling(call)
        taken = None if call.take is None else call.take.flat
        reads, writes = _argument(given, give), -1 if taken is None else _argument(given, taken)
        if reads is None or writes is None or (plan.collective.name != "barrier" and not call.count):
            return
        part, program = None, None
        if planned.schedule is None:
            part = part_of(plan, call.root, self._rank)
            if part.first == part.last:
                writes = -1
        elif not engine.usable(planned.schedule, self._one_node):
            return
        else:
            if reads >= 0 and reads == writes and not self._takes_in_place(call, plan):
                return
            program = engine.program_of(planned.schedule)
            program.steps = self._recorder.steps(planned)
            if group is not None:
                self._native.use_group(group)
            if writes < 0 and call.collective == "broadcast":
                writes = reads  # as in movement.py
        self._native.keep(
            collective=self._keys[call.collective, call.asked] if call.asked else call.collective,
            given=given,
            label=(call.collective, plan.name),
            fingerprint=fingerprint,
            agrees=part is not None or self._checks,
            reads=reads,
            writes=writes,
            itemsize=give.itemsize,
            kernel=kernel,
            finish=self._finish(call) if writes >= 0 else None,
            program=program,
            plan=self._recorder.text(plan.name),
            payload=give.nbytes if part is not None else 0,
            travel=TRAVEL.index(mode_of(plan)) if part is not None else 0,
            each=payload_elements(plan.collective) * give.itemsize if part is not None else 0,
            wire=plan.wire,
            **_in_bytes(part, give.itemsize),
            blocking=None if metered is None else _in_c(metered.blocking),
            started=None if metered is None else _in_c(metered.started),
            counted=(0, 0, 0) if metered is None else metered[2:],
        )

    def _takes_in_place(self, call: Call, plan: Plan) -> bool:
        """Whether a plan may read and write the same array: it is proved, or the node's group does it."""
        return call.collective in IN_PLACE or (self._one_node and plan.name == "flat")

    def again_by(self, forced: str) -> Callable[[str, Given], Any]:
        """`again` where a plan is asked for: those calls are known apart from all others."""
        again, keys = self._native.again, self._keys
        return lambda collective, given: again(keys[collective, forced], given)

    def _finish(self, call: Call) -> Callable[[Array], None] | None:
        """What is left to do on the array that has the combined elements."""
        arithmetic, ranks = call.arithmetic, call.operands(self._rank, self._size)
        if arithmetic is None or not arithmetic.operator.average:
            return None

        def finish(array: Array) -> None:
            flat = array.reshape(-1)
            arithmetic.finish(flat, ranks, flat)

        return finish

    @property
    def began(self) -> tuple[int, int]:
        """When the call that `again` made last began, and when all had agreed, 0 before that."""
        return self._native.entered_ns, self._native.agreed_ns

    def calls(self) -> list[tuple[tuple[str, str], int]]:
        """How many calls ended well here, by collective and plan; a pair may come several times."""
        return self._native.calls()

    def forget(self) -> None:
        """No call is known any more."""
        self._native.forget()


class _Keys(dict[tuple[str, str], str]):
    """By collective and plan: the one string by which the extension knows such calls."""

    def __missing__(self, pair: tuple[str, str]) -> str:
        self[pair] = key = " by ".join(pair)
        return key


def never(collective: str, given: Given, prepare: object = None) -> Any:
    """`Repeats.again` and `Repeats.start` where no call is known."""
    return False


def _is_plain(argument: Any) -> bool:
    if argument is None or argument is MPI.IN_PLACE:
        return True
    if type(argument) is not np.ndarray or argument.size == 0:
        return False
    return argument.dtype.isbuiltin == 1 and argument.dtype.isnative and not argument.dtype.hasobject


def _argument(given: Given, elements: Array) -> int | None:
    """Which argument these elements are, all of them; -1 for no elements, None where they are no argument."""
    if not elements.size:
        return -1
    for index, one in enumerate(given[:2]):
        if (
            isinstance(one, np.ndarray)
            and one.ctypes.data == elements.ctypes.data
            and one.nbytes == elements.nbytes
        ):
            return index
    return None


def _kernel_of(arithmetic: Arithmetic) -> _core.Kernel | None:
    """The loop of C that combines the caller's elements as they are, if one does."""
    operator = arithmetic.operator
    converts = arithmetic.working != arithmetic.dtype or operator.into is not None
    if converts or arithmetic.factor is not None or operator.function is not None:
        return None
    kernel = engine.kernel(arithmetic.combine, arithmetic.working, arithmetic.kernel)
    return kernel if kernel.native else None


def _in_bytes(part: Part | None, itemsize: int) -> dict[str, int]:
    if part is None:
        return {"piece": 0, "offset": 0, "first": 0, "last": 0}
    return {
        "piece": part.count * itemsize,
        "offset": part.offset * itemsize,
        "first": part.first,
        "last": part.last,
    }


def _in_c(meter: object) -> _core.Meter | None:
    """A meter of the extension."""
    return meter if isinstance(meter, engine.core().Meter) else None


def startable(call: Call) -> bool:
    """Whether C can begin such calls for a caller who does not wait."""
    taken = 0 if call.take is None else call.take.flat.nbytes
    return call.give.nbytes + taken <= STARTED_BYTES


def possible() -> bool:
    """Whether calls can be known: where this machine writes numbers as fingerprints have them."""
    return sys.byteorder == "little"


def _forget_all() -> None:
    for one in list(_open):
        one.forget()


os.register_at_fork(after_in_child=_forget_all)  # a forked child may make no call
