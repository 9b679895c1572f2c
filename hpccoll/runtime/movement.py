"""Moves the elements of a call: memory, transports and executions of one communicator."""

from __future__ import annotations

import math
from collections import OrderedDict
from collections.abc import Callable, Generator
from typing import Any

import numpy as np
from mpi4py import MPI

from hpccoll.calls import Call
from hpccoll.config import Config
from hpccoll.memory.areas import MOST_TOLD, Areas, total_bytes
from hpccoll.memory.flags import Flags
from hpccoll.memory.segments import Segment
from hpccoll.memory.shared import open_shared
from hpccoll.plans.hazards import IN_PLACE
from hpccoll.plans.program import GroupCall, Memory, Operation, Place, Program
from hpccoll.plans.steps import Kind
from hpccoll.runtime.executor import Execution, Schedule
from hpccoll.runtime.wait import MOVED, Hint, Waits
from hpccoll.topology.layout import Layout
from hpccoll.transports.base import Array, GroupTransport
from hpccoll.transports.mpi import MpiGroup, MpiNetwork
from hpccoll.transports.shm import ShmGroup
from hpccoll.transports.slots import Slots, slot_bytes, staging_layout

BYTE = np.dtype(np.uint8)
SCRATCH_KEPT = 4
# Channels (MPI tags, of which 32767 are sure): each call in flight has a range of them.
FIRST_CHANNEL = 64
STEPS_PER_CALL = 64
CALLS_IN_FLIGHT = 64


class Movement:
    """The moving parts of a communicator; made with it, its staging memory when first needed."""

    def __init__(
        self,
        private: MPI.Intracomm,
        layout: Layout,
        config: Config,
        network: MpiNetwork,
        open_flags: Callable[[memoryview], Flags],
    ) -> None:
        self._private = private
        self._layout = layout
        self._rank = private.rank
        self._config = config
        self._network = network
        self._open_flags = open_flags
        self._staging_segment: Segment | None = None
        self._shm_group: ShmGroup | None = None
        self.areas = Areas(layout.local_rank(self._rank))
        self._scratch: OrderedDict[int, Array] = OrderedDict()
        self._running: list[Execution] = []

    # --- a call ---------------------------------------------------------------------------------

    def open(self) -> Waits:
        """Open the staging segment, if it is not open.  Collective, in the order of calls."""
        if self._shm_group is None:
            yield from self._open_staging()

    def node_rows(self, own: Array) -> Generator[Hint | None, None, dict[int, Array]]:
        """What every rank of this node says, by rank: as many integers from each.  Collective in the node."""
        members = self._layout.nodes[self._layout.node(self._rank)]
        if len(members) == 1:
            return {self._rank: own}
        out = np.empty((len(members), own.size), own.dtype)
        call = GroupCall(
            step=0, after=(), kind=Kind.ALLGATHER, family="NODE", members=members,
            index=members.index(self._rank), root=0, source=(Place(Memory.INPUT, 0, own.size),),
            target=(Place(Memory.OUTPUT, 0, out.size),), counts=(own.size,) * len(members), previous=-1,
        )  # fmt: skip
        execution = Execution(
            Schedule(Program(self._rank, (call,), 0)),
            (own, out.reshape(-1), out.reshape(-1)[:0]),
            self._network,
            self._group_for(MPI.SUM),
            _no_combination,
            lambda step: FIRST_CHANNEL,
        )
        yield from self._walk(execution, _ignored)
        return dict(zip(members, out, strict=True))

    def move(
        self, call: Call, schedule: Schedule, give: Array, sequence: int, note_step: Callable[[int], None]
    ) -> Waits:
        """Carry a program out.  What starts on the node's group takes its turn at the first `next`.

        `give`: the elements of the call in the dtype in which they travel.
        """
        take = _output(call, give)
        scratch_bytes = schedule.program.scratch * give.dtype.itemsize
        scratch = self._borrow(scratch_bytes)
        base = FIRST_CHANNEL + sequence % CALLS_IN_FLIGHT * STEPS_PER_CALL
        arithmetic = call.arithmetic
        operator = arithmetic.mpi if arithmetic is not None and arithmetic.mpi is not None else MPI.SUM
        execution = Execution(
            schedule,
            (give, take, scratch[:scratch_bytes].view(give.dtype)),
            self._network,
            self._group_for(operator),
            arithmetic.combine if arithmetic is not None else _no_combination,
            lambda step: base + step % STEPS_PER_CALL,
        )
        yield from self._walk(execution, note_step)
        self._give_back(scratch)
        if call.take is None or take.size == 0:
            return
        if arithmetic is not None:
            arithmetic.finish(take, self._layout.size, call.take.flat)
        elif not np.may_share_memory(take, call.take.flat):
            call.take.flat.view(BYTE)[...] = take

    def waiting_for(self) -> list[Operation]:
        """The operations under way, for reports."""
        return [one for run in self._running for one in run.waiting_for()]

    def _walk(self, execution: Execution, note_step: Callable[[int], None]) -> Waits:
        self._running.append(execution)
        left = execution.left
        while not execution.advance():
            note_step(execution.step)
            yield None if execution.left == left else MOVED
            left = execution.left
        self._running.remove(execution)

    def _group_for(self, operator: MPI.Op) -> Callable[[GroupCall], GroupTransport]:
        def group(call: GroupCall) -> GroupTransport:
            if call.family == "NODE" or self._layout.node_count == 1:
                if self._shm_group is None:
                    raise RuntimeError("the staging segment is not open")
                return self._shm_group
            return MpiGroup(self._private, operator)

        return group

    # --- memory ---------------------------------------------------------------------------------

    def _open_staging(self) -> Waits:
        members = self._layout.local_size(self._rank)
        slot = slot_bytes(self._config.staging_bytes, members)
        head, total = staging_layout(members, slot)
        segment = yield from open_shared(self._private, self._layout, total, self._config.shm_dir, "staging")
        if segment is None:
            memory: Array = np.zeros(total, np.uint8)
            buffer = memory.data
        else:
            memory, buffer = segment.array(np.uint8, 0, total), segment.buffer
        flags = self._open_flags(buffer[:head])
        data = memory[head:].reshape(2, members, slot)
        self._staging_segment = segment
        me = self._layout.local_rank(self._rank)
        self._shm_group = ShmGroup(Slots(me, members, flags, memory[:head], data, self.areas))

    def allocate(
        self, number: int, shape: tuple[int, ...], dtype: np.dtype[Any]
    ) -> Generator[Hint | None, None, Array]:
        """An array in memory that the ranks of this node share.  Collective; `number` counts them."""
        nbytes = math.prod(shape) * dtype.itemsize
        table = np.empty((self._private.size, 1 + MOST_TOLD), np.int64)
        own = np.full(1 + MOST_TOLD, -1, np.int64)
        unused = self.areas.unused()
        own[0] = nbytes
        own[1 : 1 + len(unused)] = unused
        request = self._private.Iallgather(own, table)
        while not request.Test():
            yield None
        members = self._layout.nodes[self._layout.node(self._rank)]
        told = [set(table[member, 1:].tolist()) - {-1} for member in members]
        self.areas.drop(sorted(set.intersection(*told)))
        of_node = [int(table[member, 0]) for member in members]
        segment = yield from open_shared(
            self._private, self._layout, total_bytes(of_node), self._config.shm_dir, "array"
        )
        return self.areas.add(number, segment, of_node, shape, dtype)

    def _borrow(self, nbytes: int) -> Array:
        """Scratch memory of at least so many bytes (a multiple of 64), reused between calls."""
        room = max(64, 1 << (nbytes - 1).bit_length()) if nbytes else 64
        kept = self._scratch.pop(room, None)
        return kept if kept is not None else np.empty(room, np.uint8)

    def _give_back(self, scratch: Array) -> None:
        self._scratch[scratch.size] = scratch
        while len(self._scratch) > SCRATCH_KEPT:
            self._scratch.popitem(last=False)

    def release(self) -> None:
        """Let go of this rank's memory; local."""
        self._scratch.clear()
        self.areas.release()
        if self._staging_segment is not None:
            self._staging_segment.close()


def travelling(call: Call) -> Array:
    """The elements that a rank puts in, as they travel: as bytes where nothing is combined."""
    return call.give.view(BYTE) if call.arithmetic is None else call.arithmetic.start(call.give)


def _output(call: Call, give: Array) -> Array:
    """Memory of the travelling dtype for this rank's results."""
    if call.take is None:
        # The broadcast's root keeps its elements where they are; others without results have none.
        return give if call.collective == "broadcast" else give[:0]
    flat = call.take.flat if call.arithmetic is not None else call.take.flat.view(BYTE)
    if flat.dtype == give.dtype and (
        call.collective in IN_PLACE or not np.may_share_memory(call.give, call.take.flat)
    ):
        return flat
    return np.empty(flat.size, give.dtype)


def _no_combination(left: Array, right: Array, target: Array) -> None:
    raise RuntimeError("a collective without an operator has nothing to combine")


def _ignored(step: int) -> None:
    """A step that nobody asks for."""
