"""Calls that combine elements: all-reduce, reduce, scan, exscan, reduce-scatter."""

from __future__ import annotations

from typing import Any

from hpccoll.arrays.buffer import Buffer
from hpccoll.arrays.messages import counts_for
from hpccoll.arrays.reading import check_apart, memory_order, source, target
from hpccoll.calls.call import (
    Call,
    Where,
    block_of,
    check_not_in_place,
    check_root,
    check_whole_apart,
    in_place,
)
from hpccoll.errors import UsageError, UsageTypeError
from hpccoll.ops.table import Arithmetic, Operator, arithmetic


def allreduce(where: Where, sendbuf: Any, recvbuf: Any, op: Operator) -> Call:
    """Elements of this rank, and where the combined ones go."""
    return _everywhere("allreduce", sendbuf, recvbuf, op)


def reduce(where: Where, sendbuf: Any, recvbuf: Any, op: Operator, root: int) -> Call:
    """As `allreduce`; only the root takes."""
    check_root(root, where.size)
    if where.rank == root:
        call = _everywhere("reduce", sendbuf, recvbuf, op)
        call.root = root
        return call
    check_not_in_place(sendbuf, "sendbuf", where, root)
    send = source(sendbuf, "sendbuf", dtype=op.into, op=op)
    rule = _rule(op, send, None)
    return Call("reduce", send.count, rule.dtype, send.flat, None, root, rule, reads=(send,))


def scan(where: Where, sendbuf: Any, recvbuf: Any, op: Operator) -> Call:
    """As `allreduce`; the result is that of the ranks up to this one."""
    return _everywhere("scan", sendbuf, recvbuf, op)


def exscan(where: Where, sendbuf: Any, recvbuf: Any, op: Operator) -> Call:
    """As `scan`, of the ranks before this one; rank 0 takes nothing."""
    call = _everywhere("exscan", sendbuf, recvbuf, op)
    if where.rank == 0:
        call.take = None
    return call


def reduce_scatter_block(where: Where, sendbuf: Any, recvbuf: Any, op: Operator) -> Call:
    """Every rank gives elements for all and takes its own block, combined."""
    if in_place(sendbuf):
        take = target(recvbuf, "recvbuf", order=memory_order(recvbuf), fill=True, blocks=where.size, op=op)
        count = block_of(take, "recvbuf", where.size)
        return _first_block(take, count, op, count)
    send, take, rule = _apart(sendbuf, recvbuf, op, blocks=where.size)
    if send.count != where.size * take.count:
        raise UsageError(
            f"sendbuf holds {send.count} elements: must be {where.size} ranks x {take.count} of recvbuf"
        )
    check_whole_apart(send, take, where.size)
    return Call("reduce_scatter", take.count, rule.dtype, send.flat, take, arithmetic=rule, reads=(send,))


def reduce_scatter(where: Where, sendbuf: Any, recvbuf: Any, recvcounts: Any, op: Operator) -> Call:
    """As `reduce_scatter_block` with blocks of different lengths: `recvcounts`, in items of recvbuf's type.

    Without counts the ranks must exchange how much they receive, then `Call.complete` it.
    """
    rank, size = where
    if in_place(sendbuf):
        take = target(recvbuf, "recvbuf", order=memory_order(recvbuf), fill=True, op=op)
        if recvcounts is None:
            raise UsageTypeError(
                "recvcounts is None: must be the counts of all ranks when sendbuf is in place"
            )
        counts = _counts(recvcounts, size, take)
        if take.count != sum(counts):
            raise UsageError(
                f"recvbuf holds {take.count} elements, recvcounts {sum(counts)}: must be as many"
            )
        call = _first_block(take, counts[rank], op, 0)
        call.gives, call.ragged = counts, True
        return call
    send, take, rule = _apart(sendbuf, recvbuf, op, blocks=1)
    check_whole_apart(send, take, size)
    call = Call("reduce_scatter", 0, rule.dtype, send.flat, take, arithmetic=rule, ragged=True, reads=(send,))
    if recvcounts is not None:
        counts = call.gives = _counts(recvcounts, size, take)
        if send.count != sum(counts):
            raise UsageError(
                f"sendbuf holds {send.count} elements, recvcounts {sum(counts)}: must be as many"
            )
        if take.count != counts[rank]:
            raise UsageError(
                f"recvbuf holds {take.count} elements, recvcounts has {counts[rank]} for rank {rank}: "
                "must be as many"
            )
    return call


class FirstBlock(Buffer):
    """The first block of a buffer, where a result goes that is scattered in place; all of it is unpacked."""

    __slots__ = ("_whole",)

    def __init__(self, whole: Buffer, count: int) -> None:
        super().__init__(whole.flat[:count], whole.owner, whole.order, packed=whole.packed)
        self._whole = whole

    def unpack(self, stream: int | None = None) -> None:
        self._whole.unpack(stream)


def _first_block(whole: Buffer, length: int, op: Operator, count: int) -> Call:
    """In place: the input is the buffer that the result goes to the first block of."""
    rule = _rule(op, whole, whole)
    take = FirstBlock(whole, length)
    return Call("reduce_scatter", count, rule.dtype, whole.flat, take, arithmetic=rule, reads=(whole,))


def _everywhere(collective: str, sendbuf: Any, recvbuf: Any, op: Operator) -> Call:
    """As many elements as are given are taken; the same memory twice is in place."""
    if in_place(sendbuf):
        take = give = target(recvbuf, "recvbuf", fill=True, op=op)
        rule = _rule(op, take, take)
    else:
        take = target(recvbuf, "recvbuf", op=op)
        give = source(sendbuf, "sendbuf", dtype=take.dtype, op=op)
        rule = _rule(op, give, take)
        if check_apart(give, take):
            take.refill()
            give = take
        if give.count != take.count:
            raise UsageError(f"sendbuf holds {give.count} elements, recvbuf {take.count}: must be as many")
    return Call(collective, take.count, rule.dtype, give.flat, take, 0, rule, reads=(give,))


def _apart(sendbuf: Any, recvbuf: Any, op: Operator, blocks: int) -> tuple[Buffer, Buffer, Arithmetic]:
    """The buffer with a block for each rank, the one for this rank's, and how elements are combined."""
    order = memory_order(sendbuf)
    if order == "C" and getattr(sendbuf, "ndim", 0) <= 1:
        order = memory_order(recvbuf)
    take = target(recvbuf, "recvbuf", order=order, op=op)
    send = source(sendbuf, "sendbuf", dtype=take.dtype, order=order, blocks=blocks, op=op)
    return send, take, _rule(op, send, take)


def _counts(recvcounts: Any, size: int, take: Buffer) -> tuple[int, ...]:
    return tuple(count * take.of_item for count in counts_for(recvcounts, size, "recvcounts"))


def _rule(op: Operator, give: Buffer, take: Buffer | None) -> Arithmetic:
    """How elements are combined.  Raises UsageTypeError for dtypes that differ or that `op` does not take."""
    dtype = op.result(give.dtype)
    if take is not None and take.dtype is not dtype and take.dtype != dtype:
        if op.into is None:
            raise UsageTypeError(f"sendbuf has dtype {dtype}, recvbuf {take.dtype}: must be the same")
        raise UsageTypeError(f"recvbuf has dtype {take.dtype}, results of {op!r} {dtype}: must be the same")
    datatype = give.datatype
    if datatype is None and take is not None:
        datatype = take.datatype
    return arithmetic(op, dtype, datatype)
