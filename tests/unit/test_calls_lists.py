"""mpi4py's lists: what it accepts is accepted, and means the same.

mpi4py itself is asked, on one process: with neighbours that are the process itself, as many times as there
are to be blocks, its neighbour collectives take lists apart as those of a communicator of so many ranks do.
"""

from __future__ import annotations

import array
from collections.abc import Iterator
from contextlib import contextmanager
from functools import cache
from itertools import product
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from mpi4py import MPI

from hpccoll import calls
from hpccoll.calls import Call, Where
from hpccoll.errors import UsageError
from hpccoll.ops.table import operator_of
from tests.support.carry import together

Array = np.ndarray[Any, np.dtype[Any]]
# Rules beyond mpi4py, which trusts the caller in these.
STRICTER = "but the buffer holds|must lie apart"
EXAMPLES = settings(max_examples=150)


@cache
def neighbours(blocks: int) -> MPI.Distgraphcomm:
    return MPI.COMM_SELF.Create_dist_graph_adjacent([0] * blocks, [0] * blocks)


@contextmanager
def datatype(name: str, base: MPI.Datatype) -> Iterator[MPI.Datatype]:
    """A derived datatype, by a name that an error of Hypothesis can show."""
    size, vector = base.extent, base.Create_vector(2, 1, 3)
    made = {
        "contiguous": lambda: base.Create_contiguous(2),
        "vector": lambda: base.Create_vector(2, 1, 2),
        "gap behind": lambda: base.Create_resized(0, 2 * size),
        "gap before": lambda: base.Create_hindexed([1], [size]),
        "interleaved": lambda: vector.Create_resized(0, size),
        "indexed": lambda: base.Create_indexed([1, 2], [3, 0]),
    }[name]().Commit()
    vector.Free()
    try:
        yield made
    finally:
        made.Free()


DERIVED = ("contiguous", "vector", "gap behind", "gap before", "interleaved", "indexed")
CONTAINERS = {
    "numpy": lambda values: values.copy(),
    "fortran": lambda values: np.asfortranarray(values.reshape(-1, 2 if values.size % 2 == 0 else 1)),
    "array": lambda values: array.array(values.dtype.char, values.tolist()),
    "bytearray": lambda values: bytearray(values.tobytes()),
    "memoryview": lambda values: memoryview(values.copy()),
}


def number(limit: int) -> st.SearchStrategy[Any]:
    """One for all blocks; now and then what is none."""
    wrong = st.sampled_from([-1, 1.5, "ab"])
    return st.one_of(*[st.none(), *[st.integers(0, limit)] * 4, st.integers(0, limit).map(np.int32), wrong])


def several(one: st.SearchStrategy[int], blocks: int) -> st.SearchStrategy[Any]:
    """One for each block, in some sequence; now and then too many."""
    length = st.sampled_from([blocks] * 15 + [blocks + 1])
    values = length.flatmap(lambda n: st.lists(one, min_size=n, max_size=n))
    return values | values.map(tuple) | values.map(np.array) | values.map(lambda v: array.array("i", v))


def places(blocks: int) -> st.SearchStrategy[Any]:
    """Mostly apart, in any order."""
    return st.permutations(range(0, 8 * blocks, 8)).map(np.array) | several(st.integers(0, 20), blocks)


@st.composite
def lists(draw: st.DrawFn, blocks: int, regular: bool = False) -> tuple[str, str, str, int, Any, Any, str]:
    """A list's parts: container, dtype, type, elements, counts, displacements, form."""
    counts = number(3) if regular else number(3) | several(st.integers(0, 3), blocks)
    displs = number(6) if regular else number(9) | places(blocks)
    return (
        draw(st.sampled_from(sorted(CONTAINERS))),
        draw(st.sampled_from("bhilfdB")),
        draw(st.sampled_from(["", "code", "type", *DERIVED])),
        draw(st.sampled_from([0, 1, 7, 12, 60, 60, 61, 120])),
        draw(counts),
        draw(displs),
        draw(st.sampled_from(["plain", "type", "counts", "pair", "pair", "pair", "four", "four"])),
    )


@contextmanager
def spec_of(parts: tuple[Any, ...], values: Array) -> Iterator[tuple[Any, Any]]:
    """The list, and its memory."""
    container, code, kind, _, counts, displs, form = parts
    memory = CONTAINERS[container](values)
    base = MPI.Datatype.fromcode(code)
    with datatype(kind if kind in DERIVED else "contiguous", base) as derived:
        given = {"": None, "code": code, "type": base}.get(kind, derived)
        yield (
            {
                "plain": memory,
                "type": [memory, given],
                "counts": [memory, counts, given],
                "pair": (memory, (counts, displs), given),
                "four": [memory, counts, displs, given],
            }[form],
            memory,
        )


def content(memory: Any) -> bytes:
    return memory.tobytes(order="A") if isinstance(memory, (np.ndarray, memoryview)) else bytes(memory)


def sent_through(call: Call) -> None:
    """Each block to the same of the receive buffer."""
    assert call.take is not None
    call.take.flat[...] = call.give
    call.take.unpack()


def refused(prepare: Any) -> tuple[Call | None, str]:
    try:
        return prepare(), ""
    except UsageError as error:
        return None, str(error)


@EXAMPLES
@given(st.integers(1, 3).flatmap(lambda blocks: st.tuples(st.just(blocks), lists(blocks))), st.booleans())
def test_blocks_of_different_lengths(drawn: tuple[int, tuple[Any, ...]], receives: bool) -> None:
    blocks, parts = drawn
    values = np.arange(1, parts[3] + 1).astype(parts[1])
    check(blocks, parts, values, receives, calls.alltoallv, "Neighbor_alltoallv")


@EXAMPLES
@given(
    st.integers(1, 3).flatmap(lambda blocks: st.tuples(st.just(blocks), lists(blocks, regular=True))),
    st.booleans(),
)
def test_blocks_of_one_length(drawn: tuple[int, tuple[Any, ...]], receives: bool) -> None:
    blocks, parts = drawn
    values = np.arange(1, parts[3] + 1).astype(parts[1])
    check(blocks, parts, values, receives, calls.alltoall, "Neighbor_alltoall")


def check(
    blocks: int, parts: tuple[Any, ...], values: Array, receives: bool, prepare: Any, method: str
) -> None:
    """The list on one side, a plain array of as many elements on the other; here, and in mpi4py."""
    at = Where(0, blocks)
    regular = method == "Neighbor_alltoall"
    graph = neighbours(blocks)
    with spec_of(parts, values) as (spec, memory):
        # How many elements there are says the side that is under test: in place it needs no other.
        alone, says = refused(lambda: prepare(at, MPI.IN_PLACE, spec))
        if not receives and alone is None and "must lie apart" in says:
            return  # legal to send, but not to count by the receive buffer
        if alone is None:
            if not any(words in says for words in STRICTER.split("|")):
                other = np.zeros(values.size, values.dtype)
                with pytest.raises((ValueError, TypeError, KeyError, MPI.Exception)):
                    getattr(graph, method)(*((other, spec) if receives else (spec, other)))
            return
        assert alone.take is not None
        row = (np.arange(alone.take.count) % 100 + 100).astype(alone.dtype)
        base = alone.dtype.char
        counts = [alone.count] * blocks if regular else list(alone.takes or ())
        plain: Any = [row, alone.count, base] if regular else [row, counts, base]
        before = content(memory)
        call = prepare(at, plain, spec) if receives else prepare(at, spec, plain)
        sent_through(call)
        ours, our_row = content(memory), row.copy()
        with spec_of(parts, values) as (again, theirs):
            row[...] = (np.arange(row.size) % 100 + 100).astype(alone.dtype)
            plain[0] = row
            getattr(graph, method)(*((plain, again) if receives else (again, plain)))
            assert ours == content(theirs)
            assert np.array_equal(our_row, row)
        assert receives or ours == before


@EXAMPLES
@given(
    st.integers(1, 3).flatmap(
        lambda blocks: st.tuples(
            st.just(blocks),
            st.lists(st.sampled_from(["byte", "int", *DERIVED]), min_size=blocks, max_size=blocks),
            st.lists(st.integers(0, 2), min_size=blocks, max_size=blocks),
            st.lists(st.integers(0, 80), min_size=blocks, max_size=blocks),
            st.sampled_from(["pair", "four", "types"]),
        )
    ),
    st.booleans(),
)
def test_a_type_for_each_block(
    drawn: tuple[int, list[str], list[int], list[int], str], receives: bool
) -> None:
    blocks, names, counts, displs, form = drawn
    made = [MPI.BYTE if name == "byte" else MPI.INT if name == "int" else DATATYPES[name] for name in names]
    memory = bytearray(range(120))
    spec = {
        "pair": (memory, (counts, displs), made),
        "four": [memory, counts, np.array(displs), made],
        "types": (memory, made),
    }[form]
    at = Where(0, blocks)
    alone, says = refused(lambda: calls.alltoallw(at, MPI.IN_PLACE, spec))
    if alone is None:
        assert any(words in says for words in STRICTER.split("|"))
        return
    lengths = list(alone.takes or ())
    row = np.arange(sum(lengths), dtype=np.uint8) + 128
    starts = [0, *np.cumsum(lengths)[:-1].tolist()]
    plain = [row, lengths, starts, [MPI.BYTE] * blocks]
    send, receive = (plain, spec) if receives else (spec, plain)
    sent_through(calls.alltoallw(at, send, receive))
    ours, our_row = bytes(memory), row.copy()
    memory[:], row[...] = bytearray(range(120)), np.arange(row.size) + 128
    neighbours(blocks).Neighbor_alltoallw(send, receive)
    assert ours == bytes(memory)
    assert np.array_equal(our_row, row)


@pytest.fixture(scope="module", autouse=True)
def _datatypes() -> Iterator[None]:
    """Ones that live as long as the tests: the examples of one test share them."""
    with (
        datatype("contiguous", MPI.INT) as a,
        datatype("vector", MPI.INT) as b,
        datatype("gap behind", MPI.INT) as c,
        datatype("gap before", MPI.INT) as d,
        datatype("interleaved", MPI.INT) as e,
        datatype("indexed", MPI.INT) as f,
    ):
        DATATYPES.update(zip(DERIVED, (a, b, c, d, e, f), strict=True))
        yield
    DATATYPES.clear()


DATATYPES: dict[str, MPI.Datatype] = {}
NO_BYTES = b""


@pytest.mark.parametrize(
    "nothing",
    [
        [None, 0, "B"],
        [None, "B"],
        [MPI.BOTTOM, 0, "B"],
        [MPI.BOTTOM, "B"],
        (None, (0, 0), MPI.INT),
        [bytearray(0), MPI.DOUBLE],
        [np.empty((0, 3)), 0],
        np.empty(0),
        NO_BYTES,
    ],
    ids=repr,
)
def test_no_elements_at_no_place(nothing: Any) -> None:
    for prepare in (calls.gather, calls.gatherv):
        assert prepare(Where(1, 2), nothing, None, 0).give.size == 0
    call = calls.alltoallv(Where(0, 2), nothing, nothing if nothing is not NO_BYTES else bytearray())
    assert (call.gives, call.takes) == ((0, 0), (0, 0))


def test_counts_of_one_block_stand_for_each_rank() -> None:
    size = 3
    whole = [np.arange(12.0) + 100 * rank for rank in range(size)]
    got = [np.full(12, -1.0) for _ in range(size)]
    together(calls.alltoall, [[one, 2] for one in whole], [[one, 2, 1, "d"] for one in got])
    for rank in range(size):
        wanted = [whole[other][2 * rank + k] for other, k in product(range(size), range(2))]
        assert got[rank].tolist() == [-1, *wanted, -1, -1, -1, -1, -1]
    everything = np.full(12, -1.0)
    together(calls.gather, [[one, 2] for one in whole], [[everything, 2, MPI.DOUBLE], None, None], 0)
    assert everything.tolist() == [0, 1, 100, 101, 200, 201, *[-1] * 6]
    got = [np.full(12, -1.0) for _ in range(size)]
    total = sum(whole)
    op = operator_of(MPI.SUM)
    together(
        calls.reduce_scatter_block, [[one, 3, "d"] for one in whole], [[one, 3, 2, "d"] for one in got], op
    )
    assert all(one.tolist() == [-1, -1, *total[3 * r : 3 * r + 3], *[-1] * 7] for r, one in enumerate(got))


def test_a_displacement_without_a_count_means_the_rest() -> None:
    values = np.arange(6.0)
    assert calls.broadcast(Where(0, 2), [values, (None, 2)], 0).give.tolist() == [2, 3, 4, 5]
    call = calls.scatter(Where(0, 2), [values, None, 2, "d"], np.zeros(2), 0)
    assert (call.count, call.give.tolist()) == (2, [2, 3, 4, 5])
    with pytest.raises(
        UsageError, match="sendbuf holds 5 elements from 1: must be a multiple of the 2 ranks"
    ):
        calls.scatter(Where(0, 2), [values, (None, 1)], np.zeros(2), 0)


A = np.zeros(6)
REFUSED = [
    ([A], "must be an array, [buf, count], [buf, type] or [buf, count, type]"),
    ([A, 1, 0, "d", None], "must be an array, [buf, count]"),
    ([[1.0], 1], "must be an array, [buf, count]"),
    ([1.0, 1], "must be an array, [buf, count]"),
    ([A, (1, 0, 2)], "buf has count (1, 0, 2): must be an integer or (count, displacement)"),
    ([A, 1.5], "buf has count 1.5: must be an integer"),
    ([A, "d", 3], "buf has count 'd': must be an integer"),
    ([A, 1, "no such"], "buf has type 'no such': must be an MPI datatype, or mpi4py's code of one"),
    ([A, 1, 7], "buf has type 7: must be an MPI datatype, or mpi4py's code of one"),
    ([A, MPI.DATATYPE_NULL], "buf has type MPI.DATATYPE_NULL: must be an MPI datatype"),
    ([A, -1], "buf has count -1, but the buffer holds 6 elements"),
    ([A, 7], "buf has count 7, but the buffer holds 6 elements"),
    ([A, 5, 2, "d"], "buf has count 5 from 2, but the buffer holds 6 elements"),
    ([A, (None, 7)], "buf has displacement 7, but the buffer holds 6 elements"),
    ([A, (1, -1)], "buf has displacement -1: must not be negative"),
    ([A, (1, "x")], "buf has displacement 'x': must be an integer"),
    ([bytearray(9), "d"], "buf holds 9 bytes: not a multiple of the 8 of its type"),
    ([None, 2, "d"], "buf has count 2, but None for a buffer"),
    ([None, 0], "buf has None for a buffer and no type: must be [buf, count, type]"),
    ([MPI.BOTTOM, 3], "buf has MPI.BOTTOM for a buffer and no type"),
    ([A[::2], 2], "buf is given by count or type and not contiguous: array of dtype float64, shape (3,)"),
    ([{1: 2}, 1, "d"], "must be an array, [buf, count]"),
    ([object(), 1, "d"], "buf is a object: "),
    ([np.array([None]), 1, "d"], "buf has dtype object: Python objects cannot be moved as bytes"),
]


@pytest.mark.parametrize(("spec", "says"), REFUSED)
def test_what_is_refused(spec: Any, says: str) -> None:
    with pytest.raises(UsageError) as caught:
        calls.broadcast(Where(0, 2), spec, 0)
    assert says in str(caught.value)
    with pytest.raises(UsageError) as caught:
        calls.broadcast(Where(1, 2), spec, 0)
    assert says in str(caught.value)
