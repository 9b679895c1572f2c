"""Reductions of a group that NCCL cannot do: it moves the elements, and a kernel combines them.

    short buffers       everything to everybody, then each combines what it needs
    long ones           member j gets block j of all members and combines it; then the results travel on

Elements are combined in the order of the members, one after the other.  Everything is on one stream, so that
no events are needed.  Bytes a member sends, of a buffer of S bytes: (n - 1) S for short ones; (n - 1)/n S for
a reduce-scatter, twice as much for an all-reduce and a scan.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from itertools import accumulate

from hpccoll.ops.kernels import Kernel
from hpccoll.plans.program import GroupCall
from hpccoll.plans.steps import Kind
from hpccoll.runtime.tape import Code, Parts, Tape
from hpccoll.transports.nccl import NcclGroup

Bases = list[int]  # addresses of input, output and scratch
Action = Callable[[Tape, int, Bases, int], None]  # writes to a tape: stream, addresses of memories, operator
Address = tuple[int, int]  # memory, bytes from its beginning

# All members' elements together, up to which the latency of a second round costs more than the bytes.
SHORT_BYTES = 256 * 1024


@dataclass(frozen=True)
class Combining:
    """`kind`: NCCL's type of a byte.  `device`: the ordinal."""

    kernel: Kernel
    kind: int
    device: int

    def action(
        self,
        call: GroupCall,
        group: NcclGroup,
        count: int,
        source: Address,
        target: Address,
        rows: Address,
    ) -> tuple[int, Action]:
        """Bytes of scratch from `rows` on, and what writes the call.

        `count`: elements of the buffer.  A root's or a scan's members have a `target` only where they get
        something.
        """
        job = _Job(self, call, group, count, source, target, rows)
        short = count * len(call.members) * self.kernel.itemsize <= SHORT_BYTES
        if short and call.kind is not Kind.REDUCE_SCATTER:
            return len(call.members) * count * self.kernel.itemsize, job.by_gathering
        own = job.lengths[call.index]
        # One row more, where a block is combined that goes to others.
        return (len(call.members) + 1) * own * self.kernel.itemsize, job.by_blocks


class _Job:
    def __init__(
        self,
        combining: Combining,
        call: GroupCall,
        group: NcclGroup,
        count: int,
        source: Address,
        target: Address,
        rows: Address,
    ) -> None:
        self._kernel, self._kind, self._device = combining.kernel, combining.kind, combining.device
        self._call, self._group, self._count = call, group, count
        self._source, self._target, self._rows = source, target, rows
        self._me, self._size = call.index, len(call.members)
        if call.kind is Kind.REDUCE_SCATTER:
            self.lengths = list(call.counts)
        else:
            block = -(-count // self._size)
            ends = [min(count, block * (member + 1)) for member in range(self._size)]
            self.lengths = [end - min(count, block * member) for member, end in enumerate(ends)]
        self._starts = [0, *accumulate(self.lengths)]
        self._gets = bool(call.target)

    def by_gathering(self, tape: Tape, level: int, bases: Bases, operator: int) -> None:
        """Everything to everybody; each combines what it needs."""
        source, target, rows = self._places(bases)
        nbytes = self._count * self._kernel.itemsize
        tape.call(Code.ALL_GATHER, level, self._group, source, rows, nbytes, self._kind)
        members = self._size
        if self._call.kind in (Kind.SCAN, Kind.EXSCAN):
            members = self._me + (self._call.kind is Kind.SCAN)
        if self._gets:
            self._fold(tape, level, rows, target, self._count, members)

    def by_blocks(self, tape: Tape, level: int, bases: Bases, operator: int) -> None:
        """Block j to member j, which combines it; then the results to where they are wanted."""
        source, target, rows = self._places(bases)
        me, size, kind = self._me, self._kernel.itemsize, self._call.kind
        own = self.lengths[me]
        block = own * size  # bytes
        rows_of_all = [(member, rows + member * block, own) for member in self._all]
        self._exchange(tape, level, self._blocks(source), rows_of_all)
        mine = target + self._starts[me] * size
        match kind:
            case Kind.REDUCE_SCATTER:
                self._fold(tape, level, rows, target, own, self._size)
            case Kind.ALLREDUCE:
                self._fold(tape, level, rows, mine, own, self._size)
                self._exchange(
                    tape, level, [(member, mine, own) for member in self._all], self._blocks(target)
                )
            case Kind.REDUCE:
                root = self._call.root
                result = mine if me == root else rows + self._size * block
                self._fold(tape, level, rows, result, own, self._size)
                self._exchange(tape, level, [(root, result, own)], self._blocks(target) if self._gets else [])
            case _:
                before = kind is Kind.EXSCAN
                launch = partial(self._kernel.prefixes, rows, own, own, self._size, before, self._device)
                tape.kernel(level, launch)
                gives = rows_of_all[1:] if before else rows_of_all
                self._exchange(tape, level, gives, self._blocks(target) if self._gets else [])

    @property
    def _all(self) -> range:
        return range(self._size)

    def _places(self, bases: Bases) -> tuple[int, int, int]:
        source, target, rows = self._source, self._target, self._rows
        return bases[source[0]] + source[1], bases[target[0]] + target[1], bases[rows[0]] + rows[1]

    def _fold(self, tape: Tape, level: int, rows: int, out: int, count: int, members: int) -> None:
        tape.kernel(level, partial(self._kernel.fold, rows, out, count, count, members, self._device))

    def _blocks(self, begin: int) -> Parts:
        """The block of each member in a buffer."""
        size = self._kernel.itemsize
        return [(member, begin + self._starts[member] * size, self.lengths[member]) for member in self._all]

    def _exchange(self, tape: Tape, level: int, gives: Parts, takes: Parts) -> None:
        """Elements, as bytes."""
        size = self._kernel.itemsize
        gives, takes = ([(who, at, size * count) for who, at, count in parts] for parts in (gives, takes))
        tape.exchange(level, self._group, self._kind, 1, gives, takes)
