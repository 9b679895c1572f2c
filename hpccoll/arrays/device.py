"""Arrays in the memory of a CUDA device, whichever library made them.

A `DeviceArray` is a NumPy array whose address is one of the device: shapes, strides, slices and overlaps are
NumPy's own, and nothing here reads or writes an element.  No GPU package is imported to read one.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple, cast

import numpy as np

from hpccoll.arrays.dlpack import tensor_of
from hpccoll.errors import UsageTypeError
from hpccoll.topology.gpus import likely_ordinal
from hpccoll.transports.base import Array

LEGACY_STREAM = 1  # as a handle: also what 0 stands for
_CUDA_DEVICES = (2, 13)  # of DLPack: device memory and managed memory


class Home(NamedTuple):
    """Where elements are: the device, the stream on which they are in order, what keeps the memory."""

    device: int
    stream: int
    owner: object


class DeviceArray(np.ndarray[Any, Any]):
    """Elements on a device; `home` says which, and is that of all its slices and views."""

    home: Home

    def __array_finalize__(self, other: Any) -> None:
        self.home = getattr(other, "home", None)  # type: ignore[assignment]

    __array_ufunc__ = None  # type: ignore[assignment]  # arithmetic with it is a TypeError

    def __array_function__(self, function: Any, types: Any, args: Any, kwargs: Any) -> Any:
        if function not in (np.may_share_memory, np.shares_memory):
            raise TypeError(f"numpy.{function.__name__} cannot read elements on a device")
        return super().__array_function__(function, types, args, kwargs)

    def __setitem__(self, key: Any, value: Any) -> None:
        raise TypeError("elements on a device cannot be written by NumPy")

    def __repr__(self) -> str:
        return f"DeviceArray({self.dtype}, shape {self.shape}, at {self.ctypes.data:#x})"

    __str__ = __repr__

    def copy(self, order: Any = "C") -> Any:
        raise TypeError("elements on a device cannot be copied by NumPy")


def home_of(array: Array) -> Home:
    """Where a `DeviceArray` is."""
    return cast(DeviceArray, array).home


def is_device(thing: Any) -> bool:
    """Whether an object says that its elements are on a CUDA device.

    True also for memory of the host behind `__cuda_array_interface__`; `device_array` finds that out.
    """
    if getattr(type(thing), "__cuda_array_interface__", None) is not None:
        return True
    asked = getattr(thing, "__dlpack_device__", None)
    if asked is None or isinstance(thing, np.ndarray):
        return getattr(thing, "__cuda_array_interface__", None) is not None
    try:
        return int(asked()[0]) in _CUDA_DEVICES
    except (TypeError, ValueError, RuntimeError, BufferError, IndexError):
        return False


def is_device_address(address: int) -> bool:
    """Whether the driver, which must be loaded, knows an address as memory of a device."""
    from cuda.bindings import driver

    asked = driver.CUpointer_attribute
    status, kind = driver.cuPointerGetAttribute(asked.CU_POINTER_ATTRIBUTE_MEMORY_TYPE, address)
    if status != driver.CUresult.CUDA_SUCCESS:
        return False
    if kind != driver.CUmemorytype.CU_MEMORYTYPE_HOST:
        return True
    # Managed memory may be with the host at the moment.
    return bool(driver.cuPointerGetAttribute(asked.CU_POINTER_ATTRIBUTE_IS_MANAGED, address)[1])


def ordinal_at(address: int) -> int:
    """The ordinal of the device whose memory an address is in."""
    from cuda.bindings import driver

    attribute = driver.CUpointer_attribute.CU_POINTER_ATTRIBUTE_DEVICE_ORDINAL
    status, ordinal = driver.cuPointerGetAttribute(attribute, address)
    if status != driver.CUresult.CUDA_SUCCESS:
        raise UsageTypeError(f"address {address:#x} is not in the memory of a CUDA device ({status.name})")
    return int(ordinal)


def _ordinal_around(address: int) -> int:
    """The device of an empty array, which may lie just behind some memory, or nowhere."""
    from cuda.bindings import driver

    for near in (address, address - 1):
        if near > 0 and is_device_address(near):
            return ordinal_at(near)
    status, current = driver.cuCtxGetDevice()
    return int(current) if status == driver.CUresult.CUDA_SUCCESS else likely_ordinal(os.environ)


def device_array(thing: Any, what: str) -> DeviceArray:
    """An object's elements on a device, in its shape and strides.

    Raises: UsageTypeError for a dtype that NumPy and ml_dtypes have not.
    """
    try:
        cuda = thing.__cuda_array_interface__
    except (AttributeError, TypeError, RuntimeError):  # torch raises for its own 16-bit floats
        return _of_dlpack(thing, what)
    if cuda.get("mask") is not None:
        raise UsageTypeError(f"{what} is a {type(thing).__name__} with a mask")
    dtype = _dtype_of(thing, cuda["typestr"], what)
    address, read_only = cuda["data"]
    device = ordinal_of(thing)
    if device is None:
        device = _ordinal_around(address or 0) if 0 in cuda["shape"] else ordinal_at(address)
    home = Home(device, current_stream(thing, cuda.get("stream")), thing)
    strides = cuda.get("strides")
    return placed(address, cuda["shape"], dtype, strides=strides, read_only=read_only, home=home)


def _dtype_of(thing: Any, typestr: str, what: str) -> np.dtype[Any]:
    try:
        dtype = np.dtype(typestr)
    except TypeError:
        dtype = None
    own = getattr(thing, "dtype", None)
    if isinstance(own, np.dtype) and (dtype is None or dtype.kind == "V"):
        return own  # of ml_dtypes, or structured: the interface has at most their size
    if dtype is None:
        raise UsageTypeError(f"{what} has the unknown dtype {typestr!r}")
    return dtype


def placed(
    address: int,
    shape: Sequence[int] | int,
    dtype: np.dtype[Any],
    *,
    home: Home,
    strides: Sequence[int] | None = None,
    read_only: bool = False,
) -> DeviceArray:
    """An array at an address of a device."""
    shape = (shape,) if isinstance(shape, int) else tuple(shape)
    # NumPy sees any dtype in elements of its size.
    at = _At(address, shape, read_only, f"|V{dtype.itemsize}", None if strides is None else tuple(strides))
    made = np.asarray(at).view(dtype).view(DeviceArray)
    made.home = home
    return made


def unowned(array: Array) -> DeviceArray:
    """The same elements, without keeping the memory."""
    home = home_of(array)._replace(owner=None)
    return placed(array.ctypes.data, array.shape, array.dtype, strides=array.strides, home=home)


class _At:
    """Shows NumPy memory that it must not touch."""

    def __init__(
        self,
        address: int,
        shape: tuple[int, ...],
        read_only: bool,
        typestr: str,
        strides: tuple[int, ...] | None,
    ) -> None:
        memory = (address, read_only)
        self.__array_interface__ = {
            "version": 3, "shape": shape, "typestr": typestr, "data": memory, "strides": strides,
        }  # fmt: skip


def _of_dlpack(thing: Any, what: str) -> DeviceArray:
    # -1: nobody needs to wait here, since the call is ordered by the caller's stream.
    try:
        tensor = tensor_of(thing, stream=-1)
    except (AttributeError, TypeError, ValueError, RuntimeError, BufferError) as error:
        raise UsageTypeError(f"{what} is a {type(thing).__name__}: {error}") from error
    if tensor.device_type not in _CUDA_DEVICES:
        raise UsageTypeError(f"{what} is a {type(thing).__name__}, and not on a CUDA device")
    home = Home(tensor.device_id, current_stream(thing, None), (thing, tensor.capsule))
    return placed(
        tensor.address, tensor.shape, tensor.dtype, strides=tensor.strides, home=home,
        read_only=tensor.read_only,
    )  # fmt: skip


def ordinal_of(thing: Any) -> int | None:
    """The device that an array says it is on."""
    device = getattr(thing, "device", None)
    number = getattr(device, "id", None)  # CuPy, JAX
    if number is None:
        number = getattr(device, "index", None)  # torch
    return number if isinstance(number, int) else None


def current_stream(thing: Any, given: int | None) -> int:
    """The stream that is current in the library that an array is of; `given` by the array itself."""
    return (_STREAM_OF.get(type(thing)) or stream_finder(thing))(thing) or given or LEGACY_STREAM


def stream_finder(thing: Any) -> Callable[[Any], int]:
    """What finds the current stream of arrays of this type; 0 for the default, or where there is none."""
    kind = type(thing)
    if kind not in _STREAM_OF:
        _STREAM_OF[kind] = _FINDERS.get(kind.__module__.partition(".")[0], _none)()
    return _STREAM_OF[kind]


def _of_cupy() -> Callable[[Any], int]:
    now = sys.modules["cupy"].cuda.get_current_stream
    return lambda thing: now().ptr


def _of_torch() -> Callable[[Any], int]:
    now = sys.modules["torch"].cuda.current_stream
    return lambda thing: now(thing.device).cuda_stream


def _none() -> Callable[[Any], int]:
    return lambda thing: 0


def current_streams() -> set[int]:
    """The streams that are current in this thread in CuPy and in torch, where these are in use."""
    found = {0}
    if "cupy" in sys.modules:
        found.add(sys.modules["cupy"].cuda.get_current_stream().ptr)
    if "torch" in sys.modules and sys.modules["torch"].cuda.is_initialized():
        found.add(sys.modules["torch"].cuda.current_stream().cuda_stream)
    return found - {0}


_FINDERS: dict[str, Callable[[], Callable[[Any], int]]] = {"cupy": _of_cupy, "torch": _of_torch}
_STREAM_OF: dict[type, Callable[[Any], int]] = {}

Glance = tuple[tuple[object, ...], int]


def glance(thing: Any) -> Glance:
    """What tells an array from others, as cheaply as it can be had, and its current stream.

    Raises: AttributeError, TypeError, RuntimeError for what has no `__cuda_array_interface__`.
    """
    return (_GLANCES.get(type(thing)) or _glance_for(thing))(thing)


def _glance_for(thing: Any) -> Callable[[Any], Glance]:
    kind = type(thing)
    of_cupy = kind is getattr(sys.modules.get("cupy"), "ndarray", None)
    found = _GLANCES[kind] = _at_cupy() if of_cupy else _at_any
    return found


def _at_any(thing: Any) -> Glance:
    cuda = thing.__cuda_array_interface__
    get = cuda.get
    stream = (_STREAM_OF.get(type(thing)) or stream_finder(thing))(thing) or get("stream") or LEGACY_STREAM
    return (cuda["data"], cuda["shape"], cuda["typestr"], get("strides")), stream


def _at_cupy() -> Callable[[Any], Glance]:
    now = sys.modules["cupy"].cuda.get_current_stream

    def look(thing: Any) -> Glance:
        return (thing.data.ptr, thing.shape, thing.strides, thing.dtype), now().ptr or LEGACY_STREAM

    return look


_GLANCES: dict[type, Callable[[Any], Glance]] = {}


def stream_handle(stream: Any) -> int:
    """A CUDA stream as a number.

    `stream`: of CuPy, torch or cuda.core, anything with `__cuda_stream__`, or a handle.  Raises:
    UsageTypeError.
    """
    if hasattr(stream, "__cuda_stream__"):
        protocol = stream.__cuda_stream__
        found = (protocol() if callable(protocol) else protocol)[1]
    else:
        found = getattr(stream, "ptr", getattr(stream, "cuda_stream", stream))
    try:
        return int(found) or LEGACY_STREAM
    except (TypeError, ValueError):
        raise UsageTypeError(f"stream is {stream!r}: must be a CUDA stream") from None
