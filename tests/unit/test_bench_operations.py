"""The collectives of `hpccoll bench`: bandwidths, sizes, who gives and gets what."""

from __future__ import annotations

import pytest

from hpccoll.cli.bench.operations import OPERATIONS, Operation, Place, operation_of
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
    ],
)
def test_bandwidths_are_those_of_nccl_tests(name: str, busbw: float) -> None:
    assert OPERATIONS[name].bandwidth(SIZE_S, TIME_S, 4) == pytest.approx((100.0, busbw))


@pytest.mark.parametrize("name", OPERATIONS)
def test_a_rank_alone_has_no_bus_bandwidth(name: str) -> None:
    assert OPERATIONS[name].bandwidth(SIZE_S, TIME_S, 1) == pytest.approx((100.0, 0.0))


@pytest.mark.parametrize("name", OPERATIONS)
def test_no_time_is_no_division_by_zero(name: str) -> None:
    assert OPERATIONS[name].bandwidth(SIZE_S, 0.0, 4) == (0.0, 0.0)


@pytest.mark.parametrize("name", ["allgather", "reduce_scatter"])
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


@pytest.mark.parametrize("name", ["allreduce", "reduce", "broadcast"])
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
    ],
)
def test_names_of_nccl_tests_and_of_mpi_are_taken(text: str, name: str) -> None:
    assert operation_of(text).name == name


@pytest.mark.parametrize("text", ["", "perf", "allreducee", "sendrecv_perf"])
def test_an_unknown_name_is_refused_with_those_there_are(text: str) -> None:
    with pytest.raises(UsageError, match=f"'{text}'.*allreduce, reduce, broadcast"):
        operation_of(text)


def pieces(operation: Operation, rank: int, root: int = 1) -> list[tuple[tuple[int, ...], int, int]]:
    return [(one.ranks, one.start, one.length) for one in operation.result(Place(rank, 3, root, 10))]


def test_what_comes_of_each_collective() -> None:
    everyone = (0, 1, 2)
    assert pieces(OPERATIONS["allreduce"], 2) == [(everyone, 0, 10)]
    assert pieces(OPERATIONS["reduce"], 1) == [(everyone, 0, 10)]
    assert pieces(OPERATIONS["reduce"], 2) == []
    assert pieces(OPERATIONS["broadcast"], 2) == [((1,), 0, 10)]
    assert pieces(OPERATIONS["allgather"], 2) == [((0,), 0, 10), ((1,), 0, 10), ((2,), 0, 10)]
    assert pieces(OPERATIONS["reduce_scatter"], 2) == [(everyone, 20, 10)]
    assert pieces(OPERATIONS["barrier"], 2) == []


def test_arguments_out_of_place_and_in_place() -> None:
    root, other = Place(1, 3, 1, 10), Place(2, 3, 1, 10)

    def arguments(name: str, place: Place, marker: str | None) -> tuple[object, ...]:
        return OPERATIONS[name].form("send", "take", place, marker)

    for name in ("allreduce", "allgather", "reduce_scatter"):
        assert arguments(name, other, None) == ("send", "take")
        assert arguments(name, other, "IN_PLACE") == ("IN_PLACE", "take")
    assert arguments("reduce", root, None) == ("send", "take")
    assert arguments("reduce", root, "IN_PLACE") == ("IN_PLACE", "take")
    assert arguments("reduce", other, None) == arguments("reduce", other, "IN_PLACE") == ("send", None)
    assert arguments("broadcast", root, None) == ("send",)
    assert arguments("broadcast", other, None) == arguments("broadcast", other, "IN_PLACE") == ("take",)
    assert arguments("broadcast", root, "IN_PLACE") == ("take",)
    assert arguments("barrier", other, None) == ()
    assert OPERATIONS["allgather"].in_place_start(other) == 20
    assert OPERATIONS["reduce_scatter"].in_place_start(other) == 0
