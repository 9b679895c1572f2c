"""Moves the elements of a call: memory, transports and executions of one communicator."""

from __future__ import annotations

import math
from collections import OrderedDict
from collections.abc import Callable, Generator, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np
from mpi4py import MPI

from hpccoll.calls import Call
from hpccoll.config import Config
from hpccoll.memory.areas import MOST_TOLD, Areas, total_bytes
from hpccoll.memory.checksums import checksum_function
from hpccoll.memory.flags import Flags
from hpccoll.memory.processes import open_processes
from hpccoll.memory.segments import Segment
from hpccoll.memory.shared import gathered, open_shared
from hpccoll.ops.table import Arithmetic
from hpccoll.ops.wire import ON_WIRE, WIRES
from hpccoll.plans.hazards import IN_PLACE
from hpccoll.plans.program import GroupCall, Memory, Operation, Place, Program
from hpccoll.plans.steps import Kind, Plan
from hpccoll.plans.text import operation_text
from hpccoll.runtime import engine
from hpccoll.runtime.engine import NativeExecution, NodeGroup, Work
from hpccoll.runtime.executor import Execution, Schedule
from hpccoll.runtime.planning import Planned
from hpccoll.runtime.wait import MOVED, Hint, Waits
from hpccoll.topology.layout import Layout
from hpccoll.transports.base import Array, GroupTransport
from hpccoll.transports.corrupted import Corrupted
from hpccoll.transports.mpi import MpiGroup, MpiNetwork
from hpccoll.transports.shm import ShmGroup
from hpccoll.transports.slots import Slots, offers_end, slot_bytes, staging_layout
from hpccoll.transports.sums import Sums, sums_bytes

if TYPE_CHECKING:
    from hpccoll._native import _core

BYTE = np.dtype(np.uint8)
ALIGNMENT = 64  # of memory that vector instructions work on
SCRATCH_KEPT = 4
MOST_HINTS = 100  # so often a wait without any move is left to the engine; then the rank sleeps between looks
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
        idle_channel: int,
        spin_s: float,
        has_core: bool,
    ) -> None:
        self._private = private
        self._layout = layout
        self._rank = private.rank
        self._config = config
        self._network = network
        self._open_flags = open_flags
        self._staging_segment: Segment | None = None
        self._group: ShmGroup | NodeGroup | None = None
        # The engine leaves checksums out: with them the executor walks all programs.
        self._engine = config.native and not config.checksums and engine.reason() == ""
        self._native_network = engine.open_network(private, idle_channel) if self._engine else None
        self._spin_s = spin_s
        self._has_core = has_core
        self.areas = Areas(layout.local_rank(self._rank))
        self._scratch: OrderedDict[int, Array] = OrderedDict()
        self._running: dict[int, Execution | NativeExecution] = {}  # by sequence number
        self.observe: Callable[[Execution | NativeExecution, Planned, int], None] | None = None
        """Called with what is about to run, where a timeline is wanted."""

    # --- a call ---------------------------------------------------------------------------------

    def open(self) -> Waits:
        """Open the staging segment, if it is not open.  Collective, in the order of calls."""
        if self._group is None:
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
        memory = (own, out.reshape(-1), out.reshape(-1)[:0])
        execution = self._execution(Schedule(Program(self._rank, (call,), 0)), memory, None, FIRST_CHANNEL)
        try:
            yield from self._walk(execution, -1, _ignored)
        except Corrupted as error:
            error.where = "the lengths of blocks"
            raise
        return dict(zip(members, out, strict=True))

    def move(
        self, call: Call, planned: Planned, give: Array, sequence: int, note_step: Callable[[int], None]
    ) -> Waits:
        """Carry a program out.  What starts on the node's group takes its turn at the first `next`.

        `give`: the elements of the call in the dtype in which they are combined, or as bytes.
        """
        schedule = planned.schedule
        if schedule is None:
            return
        take = _output(call, give)
        base = FIRST_CHANNEL + sequence % CALLS_IN_FLIGHT * STEPS_PER_CALL
        nbytes = schedule.program.scratch * give.dtype.itemsize
        end = -(-nbytes // ALIGNMENT) * ALIGNMENT
        wire_end = end + schedule.program.wire * ON_WIRE.itemsize
        borrowed = self._borrow(wire_end)
        memory = (give, take, borrowed[:nbytes].view(give.dtype), borrowed[end:wire_end].view(ON_WIRE))
        execution = self._execution(schedule, memory, call.arithmetic, base, planned.plan.wire)
        if self.observe is not None:
            self.observe(execution, planned, sequence)
        try:
            yield from self._walk(execution, sequence, note_step)
        except Corrupted as error:
            _locate(error, execution, planned.plan)
            raise
        self._give_back(borrowed)
        self._finish(call, take)

    def go_on(
        self,
        call: Call,
        schedule: Schedule,
        begun: _core.Execution,
        sequence: int,
        note_step: Callable[[int], None],
    ) -> Waits:
        """The rest of a program that was begun in C on the caller's arrays."""
        yield from self._walk(NativeExecution.begun(schedule, begun), sequence, note_step)
        if call.take is not None:
            self._finish(call, call.take.flat)

    def _finish(self, call: Call, take: Array) -> None:
        """Bring what has been moved to the caller's array, where it is not yet."""
        if call.take is None or take.size == 0:
            return
        if call.arithmetic is not None:
            call.arithmetic.finish(take, call.operands(self._rank, self._layout.size), call.take.flat)
        elif not np.may_share_memory(take, call.take.flat):
            call.take.flat.view(BYTE)[...] = take

    def waiting_for(self) -> list[Operation]:
        """The operations under way, for reports."""
        return [one for run in self._running.values() for one in run.waiting_for()]

    def under_way(self, sequence: int) -> list[Operation]:
        """The operations under way of one call."""
        execution = self._running.get(sequence)
        return [] if execution is None else execution.waiting_for()

    def _execution(
        self,
        schedule: Schedule,
        memory: Sequence[Array],
        arithmetic: Arithmetic | None,
        base: int,
        wire: str = "",
    ) -> Execution | NativeExecution:
        """One run of a program: by the engine of the extension where there is one and it can."""
        combine = arithmetic.combine if arithmetic is not None else _no_combination
        if self._engine and engine.usable(schedule, self._layout.node_count == 1):
            group = self._group if isinstance(self._group, NodeGroup) else None
            kernel = None
            if arithmetic is not None:
                kernel = engine.kernel(combine, arithmetic.working, arithmetic.kernel)
            return NativeExecution(
                schedule, memory, self._native_network, group, kernel, base, STEPS_PER_CALL, wire
            )
        return Execution(
            schedule,
            memory,
            self._network,
            self._group_for(arithmetic),
            combine,
            lambda step: base + step % STEPS_PER_CALL,
            WIRES[wire or "bfloat16"],
        )

    def _group_for(self, arithmetic: Arithmetic | None) -> Callable[[GroupCall], GroupTransport]:
        operator = arithmetic.mpi if arithmetic is not None and arithmetic.mpi is not None else MPI.SUM

        def group(call: GroupCall) -> GroupTransport:
            if call.family == "NODE" or self._layout.node_count == 1:
                if not isinstance(self._group, ShmGroup):
                    raise RuntimeError("the staging segment is not open")
                return self._group
            return MpiGroup(self._private, operator)

        return group

    def _walk(
        self, execution: Execution | NativeExecution, sequence: int, note_step: Callable[[int], None]
    ) -> Waits:
        self._running[sequence] = execution
        left = execution.left
        idle = 0
        while not execution.advance():
            note_step(execution.step)
            moved, left = execution.left != left, execution.left
            idle = 0 if moved else idle + 1
            if moved:
                yield MOVED
            elif isinstance(execution, NativeExecution) and idle < MOST_HINTS:
                yield Work(execution, self._spin_s)
            else:
                yield None
        del self._running[sequence]

    # --- memory ---------------------------------------------------------------------------------

    def _open_staging(self) -> Waits:
        members = self._layout.local_size(self._rank)
        slot = slot_bytes(self._config.staging_bytes, members)
        checks = self._config.checksums
        head, total = staging_layout(members, slot, checks)
        segment = yield from open_shared(self._private, self._layout, total, self._config.shm_dir, "staging")
        processes = None
        if self._config.single_copy_bytes:
            read = engine.core().bytes_of_process if self._engine else None
            processes = yield from open_processes(self._private, self._layout, read, self._has_core)
        if segment is None:
            memory: Array = np.zeros(total, np.uint8)
            buffer = memory.data
        else:
            memory, buffer = segment.array(np.uint8, 0, total), segment.buffer
        flags = self._open_flags(buffer[:head])
        data = memory[head:].reshape(2, members, slot)
        self._staging_segment = segment
        me = self._layout.local_rank(self._rank)
        if self._engine:
            self._group = NodeGroup(me, members, memory[:head], data, self.areas.parts)
            self._group.refresh()
            if processes is not None:
                least = self._config.single_copy_bytes
                self._group.native.use_processes(processes.numbers, least, processes.have_cores)
        else:
            sums = None
            if checks:
                words = memory[offers_end(members) :][: sums_bytes(members)]
                sums = Sums(members, words, checksum_function(self._config.native))
            self._group = ShmGroup(Slots(me, members, flags, memory[:head], data, self.areas), sums)

    def allocate(
        self, number: int, shape: tuple[int, ...], dtype: np.dtype[Any]
    ) -> Generator[Hint | None, None, Array]:
        """An array in memory that the ranks of this node share.  Collective; `number` counts them."""
        nbytes = math.prod(shape) * dtype.itemsize
        own = np.full(1 + MOST_TOLD, -1, np.int64)
        unused = self.areas.unused()
        own[0] = nbytes
        own[1 : 1 + len(unused)] = unused
        table = yield from gathered(self._private, own)
        members = self._layout.nodes[self._layout.node(self._rank)]
        told = [set(table[member, 1:].tolist()) - {-1} for member in members]
        self.areas.drop(sorted(set.intersection(*told)))
        of_node = [int(table[member, 0]) for member in members]
        segment = yield from open_shared(
            self._private, self._layout, total_bytes(of_node), self._config.shm_dir, "array"
        )
        array = self.areas.add(number, segment, of_node, shape, dtype)
        if isinstance(self._group, NodeGroup):
            self._group.refresh()
        return array

    @property
    def native(self) -> tuple[_core.Network | None, _core.Group | None]:
        """What the engine has: messages, and the node's group once it is open."""
        return self._native_network, self._group.native if isinstance(self._group, NodeGroup) else None

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


def _locate(error: Corrupted, execution: Execution | NativeExecution, plan: Plan) -> None:
    """Say where in its plan an operation is that brought wrong elements."""
    if not isinstance(execution, Execution) or execution.corrupted is None:
        return
    step = plan.steps[execution.corrupted.step]
    error.chunk = step.chunk
    error.where = (
        f"step {execution.corrupted.step} of {plan.name} ({step.kind.value} of {step.family} by "
        f"{step.algorithm}), chunk {step.chunk + 1} of {plan.chunks}: {operation_text(execution.corrupted)}"
    )


def _no_combination(left: Array, right: Array, target: Array) -> None:
    raise RuntimeError("a collective without an operator has nothing to combine")


def _ignored(step: int) -> None:
    """A step that nobody asks for."""
