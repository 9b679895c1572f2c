"""From the arguments of a collective to one checked description of the call.

Each function takes what the caller passed and gives a `Call`, or raises UsageError: nothing has moved then.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
from mpi4py import MPI

from hpccoll.arrays import Buffer, check_apart, memory_order, source, target
from hpccoll.errors import UsageError, UsageTypeError
from hpccoll.ops import Arithmetic, Operator, arithmetic
from hpccoll.transports.base import Array

BYTE = np.dtype(np.uint8)


@dataclass
class Call:
    """One rank's part of a collective.

    `count`: elements of the buffer, or of each rank's block.  `give`: the elements this rank puts in
    (empty where it gives none); `take`: the buffer its results go to (None where it gets none).
    """

    collective: str
    count: int
    dtype: np.dtype[Any]
    give: Array
    take: Buffer | None
    root: int = 0
    arithmetic: Arithmetic | None = None

    @property
    def working(self) -> np.dtype[Any]:
        """The dtype in which elements travel."""
        return self.arithmetic.working if self.arithmetic else self.dtype


def barrier() -> Call:
    """Nothing to move."""
    return Call("barrier", 0, BYTE, np.empty(0, BYTE), None)


def allreduce(sendbuf: Any, recvbuf: Any, op: Operator) -> Call:
    """Elements of this rank, and where the combined ones go."""
    give, take = _pair(sendbuf, recvbuf)
    _same_count(give, take)
    return Call("allreduce", take.count, take.dtype, give, take, arithmetic=arithmetic(op, take.dtype))


def reduce(sendbuf: Any, recvbuf: Any, op: Operator, root: int, rank: int, size: int) -> Call:
    """As `allreduce`; only the root takes."""
    _check_root(root, size)
    if rank == root:
        call = allreduce(sendbuf, recvbuf, op)
        call.collective, call.root = "reduce", root
        return call
    if _in_place(sendbuf):
        raise UsageError(f"sendbuf is MPI.IN_PLACE on rank {rank}: only the root ({root}) may pass it")
    send = source(sendbuf, "sendbuf")
    rule = arithmetic(op, send.dtype)
    return Call("reduce", send.count, send.dtype, send.flat, None, root, rule)


def broadcast(buf: Any, root: int, rank: int, size: int) -> Call:
    """The root gives its elements, which are already where they should be; the others take."""
    _check_root(root, size)
    if rank == root:
        send = source(buf, "buf")
        return Call("broadcast", send.count, send.dtype, send.flat, None, root)
    take = target(buf, "buf")
    return Call("broadcast", take.count, take.dtype, take.flat[:0], take, root)


def allgather(sendbuf: Any, recvbuf: Any, rank: int, size: int) -> Call:
    """Every rank gives a block and takes all of them."""
    order = memory_order(recvbuf)
    if _in_place(sendbuf):
        take = target(recvbuf, "recvbuf", order=order, fill=True, blocks=size)
        count = _block(take, size)
        return Call("allgather", count, take.dtype, take.flat[rank * count : (rank + 1) * count], take)
    take = target(recvbuf, "recvbuf", order=order, blocks=size)
    send = source(sendbuf, "sendbuf", dtype=take.dtype, order=order)
    _same_dtype(send, take)
    if take.count != size * send.count:
        raise UsageError(
            f"recvbuf holds {take.count} elements: must be {size} ranks x {send.count} of sendbuf; "
            "Allgatherv takes blocks of different lengths"
        )
    _check_block_apart(send, take, rank)
    return Call("allgather", send.count, take.dtype, send.flat, take)


def reduce_scatter_block(sendbuf: Any, recvbuf: Any, op: Operator, size: int) -> Call:
    """Every rank gives elements for all and takes its own block, combined."""
    order = memory_order(recvbuf)
    if _in_place(sendbuf):
        take = target(recvbuf, "recvbuf", order=order, fill=True, blocks=size)
        count = _block(take, size)
        rule = arithmetic(op, take.dtype)
        # The result goes to the first block of the buffer that is the input: through a copy.
        first = Buffer(take.flat[:count], take.owner, order, take.packed)
        first_block = _FirstBlock(first, take)
        return Call("reduce_scatter", count, take.dtype, take.flat, first_block, arithmetic=rule)
    take = target(recvbuf, "recvbuf", order=order)
    send = source(sendbuf, "sendbuf", dtype=take.dtype, order=order, blocks=size)
    _same_dtype(send, take)
    if send.count != size * take.count:
        raise UsageError(
            f"sendbuf holds {send.count} elements: must be {size} ranks x {take.count} of recvbuf"
        )
    if check_apart(send, take) and size > 1:
        raise UsageError("sendbuf and recvbuf are the same memory; pass MPI.IN_PLACE")
    rule = arithmetic(op, take.dtype)
    return Call("reduce_scatter", take.count, take.dtype, send.flat, take, arithmetic=rule)


class _FirstBlock(Buffer):
    """The first block of a buffer whose whole is unpacked."""

    def __init__(self, first: Buffer, whole: Buffer) -> None:
        super().__init__(first.flat, first.owner, first.order, first.packed)
        self._whole = whole

    def unpack(self) -> None:
        self._whole.unpack()


def _pair(sendbuf: Any, recvbuf: Any) -> tuple[Array, Buffer]:
    """Elements to give and the buffer to take, of one dtype; the same memory is in place."""
    if _in_place(sendbuf):
        take = target(recvbuf, "recvbuf", fill=True)
        return take.flat, take
    take = target(recvbuf, "recvbuf")
    send = source(sendbuf, "sendbuf", dtype=take.dtype)
    _same_dtype(send, take)
    if check_apart(send, take):
        take = target(recvbuf, "recvbuf", fill=True)
        return take.flat, take
    return send.flat, take


def _in_place(sendbuf: Any) -> bool:
    return sendbuf is None or sendbuf is MPI.IN_PLACE


def _same_count(give: Array, take: Buffer) -> None:
    if give.size != take.count:
        raise UsageError(f"sendbuf holds {give.size} elements, recvbuf {take.count}: must be as many")


def _same_dtype(send: Buffer, take: Buffer) -> None:
    if send.dtype != take.dtype:
        raise UsageTypeError(f"sendbuf has dtype {send.dtype}, recvbuf {take.dtype}: must be the same")


def _block(take: Buffer, size: int) -> int:
    count, rest = divmod(take.count, size)
    if rest:
        raise UsageError(f"recvbuf holds {take.count} elements: must be a multiple of the {size} ranks")
    return count


def _check_block_apart(send: Buffer, take: Buffer, rank: int) -> None:
    """The send buffer may be the own block of the receive buffer, but not cross another one."""
    own = take.flat[rank * send.count : (rank + 1) * send.count]
    same = send.flat.ctypes.data == own.ctypes.data and not send.packed and not take.packed
    if not same and send.count:
        check_apart(send, take)


def _check_root(root: int, size: int) -> None:
    if isinstance(root, bool) or not isinstance(root, (int, np.integer)):
        raise UsageTypeError(f"root is {root!r}: must be a rank")
    if not 0 <= root < size:
        raise UsageError(f"root is {root}: must be a rank of the communicator, 0 to {size - 1}")
