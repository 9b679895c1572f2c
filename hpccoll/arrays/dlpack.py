"""What a DLPack capsule says of its elements, for types that NumPy's own `from_dlpack` does not know.

Source: dlpack.h of DLPack 1.1 (dmlc/dlpack), struct DLTensor.
"""

from __future__ import annotations

import ctypes
from dataclasses import dataclass
from typing import Any

import numpy as np

_NAMES = {0: "int", 1: "uint", 2: "float", 4: "bfloat", 5: "complex", 6: "bool"}
# Of ml_dtypes, which names them alike.
_FLOAT8 = {7: "float8_e3m4", 8: "float8_e4m3", 10: "float8_e4m3fn", 12: "float8_e5m2"}


class _Tensor(ctypes.Structure):
    _fields_ = (
        ("data", ctypes.c_void_p),
        ("device_type", ctypes.c_int32),
        ("device_id", ctypes.c_int32),
        ("ndim", ctypes.c_int32),
        ("code", ctypes.c_uint8),
        ("bits", ctypes.c_uint8),
        ("lanes", ctypes.c_uint16),
        ("shape", ctypes.POINTER(ctypes.c_int64)),
        ("strides", ctypes.POINTER(ctypes.c_int64)),
        ("byte_offset", ctypes.c_uint64),
    )


@dataclass(frozen=True)
class Tensor:
    """What a capsule says; `strides` in bytes, None where elements follow each other in C order."""

    address: int
    shape: tuple[int, ...]
    strides: tuple[int, ...] | None
    dtype: np.dtype[Any]
    device_type: int
    device_id: int
    capsule: object
    read_only: bool = False


def tensor_of(thing: Any, **options: Any) -> Tensor:
    """What the capsule of an object says that has `__dlpack__`; the capsule keeps the memory.

    Raises: TypeError for elements that no dtype is known for.
    """
    capsule = thing.__dlpack__(**options)
    get_pointer = ctypes.pythonapi.PyCapsule_GetPointer
    get_pointer.restype, get_pointer.argtypes = ctypes.c_void_p, [ctypes.py_object, ctypes.c_char_p]
    tensor = _Tensor.from_address(get_pointer(capsule, b"dltensor"))
    axes = range(tensor.ndim)
    dtype = _dtype(tensor.code, tensor.bits, tensor.lanes)
    strides = tuple(tensor.strides[axis] * dtype.itemsize for axis in axes) if tensor.strides else None
    return Tensor(
        (tensor.data or 0) + tensor.byte_offset,
        tuple(tensor.shape[axis] for axis in axes),
        strides,
        dtype,
        tensor.device_type,
        tensor.device_id,
        capsule,
    )


def _dtype(code: int, bits: int, lanes: int) -> np.dtype[Any]:
    name = _FLOAT8.get(code) or _NAMES.get(code, "")
    # A complex number of two long doubles has more bits than the field can say.
    if (name, lanes) == ("float", 2):
        name, bits, lanes = "complex", 2 * bits, 1
    if name == "bool" and bits == 8:
        bits = 0
    if code in _FLOAT8:
        bits = 0
    text = f"{name}{bits or ''}"
    try:
        if lanes != 1 or not name:
            raise TypeError
        if name in ("bfloat", *_FLOAT8.values()):
            import ml_dtypes

            found: np.dtype[Any] = np.dtype(getattr(ml_dtypes, text))
        else:
            found = np.dtype(text)
        return found
    except (TypeError, ImportError, AttributeError):
        raise TypeError(f"no dtype for {lanes} x {text or code} of {bits} bits") from None
