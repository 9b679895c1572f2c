"""Arrays of other libraries as NumPy arrays over the same memory."""

from __future__ import annotations

import ctypes
from typing import Any, cast

import numpy as np
from mpi4py import MPI

from hpccoll.arrays.device import LEGACY_STREAM, Home, is_device, is_device_address, ordinal_at, placed
from hpccoll.arrays.dlpack import tensor_of
from hpccoll.errors import UsageError, UsageTypeError
from hpccoll.transports.base import Array

NUMBERS = (bool, int, float, complex)
# DLPack's device types whose memory the host can read: CPU, pinned CUDA and ROCm memory.
_HOST_DEVICES = frozenset({1, 3, 11})
_GPU_LIBRARIES = frozenset(
    {"cupy", "torch", "jax", "jaxlib", "numba", "rmm", "cudf", "pycuda", "warp", "cupynumeric"}
)


def on_device(thing: Any) -> bool:
    """Whether an object's elements are in the memory of a CUDA device.

    `__cuda_array_interface__` may also lead to memory of the host: it does where no CUDA driver is loaded,
    and where the driver does not know the address, unless the array is of a library that has no other.
    """
    if not is_device(thing) or not _DRIVER.loaded():
        return False
    if type(thing).__module__.partition(".")[0] in _GPU_LIBRARIES:
        return True
    interface = getattr(thing, "__cuda_array_interface__", None)
    if interface is None:
        return True
    address = interface["data"][0]
    if 0 in interface["shape"] and address and is_device_address(address - 1):
        return True  # an empty slice just behind its memory
    return bool(address) and is_device_address(address)


def host_array(thing: Any, what: str) -> Array:
    """The memory of anything with the buffer interface, DLPack or an array interface.

    Raises: UsageTypeError for device memory, and for what is none of these.
    """
    if getattr(thing, "__cuda_array_interface__", None) is not None:
        return _over_cuda_interface(thing, what)
    try:
        return np.asarray(memoryview(thing))
    except (TypeError, ValueError, BufferError):
        pass
    if hasattr(thing, "__dlpack__"):
        return _over_dlpack(thing, what)
    if hasattr(thing, "__array_interface__"):
        return np.asarray(thing)
    raise UsageTypeError(f"{what} is a {type(thing).__name__}: must be an array or a buffer")


def host_bytes(thing: Any, what: str) -> Array:
    """The bytes of a contiguous buffer or array of another library, whose type is given apart.

    Raises: UsageTypeError for what is neither, for device memory, and for what is not contiguous.
    """
    if getattr(thing, "__cuda_array_interface__", None) is not None:
        return _bytes_of(_over_cuda_interface(thing, what), what)
    try:
        memory = MPI.buffer.frombuffer(thing)
    except (BufferError, TypeError, ValueError):
        try:
            memory = MPI.buffer.frombuffer(thing, True)
        except (BufferError, TypeError, ValueError) as error:
            if hasattr(thing, "__array_interface__"):
                return _bytes_of(np.asarray(thing), what)
            raise UsageTypeError(f"{what} is a {type(thing).__name__}: {error}") from error
    return np.asarray(memoryview(memory))  # type: ignore[arg-type]


def bytes_at(address: int, nbytes: int, what: str) -> Array:
    """Memory by its address, which may be one of a device; its elements are in order on the legacy stream.

    Raises: UsageError for memory that begins on a device and ends elsewhere, or the other way round.
    """
    ends = {address, address + max(1, nbytes) - 1} if _DRIVER.loaded() else set()
    homes = {ordinal_at(end) if is_device_address(end) else None for end in ends} or {None}
    if len(homes) > 1:
        raise UsageError(f"{what} has items on a device and elsewhere: must all be in the same memory")
    (device,) = homes
    if device is None:
        memory = MPI.buffer.fromaddress(address, nbytes)
        return np.asarray(memoryview(memory))  # type: ignore[arg-type]
    return placed(address, nbytes, np.dtype(np.uint8), home=Home(device, LEGACY_STREAM, None))


def _bytes_of(array: Array, what: str) -> Array:
    if not array.flags.forc:
        raise UsageTypeError(f"{what} is given by type and not contiguous")
    return array.reshape(-1, order="A").view(np.uint8)


def _over_cuda_interface(thing: Any, what: str) -> Array:
    """Memory of the host behind `__cuda_array_interface__`."""
    return np.asarray(_HostInterface(thing))


class _HostInterface:
    """Shows NumPy an array interface that says CUDA; keeps the array alive."""

    def __init__(self, thing: Any) -> None:
        self._thing = thing
        cuda = thing.__cuda_array_interface__
        self.__array_interface__ = {
            "version": 3,
            "shape": cuda["shape"],
            "typestr": cuda["typestr"],
            "data": cuda["data"],
            "strides": cuda.get("strides"),
        }


class _Library(ctypes.Structure):
    """What the dynamic linker tells of a loaded library (dl_phdr_info of link.h)."""

    _fields_ = (
        ("address", ctypes.c_void_p),
        ("name", ctypes.c_char_p),
        ("headers", ctypes.c_void_p),
        ("header_count", ctypes.c_uint16),
        ("loads", ctypes.c_ulonglong),  # of this process so far
    )


_Visit = ctypes.CFUNCTYPE(ctypes.c_int, ctypes.POINTER(_Library), ctypes.c_size_t, ctypes.c_void_p)
_visit_libraries = ctypes.CDLL(None).dl_iterate_phdr


class _Driver:
    """Whether this process has the CUDA driver; looked up again only when a library was loaded since."""

    def __init__(self) -> None:
        self._loads = self._loads_seen = -1
        self._found = False
        self._visit = _Visit(self._note)

    def loaded(self) -> bool:
        _visit_libraries(self._visit, None)
        if self._loads != self._loads_seen:
            self._loads_seen = self._loads
            with open("/proc/self/maps", encoding="ascii", errors="replace") as maps:
                self._found = any("libcuda.so" in line for line in maps)
        return self._found

    def _note(self, library: Any, size: int, data: object) -> int:
        self._loads = library.contents.loads
        return 1  # the first tells for all


_DRIVER = _Driver()


def _over_dlpack(thing: Any, what: str) -> Array:
    device = thing.__dlpack_device__() if hasattr(thing, "__dlpack_device__") else (1, 0)
    if int(device[0]) not in _HOST_DEVICES:
        raise UsageTypeError(
            f"{what} is a {type(thing).__name__} in the memory of a device that cannot be used here"
        )
    keeper = _CapsuleKeeper(thing)
    try:
        seen = np.from_dlpack(keeper)
    except (TypeError, ValueError, BufferError, RuntimeError):
        return _over_capsule(thing, what)
    if not seen.flags.c_contiguous:
        return cast(Array, np.from_dlpack(thing))
    # Not every producer outlives its capsule as DLPack asks; mpi4py's buffer keeps the capsule.
    dtype, shape = seen.dtype, seen.shape
    del seen
    return host_bytes(thing, what).view(dtype).reshape(shape)


def _over_capsule(thing: Any, what: str) -> Array:
    """Elements that NumPy does not take from DLPack: long numbers, and those of ml_dtypes."""
    try:
        tensor = tensor_of(thing)
    except (TypeError, ValueError, BufferError, RuntimeError) as error:
        raise UsageTypeError(f"{what} is a {type(thing).__name__}: {error}") from error
    return host_bytes(thing, what).view(tensor.dtype).reshape(tensor.shape)


class _CapsuleKeeper:
    """Hands out another object's capsule and keeps it."""

    def __init__(self, thing: Any) -> None:
        self._thing = thing
        self._capsules: list[object] = []

    def __dlpack_device__(self) -> tuple[int, int]:
        return (1, 0)

    def __dlpack__(self, **options: Any) -> Any:
        try:
            capsule = self._thing.__dlpack__(**options)
        except TypeError:  # a producer from before DLPack 1.0 takes no such options
            capsule = self._thing.__dlpack__()
        self._capsules.append(capsule)
        return capsule
