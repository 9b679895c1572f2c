"""Buffers of derived MPI datatypes: packed into a run of elements, and unpacked again.

A derived datatype on one rank may meet basic ones on others, as long as the elements are the same: so the
packed run has the element type that the datatype is made of, and the rank stays on everybody's plan.
"""

from __future__ import annotations

from typing import Any, TypeGuard

import numpy as np
from mpi4py import MPI
from mpi4py.util import dtlib

from hpccoll.errors import UsageError
from hpccoll.transports.base import Array


def is_derived(kind: object) -> TypeGuard[MPI.Datatype]:
    """Whether a datatype is one that the program made."""
    return isinstance(kind, MPI.Datatype) and kind != MPI.DATATYPE_NULL and not kind.is_predefined


def element_dtype(datatype: MPI.Datatype) -> np.dtype[Any] | None:
    """The NumPy type that all elements of a datatype have; None when they differ, or NumPy has none."""
    if datatype.is_predefined:
        try:
            return dtlib.to_numpy_dtype(datatype)
        except (ValueError, KeyError):
            return None
    *_, parts = datatype.Get_contents()
    kinds = {element_dtype(part) for part in parts}
    for part in parts:
        if not part.is_predefined:
            part.Free()
    return kinds.pop() if len(kinds) == 1 else None


class Items:
    """`count` items of a datatype in a run of bytes, `start` items from its beginning.

    Raises: UsageError when the bytes do not hold them.
    """

    def __init__(
        self, raw: Array, datatype: MPI.Datatype, count: int | None, start: int, blocks: int, what: str
    ) -> None:
        self._datatype = datatype
        self._extent = datatype.extent
        true_lb, true_extent = datatype.Get_true_extent()
        if count is None:
            count = (raw.size // self._extent - start) // blocks if self._extent else 0
        self.items = blocks * count
        end = (start + self.items - 1) * self._extent + true_lb + true_extent if self.items else 0
        if count < 0 or start < 0 or end > raw.size or true_lb < 0:
            raise UsageError(
                f"{what} has {self.items} items of a datatype that end at byte {end}, from item {start}, "
                f"but the buffer holds {raw.size} bytes"
            )
        self.raw = raw[start * self._extent :]
        element = element_dtype(datatype)
        self.dtype = element if element is not None else np.dtype(np.uint8)

    @property
    def nbytes(self) -> int:
        """Bytes of all elements."""
        return self.items * self._datatype.size

    def pack(self) -> Array:
        """The elements, one after the other."""
        packed: Array = np.empty(self.nbytes, np.uint8)
        if packed.size:
            self._datatype.Pack(self._whole_items(), packed, 0, MPI.COMM_SELF)
        return packed.view(self.dtype)

    def unpack(self, elements: Array) -> None:
        """Bring elements back to where the datatype has them; what lies between stays as it is."""
        if elements.size == 0:
            return
        memory = self._whole_items()
        self._datatype.Unpack(elements.view(np.uint8), 0, memory, MPI.COMM_SELF)
        if memory.size > self.raw.size:
            self.raw[:] = memory[: self.raw.size]

    def _whole_items(self) -> Array:
        """Memory of as many whole items: mpi4py counts them by the extent, past which the last may end."""
        needed = self.items * self._extent
        if needed <= self.raw.size:
            return self.raw[:needed]
        padded = np.zeros(needed, np.uint8)
        padded[: self.raw.size] = self.raw
        return padded
