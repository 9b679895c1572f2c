"""Calls that move elements, in blocks of one length: broadcast, gather, scatter, all-gather, all-to-all."""

from __future__ import annotations

from typing import Any

import numpy as np

from hpccoll.arrays.buffer import Buffer
from hpccoll.arrays.reading import block_order, memory_order, source, target
from hpccoll.calls.call import (
    BYTE,
    Call,
    Copied,
    Where,
    block_of,
    check_block_apart,
    check_not_in_place,
    check_root,
    check_whole_apart,
    in_place,
    same_dtype,
)
from hpccoll.errors import UsageError


def barrier(where: Where) -> Call:
    """Nothing to move."""
    return Call("barrier", 0, BYTE, np.empty(0, BYTE), None)


def broadcast(where: Where, buf: Any, root: int) -> Call:
    """The root gives its elements, which are already where they should be; the others take."""
    check_root(root, where.size)
    if where.rank == root:
        send = source(buf, "buf")
        return Call("broadcast", send.count, send.dtype, send.flat, None, root, reads=(send,))
    take = target(buf, "buf")
    return Call("broadcast", take.count, take.dtype, take.flat[:0], take, root)


def gather(where: Where, sendbuf: Any, recvbuf: Any, root: int) -> Call:
    """Every rank gives a block; the root takes all of them."""
    rank, size = where
    check_root(root, size)
    if rank != root:
        check_not_in_place(sendbuf, "sendbuf", where, root)
        send = source(sendbuf, "sendbuf")
        return Call("gather", send.count, send.dtype, send.flat, None, root, reads=(send,))
    order = block_order(recvbuf, sendbuf)
    call = _gathered("gather", where, sendbuf, recvbuf, order, "C")
    call.root = root
    return call


def allgather(where: Where, sendbuf: Any, recvbuf: Any) -> Call:
    """Every rank gives a block and takes all of them."""
    order = memory_order(recvbuf)
    return _gathered("allgather", where, sendbuf, recvbuf, order, order)


def scatter(where: Where, sendbuf: Any, recvbuf: Any, root: int) -> Call:
    """The root gives a block to every rank."""
    rank, size = where
    check_root(root, size)
    if rank != root:
        check_not_in_place(recvbuf, "recvbuf", where, root)
        take = target(recvbuf, "recvbuf")
        return Call("scatter", take.count, take.dtype, take.flat[:0], take, root)
    send = source(sendbuf, "sendbuf", order=block_order(sendbuf, recvbuf), blocks=size)
    count = block_of(send, "sendbuf", size)
    if in_place(recvbuf):
        take = Buffer(send.room(count), None)
    else:
        take = target(recvbuf, "recvbuf")
        same_dtype(send, take)
        if take.count != count:
            raise UsageError(
                f"recvbuf holds {take.count} elements: must be {count}, one of {size} blocks of sendbuf; "
                "Scatterv gives blocks of different lengths"
            )
        check_block_apart(take, send, send.flat[rank * count : (rank + 1) * count])
    return Call("scatter", count, send.dtype, send.flat, take, root, reads=(send,))


def alltoall(where: Where, sendbuf: Any, recvbuf: Any) -> Call:
    """Every rank gives a block to every rank, and takes one from each."""
    size = where.size
    order = block_order(recvbuf, sendbuf)
    if in_place(sendbuf):
        take = target(recvbuf, "recvbuf", order=order, fill=True, blocks=size)
        count = block_of(take, "recvbuf", size)
        copy = Copied(take)
        return Call("alltoall", count, take.dtype, copy.flat, take, reads=(copy,))
    take = target(recvbuf, "recvbuf", order=order, blocks=size)
    send = source(sendbuf, "sendbuf", order=block_order(sendbuf, recvbuf), blocks=size)
    same_dtype(send, take)
    if send.count != take.count:
        raise UsageError(
            f"sendbuf holds {send.count} elements, recvbuf {take.count}: must be as many; "
            "Alltoallv takes blocks of different lengths"
        )
    count = block_of(send, "sendbuf", size)
    check_whole_apart(send, take, size)
    return Call("alltoall", count, take.dtype, send.flat, take, reads=(send,))


def _gathered(collective: str, where: Where, sendbuf: Any, recvbuf: Any, order: str, send_order: str) -> Call:
    """A rank that takes all blocks."""
    rank, size = where
    if in_place(sendbuf):
        take = target(recvbuf, "recvbuf", order=order, fill=True, blocks=size)
        count = block_of(take, "recvbuf", size)
        own = take.flat[rank * count : (rank + 1) * count]
        return Call(collective, count, take.dtype, own, take, reads=(take,))
    take = target(recvbuf, "recvbuf", order=order, blocks=size)
    send = source(sendbuf, "sendbuf", dtype=take.dtype, order=send_order)
    same_dtype(send, take)
    if take.count != size * send.count:
        raise UsageError(
            f"recvbuf holds {take.count} elements: must be {size} ranks x {send.count} of sendbuf; "
            f"{collective.capitalize()}v takes blocks of different lengths"
        )
    check_block_apart(send, take, take.flat[rank * send.count : (rank + 1) * send.count])
    return Call(collective, send.count, take.dtype, send.flat, take, reads=(send,))
