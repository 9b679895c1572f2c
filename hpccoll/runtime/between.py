"""Steps between nodes by MPI instead of NCCL: through pinned memory, by the plans of host arrays.

A call is enqueued at once, as with NCCL: what is inside the node on the caller's stream, and for each
step between nodes

    leave   on a second stream    elements to pinned memory; an event
            on the host           once it is reached: a started collective of the group on that memory
    land    the caller's stream   waits for a number in pinned memory, which the host writes when the
                                  collective is complete; then the results come back

so one chunk is between the nodes while the next is inside.  The host's part is moved on by the worker
(progress.py).  Steps are begun in the order in which they were enqueued, so that all ranks begin them alike.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import accumulate
from typing import TYPE_CHECKING, Any

import numpy as np
from cuda.bindings import driver
from mpi4py import MPI

from hpccoll.calls import Call
from hpccoll.errors import AbortedError, MismatchError, ResourceError, UsageError
from hpccoll.ops.on_device import Travel
from hpccoll.plans.program import GroupCall
from hpccoll.plans.steps import Kind
from hpccoll.runtime.streams import Device, Kept, Pinned, PinnedPool, checked, to_device, to_host
from hpccoll.runtime.wait import Waits
from hpccoll.transports.base import Array

if TYPE_CHECKING:
    from hpccoll.communicator import Communicator
    from hpccoll.runtime.request import Request

_AT_LEAST = int(driver.CUstreamWaitValue_flags.CU_STREAM_WAIT_VALUE_GEQ)


class Passage:
    """The steps between nodes of one call; `whole` once the call is enqueued."""

    def __init__(self) -> None:
        self.crossings: list[Crossing] = []
        self.whole = False

    @property
    def over(self) -> bool:
        return self.whole and all(crossing.done for crossing in self.crossings)


@dataclass
class Crossing:
    """A step of one call on its way: `give`, `take` are in pinned memory."""

    number: int
    event: Any
    hop: Hop
    give: Pinned
    take: Pinned | None
    request: Request | None = None
    done: bool = False


class Bridge:
    """All steps between nodes of one communicator's calls, in order."""

    def __init__(self, device: Device, pinned: PinnedPool, kept: Kept) -> None:
        self._device = device
        self._pinned = pinned
        self._kept = kept
        with device:
            self._flag = Pinned(4096)
        self._word: Array = self._flag.bytes()[:4].view(np.uint32)
        self._word[0] = 0
        self._count = 0
        self._given_up = False
        self._waiting: deque[Crossing] = deque()
        self._moving: deque[Crossing] = deque()
        self._passage = Passage()  # of the call that is being enqueued

    def leave(self, hop: Hop, address: int, stream: int) -> Crossing:
        """Enqueue the way of the elements at an address to the host."""
        room = self._pinned.take(hop.give_bytes)
        if hop.give_bytes:
            to_host(room.address, address, hop.give_bytes, stream)
        take = self._pinned.take(hop.take_bytes) if hop.take_bytes else None
        self._count += 1
        crossing = Crossing(self._count, self._device.mark(stream), hop, room, take)
        self._passage.crossings.append(crossing)
        self._waiting.append(crossing)
        return crossing

    def land(self, crossing: Crossing, address: int, stream: int) -> None:
        """Enqueue the wait for the results, and their way to an address."""
        answer = driver.cuStreamWaitValue32(stream, self._flag.address, crossing.number, _AT_LEAST)
        checked(answer, "cuStreamWaitValue32")
        if crossing.take is not None:
            to_device(address, crossing.take.address, crossing.hop.take_bytes, stream)
            self._kept.until_now(stream, crossing.take, self._pinned.give_back)

    def passage(self) -> Passage:
        """For the call that is enqueued next."""
        self._passage = Passage()
        return self._passage

    def stages(self, passage: Passage) -> Waits:
        """The host's part, until it is over.  What goes wrong here leaves a call half done."""
        while not passage.over:
            try:
                self._turn()
            except (UsageError, MismatchError, ResourceError) as error:
                raise AbortedError(f"a step between nodes: {error}") from error
            yield None

    def _turn(self) -> None:
        if self._given_up:
            raise AbortedError("the communicator was given up")
        while self._waiting and self._device.reached(self._waiting[0].event):
            crossing = self._waiting.popleft()
            self._device.give_back(crossing.event)
            crossing.request = crossing.hop.start(crossing.give, crossing.take)
            self._moving.append(crossing)
        while self._moving and self._moving[0].request.Test():  # type: ignore[union-attr]
            crossing = self._moving.popleft()
            self._pinned.give_back(crossing.give)
            self._word[0] = crossing.number % 2**32
            crossing.done = True

    def open(self) -> None:
        """Nobody waits any more: the communicator is given up."""
        self._given_up = True
        self._word[0] = self._count % 2**32

    def close(self) -> None:
        """Let go of the memory; the device is current."""
        self._flag.close()


class Hop:
    """One rank's part of a step between nodes, as a collective on host arrays.

    `inner`: the group's communicator; `dtype`: of the elements that the step counts; `op`: combines them.
    """

    def __init__(self, call: GroupCall, inner: Communicator, dtype: np.dtype[Any], op: MPI.Op) -> None:
        self._call = call
        self._inner = inner
        self._dtype = dtype
        self._op = op
        self._give_count = sum(place.stop - place.start for place in call.source)
        self._take_count = sum(place.stop - place.start for place in call.target)
        self.give_bytes = self._give_count * dtype.itemsize
        self.take_bytes = self._take_count * dtype.itemsize

    def start(self, given: Pinned, taken: Pinned | None) -> Request:
        """Begin the collective on pinned memory."""
        call, comm, op, root, me = self._call, self._inner, self._op, self._call.root, self._call.index
        counts = list(call.counts)
        give = self._elements(given, self._give_count)
        take = np.empty(0, self._dtype) if taken is None else self._elements(taken, self._take_count)
        match call.kind:
            case Kind.ALLREDUCE:
                return comm.Iallreduce(give, take, op)
            case Kind.REDUCE:
                return comm.Ireduce(give, take if me == root else None, op, root)
            case Kind.BROADCAST:
                if me == root and take.size:
                    take[...] = give
                return comm.Ibcast(give if me == root else take, root)
            case Kind.ALLGATHER:
                return comm.Iallgatherv(give, [take, counts])
            case Kind.REDUCE_SCATTER:
                return comm.Ireduce_scatter(give, take, counts, op)
            case Kind.GATHER:
                return comm.Igatherv(give, [take, counts] if me == root else None, root)
            case Kind.SCATTER:
                return comm.Iscatterv([give, counts] if me == root else None, take, root)
            case Kind.ALLTOALL:
                size = len(call.members)
                rows, columns = counts[me * size : (me + 1) * size], counts[me::size]
                return comm.Ialltoallv([give, (rows, _starts(rows))], [take, (columns, _starts(columns))])
        raise TypeError(f"no {call.kind.value} goes between nodes by MPI")

    def _elements(self, pinned: Pinned, count: int) -> Array:
        return pinned.bytes()[: count * self._dtype.itemsize].view(self._dtype)


def _starts(counts: Sequence[int]) -> list[int]:
    return [0, *accumulate(counts)][:-1]


class HopsOf:
    """Makes the hops of a kind of call; `inner`: communicators by their members."""

    def __init__(
        self, bridge: Bridge, inner: Mapping[tuple[int, ...], Communicator], call: Call, how: Travel
    ) -> None:
        self.bridge = bridge
        self._inner = inner
        self._dtype, self._op = np.dtype(np.uint8), MPI.SUM
        if call.arithmetic is not None:
            self._dtype = call.dtype
            if not how.divides:  # at the end, by a kernel
                self._op = getattr(MPI, call.arithmetic.operator.name)

    def hop(self, call: GroupCall) -> Hop:
        return Hop(call, self._inner[call.members], self._dtype, self._op)
