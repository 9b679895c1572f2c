"""Arguments of regular calls that are refused, and what the errors say; memory that two arguments share."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from mpi4py import MPI

from hpccoll import calls
from hpccoll.calls import Where
from hpccoll.errors import UsageError
from hpccoll.ops.table import operator_of

SUM = operator_of(MPI.SUM)
AT = Where(1, 3)
TWO, SIX, SEVEN = np.zeros(2), np.zeros(6), np.zeros(7)
READ_ONLY = np.frombuffer(bytes(24))
REFUSED: list[tuple[Callable[..., Any], tuple[Any, ...], str]] = [
    (calls.gather, (None, None, 0), "sendbuf is None on rank 1: only the root (0) may pass it"),
    (calls.gather, (MPI.IN_PLACE, None, 0), "sendbuf is MPI.IN_PLACE on rank 1: only the root (0) may"),
    (calls.gatherv, (MPI.IN_PLACE, None, 2), "sendbuf is MPI.IN_PLACE on rank 1: only the root (2) may"),
    (calls.scatter, (None, None, 0), "recvbuf is None on rank 1: only the root (0) may pass it"),
    (calls.scatterv, (None, MPI.IN_PLACE, 0), "recvbuf is MPI.IN_PLACE on rank 1: only the root (0) may"),
    (calls.gather, (TWO, None, 1), "recvbuf is None: must be an array or a buffer"),
    (calls.scatter, (None, TWO, 1), "sendbuf is None: must be an array or a buffer"),
    (calls.gather, (TWO, SEVEN, 1), "recvbuf holds 7 elements: must be 3 ranks x 2 of sendbuf; Gatherv"),
    (calls.gather, (TWO, np.zeros(6, int), 1), "sendbuf has dtype float64, recvbuf int64: must be the same"),
    (calls.scatter, (SEVEN, TWO, 1), "sendbuf holds 7 elements: must be a multiple of the 3 ranks"),
    (calls.scatter, (SIX, np.zeros(3), 1), "recvbuf holds 3 elements: must be 2, one of 3 blocks of sendbuf"),
    (calls.alltoall, (SEVEN, np.zeros(7)), "sendbuf holds 7 elements: must be a multiple of the 3 ranks"),
    (calls.alltoall, (SIX, np.zeros(9)), "sendbuf holds 6 elements, recvbuf 9: must be as many; Alltoallv"),
    (calls.alltoall, (MPI.IN_PLACE, SEVEN), "recvbuf holds 7 elements: must be a multiple of the 3 ranks"),
    (calls.alltoall, (READ_ONLY, READ_ONLY), "recvbuf is read-only"),
    (calls.scan, (TWO, np.zeros(3), SUM), "sendbuf holds 2 elements, recvbuf 3: must be as many"),
    (calls.broadcast, (MPI.IN_PLACE, 1), "buf is MPI.IN_PLACE: must be an array or a buffer"),
    (calls.broadcast, (MPI.BOTTOM, 0), "buf is MPI.BOTTOM without a type: must be [MPI.BOTTOM, count, type]"),
    (calls.gather, (TWO, SIX, 3), "root is 3: must be a rank of the communicator, 0 to 2"),
    (calls.scatterv, (TWO, SIX, 1.0), "root is 1.0: must be a rank"),
    (calls.reduce_scatter, (SIX, TWO, [2, 2], SUM), "recvcounts has 2 counts: must be one for each of the 3"),
    (calls.reduce_scatter, (SIX, TWO, [2, 2, -1], SUM), "recvcounts has count -1 for rank 2: must not be"),
    (calls.reduce_scatter, (SIX, TWO, [2, 2, 1], SUM), "sendbuf holds 6 elements, recvcounts 5: must be as"),
    (
        calls.reduce_scatter,
        (SIX, TWO, [2, 1, 3], SUM),
        "recvbuf holds 2 elements, recvcounts has 1 for rank 1",
    ),
    (calls.reduce_scatter, (SIX, TWO, "abc", SUM), "recvcounts has counts 'abc': must be an integer or one"),
    (calls.reduce_scatter, (MPI.IN_PLACE, SIX, [2, 2, 1], SUM), "recvbuf holds 6 elements, recvcounts 5"),
    (calls.reduce_scatter, (MPI.IN_PLACE, SIX, None, SUM), "recvcounts is None: must be the counts of all"),
]


@pytest.mark.parametrize(("collective", "arguments", "says"), REFUSED)
def test_what_is_refused(collective: Callable[..., Any], arguments: tuple[Any, ...], says: str) -> None:
    with pytest.raises(UsageError) as caught:
        collective(AT, *arguments)
    assert says in str(caught.value)


def test_counts_that_were_exchanged_must_add_up() -> None:
    call = calls.reduce_scatter(AT, SIX, TWO, None, SUM)
    with pytest.raises(UsageError, match="sendbuf holds 6 elements, but the receive buffers of all ranks 7"):
        call.complete([2, 2, 3])


def test_memory_that_two_arguments_share() -> None:
    both = np.zeros(12)
    with pytest.raises(UsageError, match="overlap in part"):
        calls.alltoall(AT, both[:6], both[3:9])
    with pytest.raises(UsageError, match=r"the same memory; pass MPI.IN_PLACE"):
        calls.alltoall(AT, both[:6], both[:6])
    with pytest.raises(UsageError, match="overlap in part"):
        calls.gather(AT, both[:2], both[:6], 1)
    with pytest.raises(UsageError, match="overlap in part"):
        calls.scatter(AT, both[:6], both[1:3], 1)
    # The own block of the buffer of all is where it belongs.
    calls.gather(AT, both[2:4], both[:6], 1)
    calls.scatter(AT, both[:6], both[2:4], 1)
    calls.allgather(AT, both[2:4], both[:6])
    calls.alltoall(AT, both[:6], both[6:])
