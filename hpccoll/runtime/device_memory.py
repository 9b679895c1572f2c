"""Memory on devices that NCCL knows: from its allocator, registered with the communicators of a side.

What is registered, NCCL need not copy to buffers of its own: it is reached by network cards, over NVLink and,
as a symmetric window (NCCL 2.27 and later, where all ranks have arrays of one size), by kernels that
read and write all ranks' memory at once.

Memory goes with the last array in it, once nothing on the device uses it; it is let go at the next call
of `comm.empty`, or when the communicator is closed.  That of arrays that outlive the communicator goes with
them, but where a stream is being captured, or the garbage collector found them: then a little later.
"""

from __future__ import annotations

import sys
import weakref
from collections.abc import Callable, Iterable
from functools import partial

from cuda.bindings import driver
from mpi4py import MPI

from hpccoll.memory.device import current, may_wait
from hpccoll.memory.finalizers import is_collecting, let_go_rest, when_possible
from hpccoll.runtime.streams import checked
from hpccoll.topology.agreement import gather_numbers, tell_failure
from hpccoll.transports import nccl
from hpccoll.transports.nccl import NcclGroup

SMALLEST = 512


class Memory:
    """Bytes on a device; `lease` is held by the arrays in it."""

    def __init__(self, nbytes: int, ordinal: int, by_nccl: bool) -> None:
        self.nbytes = nbytes
        self.known: list[tuple[NcclGroup, Callable[[], object]]] = []  # to whom, and what undoes it
        self._ordinal = ordinal
        self._free: Callable[[int], object]
        with current(ordinal):
            if by_nccl:
                self.address, self._free = nccl.allocate(nbytes), nccl.free
            else:
                self.address = int(checked(driver.cuMemAlloc(nbytes), f"cuMemAlloc of {nbytes} bytes"))
                self._free = driver.cuMemFree

    def __del__(self) -> None:
        if hasattr(self, "address") and not sys.is_finalizing():
            when_possible(partial(_let_go, self._free, self.address, self._ordinal))


def _let_go(free: Callable[[int], object], address: int, ordinal: int) -> bool:
    """Free memory once the device is idle; False where a capture could be under way."""
    with current(ordinal):
        possible = not is_collecting() and may_wait()
        if possible:
            driver.cuCtxSynchronize()  # to take memory away from what runs is an error on the device
            free(address)
    return possible


class Lease:
    """What arrays hold of their memory."""

    def __init__(self, memory: Memory) -> None:
        self.memory = memory


class Registered:
    """The memory of `comm.empty` on one rank's device, and what NCCL's communicators know of it."""

    def __init__(self, private: MPI.Intracomm, ordinal: int, deadline: Callable[[], float]) -> None:
        self._private = private
        self._ordinal = ordinal
        self._deadline = deadline
        self._leases: list[tuple[weakref.ref[Lease], Memory]] = []

    def allocate(
        self, nbytes: int, world: NcclGroup | None, others: Iterable[NcclGroup], *, by_nccl: bool
    ) -> Lease:
        """Memory for an array of this rank.  Collective.

        `world`: the communicator of all ranks, None where there is none; `others`: of groups; `by_nccl`:
        whether NCCL is used at all.  Raises: ResourceError on all ranks, when one has no memory, or NCCL
        does not register it.
        """
        nbytes = -(-max(nbytes, 1) // SMALLEST) * SMALLEST
        memory: list[Memory] = []
        self._on_all(lambda: memory.append(Memory(nbytes, self._ordinal, by_nccl)), "memory")
        (made,) = memory
        if world is not None:
            sizes = gather_numbers(self._private, nbytes, self._deadline(), "sizes of memory on devices")
            window = len(set(sizes)) == 1 and nccl.has_windows()

            def register() -> None:
                with current(self._ordinal):
                    made.known.append((world, world.register(made.address, nbytes, window=window)))

            self._on_all(register, "registered memory")
        for group in others:
            self._tell(group, made)
        lease = Lease(made)
        self._leases.append((weakref.ref(lease), made))
        return lease

    def tell(self, group: NcclGroup) -> None:
        """A new communicator learns of all memory.  Local; the device is current."""
        for _, memory in self._leases:
            self._tell(group, memory)

    def _tell(self, group: NcclGroup, memory: Memory) -> None:
        with current(self._ordinal):
            undo = group.register(memory.address, memory.nbytes, window=False)
        memory.known.append((group, undo))

    def close(self) -> None:
        """The communicators are about to be freed; memory stays as long as there are arrays in it.  Local."""
        while self._leases:
            self._forget(self._leases.pop()[1])
        let_go_rest()

    def sweep(self) -> None:
        """Let go of what no array is in any more.  Waits for the device, so never during a turn."""
        unused = [one for one in self._leases if one[0]() is None]
        self._leases = [one for one in self._leases if one not in unused]
        while unused:
            self._forget(unused.pop(0)[1])
        let_go_rest()

    def _forget(self, memory: Memory) -> None:
        with current(self._ordinal):
            driver.cuCtxSynchronize()  # NCCL may be at work on it
            while memory.known:
                group, undo = memory.known.pop(0)
                if group.is_alive:
                    undo()

    def _on_all(self, action: Callable[[], object], what: str) -> None:
        """Do something on all ranks.  Raises ResourceError on all, when it fails on one."""
        failed = ""
        try:
            action()
        except Exception as error:  # whatever NCCL's bindings raise: the others are waiting
            failed = str(error) or type(error).__name__
        tell_failure(self._private, failed, self._deadline(), f"{what} on a device")
