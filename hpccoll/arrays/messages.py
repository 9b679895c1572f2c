"""mpi4py's lists that stand for a buffer: their parts, and what they mean for one block or many.

The rules are those of mpi4py 4.1, restated from its documentation ("Communication of buffer-like
objects") and what its calls do:

- one block: [buf, count], [buf, type], [buf, count, type], [buf, count, displ, type], and (count, displ)
  for count; a call with regular blocks has the count of each;
- a block for each rank: the same with counts and displs, where only a tuple is (counts, displs); one
  count is that of every block; without counts the buffer is dealt out, the first blocks longer by one;
  without displs blocks follow each other; one displ is the distance of the blocks' beginnings;
- None or MPI.BOTTOM for buf needs a type; displacements count in extents of the type.

Beyond mpi4py, counts are checked against the buffer.
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import accumulate
from operator import index
from typing import Any, NamedTuple

import numpy as np
from mpi4py import MPI

from hpccoll.arrays.datatypes import datatype_of, predefined_dtype
from hpccoll.arrays.device import DeviceArray, device_array
from hpccoll.arrays.foreign import NUMBERS, host_array, host_bytes, on_device
from hpccoll.dtypes import check_movable
from hpccoll.errors import UsageError, UsageTypeError
from hpccoll.transports.base import Array


class Parts(NamedTuple):
    """A list taken apart; what it leaves out is None."""

    buf: Any
    counts: Any
    displs: Any
    kind: MPI.Datatype | str | None


class Extent(NamedTuple):
    """How much a buffer holds: `entries` of a type, of `nbytes` bytes each, and a rest of bytes."""

    entries: int
    nbytes: int
    rest: int


def take_apart(spec: list[Any] | tuple[Any, ...], what: str, *, ragged: bool) -> Parts:
    """The parts of a list.

    Raises: UsageTypeError for a list that is none of these.
    """
    pairs = tuple if ragged else (tuple, list)
    given = len(spec)
    if not 2 <= given <= 4 or isinstance(spec[0], (list, tuple, dict, *NUMBERS, np.generic)):
        raise _no_such_list(spec, what, ragged)
    buf, counts, displs, kind = spec[0], spec[1], None, None
    if given == 2 and isinstance(counts, (MPI.Datatype, str)):
        counts, kind = None, counts
    elif given == 4:
        displs, kind = spec[2:]
    else:
        kind = spec[2] if given == 3 else None
        if isinstance(counts, (MPI.Datatype, str)):
            raise UsageTypeError(f"{what} has count {counts!r}: must be an integer")
        if isinstance(counts, pairs):
            if len(counts) != 2:
                raise UsageTypeError(
                    f"{what} has counts {counts!r}: a tuple of them must be (counts, displacements)"
                    if ragged
                    else f"{what} has count {counts!r}: must be an integer or (count, displacement)"
                )
            counts, displs = counts
    return Parts(buf, counts, displs, kind)


def is_nowhere(buf: Any) -> bool:
    """Whether addresses are absolute: MPI.BOTTOM, or None, which mpi4py takes for the same."""
    return buf is None or buf is MPI.BOTTOM


def type_of(parts: Parts, what: str) -> MPI.Datatype | None:
    """The datatype of a list, None where the buffer says what its elements are.

    Raises: UsageTypeError for what is no datatype, and for a buffer at no place without one.
    """
    kind = parts.kind
    if kind is None:
        if is_nowhere(parts.buf):
            shown = "None" if parts.buf is None else "MPI.BOTTOM"
            raise UsageTypeError(f"{what} has {shown} for a buffer and no type: must be [buf, count, type]")
        return None
    if not isinstance(kind, (MPI.Datatype, str)):
        raise UsageTypeError(f"{what} has type {kind!r}: must be an MPI datatype, or mpi4py's code of one")
    return datatype_of(kind, what)


def elements_of(parts: Parts, datatype: MPI.Datatype | None, what: str) -> tuple[Array, int]:
    """The memory of a list as elements in a row, and how many bytes remain; of a derived type, as bytes.

    Raises: UsageTypeError for what is no buffer; UsageError for one that is not contiguous.
    """
    if datatype is None:
        array = array_of(parts.buf, what)
        check_movable(array.dtype, what)
        return in_a_row(array, what), 0
    dtype = predefined_dtype(datatype)
    if dtype is not None and type(parts.buf) is np.ndarray and parts.buf.dtype == dtype:
        return in_a_row(parts.buf, what), 0
    raw = np.empty(0, np.uint8) if is_nowhere(parts.buf) else bytes_in_a_row(parts.buf, what)
    if dtype is None:
        return raw, 0
    check_movable(dtype, what)
    rest = raw.size % dtype.itemsize
    return raw[: raw.size - rest].view(dtype), rest


def array_of(thing: Any, what: str) -> Array:
    """An array over the memory of an object.

    Raises: UsageTypeError.
    """
    if isinstance(thing, (np.ndarray, np.generic)):
        # Subclasses such as np.matrix have other shapes for slices and reshapes.
        return thing if type(thing) is DeviceArray else np.asarray(thing)
    if thing is MPI.BOTTOM:
        raise UsageTypeError(f"{what} is MPI.BOTTOM without a type: must be [MPI.BOTTOM, count, type]")
    if thing is None or thing is MPI.IN_PLACE or isinstance(thing, str):
        shown = "MPI.IN_PLACE" if thing is MPI.IN_PLACE else repr(thing)
        raise UsageTypeError(f"{what} is {shown}: must be an array or a buffer")
    return device_array(thing, what) if on_device(thing) else host_array(thing, what)


def bytes_in_a_row(thing: Any, what: str) -> Array:
    """The bytes of a contiguous buffer.

    Raises: as `elements_of`.
    """
    if isinstance(thing, (np.ndarray, np.generic)):
        array = array_of(thing, what)
        check_movable(array.dtype, what)
        return in_a_row(array, what).view(np.uint8)
    return (
        in_a_row(device_array(thing, what), what).view(np.uint8)
        if on_device(thing)
        else host_bytes(thing, what)
    )


def in_a_row(array: Array, what: str) -> Array:
    """The elements of a contiguous array as they lie in memory."""
    if array.flags.c_contiguous:
        return array.reshape(-1)
    if array.flags.f_contiguous:
        return array.reshape(-1, order="F")
    raise UsageError(f"{what} is given by count or type and not contiguous: {shown_array(array)}")


def shown_array(array: Array) -> str:
    """What an error says of an array."""
    return f"array of dtype {array.dtype}, shape {array.shape}, strides {array.strides}"


def one_count(parts: Parts, held: Extent, blocks: int, what: str) -> tuple[int, int]:
    """Count (of each of `blocks` blocks) and displacement of a list for a regular call.

    Raises: UsageTypeError for what is no integer; UsageError for negative ones, and for a buffer that
    gives no count.
    """
    displ = 0 if parts.displs is None else whole_number(parts.displs, "displacement", what)
    if displ < 0:
        raise UsageError(f"{what} has displacement {displ}: must not be negative")
    if parts.counts is None:
        return _inferred(held, displ, blocks, what), displ
    count = whole_number(parts.counts, "count", what)
    if count < 0:
        raise UsageError(f"{what} has count {count}, but the buffer holds {held.entries} elements")
    if count and parts.buf is None:
        raise UsageError(f"{what} has count {count}, but None for a buffer")
    return count, displ


def _inferred(held: Extent, displ: int, blocks: int, what: str) -> int:
    _check_whole(held, what)
    if displ > held.entries:
        raise UsageError(f"{what} has displacement {displ}, but the buffer holds {held.entries} elements")
    count, over = divmod(held.entries - displ, blocks)
    if over:
        from_displ = f" from {displ}" if displ else ""
        raise UsageError(
            f"{what} holds {held.entries - displ} elements{from_displ}: "
            f"must be a multiple of the {blocks} ranks"
        )
    return count


def counts_and_displs(parts: Parts, held: Extent, blocks: int, what: str) -> tuple[list[int], list[int]]:
    """Counts and displacements of every rank's block.

    Raises: UsageTypeError for what are no integers; UsageError for another number of them than `blocks`, for
    negative counts, and for a buffer that gives no counts.
    """
    if parts.counts is None:
        _check_whole(held, what)
        each, over = divmod(held.entries, blocks)
        counts = [each + (rank < over) for rank in range(blocks)]
    else:
        counts = counts_for(parts.counts, blocks, what)
    if parts.displs is None:
        displs = [0, *accumulate(counts)][:blocks]
    elif _is_number(parts.displs):
        stride = whole_number(parts.displs, "displacement", what)
        displs = [rank * stride for rank in range(blocks)]
    else:
        displs = _for_each(parts.displs, "displacement", blocks, what)
    return counts, displs


def counts_for(values: Any, blocks: int, what: str) -> list[int]:
    """A count for each rank, from one for all or from a sequence.

    Raises: as `counts_and_displs`.
    """
    counts = _for_each(values, "count", blocks, what)
    if min(counts) < 0:
        rank = next(rank for rank, count in enumerate(counts) if count < 0)
        raise UsageError(f"{what} has count {counts[rank]} for rank {rank}: must not be negative")
    return counts


def _check_whole(held: Extent, what: str) -> None:
    if held.nbytes <= 0:
        if held.entries or held.rest:
            raise UsageError(f"{what} has a type of extent {held.nbytes}: its count must be given")
    elif held.rest:
        total = held.entries * held.nbytes + held.rest
        raise UsageError(f"{what} holds {total} bytes: not a multiple of the {held.nbytes} of its type")


def _for_each(values: Any, name: str, blocks: int, what: str) -> list[int]:
    """A number for each block, from one for all or from a sequence."""
    if _is_number(values):
        return [whole_number(values, name, what)] * blocks
    if isinstance(values, (str, bytes)) or not hasattr(values, "__len__"):
        raise UsageTypeError(f"{what} has {name}s {values!r}: must be an integer or one for each rank")
    if len(values) != blocks:
        raise UsageError(f"{what} has {len(values)} {name}s: must be one for each of the {blocks} ranks")
    # Of an array the numbers one by one would be slow.
    numbers: Sequence[Any] = values.tolist() if isinstance(values, np.ndarray) else values
    return [whole_number(value, name, what) for value in numbers]


def _is_number(value: Any) -> bool:
    """Whether it is one number, not a sequence; an array of no dimensions is, one of one element is not."""
    if isinstance(value, np.ndarray):
        return value.ndim == 0
    return hasattr(value, "__index__")


def whole_number(value: Any, name: str, what: str) -> int:
    """A count or displacement.

    Raises: UsageTypeError when it is no integer.
    """
    try:
        return index(value)
    except TypeError:
        raise UsageTypeError(f"{what} has {name} {value!r}: must be an integer") from None


def _no_such_list(spec: Sequence[Any], what: str, ragged: bool) -> UsageTypeError:
    counts = "counts" if ragged else "count"
    return UsageTypeError(
        f"{what} is {repr(spec)[:200]}: must be an array, [buf, {counts}], [buf, type] "
        f"or [buf, {counts}, type]"
    )
