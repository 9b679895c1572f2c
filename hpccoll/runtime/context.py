"""What a communicator has of its own once it is used: private duplicate, machine, memory, plans.

Made collectively at the first collective call, on the calling thread, so that unused communicators cost
nothing.  `close()` frees it, collectively; nothing collective happens in a destructor or at exit.
"""

from __future__ import annotations

import os
import time
from collections import OrderedDict

import numpy as np
from mpi4py import MPI

from hpccoll.bootstrap import check_same_settings, duplicate, ranks_on_host
from hpccoll.calls import Call
from hpccoll.config import Config
from hpccoll.dtypes import tag
from hpccoll.errors import (
    AbortedError,
    CollectiveTimeoutError,
    HpccollError,
    MismatchError,
    ResourceError,
    TopologyError,
    UsageError,
    UsageTypeError,
)
from hpccoll.memory.flags import Flags, open_flags, spin_time_us
from hpccoll.memory.segments import Segment
from hpccoll.memory.shared import open_shared
from hpccoll.plans.flat import ONE_SHOT
from hpccoll.plans.program import GroupCall
from hpccoll.plans.select import ONE_SHOT_TOTAL
from hpccoll.runtime.agreement import Agreement
from hpccoll.runtime.control import Control, SegmentLayout
from hpccoll.runtime.executor import Execution, Schedule
from hpccoll.runtime.fingerprint import REFUSED_TYPE, REFUSED_VALUE, Fingerprint
from hpccoll.runtime.one_shot import finish_payload, payload_of
from hpccoll.runtime.planning import Planner
from hpccoll.runtime.wait import MOVED, Waits, drive
from hpccoll.topology.machine import Machine, discover
from hpccoll.topology.notation import format_ranks
from hpccoll.transports.base import Array, GroupTransport
from hpccoll.transports.mpi import MpiGroup, MpiNetwork
from hpccoll.transports.shm import ShmGroup, slot_bytes, staging_layout

# Channels (MPI tags, of which 32767 are sure): the agreement has the first, each call in flight a range.
AGREEMENT_CHANNEL = 1
PROGRESS_CHANNEL = 2  # no message has it: asking for one lets MPI move on
FIRST_CHANNEL = 64
STEPS_PER_CALL = 64
CALLS_IN_FLIGHT = 64
SCRATCH_KEPT = 4


# Calls given up in the middle, with their contexts: MPI may still read and write their memory, until the
# process ends.
_given_up: list[object] = []


class Context:
    """The working state of one communicator."""

    def __init__(self, comm: MPI.Intracomm, config: Config) -> None:
        deadline = time.monotonic() + config.init_timeout_s
        self.config = config
        self.private = duplicate(comm, deadline)
        try:
            self.machine: Machine = discover(
                self.private, layout=config.layout or None, shm_directory=config.shm_dir, deadline=deadline
            )
            check_same_settings(self.private, config, deadline)
            self.rank, self.size = self.private.rank, self.private.size
            self.layout = self.machine.layout
            self._spin_us = spin_time_us(max(self.machine.host_size, ranks_on_host(os.environ)))
            self.planner = Planner(self.layout, self.rank, config)
            self._network = MpiNetwork(self.private)
            self._mpi_group = MpiGroup(self.private)
            self._staging_segment: Segment | None = None
            self._shm_group: ShmGroup | None = None
            self._scratch: OrderedDict[int, Array] = OrderedDict()
            self._running: list[Execution] = []
            self._broken: HpccollError | None = None
            self._sequence = 0
            self._open_control(deadline)
        except (UsageError, MismatchError, TopologyError, ResourceError):
            self.private.Free()  # these errors come to every rank alike
            raise

    # --- calls ----------------------------------------------------------------------------------

    def run(self, call: Call, timeout_s: float | None = None) -> None:
        """Carry out a call and wait for its end.  Raises what `steps` raises, and CollectiveTimeoutError."""
        sequence = self._next()
        self._wait(self.steps(call, sequence), call.collective, sequence, timeout_s)

    def refuse(self, collective: str, error: UsageError, timeout_s: float | None = None) -> None:
        """Tell all ranks that this rank's arguments are wrong.  Always raises: the error of all ranks."""
        sequence = self._next()
        kind = REFUSED_TYPE if isinstance(error, UsageTypeError) else REFUSED_VALUE
        call = Fingerprint(sequence, b"", 0, 0, collective, 0, refused=kind)
        stages = self._agreement.check(sequence, call.pack(), str(error), None)
        self._wait(stages, collective, sequence, timeout_s)
        raise error

    def steps(self, call: Call, sequence: int) -> Waits:
        """All of a call, as a generator that yields where it would wait.

        Raises: UsageError, MismatchError before anything has moved.
        """
        planned = self.planner.plan(call)
        payload = payload_of(call, self.rank, self.size) if planned.plan.name == ONE_SHOT else None
        if payload is not None or self.config.checks == "on" or call.collective == "barrier":
            yield from self._agreement.check(
                sequence, _fingerprint(call, sequence, planned.code), "", payload
            )
        if payload is not None:
            finish_payload(call, payload, self.rank, self.size)
        elif planned.schedule is not None:
            yield from self._execute(call, planned.schedule, planned.needs_staging, sequence)
        if call.take is not None:
            call.take.unpack()

    def _execute(self, call: Call, schedule: Schedule, needs_staging: bool, sequence: int) -> Waits:
        if needs_staging and self._shm_group is None:
            yield from self._open_staging()
        working = call.working
        give = call.give if call.give.dtype == working else call.give.astype(working)
        take = _output(call, give)
        scratch_bytes = schedule.program.scratch * working.itemsize
        scratch = self._borrow(scratch_bytes)
        if call.arithmetic is not None and call.arithmetic.mpi is not None:
            self._mpi_group.operator = call.arithmetic.mpi
        base = FIRST_CHANNEL + sequence % CALLS_IN_FLIGHT * STEPS_PER_CALL
        execution = Execution(
            schedule,
            (give, take, scratch[:scratch_bytes].view(working)),
            self._network,
            self._group,
            call.arithmetic.combine if call.arithmetic is not None else _no_combination,
            lambda step: base + step % STEPS_PER_CALL,
        )
        self._running.append(execution)
        left = execution.left
        while not execution.advance():
            self._control.note_step(execution.step)
            yield None if execution.left == left else MOVED
            left = execution.left
        self._running.remove(execution)
        self._give_back(scratch)
        if call.take is None or call.take.count == 0:
            return
        if call.arithmetic is not None:
            call.arithmetic.finish(take, self.size, call.take.flat)
        elif take is not call.take.flat:
            call.take.flat[...] = take

    def _group(self, call: GroupCall) -> GroupTransport:
        if call.family == "NODE" or self.layout.node_count == 1:
            if self._shm_group is None:
                raise RuntimeError("the staging segment is not open")
            return self._shm_group
        return self._mpi_group

    def _next(self) -> int:
        if self._broken is not None:
            raise AbortedError(
                f"the communicator is broken since an earlier call: {self._broken}", rank=self.rank
            ) from self._broken
        self._sequence += 1
        return self._sequence - 1

    # --- waiting --------------------------------------------------------------------------------

    def _wait(self, stages: Waits, collective: str, sequence: int, timeout_s: float | None) -> None:
        timeout_s = self.config.timeout_s if timeout_s is None else timeout_s
        try:
            drive(
                stages,
                time.monotonic() + timeout_s,
                lambda: self._look_for_abort(collective, sequence),
                lambda: self.private.Iprobe(MPI.ANY_SOURCE, PROGRESS_CHANNEL),
                lambda: self._late(collective, sequence, timeout_s),
                spin_s=self._spin_us * 1e-6,
            )
        except (UsageError, MismatchError):
            raise
        except BaseException as error:
            self._break(error, collective, sequence)
            _given_up.append((self, stages))
            raise

    def _break(self, error: BaseException, collective: str, sequence: int) -> None:
        """After a failure in the middle of a call no later call can be right."""
        if not isinstance(error, HpccollError):
            error = AbortedError(
                f"{type(error).__name__} in {collective} #{sequence} on rank {self.rank}: {error}",
                collective=collective,
                sequence=sequence,
                rank=self.rank,
            )
        self._broken = error
        self._control.abort(str(error))

    def _look_for_abort(self, collective: str, sequence: int) -> None:
        found = self._control.aborted()
        if found is not None and found[0] != self.rank:
            raise AbortedError(
                f"{collective} #{sequence}: rank {found[0]} of this node gave up: {found[1]}",
                collective=collective,
                sequence=sequence,
                rank=self.rank,
                suspects=found[:1],
            )

    def _late(self, collective: str, sequence: int, timeout_s: float) -> CollectiveTimeoutError:
        missing = self._control.missing(sequence)
        awaited = self._agreement.awaited
        if missing:
            what = f"{format_ranks(missing)} of this node did not call it"
        elif awaited is not None:
            missing = (awaited,)
            what = f"node {self.layout.node(awaited)} did not answer ({format_ranks(missing)} speaks for it)"
        else:
            under_way = [one for run in self._running for one in run.waiting_for()]
            what = "waiting for " + (
                "; ".join(str(one) for one in under_way[:3]) or "the leader of this node"
            )
            what += self._control.where_others_are()
        return CollectiveTimeoutError(
            f"{collective} #{sequence} is not complete after {timeout_s:g} s: {what}",
            collective=collective,
            sequence=sequence,
            rank=self.rank,
            suspects=missing,
        )

    # --- memory ---------------------------------------------------------------------------------

    def _open_control(self, deadline: float) -> None:
        several = self.layout.node_count > 1
        shape = SegmentLayout(
            self.layout.local_size(self.rank),
            self.config.small_bytes,
            max(ONE_SHOT_TOTAL * self.config.small_bytes, 8192) if several else 0,
        )
        segment = drive(
            open_shared(self.private, self.layout, shape.total, self.config.shm_dir, "control"),
            deadline,
            lambda: None,
            lambda: None,
            lambda: CollectiveTimeoutError("a rank stopped while segments were opened", rank=self.rank),
        )
        self._control_segment = segment
        self._control = Control(self.layout, self.rank, segment, shape, self._open_flags)
        self._agreement = Agreement(self.layout, self.rank, self._network, self._control, AGREEMENT_CHANNEL)

    def _open_flags(self, words: memoryview) -> Flags:
        return open_flags(words, native=None if self.config.native else False, spin_us=self._spin_us)

    def _open_staging(self) -> Waits:
        members = self.layout.local_size(self.rank)
        slot = slot_bytes(self.config.staging_bytes, members)
        head, total = staging_layout(members, slot)
        segment = yield from open_shared(self.private, self.layout, total, self.config.shm_dir, "staging")
        if segment is None:
            memory: Array = np.zeros(total, np.uint8)
            buffer = memory.data
        else:
            memory, buffer = segment.array(np.uint8, 0, total), segment.buffer
        flags = self._open_flags(buffer[:head])
        slots = memory[head:].reshape(2, members, slot)
        self._staging_segment = segment
        self._shm_group = ShmGroup(self.layout.local_rank(self.rank), members, flags, slots)

    def _borrow(self, nbytes: int) -> Array:
        """Scratch memory of at least so many bytes (a multiple of 64), reused between calls."""
        room = max(64, 1 << (nbytes - 1).bit_length()) if nbytes else 64
        kept = self._scratch.pop(room, None)
        return kept if kept is not None else np.empty(room, np.uint8)

    def _give_back(self, scratch: Array) -> None:
        self._scratch[scratch.size] = scratch
        while len(self._scratch) > SCRATCH_KEPT:
            self._scratch.popitem(last=False)

    def close(self) -> None:
        """Free what is private.  Collective; the last use of the context.

        On a broken communicator the duplicate is left to MPI: freeing it could wait for a lost rank.
        """
        if self._broken is None:
            self.private.Free()
        self.release()

    def release(self) -> None:
        """Let go of this rank's memory; local."""
        self._scratch.clear()
        for segment in (self._control_segment, self._staging_segment):
            if segment is not None:
                segment.close()


def _fingerprint(call: Call, sequence: int, plan: int) -> bytes:
    operator = call.arithmetic.operator.code if call.arithmetic is not None else 0
    return Fingerprint(
        sequence, tag(call.dtype), call.count, call.root, call.collective, operator, plan=plan
    ).pack()


def _output(call: Call, give: Array) -> Array:
    """Memory of the working dtype for this rank's results."""
    if call.take is None:
        # The broadcast's root keeps its elements where they are; others without results have none.
        return give if call.collective == "broadcast" else give[:0]
    if call.working == call.dtype and not np.may_share_memory(call.give, call.take.flat):
        return call.take.flat
    in_place = call.collective in ("allreduce", "reduce", "allgather", "broadcast")
    if call.working == call.dtype and in_place:
        return call.take.flat
    return np.empty(call.take.count, call.working)


def _no_combination(left: Array, right: Array, target: Array) -> None:
    raise RuntimeError("a collective without an operator has nothing to combine")
