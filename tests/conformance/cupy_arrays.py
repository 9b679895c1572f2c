"""CuPy's arrays in mpi4py's tests: its module `arrayimpl` makes them wherever CuPy can be imported.

With NumPy 2 CuPy refuses what those tests have for "not written yet", -1 in unsigned elements; for NumPy's
arrays they wrap it around first, and so does what is here.  They compare every single element, each with
kernels of CuPy: here elements are read on the host, behind what is on CuPy's stream, and compared there.
"""

from __future__ import annotations

import importlib
import os
import sys
import unittest
from types import ModuleType
from typing import Any

import numpy as np
from mpi4py import MPI

from hpccoll.arrays.foreign import on_device
from hpccoll.topology.gpus import likely_ordinal

# MPI.Op.Reduce_local and MPI.Prequest.Startall are of no communicator, and MPI.BOTTOM in a call between
# neighbours goes on to MPI.
NOT_OURS = {"testReduceLocal", "testPersistent", "testNeighborAlltoallwBottom"}


def hide() -> None:
    """From here on neither CuPy nor Numba can be imported, which needs no GPU."""
    sys.modules.update(dict.fromkeys(("cupy", "numba")))


def show() -> None:
    """Make arrays of CuPy as said above, on this rank's device; `sys.path` has mpi4py's tests by now."""
    import cupy

    if "STANDIN_FOLDER" in os.environ:
        sys.modules["numba"] = None  # type: ignore[assignment]  # it compiles for hardware
    cupy.cuda.Device(likely_ordinal(os.environ)).use()
    of_cupy = importlib.import_module("arrayimpl").GPUArrayCuPy
    of_cupy.__init__ = _from_host
    of_cupy.__getitem__ = lambda self, index: self.array.get()[index]
    of_cupy.__iter__ = lambda self: iter(self.array.get())
    MPI.Attach_buffer = _attach_on_host
    of_cupy.flat = property(lambda self: Flat(self.array))


def skip_what_is_not_ours(module: ModuleType) -> None:
    """Skip tests of what is MPI's alone, where device arrays must not come."""
    skipped = unittest.skip("MPI's alone, which knows no memory of a device")
    for kind in vars(module).values():
        for name in NOT_OURS & vars(kind).keys() if isinstance(kind, type) else ():
            setattr(kind, name, skipped(getattr(kind, name)))


def _attach_on_host(room: Any, attach: Any = MPI.Attach_buffer) -> None:
    """Room for MPI's buffered messages, of the host also where a test offers an array on a device."""
    attach(bytearray(room.size * room.itemsize) if on_device(room) else room)


def _from_host(self: Any, arg: Any, typecode: str, shape: Any = None, readonly: bool = False) -> None:
    import cupy

    elements = np.asarray(arg).astype(typecode)
    whole = np.broadcast_to(elements, elements.shape if shape is None else shape)
    self.array = cupy.asarray(np.ascontiguousarray(whole).reshape(whole.shape))


class Flat:
    """The elements of an array of CuPy in a row, read on the host."""

    def __init__(self, array: Any) -> None:
        self.array = array

    def __iter__(self) -> Any:
        return iter(self.array.get().reshape(-1))

    def __getitem__(self, index: Any) -> Any:
        return self.array.get().reshape(-1)[index]

    def __setitem__(self, index: Any, values: Any) -> None:
        self.array.reshape(-1)[index] = values.array.reshape(-1) if isinstance(values, Flat) else values
