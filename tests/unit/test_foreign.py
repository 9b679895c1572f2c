"""Memory of other libraries: the buffer interface, DLPack, array interfaces; what is on a device."""

from __future__ import annotations

import array
import ctypes
from collections.abc import Callable
from typing import Any

import ml_dtypes
import numpy as np
import pytest
from mpi4py import MPI

from hpccoll.arrays.foreign import host_array, host_bytes
from hpccoll.errors import UsageTypeError

CPU, CUDA, CUDA_HOST = 1, 2, 3


class Shared:
    """An array that is handed out through DLPack only, with any type that a producer may write there."""

    class Tensor(ctypes.Structure):
        _fields_ = (
            ("data", ctypes.c_void_p),
            ("device", ctypes.c_int32 * 2),
            ("ndim", ctypes.c_int32),
            ("code", ctypes.c_uint8),
            ("bits", ctypes.c_uint8),
            ("lanes", ctypes.c_uint16),
            ("shape", ctypes.POINTER(ctypes.c_int64)),
            ("strides", ctypes.POINTER(ctypes.c_int64)),
            ("byte_offset", ctypes.c_uint64),
            ("manager", ctypes.c_void_p),
            ("deleter", ctypes.c_void_p),
        )

    def __init__(self, values: Any, kind: tuple[int, int, int], device: int = CPU) -> None:
        self.values = values
        self.device = device
        shape = (ctypes.c_int64 * values.ndim)(*values.shape)
        self.tensor = self.Tensor(values.ctypes.data, (device, 0), values.ndim, *kind, shape)

    def __dlpack_device__(self) -> tuple[int, int]:
        return (self.device, 0)

    def __dlpack__(self, stream: Any = None) -> Any:
        new = ctypes.pythonapi.PyCapsule_New
        new.restype, new.argtypes = ctypes.py_object, [ctypes.c_void_p, ctypes.c_char_p, ctypes.c_void_p]
        return new(ctypes.addressof(self.tensor), b"dltensor", None)


LONG = np.dtype(np.longdouble).itemsize * 8
TYPES = [
    (np.dtype("f8"), (2, 64, 1)),
    (np.dtype("i2"), (0, 16, 1)),
    (np.dtype("u1"), (1, 8, 1)),
    (np.dtype("?"), (6, 8, 1)),
    (np.dtype("c8"), (5, 64, 1)),
    (np.dtype(np.longdouble), (2, LONG, 1)),
    (np.dtype(np.clongdouble), (2, LONG, 2)),
    (np.dtype(ml_dtypes.bfloat16), (4, 16, 1)),
    (np.dtype(ml_dtypes.float8_e4m3fn), (10, 8, 1)),
    (np.dtype(ml_dtypes.float8_e5m2), (12, 8, 1)),
]


@pytest.mark.parametrize(("dtype", "kind"), TYPES, ids=lambda one: str(one))
def test_types_of_dlpack(dtype: Any, kind: tuple[int, int, int]) -> None:
    values = np.array([[0, 1, 1], [1, 0, 1]]).astype(dtype)
    seen = host_array(Shared(values, kind), "buf")
    assert (seen.dtype, seen.shape) == (dtype, (2, 3))
    assert seen.tobytes() == values.tobytes()
    assert np.shares_memory(seen, values)
    seen[0, 0] = 1
    assert values[0, 0] == 1


@pytest.mark.parametrize("kind", [(3, 64, 1), (2, 64, 4), (99, 8, 1), (2, 24, 1)])
def test_types_that_no_dtype_is_known_for(kind: tuple[int, int, int]) -> None:
    with pytest.raises(UsageTypeError, match="buf is a Shared: no dtype for"):
        host_array(Shared(np.zeros(3), kind), "buf")


def test_memory_on_a_device() -> None:
    with pytest.raises(UsageTypeError, match="buf is a Shared in the memory of a device"):
        host_array(Shared(np.zeros(3), (2, 64, 1), CUDA), "buf")


class Interface:
    def __init__(self, name: str, values: Any) -> None:
        self._keep = values
        setattr(self, name, values.__array_interface__ | {"version": 3})


@pytest.mark.parametrize(
    "over",
    [
        memoryview,
        lambda values: array.array("d", values.tolist()),
        lambda values: Interface("__array_interface__", values),
        lambda values: Shared(values, (2, 64, 1)),
        lambda values: MPI.buffer.frombuffer(values),
    ],
    ids=["memoryview", "array", "array interface", "dlpack", "mpi4py"],
)
def test_bytes_and_elements(over: Callable[[Any], Any]) -> None:
    values = np.array([1.0, 2.0, 3.0])
    thing = over(values)
    assert host_array(thing, "buf").tobytes() == values.tobytes()
    raw = host_bytes(thing, "buf")
    assert (raw.dtype, raw.ndim, raw.tobytes()) == (np.dtype("u1"), 1, values.tobytes())
    assert raw.flags.writeable


def test_read_only_bytes() -> None:
    assert not host_bytes(b"abc", "buf").flags.writeable
    assert not host_array(memoryview(b"abc"), "buf").flags.writeable


def test_bytes_of_what_is_not_contiguous() -> None:
    for thing in (memoryview(np.zeros(6)[::2]), Interface("__array_interface__", np.zeros((4, 4))[::2, ::2])):
        with pytest.raises(UsageTypeError, match="buf is "):
            host_bytes(thing, "buf")
    with pytest.raises(UsageTypeError, match="buf is a object"):
        host_bytes(object(), "buf")
