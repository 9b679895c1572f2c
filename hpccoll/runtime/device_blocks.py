"""Calls on device arrays with blocks of different lengths: NCCL's messages, all at once.

A rank knows what it gives to each and takes from each, and no more.  Empty blocks are no messages, on either
side.
"""

from __future__ import annotations

import numpy as np

from hpccoll.calls import Call
from hpccoll.runtime.device_combining import Bases
from hpccoll.runtime.ragged import vectors
from hpccoll.runtime.tape import GIVEN, Parts, Tape
from hpccoll.transports import nccl
from hpccoll.transports.base import Array
from hpccoll.transports.nccl import NcclGroup


class Blocks:
    """The program of all such calls."""

    name = "flat"
    scratch_bytes = 0

    def __init__(self, group: NcclGroup) -> None:
        self._group = group
        self.groups = (group,)

    def write(self, tape: Tape, call: Call, bases: Bases) -> None:
        """One call, for memories at these addresses."""
        size = call.dtype.itemsize
        gives, takes = self._lengths(call) * size
        sources = bases[0] + np.cumsum(gives) - gives
        if call.collective == "allgather":
            sources[:] = bases[0]  # the same block to everybody
        targets = bases[1] + np.cumsum(takes) - takes
        given, taken = _parts(sources, gives), _parts(targets, takes)
        tape.exchange(GIVEN, self._group, nccl.TYPES["uint8"], 1, given, taken)

    def _lengths(self, call: Call) -> Array:
        """Elements that this rank gives to each (first row), and takes from each (second)."""
        size = len(self._group.members)
        if call.collective != "allgather":
            return vectors(call, self._group.index, size)
        return np.array([[call.give.size] * size, call.takes], np.int64)


def _parts(addresses: Array, lengths: Array) -> Parts:
    return zip(range(lengths.size), addresses.tolist(), lengths.tolist(), strict=True)
