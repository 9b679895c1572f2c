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

from hpccoll.dtypes import check_movable
from hpccoll.errors import UsageError, UsageTypeError
from hpccoll.transports.base import Array


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


def source(spec: Any, what: str, *, dtype: np.dtype[Any] | None = None, order: str = "C") -> Buffer:
    """A buffer to read.

    `spec`: an array, a number, anything with the buffer interface or DLPack on the CPU, or mpi4py's lists
    [buf, count], [buf, type], [buf, count, type].  A plain Python number takes `dtype`.

    Raises: UsageTypeError for what is no such buffer; UsageError for a count larger than the buffer.
    """
    return _buffer(spec, what, dtype, order, fill=True)


def target(spec: Any, what: str, *, order: str = "C", fill: bool = False) -> Buffer:
    """A buffer to write; with `fill` its present elements are in `flat` too (in place).

    Raises: as `source`, and UsageError when the buffer is read-only.
    """
    if isinstance(spec, (bool, int, float, complex, np.generic, bytes)):
        raise UsageTypeError(f"{what} is {spec!r}, which cannot be written to: pass an array")
    buffer = _buffer(spec, what, None, order, fill=fill)
    if not buffer.owner.flags.writeable:
        raise UsageError(f"{what} is read-only: {_shown(buffer.owner)}")
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


def _buffer(spec: Any, what: str, dtype: np.dtype[Any] | None, order: str, *, fill: bool) -> Buffer:
    array = _from_list(spec, what) if isinstance(spec, (list, tuple)) else _array(spec, what, dtype)
    check_movable(array.dtype, what)
    if array.flags.c_contiguous and (order == "C" or array.ndim <= 1):
        return Buffer(array.reshape(-1), array, order, packed=False)
    if order == "F" and array.flags.f_contiguous:
        return Buffer(array.reshape(-1, order="F"), array, order, packed=False)
    flat = array.flatten(order=order) if fill else np.empty(array.size, array.dtype)  # type: ignore[arg-type]
    return Buffer(flat, array, order, packed=True)


def _array(spec: Any, what: str, dtype: np.dtype[Any] | None) -> Array:
    """An array over the memory of the object, or a new one for a number."""
    if isinstance(spec, np.ndarray):
        return spec
    if isinstance(spec, (bool, int, float, complex)):
        return np.asarray(spec, dtype=dtype)
    if isinstance(spec, np.generic):
        return np.asarray(spec)
    if spec is None or isinstance(spec, str):
        raise UsageTypeError(f"{what} is {spec!r}: must be an array or a buffer")
    if getattr(spec, "__cuda_array_interface__", None) is not None:
        raise UsageTypeError(
            f"{what} is a {type(spec).__name__} in device memory: this version takes host arrays only"
        )
    try:
        return np.asarray(memoryview(spec))
    except (TypeError, ValueError, BufferError):
        pass
    if hasattr(spec, "__dlpack__"):
        try:
            return np.from_dlpack(spec)
        except (TypeError, ValueError, BufferError, RuntimeError) as error:
            raise UsageTypeError(f"{what} is a {type(spec).__name__}: {error}") from error
    if hasattr(spec, "__array_interface__"):
        return np.asarray(spec)
    raise UsageTypeError(f"{what} is a {type(spec).__name__}: must be an array or a buffer")


def _from_list(spec: list[Any] | tuple[Any, ...], what: str) -> Array:
    """mpi4py's [buf, count], [buf, type], [buf, count, type] with a predefined type."""
    if not spec or len(spec) > 3:
        raise UsageTypeError(
            f"{what} is {spec!r}: must be an array, [buf, count], [buf, type] or [buf, count, type]"
        )
    array = _array(spec[0], what, None)
    kind = next((part for part in spec[1:] if isinstance(part, (MPI.Datatype, str))), None)
    counts = [part for part in spec[1:] if part is not kind]
    if kind is not None:
        array = _flat_bytes(array, what).view(_numpy_dtype(kind, what))
    count = counts[0] if counts else None
    if count is None:
        return array
    if not isinstance(count, (int, np.integer)):
        raise UsageTypeError(f"{what} has count {count!r}: must be a number")
    if not 0 <= count <= array.size:
        raise UsageError(f"{what} has count {count}, but the buffer holds {array.size} elements")
    return _flat(array, what)[: int(count)]


def _flat(array: Array, what: str) -> Array:
    if array.flags.c_contiguous:
        return array.reshape(-1)
    if array.flags.f_contiguous:
        return array.reshape(-1, order="F")
    raise UsageError(f"{what} is given by count or type and not contiguous: {_shown(array)}")


def _flat_bytes(array: Array, what: str) -> Array:
    return _flat(array, what).view(np.uint8)


def _numpy_dtype(kind: MPI.Datatype | str, what: str) -> np.dtype[Any]:
    try:
        datatype = MPI.Datatype.fromcode(kind) if isinstance(kind, str) else kind
        if not (datatype.is_predefined and datatype != MPI.DATATYPE_NULL):
            raise ValueError("derived")
        return mpi_dtypes.to_numpy_dtype(datatype)
    except (ValueError, KeyError, MPI.Exception):
        raise UsageTypeError(
            f"{what} has type {kind!r}: must be a predefined MPI type that NumPy has"
        ) from None


def _shown(array: Array) -> str:
    return f"array of dtype {array.dtype}, shape {array.shape}, strides {array.strides}"
