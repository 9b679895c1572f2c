"""Calls that move elements in blocks of different lengths: the v collectives, and Alltoallw."""

from __future__ import annotations

from typing import Any

from hpccoll.arrays.buffer import Buffer
from hpccoll.arrays.ragged import Ragged, ragged_source, ragged_target, typed_source, typed_target
from hpccoll.arrays.reading import block_order, memory_order, source, target
from hpccoll.calls.call import (
    Call,
    Copied,
    Where,
    check_block_apart,
    check_not_in_place,
    check_root,
    check_whole_apart,
    in_place,
    same_dtype,
)
from hpccoll.errors import UsageError


def gatherv(where: Where, sendbuf: Any, recvbuf: Any, root: int) -> Call:
    """As `gather`; the root has the counts, the others what they send."""
    check_root(root, where.size)
    if where.rank != root:
        check_not_in_place(sendbuf, "sendbuf", where, root)
        send = source(sendbuf, "sendbuf")
        return Call("gather", 0, send.dtype, send.flat, None, root, ragged=True, reads=(send,))
    order = block_order(_memory(recvbuf), sendbuf)
    call = _gathered("gather", where, sendbuf, recvbuf, order, "C")
    call.root = root
    return call


def allgatherv(where: Where, sendbuf: Any, recvbuf: Any) -> Call:
    """As `allgather`; every rank has the counts."""
    order = memory_order(_memory(recvbuf))
    return _gathered("allgather", where, sendbuf, recvbuf, order, order)


def scatterv(where: Where, sendbuf: Any, recvbuf: Any, root: int) -> Call:
    """As `scatter`; the root has the counts, the others what they take."""
    rank, size = where
    check_root(root, size)
    if rank != root:
        check_not_in_place(recvbuf, "recvbuf", where, root)
        take = target(recvbuf, "recvbuf")
        return Call("scatter", 0, take.dtype, take.flat[:0], take, root, ragged=True)
    sent = ragged_source(sendbuf, "sendbuf", size, block_order(_memory(sendbuf), recvbuf))
    send, gives = sent
    if in_place(recvbuf):
        take = Buffer(send.room(gives[rank]), None)
    else:
        take = target(recvbuf, "recvbuf")
        same_dtype(send, take)
        if take.count != gives[rank]:
            raise UsageError(
                f"recvbuf holds {take.count} elements, sendbuf {gives[rank]} for rank {rank}: must be as many"
            )
        check_block_apart(take, send, sent.block(rank))
    return Call("scatter", 0, send.dtype, send.flat, take, root, gives=gives, ragged=True, reads=(send,))


def alltoallv(where: Where, sendbuf: Any, recvbuf: Any) -> Call:
    """As `alltoall`; every rank has the counts of what it gives and takes."""
    order = block_order(_memory(recvbuf), sendbuf)
    if in_place(sendbuf):
        return _exchanged_in_place(ragged_target(recvbuf, "recvbuf", where.size, order, fill=True))
    received = ragged_target(recvbuf, "recvbuf", where.size, order)
    sent = ragged_source(sendbuf, "sendbuf", where.size, block_order(_memory(sendbuf), recvbuf))
    return _exchanged(where, sent, received)


def alltoallw(where: Where, sendbuf: Any, recvbuf: Any) -> Call:
    """As `alltoallv`; a datatype for each block, counts in bytes."""
    if in_place(sendbuf):
        return _exchanged_in_place(typed_target(recvbuf, "recvbuf", where.size, fill=True))
    received = typed_target(recvbuf, "recvbuf", where.size)
    return _exchanged(where, typed_source(sendbuf, "sendbuf", where.size), received)


def _exchanged(where: Where, sent: Ragged, received: Ragged) -> Call:
    send, take = sent.buffer, received.buffer
    same_dtype(send, take)
    gives, takes, rank = sent.counts, received.counts, where.rank
    if gives[rank] != takes[rank]:
        raise UsageError(
            f"sendbuf has {gives[rank]} elements for this rank itself ({rank}), recvbuf {takes[rank]}: "
            "must be as many"
        )
    check_whole_apart(send, take, where.size)
    return Call(
        "alltoall", 0, take.dtype, send.flat, take, gives=gives, takes=takes, ragged=True, reads=(send,)
    )


def _exchanged_in_place(received: Ragged) -> Call:
    take, counts = received
    copy = Copied(take)
    return Call(
        "alltoall", 0, take.dtype, copy.flat, take, gives=counts, takes=counts, ragged=True, reads=(copy,)
    )


def _gathered(collective: str, where: Where, sendbuf: Any, recvbuf: Any, order: str, send_order: str) -> Call:
    """A rank that takes all blocks."""
    rank, size = where
    in_there = in_place(sendbuf)
    received = ragged_target(recvbuf, "recvbuf", size, order, fill=in_there)
    take, takes = received
    own = received.block(rank)
    if in_there:
        return Call(collective, 0, take.dtype, own, take, takes=takes, ragged=True, reads=(take,))
    send = source(sendbuf, "sendbuf", dtype=take.dtype, order=send_order)
    same_dtype(send, take)
    if send.count != takes[rank]:
        raise UsageError(
            f"sendbuf holds {send.count} elements, recvbuf has room for {takes[rank]} of rank {rank}: "
            "must be as many"
        )
    check_block_apart(send, take, own)
    return Call(collective, 0, take.dtype, send.flat, take, takes=takes, ragged=True, reads=(send,))


def _memory(spec: Any) -> Any:
    """The array that a caller passed, also in a list."""
    return spec[0] if isinstance(spec, (list, tuple)) and spec else spec
