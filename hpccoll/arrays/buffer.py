"""Callers' memory as one run of elements: where it is one, a view; where it is not, a copy to bring back."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
from mpi4py import MPI

from hpccoll.arrays.derived import Items
from hpccoll.arrays.device import DeviceArray, home_of
from hpccoll.memory import device
from hpccoll.transports.base import Array


class Buffer:
    """A caller's buffer: `flat` is its elements, one-dimensional and contiguous.

    `owner`: the memory they are in, where it must not be that of another argument; else None.  `packed`
    says that `flat` is a copy, which `unpack` brings back, and `refill` takes again.  `datatype`: what
    the caller said the elements are, for operators of the caller's own.
    """

    __slots__ = ("datatype", "flat", "order", "owner", "packed")

    def __init__(
        self,
        flat: Array,
        owner: Array | None,
        order: str = "C",
        *,
        packed: bool = False,
        datatype: MPI.Datatype | None = None,
    ) -> None:
        self.flat = flat
        self.owner = owner
        self.order = order
        self.packed = packed
        self.datatype = datatype

    @property
    def count(self) -> int:
        return self.flat.size

    @property
    def dtype(self) -> np.dtype[Any]:
        return self.flat.dtype

    @property
    def of_item(self) -> int:
        """Elements in one item of the caller's datatype."""
        return 1

    def unpack(self, stream: int | None = None) -> None:
        """After the elements of `flat` were written: bring them to the caller's array.

        `stream`: where they were written, of arrays on a device; by default the array's own.
        """
        if self.packed and self.owner is not None:
            self.owner[...] = self.flat.reshape(self.owner.shape, order=self.order)  # type: ignore[call-overload]

    def refill(self) -> None:
        """After the caller's array has changed: take its elements to `flat` again."""
        if self.packed and self.owner is not None:
            self.flat.reshape(self.owner.shape, order=self.order)[...] = self.owner  # type: ignore[call-overload]

    def room(self, count: int) -> Array:
        """Memory of the same kind for so many elements, not set."""
        if isinstance(self.flat, DeviceArray):
            return device.empty(count, self.dtype, self.flat.home)
        return np.empty(count, self.dtype)


def packed_buffer(array: Array, order: str, datatype: MPI.Datatype | None, *, fill: bool) -> Buffer:
    """The elements of an array of any strides, copied into a row; with `fill` its present ones are in it."""
    if isinstance(array, DeviceArray):
        return DeviceParts([array if order == "C" else array.T], array, fill=fill)
    flat = array.flatten(order=order) if fill else np.empty(array.size, array.dtype)  # type: ignore[arg-type]
    return Buffer(flat, array, order, packed=True, datatype=datatype)


def parts_buffer(
    parts: Sequence[Array], dtype: np.dtype[Any], datatype: MPI.Datatype | None, *, fill: bool
) -> Buffer:
    """Blocks of elements that do not follow each other in memory."""
    if parts and isinstance(parts[0], DeviceArray):
        return DeviceParts(parts, None, fill=fill)
    return PartsBuffer(parts, dtype, datatype, fill=fill)


class DeviceParts(Buffer):
    """Blocks of elements on a device, of any strides; all copies are on the stream of the first,
    but where another one is given.
    """

    __slots__ = ("_parts",)

    def __init__(self, parts: Sequence[Array], owner: Array | None, *, fill: bool) -> None:
        count = sum(part.size for part in parts)
        super().__init__(device.empty(count, parts[0].dtype, home_of(parts[0])), owner, packed=True)
        self._parts = parts
        if fill:
            self.refill()

    def unpack(self, stream: int | None = None) -> None:
        for part, place in zip(self._parts, device.parts_of(self.flat, self._parts), strict=True):
            device.copy(part, place, stream)

    def refill(self) -> None:
        for part, place in zip(self._parts, device.parts_of(self.flat, self._parts), strict=True):
            device.copy(place, part)


class PartsBuffer(Buffer):
    """Blocks of elements that do not follow each other in memory."""

    __slots__ = ("_parts",)

    def __init__(
        self, parts: Sequence[Array], dtype: np.dtype[Any], datatype: MPI.Datatype | None, *, fill: bool
    ) -> None:
        count = sum(part.size for part in parts)
        super().__init__(np.empty(count, dtype), None, packed=True, datatype=datatype)
        self._parts = parts
        if fill:
            self.refill()

    def unpack(self, stream: int | None = None) -> None:
        start = 0
        for part in self._parts:
            part[...] = self.flat[start : start + part.size].reshape(part.shape)
            start += part.size

    def refill(self) -> None:
        start = 0
        for part in self._parts:
            self.flat[start : start + part.size].reshape(part.shape)[...] = part
            start += part.size


class DerivedBuffer(Buffer):
    """Items of derived datatypes."""

    __slots__ = ("_items", "_of_item")

    def __init__(self, items: Items, of_item: int, datatype: MPI.Datatype | None, *, fill: bool) -> None:
        where = items.memory
        if isinstance(where, DeviceArray):
            flat = device.empty(items.count, items.element, where.home)
        else:
            flat = np.empty(items.count, items.element)
        super().__init__(flat, None, packed=True, datatype=datatype)
        self._items = items
        self._of_item = of_item
        if fill:
            self.refill()

    @property
    def of_item(self) -> int:
        return self._of_item

    def unpack(self, stream: int | None = None) -> None:
        self._items.unpack(self.flat, stream)

    def refill(self) -> None:
        self._items.pack(self.flat)
