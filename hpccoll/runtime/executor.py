"""Walks one rank's program over the transports; resumable.

`advance()` tests what is under way, starts what has become ready, and returns; it never waits.
Blocking calls, requests and tests all drive the same `advance()`.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import TYPE_CHECKING

from hpccoll.ops.wire import WIRES, Wire
from hpccoll.plans.program import (
    CODE,
    Combine,
    Copy,
    GroupCall,
    Memory,
    Operation,
    Place,
    Program,
    Receive,
    Send,
    parts_of,
)
from hpccoll.transports.base import Array, GroupTransport, Network, Work
from hpccoll.transports.base import Combine as CombineArrays
from hpccoll.transports.corrupted import Corrupted

if TYPE_CHECKING:
    from hpccoll.observe.recorder import Silent


@dataclass(frozen=True)
class Schedule:
    """A program with what follows each operation, computed once and used by every call."""

    program: Program

    @cached_property
    def waits(self) -> list[int]:
        """How many operations each one waits for."""
        return [
            len(operation.after) + (getattr(operation, "previous", -1) >= 0)
            for operation in self.program.operations
        ]

    @cached_property
    def released_by_end(self) -> list[list[int]]:
        """Operations that wait for each one to be complete."""
        following: list[list[int]] = [[] for _ in self.program.operations]
        for index, operation in enumerate(self.program.operations):
            for earlier in operation.after:
                following[earlier].append(index)
        return following

    @cached_property
    def released_by_start(self) -> dict[int, int]:
        """The next operation of the same channel, which waits for the start only."""
        return {
            operation.previous: index
            for index, operation in enumerate(self.program.operations)
            if isinstance(operation, (Send, Receive, GroupCall)) and operation.previous >= 0
        }

    @cached_property
    def ready(self) -> list[int]:
        """Operations that wait for nothing."""
        return [index for index, waits in enumerate(self.waits) if waits == 0]


class Execution:
    """One run of a program on this rank's memory.

    `memory`: input, output and scratch as one-dimensional arrays of one dtype; then, where elements travel
    between nodes as another one, that of `wire`, memory for these.  `channel` maps a step to the channel of
    its messages; `group` gives the transport of a group call.
    """

    def __init__(
        self,
        schedule: Schedule,
        memory: Sequence[Array],
        network: Network,
        group: Callable[[GroupCall], GroupTransport],
        combine: CombineArrays,
        channel: Callable[[int], int],
        wire: Wire = WIRES["bfloat16"],
    ) -> None:
        self._operations = schedule.program.operations
        self._schedule = schedule
        self._memory = memory
        self._network = network
        self._group = group
        self._combine = combine
        self._channel = channel
        self._wire = wire
        self._waits = schedule.waits.copy()
        self._left = len(self._operations)
        self._active: list[tuple[int, Work]] = []
        self.corrupted: Operation | None = None  # what brought elements that were not those that were given
        self._ready = schedule.ready.copy()
        self._begins = self._ends = _ignored
        self._tickets = {
            index: group(operation).reserve()
            for index, operation in enumerate(self._operations)
            if isinstance(operation, GroupCall)
        }

    def observe(self, recorder: Silent, steps: int, sequence: int) -> None:
        """Before the first `advance`: the times of all operations go to the recorder's events, as of a call.

        `steps`: the number of the description of the plan's steps.
        """
        events = recorder.events
        if events is None:
            return
        operations = self._operations
        begun: dict[int, int] = {}

        def begins(index: int) -> None:
            begun[index] = time.monotonic_ns()

        def ends(index: int) -> None:
            one, now = operations[index], time.monotonic_ns()
            name, peer, sources, targets = parts_of(one)
            given, taken = (
                sum(self._view(place).nbytes for place in places) for places in (sources, targets)
            )
            nbytes = taken if name == "combine" else max(given, taken)
            events.put(CODE[name], begun.pop(index), now, sequence, steps, one.step, peer, nbytes)

        self._begins, self._ends = begins, ends

    @property
    def left(self) -> int:
        """How many operations are not complete."""
        return self._left

    @property
    def complete(self) -> bool:
        return self._left == 0

    def waiting_for(self) -> list[Operation]:
        """The operations under way, for reports."""
        return [self._operations[index] for index, _ in self._active]

    @property
    def step(self) -> int:
        """The plan's step that the oldest operation under way belongs to."""
        return self._operations[self._active[0][0]].step if self._active else 0

    def advance(self) -> bool:
        """Move on as far as it goes without waiting; True once all operations are complete."""
        if self._active:
            still: list[tuple[int, Work]] = []
            for entry in self._active:
                if self._is_complete(*entry):
                    self._end(entry[0])
                else:
                    still.append(entry)
            self._active = still
        while self._ready:
            ready, self._ready = self._ready, []
            for index in ready:
                self._start(index)
        return self._left == 0

    def _start(self, index: int) -> None:
        self._begins(index)
        work = self._begin(index, self._operations[index])
        following = self._schedule.released_by_start.get(index)
        if following is not None:
            self._release(following)
        if work is None or self._is_complete(index, work):
            self._end(index)
        else:
            self._active.append((index, work))

    def _is_complete(self, index: int, work: Work) -> bool:
        try:
            return work.test()
        except Corrupted as error:
            operation = self._operations[index]
            self.corrupted = operation
            if isinstance(operation, GroupCall):
                error.peer = operation.members[error.member]
            raise

    def _begin(self, index: int, operation: Operation) -> Work | None:
        """Start an operation; None when it is already complete."""
        match operation:
            case Send():
                return self._network.send(
                    operation.peer, self._view(operation.source), self._channel(operation.step)
                )
            case Receive():
                return self._network.receive(
                    operation.peer, self._view(operation.target), self._channel(operation.step)
                )
            case Combine():
                left, right = self._wide(operation.left), self._wide(operation.right)
                self._combine(left, right, self._view(operation.target))
                return None
            case Copy() if operation.target.memory is Memory.WIRE:
                self._wire.round(self._view(operation.source), self._view(operation.target))
                return None
            case Copy():
                source, target = self._wide(operation.source), self._view(operation.target)
                if source.ctypes.data != target.ctypes.data:  # in place it is there already
                    target[...] = source
                return None
            case GroupCall():
                return self._group(operation).start(
                    self._tickets[index],
                    operation.kind.value,
                    operation.root,
                    [self._view(place) for place in operation.source],
                    [self._view(place) for place in operation.target],
                    operation.counts,
                    self._combine,
                )
        raise TypeError(f"no way to start {operation!r}")

    def _end(self, index: int) -> None:
        self._ends(index)
        self._left -= 1
        for following in self._schedule.released_by_end[index]:
            self._release(following)

    def _release(self, index: int) -> None:
        self._waits[index] -= 1
        if self._waits[index] == 0:
            self._ready.append(index)

    def _wide(self, place: Place) -> Array:
        """Elements in the dtype in which they are combined."""
        view = self._view(place)
        return self._wire.widen(view) if place.memory is Memory.WIRE else view

    def _view(self, place: Place) -> Array:
        return self._memory[place.memory][place.start : place.stop]


def _ignored(index: int) -> None:
    """Nobody asks for the times of operations."""
