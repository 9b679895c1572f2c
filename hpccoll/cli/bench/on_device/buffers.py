"""Arrays in device memory, with a mirror in host memory where data are made and checked."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
from numpy.typing import NDArray

from hpccoll.arrays.device import Home
from hpccoll.cli.bench.buffers import GUARD_BYTES, GuardedBuffer
from hpccoll.memory import device as memory
from hpccoll.runtime.streams import to_device, to_host


class DeviceView:
    """Elements in a row on a device, for anything that knows `__cuda_array_interface__`."""

    def __init__(self, address: int, count: int, dtype: np.dtype[Any], stream: int) -> None:
        self.address, self.size, self.dtype, self.itemsize = address, count, dtype, dtype.itemsize
        self._stream = stream
        self.__cuda_array_interface__ = {
            "version": 3,
            "shape": (count,),
            "typestr": dtype.str,
            "data": (address, False),
            "strides": None,
            "stream": stream,
        }

    def view(self, dtype: Any) -> DeviceView:
        """The same bytes as elements of another type."""
        other = np.dtype(dtype)
        return DeviceView(self.address, self.size * self.itemsize // other.itemsize, other, self._stream)


class DeviceBuffer(GuardedBuffer):
    """As `GuardedBuffer`; calls get the device's memory.  `settle` waits for what is on the stream."""

    def __init__(self, nbytes: int, home: Home, settle: Callable[[], None]) -> None:
        self._settle = settle
        self._on_device: Any = None
        super().__init__(nbytes)
        self._home = home
        self._on_device = memory.empty(self._memory.size, np.dtype(np.uint8), home)

    def view(self, dtype: np.dtype[Any], count: int, skip: int = 0) -> NDArray[Any]:
        array = super().view(dtype, count, skip)
        self.push()
        return array

    def passed(self, array: NDArray[Any]) -> DeviceView:
        offset = array.ctypes.data - self._memory.ctypes.data
        return DeviceView(self._on_device.ctypes.data + offset, array.size, array.dtype, self._home.stream)

    def push(self) -> None:
        self._copy(to_device, self._first - GUARD_BYTES, self._last + GUARD_BYTES)

    def pull(self) -> None:
        self._copy(to_host, self._first - GUARD_BYTES, self._last + GUARD_BYTES)

    def overwritten(self) -> int:
        for first in (self._first - GUARD_BYTES, self._last):
            self._copy(to_host, first, first + GUARD_BYTES)
        count = super().overwritten()
        if count:
            self.push()
        return count

    def _copy(self, copy: Callable[[int, int, int, int], None], first: int, last: int) -> None:
        """Bytes `first` to `last`, from one memory to the other; waits for it."""
        pair = [self._on_device.ctypes.data + first, self._memory.ctypes.data + first]
        target, source = pair if copy is to_device else reversed(pair)
        copy(target, source, last - first, self._home.stream)
        self._settle()
