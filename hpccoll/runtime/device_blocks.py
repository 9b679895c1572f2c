"""Calls on device arrays with blocks of different lengths: NCCL's messages, all at once, or in two levels.

A rank knows what it gives to each and takes from each, and no more.  Empty blocks are no messages, on either
side.
"""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np

from hpccoll.calls import Call
from hpccoll.plans.catalogue import make_plan
from hpccoll.plans.collective import Collective
from hpccoll.plans.lower import lower
from hpccoll.plans.steps import NATIVE
from hpccoll.runtime.device_combining import Bases
from hpccoll.runtime.device_program import DeviceProgram
from hpccoll.runtime.ragged import vectors
from hpccoll.runtime.tape import GIVEN, Parts, Tape
from hpccoll.topology.layout import Layout
from hpccoll.transports import nccl
from hpccoll.transports.base import Array
from hpccoll.transports.nccl import NcclGroup

LONGEST = 2**62  # NCCL takes messages of any length


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


class PlansOfBlocks:
    """The same by a plan of two levels: a program for each set of lengths.

    `groups`: the communicators by their members.
    """

    scratch_bytes = 0
    groups = ()

    def __init__(
        self, name: str, layout: Layout, rank: int, groups: Mapping[tuple[int, ...], NcclGroup]
    ) -> None:
        self.name = name
        self._layout = layout
        self._rank = rank
        self._groups = groups
        self._last: tuple[Collective, DeviceProgram] | None = None

    def program(self, collective: Collective) -> DeviceProgram:
        """The program for these lengths, in bytes; those of the call before are not compiled again."""
        if self._last is None or self._last[0] != collective:
            plan = make_plan(self.name, collective, self._layout, segment=LONGEST, between=NATIVE)
            program = lower(plan, self._rank, all_blocks=True)
            made = DeviceProgram(plan, program, self._groups, 1, nccl.TYPES["uint8"], 1)
            self._last = (collective, made)
        return self._last[1]


def _parts(addresses: Array, lengths: Array) -> Parts:
    return zip(range(lengths.size), addresses.tolist(), lengths.tolist(), strict=True)
