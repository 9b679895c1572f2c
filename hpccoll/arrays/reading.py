"""What the caller passed, as one run of elements; all checks of a single buffer.

Arrays of any strides are taken by index: the elements travel in C order, whatever the memory order, and
results land at the same index.  Where blocks of several ranks lie one after the other and the array is
Fortran-ordered, they lie along its memory, that is along the last axis.  What is given by a list of
mpi4py (messages.py) is taken as it lies in memory.
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import accumulate
from typing import Any

import numpy as np
from mpi4py import MPI

from hpccoll.arrays.buffer import Buffer, DerivedBuffer, packed_buffer, parts_buffer
from hpccoll.arrays.datatypes import OwnDatatype, element_dtype, packed_dtype, predefined_dtype
from hpccoll.arrays.derived import Block, Items
from hpccoll.arrays.foreign import NUMBERS
from hpccoll.arrays.messages import (
    Extent,
    Parts,
    array_of,
    elements_of,
    is_nowhere,
    one_count,
    shown_array,
    take_apart,
    type_of,
)
from hpccoll.dtypes import check_movable, row_of
from hpccoll.errors import UsageError, UsageTypeError
from hpccoll.ops.table import Operator
from hpccoll.transports.base import Array

_CONSTANTS = (*NUMBERS, np.generic, bytes)
_KINDS = {"bool": 0, "int": 1, "uint": 1, "float": 2, "complex": 3}


def source(
    spec: Any,
    what: str,
    *,
    dtype: np.dtype[Any] | None = None,
    order: str = "C",
    blocks: int = 1,
    op: Operator | None = None,
) -> Buffer:
    """A buffer to read.

    Args:
        spec: an array, a number, anything with the buffer interface or DLPack on the CPU, or one of mpi4py's
            lists (messages.py).
        what: the name of the argument, for errors.
        dtype: what a plain Python number becomes.
        order: how blocks lie in an array (see `block_order`).
        blocks: how many blocks the count of a list stands for.
        op: what combines the elements.

    Raises:
        UsageTypeError: no such buffer.
        UsageError: a count larger than the buffer; a number that `dtype` cannot hold.

    """
    if type(spec) is np.ndarray and (order == "C" or spec.ndim == 1) and _is_plain(spec.dtype):
        flags = spec.flags
        if flags.c_contiguous and flags.aligned:
            return Buffer(spec if spec.ndim == 1 else spec.reshape(-1), spec)
    return _buffer(spec, what, dtype, order, blocks, op, fill=True)


def target(
    spec: Any, what: str, *, order: str = "C", fill: bool = False, blocks: int = 1, op: Operator | None = None
) -> Buffer:
    """A buffer to write; with `fill` its present elements are in `flat` too (in place).

    Raises: as `source`, and UsageError when the buffer is read-only or its elements share memory.
    """
    if type(spec) is np.ndarray and (order == "C" or spec.ndim == 1) and _is_plain(spec.dtype):
        if spec.flags.carray:
            return Buffer(spec if spec.ndim == 1 else spec.reshape(-1), spec)
    elif isinstance(spec, _CONSTANTS):
        raise UsageTypeError(f"{what} is {spec!r}, which cannot be written to: pass an array")
    return _buffer(spec, what, None, order, blocks, op, fill=fill, write=True)


def memory_order(spec: Any) -> str:
    """Returns "F" for a Fortran-ordered array, also in a list, and "C" for everything else."""
    flags = getattr(spec, "flags", None)
    fortran = getattr(flags, "f_contiguous", False) and not getattr(flags, "c_contiguous", True)
    return "F" if fortran else "C"


def block_order(many: Any, one: Any) -> str:
    """How the blocks of `many` lie, where other ranks take theirs from arrays like `one`, or put them there.

    Returns "C"; or for a Fortran-ordered array, whose blocks lie along its last axis: "F" when blocks travel
    as they lie in memory, "B" when each travels in C order because the others pass it as an array by index.
    """
    if memory_order(many) == "C":
        return "C"
    by_index = getattr(one, "ndim", 0) > 1
    return "B" if by_index or one is None or one is MPI.IN_PLACE else "F"


def check_apart(send: Buffer, receive: Buffer) -> bool:
    """True when both are the very same memory, which is in place; False when apart, or one is a copy.

    Raises: UsageError when they overlap in part.
    """
    one, other = send.owner, receive.owner
    if one is None or other is None or not np.may_share_memory(one, other):
        return False
    if one.ctypes.data == other.ctypes.data and one.strides == other.strides and one.shape == other.shape:
        return True
    try:
        overlap = np.shares_memory(one, other, max_work=100_000)  # type: ignore[arg-type]
    except np.exceptions.TooHardError:
        overlap = True
    if overlap:
        raise UsageError("sendbuf and recvbuf overlap in part; pass MPI.IN_PLACE, or buffers that lie apart")
    return False


def check_writable(array: Array, what: str) -> None:
    """Raises UsageError for an array that is read-only, or whose elements share memory."""
    if not array.flags.writeable:
        raise UsageError(f"{what} is read-only: {shown_array(array)}")
    if _elements_overlap(array):
        raise UsageError(f"{what} has elements that share memory: {shown_array(array)}")


def derived_buffer(
    memory: Array | None,
    placed: Sequence[Block],
    datatype: MPI.Datatype,
    what: str,
    op: Operator | None,
    *,
    fill: bool,
    write: bool,
) -> Buffer:
    """Blocks of items of one datatype.

    Raises: UsageTypeError when its elements differ and `op` takes single ones; UsageError when blocks are
    not within the memory, or are to be written and it is read-only or they overlap.
    """
    element = element_dtype(datatype)
    size, kept = datatype.size, None
    if op is not None and op.function is not None:
        # The function of a user operator gets whole items, which travel as MPI packs them.
        if predefined_dtype(datatype) is None:
            element = np.dtype(f"V{size}")
            datatype = OwnDatatype(datatype.Dup())
        kept = datatype
    elif element is None and op is not None:
        raise UsageTypeError(
            f"{what} has a datatype of elements of different types: {op!r} is not defined for it"
        )
    element = element if element is not None else np.dtype(np.uint8)
    items = Items(memory, placed, element, what)
    if write:
        check_writable(items.memory, what)
        items.check_apart()
    return DerivedBuffer(items, size // packed_dtype(element).itemsize, kept, fill=fill)


def _is_plain(dtype: np.dtype[Any]) -> bool:
    """Most arrays have one of NumPy's own dtypes; others go through all checks."""
    return dtype.isbuiltin == 1 and dtype.itemsize > 0 and not dtype.hasobject


def _buffer(
    spec: Any,
    what: str,
    dtype: np.dtype[Any] | None,
    order: str,
    blocks: int,
    op: Operator | None,
    *,
    fill: bool,
    write: bool = False,
) -> Buffer:
    datatype = None
    if isinstance(spec, (list, tuple)):
        parts = take_apart(spec, what, ragged=False)
        datatype = type_of(parts, what)
        array, rest = elements_of(parts, datatype, what)
        if datatype is not None and (predefined_dtype(datatype) is None or parts.buf is MPI.BOTTOM):
            return _derived(parts, datatype, array, what, blocks, op, fill=fill, write=write)
        count, displ = one_count(parts, Extent(array.size, array.itemsize, rest), blocks, what)
        _check_fits(count, displ, blocks, array.size, what)
        array = array[displ : displ + blocks * count]
    else:
        plain = isinstance(spec, NUMBERS) and not isinstance(spec, np.generic)
        array = _number(spec, what, dtype) if plain else array_of(spec, what)
        check_movable(array.dtype, what)
    if write:
        check_writable(array, what)
    # MPI does not know unaligned elements as numbers: they are packed like strided ones.
    aligned = array.flags.aligned
    if aligned and array.flags.c_contiguous and (order == "C" or array.ndim <= 1):
        return Buffer(array.reshape(-1), array, order, datatype=datatype)
    if order == "B":
        parts_of = along_last_axis(array, [array.size // blocks] * blocks)
        if parts_of is not None:
            return parts_buffer(parts_of, array.dtype, None, fill=fill)
        order = "F"
    if aligned and order == "F" and array.flags.f_contiguous:
        return Buffer(array.reshape(-1, order="F"), array, order)
    return packed_buffer(array, order, datatype, fill=fill)


def along_last_axis(array: Array, counts: Sequence[int], displs: Sequence[int] = ()) -> list[Array] | None:
    """Blocks of a Fortran-ordered array, each a part of its last axis; None where blocks end between."""
    whole = array.size // array.shape[-1] if array.size else 0
    places = displs or [0, *accumulate(counts)][: len(counts)]
    if not whole or any(number % whole for number in (*counts, *places)):
        return None
    return [
        array[..., displ // whole : (displ + count) // whole]
        for count, displ in zip(counts, places, strict=True)
    ]


def _derived(
    parts: Parts,
    datatype: MPI.Datatype,
    raw: Array,
    what: str,
    blocks: int,
    op: Operator | None,
    *,
    fill: bool,
    write: bool,
) -> Buffer:
    """The buffer of a list with a derived datatype, or with addresses."""
    extent = datatype.extent
    entries, rest = divmod(raw.size, extent) if extent > 0 else (raw.size, 0)
    count, displ = one_count(parts, Extent(entries, extent, rest), blocks, what)
    memory = None if is_nowhere(parts.buf) else raw.view(np.uint8)
    placed = [Block(datatype, blocks * count, displ * extent)]
    return derived_buffer(memory, placed, datatype, what, op, fill=fill, write=write)


def _check_fits(count: int, displ: int, blocks: int, held: int, what: str) -> None:
    if displ + blocks * count > held:
        of_blocks = f" for each of {blocks} ranks" if blocks > 1 else ""
        from_displ = f" from {displ}" if displ else ""
        raise UsageError(
            f"{what} has count {count}{of_blocks}{from_displ}, but the buffer holds {held} elements"
        )


def _number(value: complex, what: str, dtype: np.dtype[Any] | None) -> Array:
    """A plain Python number as an array of `dtype`, where that can hold it."""
    row = row_of(dtype) if dtype is not None else None
    if dtype is None or row is None:
        return np.asarray(value)
    if _KINDS[row.kind] < next(kind for kind, one in enumerate(NUMBERS) if isinstance(value, one)):
        raise UsageTypeError(f"{what} is {value!r}: dtype {dtype} of recvbuf cannot hold it")
    if row.kind in ("int", "uint") and not np.iinfo(dtype).min <= value.real <= np.iinfo(dtype).max:
        raise UsageError(f"{what} is {value!r}: dtype {dtype} of recvbuf cannot hold it")
    try:
        return np.asarray(value, dtype=dtype)
    except OverflowError:
        raise UsageError(f"{what} is {value!r}: dtype {dtype} of recvbuf cannot hold it") from None


def _elements_overlap(array: Array) -> bool:
    """There are more bytes in the elements than the array spans: strides of 0, sliding windows."""
    if array.size <= 1 or array.flags.forc:
        return False
    spanned = sum((n - 1) * abs(s) for n, s in zip(array.shape, array.strides, strict=True))
    return bool(spanned + array.itemsize < array.nbytes)
