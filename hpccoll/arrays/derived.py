"""Items of derived MPI datatypes in memory: packed into a run of elements, and unpacked again.

A derived datatype on one rank may meet basic ones on others, as long as the elements are the same: so the
packed run has the element type that the datatype is made of, and the rank stays on everybody's plan.

MPI packs memory of the host.  On a device a kernel does, which is told where each byte goes.  That is asked
of MPI too: it packs bytes of the host that say where they are.
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import pairwise
from typing import Any, NamedTuple

import numpy as np
from mpi4py import MPI

from hpccoll.arrays.datatypes import OwnDatatype, packed_dtype
from hpccoll.arrays.device import DeviceArray
from hpccoll.arrays.foreign import bytes_at
from hpccoll.errors import UsageError
from hpccoll.memory.device import Scattered
from hpccoll.transports.base import Array

# Nothing of a program lies in the first page of its addresses.
_LOWEST_ADDRESS = 4096
# Receive blocks whose outlines cross are compared byte by byte where that is no more than this, or about as
# much as is received: columns of a matrix do, single numbers at far addresses do not.
_COMPARED_BYTES = 1 << 20
_COMPARED_TIMES_SIZE = 8


class Block(NamedTuple):
    """Some items of a datatype, the first `offset` bytes from the beginning of the memory."""

    datatype: MPI.Datatype
    items: int
    offset: int

    def outline(self) -> tuple[int, int]:
        """The first byte that belongs to the block, and the one after the last."""
        first, length = self.datatype.Get_true_extent()
        run = (self.items - 1) * self.datatype.extent
        return self.offset + first + min(0, run), self.offset + first + length + max(0, run)


class Items:
    """Blocks of items as one run of elements, block after block.

    Args:
        memory: the bytes that the blocks are in; None: their offsets are addresses (MPI.BOTTOM).
        blocks: where the items are.
        element: the dtype of the elements in the run.
        what: the name of the argument, for errors.

    Raises: UsageError when a block is not within the memory.

    """

    def __init__(
        self, memory: Array | None, blocks: Sequence[Block], element: np.dtype[Any], what: str
    ) -> None:
        self.element = element
        self._what = what
        blocks = [block for block in blocks if block.items and block.datatype.size]
        self._outlines = [block.outline() for block in blocks]
        self.nbytes = sum(block.items * block.datatype.size for block in blocks)
        for block, (first, end) in zip(blocks, self._outlines, strict=True):
            _check_within(memory, block, first, end, what)
        self._first = min((first for first, _ in self._outlines), default=0)
        self._span = max((end for _, end in self._outlines), default=0) - self._first
        self._all = _all_of(blocks, self._first, self._span) if blocks else None
        self._overlapping_items = any(
            block.items > 1 and block.datatype.Get_true_extent()[1] > abs(block.datatype.extent)
            for block in blocks
        )
        if memory is None:
            self.memory = bytes_at(self._first, self._span, what)
        else:
            self.memory = memory[self._first : self._first + self._span]
        self._packed = packed_dtype(element)
        self._scattered = self._on_device() if isinstance(self.memory, DeviceArray) and blocks else None

    @property
    def count(self) -> int:
        """Elements in the run."""
        return self.nbytes // self._packed.itemsize

    def pack(self, elements: Array) -> None:
        """Bring the items to a contiguous run of elements."""
        if self._all is None:
            return
        if self._scattered is not None:
            self._scattered.gather(elements)
        elif self._packed == self.element:
            self._all.Pack(self.memory, elements.view(np.uint8), 0, MPI.COMM_SELF)
        else:
            packed = np.empty(elements.size, self._packed)
            self._all.Pack(self.memory, packed.view(np.uint8), 0, MPI.COMM_SELF)
            elements[...] = packed

    def unpack(self, elements: Array, stream: int | None = None) -> None:
        """Bring a run of elements to where the items are; what lies between stays as it is.

        `stream`: of a device, by default the memory's own.
        """
        if self._all is None:
            return
        if self._scattered is not None:
            self._scattered.scatter(elements, stream)
        else:
            packed = np.ascontiguousarray(elements, self._packed)
            self._all.Unpack(packed.view(np.uint8), 0, self.memory, MPI.COMM_SELF)

    def _on_device(self) -> Scattered:
        in_run = None
        if self._packed != self.element and self.element.fields is not None:
            fields = self.element.fields.values()
            within = np.concatenate([offset + np.arange(kind.itemsize) for kind, offset, *_ in fields])
            begins = self.element.itemsize * np.arange(self.count)
            in_run = (begins[:, np.newaxis] + within).reshape(-1)
        return Scattered(self.memory, self._places(), in_run)

    def _places(self) -> Array:
        """Where in the memory each byte of the packed items is."""
        assert self._all is not None
        here = np.arange(self._span)
        found = np.zeros(self.nbytes, np.int64)
        packed = np.empty(self.nbytes, np.uint8)
        for shift in range(0, max(1, self._span.bit_length()), 8):
            self._all.Pack((here >> shift).astype(np.uint8), packed, 0, MPI.COMM_SELF)
            found |= packed.astype(np.int64) << shift
        return found

    def check_apart(self) -> None:
        """Raises UsageError when two items share bytes, so that what is received there would be ambiguous."""
        crossing = self._overlapping_items or _cross(self._outlines)
        if not crossing or self._all is None:
            return
        overlap = self.nbytes > self._span
        if not overlap and self._span <= max(_COMPARED_BYTES, _COMPARED_TIMES_SIZE * self.nbytes):
            touched = np.zeros(self._span, np.uint8)
            self._all.Unpack(np.ones(self.nbytes, np.uint8), 0, touched, MPI.COMM_SELF)
            overlap = int(np.count_nonzero(touched)) != self.nbytes
        if overlap:
            raise UsageError(f"{self._what} has items that share memory: blocks to receive must lie apart")


def _all_of(blocks: Sequence[Block], first: int, span: int) -> OwnDatatype:
    """One datatype of all blocks, relative to the first of their bytes, and as long as their memory.

    So one call packs them, mpi4py counts one item in that memory, and addresses need no memory from 0.
    """
    datatypes, counts, offsets = zip(*blocks, strict=True)
    joined = MPI.Datatype.Create_struct(counts, [offset - first for offset in offsets], datatypes)
    try:
        return OwnDatatype(joined.Create_resized(0, span)).Commit()
    finally:
        joined.Free()


def _check_within(memory: Array | None, block: Block, first: int, end: int, what: str) -> None:
    if memory is None:
        if first < _LOWEST_ADDRESS:
            raise UsageError(
                f"{what} is MPI.BOTTOM with {block.items} items at address {first}: "
                "displacements must be addresses, as MPI.Get_address gives them"
            )
    elif first < 0 or end > memory.size:
        raise UsageError(
            f"{what} has {block.items} items of a datatype of extent {block.datatype.extent} from byte "
            f"{block.offset}, which reach from byte {first} to byte {end}, "
            f"but the buffer holds {memory.size} bytes"
        )


def _cross(outlines: Sequence[tuple[int, int]]) -> bool:
    ordered = sorted(outlines)
    return any(end > first for (_, end), (first, _) in pairwise(ordered))
