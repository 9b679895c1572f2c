"""What the caller passed, as one run of elements; all checks of a single buffer.

Arrays of any strides are taken by index: the elements travel in C order, whatever the memory order, and
results land at the same index.  Where blocks of several ranks lie one after the other (all-gather,
reduce-scatter) and the receive buffer is Fortran-ordered, they lie along its memory, that is along
the last axis.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
from mpi4py import MPI
from mpi4py.util import dtlib as mpi_dtypes

from hpccoll.derived import Items, is_derived
from hpccoll.dtypes import check_movable, row_of
from hpccoll.errors import UsageError, UsageTypeError
from hpccoll.foreign import host_array, host_bytes
from hpccoll.transports.base import Array

_NUMBERS = (bool, int, float, complex)
_CONSTANTS = (*_NUMBERS, np.generic, bytes)
_KINDS = {"bool": 0, "int": 1, "uint": 1, "float": 2, "complex": 3}


@dataclass
class Buffer:
    """A caller's buffer: `flat` is its elements, one-dimensional and contiguous.

    `packed` says that `flat` is a copy, which `unpack` brings back.
    """

    flat: Array
    owner: Array
    order: str
    packed: bool

    @property
    def count(self) -> int:
        return self.flat.size

    @property
    def dtype(self) -> np.dtype[Any]:
        return self.flat.dtype

    def unpack(self) -> None:
        """After the elements of `flat` were written: bring them to the caller's array."""
        if self.packed:
            self.owner[...] = self.flat.reshape(self.owner.shape, order=self.order)  # type: ignore[call-overload]


class DerivedBuffer(Buffer):
    """A buffer of a derived datatype: always packed; its owner is the bytes that hold the items."""

    def __init__(self, items: Items, fill: bool) -> None:
        flat = items.pack() if fill else np.empty(items.nbytes, np.uint8).view(items.dtype)
        super().__init__(flat, items.raw, "C", packed=True)
        self._items = items

    def unpack(self) -> None:
        self._items.unpack(self.flat)


def source(
    spec: Any, what: str, *, dtype: np.dtype[Any] | None = None, order: str = "C", blocks: int = 1
) -> Buffer:
    """A buffer to read.

    `spec`: an array, a number, anything with the buffer interface or DLPack on the CPU, or mpi4py's lists
    [buf, count], [buf, type], [buf, count, type], [buf, (count, start), type], [buf, count, start, type];
    their count is that of each of `blocks` blocks.  A plain Python number takes `dtype`.

    Raises: UsageTypeError for what is no such buffer; UsageError for a count larger than the buffer, and
    for a number that `dtype` cannot hold.
    """
    return _buffer(spec, what, dtype, order, blocks, fill=True)


def target(spec: Any, what: str, *, order: str = "C", fill: bool = False, blocks: int = 1) -> Buffer:
    """A buffer to write; with `fill` its present elements are in `flat` too (in place).

    Raises: as `source`, and UsageError when the buffer is read-only or its elements share memory.
    """
    if isinstance(spec, _CONSTANTS):
        raise UsageTypeError(f"{what} is {spec!r}, which cannot be written to: pass an array")
    buffer = _buffer(spec, what, None, order, blocks, fill=fill)
    if not buffer.owner.flags.writeable:
        raise UsageError(f"{what} is read-only: {_shown(buffer.owner)}")
    if _elements_overlap(buffer.owner):
        raise UsageError(f"{what} has elements that share memory: {_shown(buffer.owner)}")
    return buffer


def memory_order(spec: Any) -> str:
    """Returns "F" when blocks of several ranks lie along the memory of a Fortran-ordered array, else "C"."""
    flags = getattr(spec, "flags", None)
    fortran = getattr(flags, "f_contiguous", False) and not getattr(flags, "c_contiguous", True)
    return "F" if fortran else "C"


def check_apart(send: Buffer, receive: Buffer) -> bool:
    """True when both are the very same memory, which is in place; False when they are apart.

    Raises: UsageError when they overlap in part.
    """
    one, other = send.owner, receive.owner
    if not np.may_share_memory(one, other):
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


def _buffer(
    spec: Any, what: str, dtype: np.dtype[Any] | None, order: str, blocks: int, *, fill: bool
) -> Buffer:
    if isinstance(spec, (list, tuple)):
        found = _from_list(spec, what, blocks)
        if isinstance(found, Items):
            return DerivedBuffer(found, fill)
        array = found
    else:
        array = _array(spec, what, dtype)
    check_movable(array.dtype, what)
    # MPI does not know unaligned elements as numbers: they are packed like strided ones.
    aligned = array.flags.aligned
    if aligned and array.flags.c_contiguous and (order == "C" or array.ndim <= 1):
        return Buffer(array.reshape(-1), array, order, packed=False)
    if aligned and order == "F" and array.flags.f_contiguous:
        return Buffer(array.reshape(-1, order="F"), array, order, packed=False)
    flat = array.flatten(order=order) if fill else np.empty(array.size, array.dtype)  # type: ignore[arg-type]
    return Buffer(flat, array, order, packed=True)


def _array(spec: Any, what: str, dtype: np.dtype[Any] | None) -> Array:
    """An array over the memory of the object, or a new one for a number."""
    if isinstance(spec, (np.ndarray, np.generic)):
        # Subclasses such as np.matrix have other shapes for slices and reshapes.
        return np.asarray(spec)
    if isinstance(spec, _NUMBERS):
        return _number(spec, what, dtype)
    if spec is None or isinstance(spec, str):
        raise UsageTypeError(f"{what} is {spec!r}: must be an array or a buffer")
    return host_array(spec, what)


def _number(value: complex, what: str, dtype: np.dtype[Any] | None) -> Array:
    """A plain Python number as an array of `dtype`, where that can hold it."""
    row = row_of(dtype) if dtype is not None else None
    if dtype is None or row is None:
        return np.asarray(value)
    if _KINDS[row.kind] < next(kind for kind, one in enumerate(_NUMBERS) if isinstance(value, one)):
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


def _from_list(spec: list[Any] | tuple[Any, ...], what: str, blocks: int) -> Array | Items:
    """The elements that one of mpi4py's lists means; see `source`."""
    rest = list(spec[1:])
    kind = rest.pop() if rest and isinstance(rest[-1], (MPI.Datatype, str)) else None
    if len(rest) == 1 and isinstance(rest[0], (list, tuple)):
        rest = list(rest[0])
    if not spec or isinstance(spec[0], (list, tuple, *_NUMBERS, np.generic)) or len(rest) > 2:
        raise UsageTypeError(
            f"{what} is {repr(spec)[:200]}: must be an array, [buf, count], [buf, type] or [buf, count, type]"
        )
    for value in rest:
        if value is not None and (isinstance(value, bool) or not isinstance(value, (int, np.integer))):
            raise UsageTypeError(f"{what} has count {value!r}: must be a number")
    count, start = (*rest, None, None)[:2]
    if kind is not None and hasattr(spec[0], "__dlpack__") and not isinstance(spec[0], np.ndarray):
        array = host_bytes(spec[0], what)
    else:
        array = _array(spec[0], what, None)
    if is_derived(kind):
        raw = _flat(array, what).view(np.uint8)
        return Items(raw, kind, None if count is None else int(count), int(start or 0), blocks, what)
    if kind is not None:
        array = _reinterpreted(array, _numpy_dtype(kind, what), count is None, what)
    if count is None and start is None:
        return array
    start = int(start or 0)
    count = (array.size - start) // blocks if count is None else int(count)
    if start < 0 or count < 0 or start + blocks * count > array.size:
        of_blocks = f" for each of {blocks} ranks" if blocks > 1 else ""
        from_start = f" from {start}" if start else ""
        raise UsageError(
            f"{what} has count {count}{of_blocks}{from_start}, but the buffer holds {array.size} elements"
        )
    return _flat(array, what)[start : start + blocks * count]


def _reinterpreted(array: Array, dtype: np.dtype[Any], whole: bool, what: str) -> Array:
    """The bytes of an array as another dtype; `whole` forbids a rest at its end."""
    check_movable(array.dtype, what)
    raw = _flat(array, what).view(np.uint8)
    rest = raw.size % dtype.itemsize
    if rest and whole:
        raise UsageError(f"{what} holds {raw.size} bytes: not a multiple of the {dtype.itemsize} of its type")
    return raw[: raw.size - rest].view(dtype)


def _flat(array: Array, what: str) -> Array:
    if array.flags.c_contiguous:
        return array.reshape(-1)
    if array.flags.f_contiguous:
        return array.reshape(-1, order="F")
    raise UsageError(f"{what} is given by count or type and not contiguous: {_shown(array)}")


def _numpy_dtype(kind: MPI.Datatype | str, what: str) -> np.dtype[Any]:
    try:
        datatype = MPI.Datatype.fromcode(kind) if isinstance(kind, str) else kind
        if not (datatype.is_predefined and datatype != MPI.DATATYPE_NULL):
            raise ValueError("derived")
        return mpi_dtypes.to_numpy_dtype(datatype)
    except (ValueError, KeyError, MPI.Exception):
        raise UsageTypeError(f"{what} has type {kind!r}: must be an MPI type that NumPy has") from None


def _shown(array: Array) -> str:
    return f"array of dtype {array.dtype}, shape {array.shape}, strides {array.strides}"
