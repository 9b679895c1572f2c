"""Flags and segments between the ranks of an MPI job, with both kinds of flags and a mix of them."""

from __future__ import annotations

import os
import time

import numpy as np
import pytest
from mpi4py import MPI

from hpccoll import _native
from hpccoll.memory.flags import Flags, open_flags, spin_time_us
from hpccoll.memory.segments import Segment, attach_segment, create_segment

pytestmark = [pytest.mark.mpi, pytest.mark.ranks(2, 3)]

COMM = MPI.COMM_WORLD
STRIDE = 8  # one flag a cache line
FLAG_BYTES = 16 * 1024
PAYLOAD = 67  # elements of a rank, over nine cache lines
NBYTES = FLAG_BYTES + 2 * 8 * PAYLOAD * COMM.size
PATIENCE_S = 20

needs_native = pytest.mark.skipif(not _native.available(), reason=f"no extension: {_native.reason()}")
KINDS = [
    pytest.param("native", marks=needs_native),
    "fallback",
    pytest.param("mixed", marks=needs_native),
]


def shared_segment() -> Segment:
    """One segment of all ranks, with no name any more."""
    mine = create_segment(NBYTES, purpose="flagstest") if COMM.rank == 0 else None
    path = COMM.bcast(mine.path if mine else None)
    segment = mine or attach_segment(path, NBYTES)
    COMM.Barrier()
    segment.unlink()
    COMM.Barrier()
    assert not os.path.exists(path)
    return segment


def flags_of(segment: Segment, kind: str) -> Flags:
    native = kind == "native" or (kind == "mixed" and COMM.rank % 2 == 0)
    spin_us = spin_time_us(COMM.size)
    return open_flags(segment.buffer[:FLAG_BYTES], native=native, spin_us=spin_us)


@pytest.mark.parametrize("kind", KINDS)
def test_every_rank_sees_what_every_rank_wrote(kind: str) -> None:
    """All-to-all arrival: nobody overwrites a block of two rounds ago before all have read it."""
    rounds = 1000
    with shared_segment() as segment:
        flags = flags_of(segment, kind)
        blocks = segment.array(np.int64, FLAG_BYTES, 2 * COMM.size * PAYLOAD).reshape(2, COMM.size, PAYLOAD)
        senders = np.arange(COMM.size)[:, np.newaxis]
        torn = 0
        for turn in range(1, rounds + 1):
            block = blocks[turn % 2]
            block[COMM.rank] = 1000 * turn + COMM.rank
            flags.store(STRIDE * COMM.rank, turn)
            arrived = flags.wait_reached(0, COMM.size, STRIDE, turn, PATIENCE_S)
            late = flags.first_below(0, COMM.size, STRIDE, turn)
            assert arrived, f"rank {COMM.rank}: rank {late} did not arrive in round {turn}"
            torn += not (block == 1000 * turn + senders).all()
        assert torn == 0, f"rank {COMM.rank}"


@pytest.mark.parametrize("kind", KINDS)
def test_who_is_late_is_known_and_then_awaited(kind: str) -> None:
    last, looked = COMM.size - 1, 32 * STRIDE
    with shared_segment() as segment:
        flags = flags_of(segment, kind)
        if COMM.rank == last:
            assert flags.wait_reached(looked, last, STRIDE, 1, PATIENCE_S), "not all others have looked"
        else:
            flags.store(STRIDE * COMM.rank, 1)
            start = time.monotonic()
            assert not flags.wait_reached(0, COMM.size, STRIDE, 1, 0.1), f"rank {COMM.rank}"
            assert 0.1 <= time.monotonic() - start < 5, f"rank {COMM.rank}"
            assert flags.wait_reached(0, last, STRIDE, 1, PATIENCE_S), f"rank {COMM.rank}"
            assert not flags.reached(0, COMM.size, STRIDE, 1), f"rank {COMM.rank}"
            assert flags.first_below(0, COMM.size, STRIDE, 1) == last, f"rank {COMM.rank}"
            flags.store(looked + STRIDE * COMM.rank, 1)
        flags.store(STRIDE * COMM.rank, 1)
        assert flags.wait_reached(0, COMM.size, STRIDE, 1, PATIENCE_S), f"rank {COMM.rank}"
        assert flags.first_below(0, COMM.size, STRIDE, 1) == -1, f"rank {COMM.rank}"


@needs_native
def test_exactly_one_rank_is_first() -> None:
    words = range(FLAG_BYTES // 16, FLAG_BYTES // 8)
    with shared_segment() as segment:
        flags = flags_of(segment, "native")
        COMM.Barrier()
        answers = [flags.store_first(word, COMM.rank + 1) for word in words]
        everyones = COMM.allgather(answers)
    assert everyones == [answers] * COMM.size, f"rank {COMM.rank}"
    assert set(answers) <= set(range(1, COMM.size + 1)), f"rank {COMM.rank}"


@pytest.mark.parametrize("kind", KINDS)
def test_a_reason_given_earlier_wins(kind: str) -> None:
    with shared_segment() as segment:
        flags = flags_of(segment, kind)
        answers = []
        for turn in range(COMM.size):
            if turn == COMM.rank:
                answers.append(flags.store_first(100, 10 + turn))
            COMM.Barrier()
        assert [*answers, flags.load(100)] == [10, 10], f"rank {COMM.rank}"
