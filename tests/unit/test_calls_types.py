"""Alltoallw: a datatype for each block."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
import pytest
from mpi4py import MPI

from hpccoll import calls
from hpccoll.calls import Where
from hpccoll.errors import UsageError
from tests.support.carry import together

Make = Callable[[MPI.Datatype], MPI.Datatype]


@pytest.fixture
def own() -> Iterator[Make]:
    """Commits a datatype for the time of the test."""
    made: list[MPI.Datatype] = []

    def commit(datatype: MPI.Datatype) -> MPI.Datatype:
        made.append(datatype.Commit())
        return datatype

    yield commit
    for datatype in made:
        datatype.Free()


def test_a_type_for_each_block_exchanges_matrix_parts(own: Make) -> None:
    """As mpi4py-fft does: the ranks hold rows, then columns, without a copy of their own."""
    size, n = 3, 6
    matrix = np.arange(36.0).reshape(n, n)
    rows = [matrix[2 * rank : 2 * rank + 2].copy() for rank in range(size)]
    columns = [np.full((n, 2), -1.0) for _ in range(size)]
    parts = [own(MPI.DOUBLE.Create_subarray([2, 6], [2, 2], [0, 2 * other])) for other in range(size)]
    places = [own(MPI.DOUBLE.Create_subarray([6, 2], [2, 2], [2 * other, 0])) for other in range(size)]
    called = together(
        calls.alltoallw,
        [(one, parts) for one in rows],
        [(one, ([1] * size, [0] * size), places) for one in columns],
    )
    assert (called[0].dtype, called[0].gives) == (np.dtype("u1"), (32, 32, 32))
    assert all(np.array_equal(columns[rank], matrix[:, 2 * rank : 2 * rank + 2]) for rank in range(size))
    together(
        calls.alltoallw,
        [(MPI.BOTTOM, [1] * size, [MPI.Get_address(one)] * size, places) for one in columns],
        [[one, parts] for one in rows],
    )
    assert np.array_equal(np.vstack(rows), matrix)
    with pytest.raises(UsageError, match="recvbuf has items that share memory"):
        calls.alltoallw(Where(0, 2), [rows[0], parts[:2]], [rows[1], [parts[0], parts[0]]])


def test_a_type_for_each_block_in_place() -> None:
    mine = [np.arange(6, dtype="i") + 10 * rank for rank in range(2)]
    spec = [([one, [1, 2], [0, 8], [MPI.LONG, MPI.INT]]) for one in mine]
    spec[0][1:] = [2, 1], [0, 8], [MPI.INT, MPI.LONG]
    together(calls.alltoallw, MPI.IN_PLACE, spec)
    assert mine[0].tolist() == [0, 1, 10, 11, 4, 5]
    assert mine[1].tolist() == [2, 3, 12, 13, 14, 15]


W, B = Where(0, 2), bytearray(16)
TYPED: list[tuple[Any, str]] = [
    (B, "is bytearray(b'"),
    ([B], "must be [buf, types], [buf, (counts, displs), types] or [buf, counts, displs, types]"),
    ([B, [1, 1], [MPI.INT] * 2], "has counts 1, displacements 1: must be one for each rank"),
    ([B, 1, [MPI.INT] * 2], "must be [buf, types]"),
    ([B, [MPI.INT]], "has 1 types: must be one for each of the 2 ranks"),
    ([B, MPI.INT], "must be a list of MPI datatypes"),
    ([B, ["i", "i"]], "has types ['i', 'i']: must be a list of MPI datatypes"),
    ([B, [1, 1], None, [MPI.INT] * 2], "has counts [1, 1], displacements None: must have both"),
    ([MPI.BOTTOM, [MPI.INT] * 2], "has counts None, displacements None: must have both"),
    ([B, [1], [0, 4], [MPI.INT] * 2], "has 1 counts: must be one for each of the 2 ranks"),
    (
        [B, [1, 1], [0, 13], [MPI.INT] * 2],
        "has count 4 and displacement 13 for rank 1, but the buffer holds 16",
    ),
    (
        [B, [1, 1], [0, 4], [MPI.INT, MPI.DATATYPE_NULL]],
        "has type MPI.DATATYPE_NULL for rank 1, whose count is 1",
    ),
]


@pytest.mark.parametrize(("spec", "says"), TYPED)
def test_lists_of_types_that_are_refused(spec: Any, says: str) -> None:
    for arguments in ((spec, bytearray(8)), (MPI.IN_PLACE, spec)):
        if arguments[0] is spec:
            arguments = (spec, [bytearray(8), [1, 1], [0, 4], [MPI.INT] * 2])
        with pytest.raises(UsageError) as caught:
            calls.alltoallw(W, *arguments)
        assert says in str(caught.value)
