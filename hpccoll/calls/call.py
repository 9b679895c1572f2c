"""The description of a call that all collectives share, and the checks that several of them make."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np
from mpi4py import MPI

from hpccoll.arrays.buffer import Buffer
from hpccoll.arrays.device import DeviceArray
from hpccoll.arrays.reading import check_apart
from hpccoll.errors import UsageError, UsageTypeError
from hpccoll.memory import device
from hpccoll.ops.table import Arithmetic
from hpccoll.transports.base import Array

BYTE = np.dtype(np.uint8)


class Where(NamedTuple):
    """The place of the caller: its rank, of how many."""

    rank: int
    size: int


@dataclass
class Call:
    """One rank's part of a collective.

    `count`: elements of the buffer, or of each rank's block; 0 in ragged calls.  `give`: the elements this
    rank puts in (empty where it gives none); `take`: the buffer its results go to (None where it gets
    none).  Both hold blocks in rank order.

    `gives`, `takes`: in ragged calls, how many elements of `give` are for each rank, and of `take` come from
    each; None on ranks that have one block.  A reduce_scatter whose caller gave no counts has neither before
    `complete`.

    `reads`: the buffers that `give` was read from.  `staged`: the caller's elements are on a device.
    `asked`: the plan that `forced` asked for where the call was made, or empty.  `total`: elements of all
    blocks together, where the ranks know no more and have told one another.
    """

    collective: str
    count: int
    dtype: np.dtype[Any]
    give: Array
    take: Buffer | None
    root: int = 0
    arithmetic: Arithmetic | None = None
    gives: tuple[int, ...] | None = None
    takes: tuple[int, ...] | None = None
    ragged: bool = False
    reads: tuple[Buffer, ...] = ()
    staged: bool = False
    asked: str = ""
    total: int | None = None

    @property
    def on_device(self) -> bool:
        """The caller's elements are on a device."""
        return self.staged or type(self.give) is DeviceArray

    @property
    def arrays(self) -> tuple[Array, ...]:
        """What this rank gives, and where it takes, if it does."""
        return (self.give,) if self.take is None else (self.give, self.take.flat)

    @property
    def working(self) -> np.dtype[Any]:
        """The dtype in which elements travel."""
        return self.arithmetic.working if self.arithmetic else self.dtype

    def operands(self, rank: int, size: int) -> int:
        """How many ranks' elements a result of this rank is of: what an average divides by."""
        return {"scan": rank + 1, "exscan": rank}.get(self.collective, size)

    @property
    def is_torn(self) -> bool:
        """One of both is on a device, the other on the host."""
        return self.take is not None and (type(self.take.flat) is DeviceArray) is not self.on_device

    def joined(self) -> bool:
        """Where one of a torn call holds no elements, it goes with the other; False where both do."""
        take = self.take
        if take is not None and not self.give.size:
            self.give = take.flat[:0].view(self.give.dtype)
        elif take is not None and not take.count:
            self.take = Buffer(self.give[:0].view(take.dtype), None)
        else:
            return False
        return True

    def refill(self) -> None:
        """Read the caller's memory again, which has changed since (a persistent call starts once more)."""
        for buffer in self.reads:
            buffer.refill()

    def complete(self, counts: Sequence[int]) -> None:
        """The counts of a reduce_scatter that the ranks exchanged: each rank's `take.count`.

        Raises: UsageError when this rank's elements are not as many as their sum.
        """
        self.gives = tuple(counts)
        if self.give.size != sum(self.gives):
            raise UsageError(
                f"sendbuf holds {self.give.size} elements, but the receive buffers of all ranks "
                f"{sum(self.gives)}: must be as many"
            )


class Copied(Buffer):
    """A copy of what a receive buffer holds, for calls in place that read and write in another order."""

    __slots__ = ("_of",)

    def __init__(self, of: Buffer) -> None:
        super().__init__(of.room(of.count), None)
        self._of = of
        self._copy()

    def refill(self) -> None:
        self._of.refill()
        self._copy()

    def _copy(self) -> None:
        if isinstance(self.flat, DeviceArray):
            device.copy(self.flat, self._of.flat)
        else:
            self.flat[...] = self._of.flat


def in_place(buffer: Any) -> bool:
    """Whether an argument says in place: MPI.IN_PLACE, or None, which mpi4py takes for the same."""
    return buffer is None or buffer is MPI.IN_PLACE


def check_root(root: int, size: int) -> None:
    """Raises UsageError for a root that is no rank."""
    if isinstance(root, bool) or not isinstance(root, (int, np.integer)):
        raise UsageTypeError(f"root is {root!r}: must be a rank")
    if not 0 <= root < size:
        raise UsageError(f"root is {root}: must be a rank of the communicator, 0 to {size - 1}")


def check_not_in_place(buffer: Any, what: str, where: Where, root: int) -> None:
    """Raises UsageError when a rank that is not the root passes MPI.IN_PLACE."""
    if in_place(buffer):
        shown = "None" if buffer is None else "MPI.IN_PLACE"
        raise UsageError(f"{what} is {shown} on rank {where.rank}: only the root ({root}) may pass it")


def same_dtype(send: Buffer, take: Buffer) -> None:
    """Raises UsageTypeError when the buffers differ in dtype."""
    if send.dtype is not take.dtype and send.dtype != take.dtype:
        raise UsageTypeError(f"sendbuf has dtype {send.dtype}, recvbuf {take.dtype}: must be the same")


def block_of(buffer: Buffer, what: str, size: int) -> int:
    """The count of each of `size` blocks.  Raises UsageError when they do not come out even."""
    count, rest = divmod(buffer.count, size)
    if rest:
        raise UsageError(f"{what} holds {buffer.count} elements: must be a multiple of the {size} ranks")
    return count


def check_whole_apart(send: Buffer, take: Buffer, size: int) -> None:
    """Raises UsageError when buffers share memory, and for the same memory twice."""
    if check_apart(send, take) and size > 1 and send.count:
        raise UsageError("sendbuf and recvbuf are the same memory; pass MPI.IN_PLACE")


def check_block_apart(one: Buffer, many: Buffer, own: Array) -> None:
    """One block may be its own place in the buffer of many, but not cross another.

    `own`: that place.  Raises: UsageError when it does.
    """
    if one.owner is None or many.owner is None or not one.count:
        return
    if np.may_share_memory(one.owner, many.owner):
        same = one.flat.ctypes.data == own.ctypes.data and one.count == own.size
        if not same or one.packed or many.packed:
            check_apart(one, many)
