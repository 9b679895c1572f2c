"""Counts and displacements beyond 2^31, in memory of which only single pages are touched.

pmodels/mpich#2317, PyLops/pylops-mpi#115: negative counts, also where only a sum or a product was too large.
"""

from __future__ import annotations

import mmap
from typing import Any

import numpy as np
import pytest
from mpi4py import MPI

from hpccoll import calls
from hpccoll.calls import Where
from hpccoll.ops.table import operator_of

MAP_NORESERVE = 0x4000  # mmap.MAP_NORESERVE from Python 3.13 on
FAR = 2**32
LIMIT = 2**31


@pytest.fixture(scope="module")
def memory() -> Any:
    """A little more than 8 GiB of zeros, without a page of memory."""
    flags = mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS | MAP_NORESERVE
    return np.frombuffer(mmap.mmap(-1, 2 * FAR + 4096, flags=flags), np.uint8)


def test_counts(memory: Any) -> None:
    at, count = Where(1, 2), LIMIT + 5
    summed = calls.allreduce(at, MPI.IN_PLACE, [memory, count], operator_of(MPI.SUM))
    assert (summed.count, summed.give.size) == (count, count)
    gathered = calls.allgather(at, MPI.IN_PLACE, memory[: 2 * count])
    assert gathered.count == count
    assert gathered.give.ctypes.data == memory.ctypes.data + count
    # Each block is below the limit, all of them are not.
    third = calls.gather(Where(0, 3), MPI.IN_PLACE, [memory, LIMIT // 2, MPI.BYTE], 0)
    assert third.take is not None
    assert (third.count, third.take.count) == (LIMIT // 2, 3 * LIMIT // 2)


def test_counts_of_blocks(memory: Any) -> None:
    counts = np.array([LIMIT + 5, 3], np.int64)
    got = np.empty(3, np.uint8)
    memory[LIMIT + 5 : LIMIT + 8] = 1, 2, 3
    call = calls.scatterv(Where(1, 2), [memory, counts], got, 1)
    assert call.gives == (LIMIT + 5, 3)
    assert call.give[LIMIT + 5 :].tolist() == [1, 2, 3]
    dealt = calls.alltoallv(
        Where(0, 1), memory.view(np.int64)[: FAR // 8 + 1], memory.view(np.int64)[-FAR // 8 - 1 :]
    )
    assert dealt.gives == (FAR // 8 + 1,)


@pytest.mark.parametrize("kind", [np.uint8, np.float64])
def test_displacements(memory: Any, kind: Any) -> None:
    elements = memory.view(kind)
    start = FAR // elements.itemsize
    memory[:64] = memory[FAR : FAR + 64] = 0
    call = calls.gatherv(Where(0, 2), MPI.IN_PLACE, [elements, ([2, 1], [start + 5, 1])], 0)
    assert call.take is not None
    call.take.flat[...] = 4, 5, 6
    call.take.unpack()
    assert elements[start + 4 : start + 8].tolist() == [0, 4, 5, 0]
    assert elements[:3].tolist() == [0, 6, 0]
    sent = calls.scatterv(Where(0, 2), [elements, (1, start + 5)], np.empty(1, kind), 0)
    assert sent.give.tolist() == [0, 4]
    assert calls.broadcast(Where(0, 2), [elements, (1, start + 6)], 0).give.tolist() == [5]


def test_displacements_in_bytes_and_extents_of_datatypes(memory: Any) -> None:
    memory[:64] = memory[FAR : FAR + 64] = 0
    spread = MPI.BYTE.Create_hvector(2, 2, FAR).Commit()
    shifted = MPI.BYTE.Create_hindexed([2], [FAR + 8]).Commit()
    try:
        memory[FAR : FAR + 2], memory[FAR + 8 : FAR + 10] = (7, 8), (9, 10)
        assert calls.broadcast(Where(0, 2), [memory, 1, spread], 0).give.tolist() == [0, 0, 7, 8]
        types = [MPI.BYTE, shifted]
        call = calls.alltoallw(
            Where(0, 2), [memory, [2, 1], [FAR, 0], types], [bytearray(4), [2, 2], [0, 2], [MPI.BYTE] * 2]
        )
        assert call.give.tolist() == [7, 8, 9, 10]
        got = calls.allgatherv(Where(0, 2), [memory, 1, shifted], [memory, ([2, 2], [FAR + 1, 3]), MPI.BYTE])
        assert got.take is not None
        got.take.flat[...] = 1, 2, 3, 4
        got.take.unpack()
        assert memory[FAR : FAR + 4].tolist() == [7, 1, 2, 0]
        assert memory[:6].tolist() == [0, 0, 0, 3, 4, 0]
        far = calls.alltoallv(Where(0, 2), [memory, ([1, 1], [1, 0]), spread], [memory, ([4, 4], [16, 32])])
        assert far.give.tolist() == [2, 0, 0, 0, 0, 0, 7, 1]
    finally:
        spread.Free()
        shifted.Free()
