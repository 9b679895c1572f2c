"""Buffers with a block for each rank: counts and displacements, in elements, items of a datatype, or bytes.

Blocks that follow each other in memory are taken where they are; others through a copy, which leaves alone
what lies between them.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple

import numpy as np
from mpi4py import MPI

from hpccoll.arrays.buffer import Buffer, DerivedBuffer, parts_buffer
from hpccoll.arrays.datatypes import predefined_dtype
from hpccoll.arrays.derived import Block, Items
from hpccoll.arrays.messages import (
    Extent,
    Parts,
    array_of,
    bytes_in_a_row,
    counts_and_displs,
    elements_of,
    is_nowhere,
    take_apart,
    type_of,
)
from hpccoll.arrays.reading import along_last_axis, check_writable, derived_buffer, source, target
from hpccoll.errors import UsageError, UsageTypeError
from hpccoll.transports.base import Array

_BYTE = np.dtype(np.uint8)


class Ragged(NamedTuple):
    """A buffer whose elements are the blocks, in rank order, and how many are in each."""

    buffer: Buffer
    counts: tuple[int, ...]

    def block(self, rank: int) -> Array:
        """The elements of a rank's block."""
        start = sum(self.counts[:rank])
        return self.buffer.flat[start : start + self.counts[rank]]


def ragged_source(spec: Any, what: str, blocks: int, order: str = "C") -> Ragged:
    """Blocks to read, one for each of `blocks` ranks.

    Args:
        spec: an array, which is dealt out, or one of mpi4py's lists (messages.py).
        what: the name of the argument, for errors.
        blocks: the number of ranks.
        order: how blocks lie in a Fortran-ordered array (see `arrays.block_order`).

    Raises:
        UsageTypeError: no such buffer, counts that are no integers.
        UsageError: blocks that are not within the buffer, another number of counts than ranks.

    """
    return _ragged(spec, what, blocks, order, fill=True, write=False)


def ragged_target(spec: Any, what: str, blocks: int, order: str = "C", *, fill: bool = False) -> Ragged:
    """Blocks to write; with `fill` their present elements are in the buffer too (in place).

    Raises: as `ragged_source`, and UsageError when the buffer is read-only or blocks overlap.
    """
    return _ragged(spec, what, blocks, order, fill=fill, write=True)


def typed_source(spec: Any, what: str, blocks: int) -> Ragged:
    """Blocks to read, each of a datatype of its own, as bytes: [buf, types], [buf, counts, displs, types].

    Displacements are in bytes; without both counts and displacements each rank has one item, at the
    beginning.  Raises: as `ragged_source`.
    """
    return _typed(spec, what, blocks, fill=True, write=False)


def typed_target(spec: Any, what: str, blocks: int, *, fill: bool = False) -> Ragged:
    """Blocks to write, as `typed_source`; raises as `ragged_target`."""
    return _typed(spec, what, blocks, fill=fill, write=True)


def _ragged(spec: Any, what: str, blocks: int, order: str, *, fill: bool, write: bool) -> Ragged:
    if not isinstance(spec, (list, tuple)):
        array = array_of(spec, what)
        counts, _ = counts_and_displs(Parts(array, None, None, None), Extent(array.size, 1, 0), blocks, what)
        parts = along_last_axis(array, counts) if order == "B" else None
        if parts is not None and array.ndim > 1:
            return _of_parts(parts, counts, array, what, fill=fill, write=write)
        order = "C" if order == "C" else "F"
        buffer = target(array, what, order=order, fill=fill) if write else source(array, what, order=order)
        return Ragged(buffer, tuple(counts))
    taken = take_apart(spec, what, ragged=True)
    datatype = type_of(taken, what)
    memory, rest = elements_of(taken, datatype, what)
    if datatype is not None and (predefined_dtype(datatype) is None or is_nowhere(taken.buf)):
        return _of_items(taken, datatype, memory, what, blocks, fill=fill, write=write)
    held = Extent(memory.size, memory.itemsize, rest)
    counts, displs = counts_and_displs(taken, held, blocks, what)
    _check_within(counts, displs, memory.size, what)
    if order == "B" and isinstance(taken.buf, np.ndarray) and taken.buf.dtype == memory.dtype:
        parts = along_last_axis(taken.buf, counts, displs)
        if parts is not None:
            if write:
                _check_blocks_apart(counts, displs, what)
            return _of_parts(parts, counts, memory, what, fill=fill, write=write)
    return _of_elements(memory, counts, displs, what, fill=fill, write=write)


def _of_parts(
    parts: Sequence[Array], counts: Sequence[int], array: Array, what: str, *, fill: bool, write: bool
) -> Ragged:
    if write:
        check_writable(array, what)
    return Ragged(parts_buffer(parts, array.dtype, None, fill=fill), tuple(counts))


def _of_elements(
    memory: Array, counts: Sequence[int], displs: Sequence[int], what: str, *, fill: bool, write: bool
) -> Ragged:
    """Blocks of elements in a row: where they are, if they follow each other."""
    if write:
        check_writable(memory, what)
        _check_blocks_apart(counts, displs, what)
    start = _start_of_run(counts, displs)
    if start is not None and memory.flags.aligned:
        run = memory[start : start + sum(counts)]
        return Ragged(Buffer(run, run), tuple(counts))
    parts = [memory[displ : displ + count] for count, displ in zip(counts, displs, strict=True) if count]
    return Ragged(parts_buffer(parts, memory.dtype, None, fill=fill), tuple(counts))


def _of_items(
    taken: Parts, datatype: MPI.Datatype, memory: Array, what: str, blocks: int, *, fill: bool, write: bool
) -> Ragged:
    """Blocks of items of a derived datatype, or at addresses."""
    raw = None if is_nowhere(taken.buf) else memory.view(np.uint8)
    extent = datatype.extent
    entries, rest = divmod(memory.nbytes, extent) if extent > 0 else (memory.nbytes, 0)
    counts, displs = counts_and_displs(taken, Extent(entries, extent, rest), blocks, what)
    placed = [Block(datatype, count, displ * extent) for count, displ in zip(counts, displs, strict=True)]
    buffer = derived_buffer(raw, placed, datatype, what, None, fill=fill, write=write)
    return Ragged(buffer, tuple(count * buffer.of_item for count in counts))


def _typed(spec: Any, what: str, blocks: int, *, fill: bool, write: bool) -> Ragged:
    buf, counts, displs, datatypes = _typed_parts(spec, what, blocks)
    taken = Parts(buf, counts, displs, None)
    memory = None if is_nowhere(buf) else bytes_in_a_row(buf, what)
    held = Extent(blocks, 1, 0)  # one item for each rank where the list has no counts
    numbers, offsets = counts_and_displs(taken, held, blocks, what)
    if counts is None:
        offsets = [0] * blocks
    sizes = [
        _size(datatype, count, rank, what)
        for rank, (datatype, count) in enumerate(zip(datatypes, numbers, strict=True))
    ]
    in_bytes = [count * size for count, size in zip(numbers, sizes, strict=True)]
    if memory is not None and all(map(_is_solid, datatypes, numbers)):
        _check_within(in_bytes, offsets, memory.size, what)
        return _of_elements(memory, in_bytes, offsets, what, fill=fill, write=write)
    items = Items(memory, list(map(Block, datatypes, numbers, offsets)), _BYTE, what)
    if write:
        check_writable(items.memory, what)
        items.check_apart()
    return Ragged(DerivedBuffer(items, 1, None, fill=fill), tuple(in_bytes))


def _typed_parts(spec: Any, what: str, blocks: int) -> tuple[Any, Any, Any, Sequence[MPI.Datatype]]:
    """Buffer, counts, displacements and datatypes of a list for Alltoallw."""
    counts = displs = None
    given = len(spec) if isinstance(spec, (list, tuple)) else 0
    if given == 3 and isinstance(spec[1], (list, tuple)) and len(spec[1]) == 2:
        counts, displs = spec[1]
    elif given == 4:
        counts, displs = spec[1:3]
    elif given != 2:
        raise UsageTypeError(
            f"{what} is {repr(spec)[:200]}: must be [buf, types], [buf, (counts, displs), types] or "
            "[buf, counts, displs, types]"
        )
    datatypes = spec[-1]
    if not isinstance(datatypes, (list, tuple)) or not all(isinstance(t, MPI.Datatype) for t in datatypes):
        raise UsageTypeError(f"{what} has types {datatypes!r}: must be a list of MPI datatypes")
    if len(datatypes) != blocks:
        raise UsageError(f"{what} has {len(datatypes)} types: must be one for each of the {blocks} ranks")
    if isinstance(counts, (int, np.integer)) or isinstance(displs, (int, np.integer)):
        raise UsageTypeError(
            f"{what} has counts {counts!r}, displacements {displs!r}: must be one for each rank"
        )
    if (counts is None) != (displs is None) or (counts is None and is_nowhere(spec[0])):
        raise UsageError(f"{what} has counts {counts!r}, displacements {displs!r}: must have both")
    return spec[0], counts, displs, datatypes


def _size(datatype: MPI.Datatype, count: int, rank: int, what: str) -> int:
    if datatype != MPI.DATATYPE_NULL:
        return datatype.size
    if count:
        raise UsageTypeError(f"{what} has type MPI.DATATYPE_NULL for rank {rank}, whose count is {count}")
    return 0


def _is_solid(datatype: MPI.Datatype, count: int) -> bool:
    """Whether items have no gaps: every byte of theirs counts."""
    if not count:
        return True
    return predefined_dtype(datatype) is not None and datatype.size == datatype.extent


def _start_of_run(counts: Sequence[int], displs: Sequence[int]) -> int | None:
    """Where a run of blocks that follow each other begins; None when they do not."""
    start = end = None
    for count, displ in zip(counts, displs, strict=True):
        if count:
            if end is None:
                start = displ
            elif displ != end:
                return None
            end = displ + count
    return start or 0


def _check_within(counts: Sequence[int], displs: Sequence[int], held: int, what: str) -> None:
    for rank, (count, displ) in enumerate(zip(counts, displs, strict=True)):
        if count and not 0 <= displ <= held - count:
            raise UsageError(
                f"{what} has count {count} and displacement {displ} for rank {rank}, "
                f"but the buffer holds {held} elements"
            )


def _check_blocks_apart(counts: Sequence[int], displs: Sequence[int], what: str) -> None:
    blocks = sorted(
        (displ, count, rank) for rank, (count, displ) in enumerate(zip(counts, displs, strict=True))
    )
    end, before = 0, -1
    for displ, count, rank in blocks:
        if count and displ < end and before >= 0:
            raise UsageError(
                f"{what} has displacement {displ} for rank {rank}, where the block of rank {before} lies, "
                f"which ends at {end}: blocks to receive must lie apart"
            )
        if count:
            end, before = displ + count, rank
