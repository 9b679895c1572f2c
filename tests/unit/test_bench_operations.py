"""The collectives of `hpccoll bench`: bandwidths, sizes, who gives and gets what."""

from __future__ import annotations

from collections import Counter

import pytest

from hpccoll.cli.bench.operations import OPERATIONS, Operation, operation_of
from hpccoll.cli.bench.places import Blocks, Piece, Place
from hpccoll.errors import UsageError

SIZE_S = 1_000_000_000
TIME_S = 0.01


@pytest.mark.parametrize(
    ("name", "busbw"),
    [
        ("allreduce", 150.0),
        ("allgather", 75.0),
        ("reduce_scatter", 75.0),
        ("broadcast", 100.0),
        ("reduce", 100.0),
        ("gather", 75.0),
        ("scatter", 75.0),
        ("alltoall", 75.0),
        ("alltoallv", 75.0),
    ],
)
def test_bandwidths_are_those_of_nccl_tests(name: str, busbw: float) -> None:
    assert OPERATIONS[name].bandwidth(SIZE_S, TIME_S, 4) == pytest.approx((100.0, busbw))


@pytest.mark.parametrize(
    ("name", "like"),
    [
        ("scan", "broadcast"),
        ("exscan", "reduce"),
        ("allgatherv", "allgather"),
        ("reduce_scatterv", "reduce_scatter"),
        ("gatherv", "gather"),
        ("scatterv", "scatter"),
        ("alltoallw", "alltoallv"),
    ],
)
def test_bandwidths_that_nccl_tests_has_not(name: str, like: str) -> None:
    for size in (2, 3, 4, 64):
        expected = OPERATIONS[like].bandwidth(SIZE_S, TIME_S, size)
        assert OPERATIONS[name].bandwidth(SIZE_S, TIME_S, size) == expected


@pytest.mark.parametrize("name", OPERATIONS)
def test_a_rank_alone_has_no_bus_bandwidth(name: str) -> None:
    assert OPERATIONS[name].bandwidth(SIZE_S, TIME_S, 1) == pytest.approx((100.0, 0.0))


@pytest.mark.parametrize("name", OPERATIONS)
def test_no_time_is_no_division_by_zero(name: str) -> None:
    assert OPERATIONS[name].bandwidth(SIZE_S, 0.0, 4) == (0.0, 0.0)


@pytest.mark.parametrize("name", ["allgather", "reduce_scatter", "gather", "scatter", "alltoall"])
@pytest.mark.parametrize("size", [1, 2, 3, 5, 64])
def test_blocks_are_rounded_down_to_16_bytes(name: str, size: int) -> None:
    operation = OPERATIONS[name]
    for itemsize in (1, 2, 4, 8, 16):
        for nbytes in (0, 8, 100, 1000, 65536, 2**20 + 17):
            count = operation.count(nbytes, itemsize, size)
            rounded = operation.nbytes(count, itemsize, size)
            assert rounded == count * itemsize * size
            assert rounded // size % 16 == 0
            assert 0 <= nbytes - rounded < 16 * size + itemsize


@pytest.mark.parametrize("name", [name for name, row in OPERATIONS.items() if row.ragged])
@pytest.mark.parametrize("size", [1, 2, 3, 4, 5, 16])
def test_the_size_of_ragged_ones_is_the_longest_buffer_of_any_rank(name: str, size: int) -> None:
    operation = OPERATIONS[name]
    for itemsize in (1, 4, 16):
        for nbytes in (0, 8, 1000, 65536):
            count = operation.count(nbytes, itemsize, size)
            places = [operation.place(rank, size, size - 1, count) for rank in range(size)]
            lengths = [sum(piece.length for piece in operation.result(place)) for place in places]
            longest = max(*lengths, *(operation.gives(place) for place in places)) * itemsize
            assert operation.nbytes(count, itemsize, size) == longest <= nbytes
            assert nbytes - longest < 2 * size * itemsize


def test_ragged_blocks_are_unequal_and_some_are_empty() -> None:
    assert Place(0, 7, 0, 10, ragged=True).blocks == (20, 10, 0, 20, 10, 0, 20)
    place = Place(0, 4, 0, 10, ragged=True)
    rows = [place.exchanged(rank) for rank in range(4)]
    assert rows == [(20, 10, 0, 20), (10, 0, 20, 10), (0, 20, 10, 0), (20, 10, 0, 20)]
    assert rows == [tuple(column) for column in zip(*rows, strict=True)]  # as in place demands


@pytest.mark.parametrize("name", ["allreduce", "reduce", "broadcast", "scan", "exscan"])
def test_whole_buffers_are_rounded_down_to_an_element(name: str) -> None:
    operation = OPERATIONS[name]
    assert operation.count(1027, 8, 3) == 128
    assert operation.nbytes(128, 8, 3) == 1024


@pytest.mark.parametrize(
    ("text", "name"),
    [
        ("allreduce", "allreduce"),
        ("all_reduce_perf", "allreduce"),
        ("allreduce_perf", "allreduce"),
        ("all_gather_perf", "allgather"),
        ("all-gather", "allgather"),
        ("reduce_scatter_perf", "reduce_scatter"),
        ("reduce_scatter_block", "reduce_scatter"),
        ("ReduceScatter", "reduce_scatter"),
        ("broadcast_perf", "broadcast"),
        ("Bcast", "broadcast"),
        ("reduce_perf", "reduce"),
        ("barrier", "barrier"),
        ("alltoall_perf", "alltoall"),
        ("all_to_all", "alltoall"),
        ("alltoallv_perf", "alltoallv"),
        ("gather_perf", "gather"),
        ("Scatterv", "scatterv"),
        ("reduce_scatter_v", "reduce_scatterv"),
        ("Exscan", "exscan"),
    ],
)
def test_names_of_nccl_tests_and_of_mpi_are_taken(text: str, name: str) -> None:
    assert operation_of(text).name == name


@pytest.mark.parametrize("text", ["", "perf", "allreducee", "sendrecv_perf"])
def test_an_unknown_name_is_refused_with_those_there_are(text: str) -> None:
    with pytest.raises(UsageError, match=f"'{text}'.*allreduce, reduce, broadcast"):
        operation_of(text)


def pieces(operation: Operation, rank: int, root: int = 1) -> list[tuple[tuple[int, ...], int, int]]:
    place = operation.place(rank, 3, root, 10)
    return [(one.ranks, one.start, one.length) for one in operation.result(place)]


def test_what_comes_of_each_collective() -> None:
    everyone = (0, 1, 2)
    assert pieces(OPERATIONS["allreduce"], 2) == [(everyone, 0, 10)]
    assert pieces(OPERATIONS["reduce"], 1) == [(everyone, 0, 10)]
    assert pieces(OPERATIONS["reduce"], 2) == []
    assert pieces(OPERATIONS["broadcast"], 2) == [((1,), 0, 10)]
    assert pieces(OPERATIONS["allgather"], 2) == [((0,), 0, 10), ((1,), 0, 10), ((2,), 0, 10)]
    assert pieces(OPERATIONS["reduce_scatter"], 2) == [(everyone, 20, 10)]
    assert pieces(OPERATIONS["barrier"], 2) == []
    assert pieces(OPERATIONS["gather"], 1) == [((0,), 0, 10), ((1,), 0, 10), ((2,), 0, 10)]
    assert pieces(OPERATIONS["gather"], 2) == []
    assert pieces(OPERATIONS["scatter"], 2) == [((1,), 20, 10)]
    assert pieces(OPERATIONS["alltoall"], 2) == [((0,), 20, 10), ((1,), 20, 10), ((2,), 20, 10)]
    assert pieces(OPERATIONS["scan"], 1) == [((0, 1), 0, 10)]
    assert pieces(OPERATIONS["exscan"], 2) == [((0, 1), 0, 10)]
    assert pieces(OPERATIONS["exscan"], 0) == [((), 0, 10)]
    assert pieces(OPERATIONS["allgatherv"], 0) == [((0,), 0, 20), ((1,), 0, 10), ((2,), 0, 0)]
    assert pieces(OPERATIONS["reduce_scatterv"], 1) == [(everyone, 20, 10)]
    assert pieces(OPERATIONS["gatherv"], 1) == [((0,), 0, 20), ((1,), 0, 10), ((2,), 0, 0)]
    assert pieces(OPERATIONS["scatterv"], 1) == [((1,), 20, 10)]
    # Rows of the matrix: 20 10 0, 10 0 20, 0 20 10.
    for name in ("alltoallv", "alltoallw"):
        assert pieces(OPERATIONS[name], 1) == [((0,), 20, 10), ((1,), 10, 0), ((2,), 0, 20)]


MOVING = [name for name, row in OPERATIONS.items() if row.sized and not row.reduces]


@pytest.mark.parametrize("name", MOVING)
@pytest.mark.parametrize("size", [1, 2, 3, 4, 7])
def test_every_element_given_arrives_as_often_as_it_should(name: str, size: int) -> None:
    operation, root = OPERATIONS[name], size // 2
    places = [operation.place(rank, size, root, 2) for rank in range(size)]
    arrived = Counter(
        (piece.ranks[0], element)
        for place in places
        for piece in operation.result(place)
        for element in range(piece.start, piece.start + piece.length)
    )
    times = size if name.startswith(("broadcast", "allgather")) else 1
    given = {(place.rank, element) for place in places for element in range(operation.gives(place))}
    assert arrived == dict.fromkeys(given, times)


def arguments(name: str, place: Place, marker: str | None) -> tuple[object, ...]:
    return OPERATIONS[name].arguments("send", "take", place, marker)


def test_arguments_out_of_place_and_in_place() -> None:
    root, other = Place(1, 3, 1, 10), Place(2, 3, 1, 10)
    for name in ("allreduce", "allgather", "reduce_scatter", "alltoall", "scan", "exscan"):
        assert arguments(name, other, None) == ("send", "take")
        assert arguments(name, other, "IN_PLACE") == ("IN_PLACE", "take")
    for name in ("reduce", "gather"):
        assert arguments(name, root, None) == ("send", "take")
        assert arguments(name, root, "IN_PLACE") == ("IN_PLACE", "take")
        assert arguments(name, other, None) == arguments(name, other, "IN_PLACE") == ("send", None)
    assert arguments("scatter", root, None) == ("send", "take")
    assert arguments("scatter", root, "IN_PLACE") == ("send", "IN_PLACE")
    assert arguments("scatter", other, None) == arguments("scatter", other, "IN_PLACE") == (None, "take")
    assert arguments("broadcast", root, None) == ("send",)
    assert arguments("broadcast", other, None) == arguments("broadcast", other, "IN_PLACE") == ("take",)
    assert arguments("broadcast", root, "IN_PLACE") == ("take",)
    assert arguments("barrier", other, None) == ()
    assert OPERATIONS["allgather"].in_place_start(other) == OPERATIONS["gather"].in_place_start(other) == 20
    for name in ("reduce_scatter", "alltoall", "scan"):
        assert OPERATIONS[name].in_place_start(other) == 0


def test_ragged_arguments_have_counts() -> None:
    root, other = Place(1, 3, 1, 10, ragged=True), Place(2, 3, 1, 10, ragged=True)

    def shown(name: str, place: Place, marker: str | None = None) -> list[object]:
        found = arguments(name, place, marker)
        return [(one.array, one.counts) if isinstance(one, Blocks) else one for one in found]

    blocks, own = (20, 10, 0), (0, 20, 10)
    assert shown("allgatherv", other) == ["send", ("take", blocks)]
    assert shown("allgatherv", other, "IN_PLACE") == ["IN_PLACE", ("take", blocks)]
    assert shown("reduce_scatterv", other) == ["send", "take", blocks]
    assert shown("gatherv", root) == ["send", ("take", blocks)]
    assert shown("gatherv", other) == ["send", None]
    assert shown("scatterv", root) == [("send", blocks), "take"]
    assert shown("scatterv", other) == [None, "take"]
    for name in ("alltoallv", "alltoallw"):
        assert shown(name, other) == [("send", own), ("take", own)]
        assert shown(name, other, "IN_PLACE") == ["IN_PLACE", ("take", own)]
    assert OPERATIONS["gatherv"].in_place_start(root) == 20
    assert OPERATIONS["allgatherv"].in_place_start(other) == 30
    assert OPERATIONS["alltoallv"].in_place_start(other) == 0


def test_what_is_not_defined_has_no_ranks() -> None:
    assert OPERATIONS["exscan"].result(Place(0, 3, -1, 5)) == (Piece((), 0, 5),)
