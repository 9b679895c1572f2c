"""The operations of one rank: what a plan asks of it.

Sends, receives, combinations and copies on places of its buffers, and calls on a whole group.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from enum import IntEnum
from typing import NamedTuple

from hpccoll.plans.steps import Kind


class Memory(IntEnum):
    """The buffers of a rank that a program speaks of.

    WIRE has elements as they travel between nodes, where that is a shorter dtype: what is copied there is
    rounded, what is copied or combined from there is widened again.
    """

    INPUT = 0
    OUTPUT = 1
    SCRATCH = 2
    WIRE = 3


class Place(NamedTuple):
    """A range of elements of one of the rank's buffers."""

    memory: Memory
    start: int
    stop: int


@dataclass(frozen=True)
class Operation:
    """`after`: operations that must be complete first.  `step`: the plan's step this belongs to."""

    step: int
    after: tuple[int, ...]


@dataclass(frozen=True)
class Send(Operation):
    """A message to a world rank.  `previous`: the send to it before in this step, which must have started."""

    peer: int
    source: Place
    previous: int


@dataclass(frozen=True)
class Receive(Operation):
    """A message from a world rank; matched with its sends of the same step in order."""

    peer: int
    target: Place
    previous: int


@dataclass(frozen=True)
class Combine(Operation):
    """target = left (op) right, element by element; target may be the place of one of them."""

    left: Place
    right: Place
    target: Place


@dataclass(frozen=True)
class Copy(Operation):
    """Elements moved from one place to another."""

    source: Place
    target: Place


@dataclass(frozen=True)
class GroupCall(Operation):
    """An action of the whole group that its transport does by itself.

    `source` and `target` are this member's places, one after the other as one stream of elements;
    `counts` the elements of each member's region where the kind has one for each member.  `previous`:
    the group's earlier call, which must have started: all members make its calls in the same order.
    """

    kind: Kind
    family: str
    members: tuple[int, ...]
    index: int
    root: int
    source: tuple[Place, ...]
    target: tuple[Place, ...]
    counts: tuple[int, ...]
    previous: int


@dataclass(frozen=True)
class Program:
    """The operations of one rank in an order in which they can be done; `scratch` and `wire` in elements."""

    rank: int
    operations: tuple[Operation, ...]
    scratch: int
    wire: int = 0


# Names of operations; their order is that of `Code` in _native/program.h.
CODES = (
    "send", "receive", "combine", "copy",
    "allreduce", "reduce", "broadcast", "reduce_scatter", "allgather", "gather", "scatter",
    "alltoall", "scan", "exscan",
)  # fmt: skip
CODE = {name: code for code, name in enumerate(CODES)}


def parts_of(operation: Operation) -> tuple[str, int, Sequence[Place], Sequence[Place]]:
    """Name, peer or root, sources and targets."""
    match operation:
        case Send():
            return "send", operation.peer, [operation.source], []
        case Receive():
            return "receive", operation.peer, [], [operation.target]
        case Combine():
            return "combine", 0, [operation.left, operation.right], [operation.target]
        case Copy():
            return "copy", 0, [operation.source], [operation.target]
        case GroupCall():
            return operation.kind.value, operation.root, operation.source, operation.target
    raise TypeError(f"there is no name for {operation!r}")
