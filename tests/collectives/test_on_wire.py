"""Sums that travel between nodes as bfloat16 or float16: how wrong they may be, the same on all ranks."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import ml_dtypes
import numpy as np
import pytest
from mpi4py import MPI

import hpccoll
from hpccoll.errors import MismatchError, UsageError, UsageTypeError
from tests.collectives.conftest import Make
from tests.support.layouts import layouts

Array = np.ndarray[Any, np.dtype[Any]]
ON_NODES = layouts({"1+1": (2,), "2+1": (3,), "2+2": (4,), "3+1": (4,), "cyclic:2+2": (4,), "1+1+2": (4,)})
ROUNDOFF = {"bfloat16": 2.0**-8, "float16": 2.0**-11}
COUNTS = (1, 1000, 30_011)


def parts_of(comm: hpccoll.Communicator, count: int) -> list[Array]:
    """What each rank puts in."""
    return [
        np.random.default_rng([count, rank]).standard_normal(count).astype(np.float32)
        for rank in range(comm.size)
    ]


def check(comm: hpccoll.Communicator, found: Array, parts: list[Array], roundings: int, wire: str) -> None:
    """Within the error that is promised, which is not zero."""
    together = np.array(parts, float)
    most = (1 + ROUNDOFF[wire]) ** roundings - 1 + 1e-6
    error = np.abs(found - together.sum(0)) / np.abs(together).sum(0)
    assert error.max() <= most, (error.max() / ROUNDOFF[wire], roundings)
    if found.size > 500:
        assert error.max() > ROUNDOFF[wire] / 50, "nothing was rounded"


def same_on_all(comm: hpccoll.Communicator, found: Array) -> None:
    bits = MPI.Comm.allgather(comm, found.tobytes())
    assert all(one == bits[0] for one in bits)


@pytest.mark.parametrize("wire", ROUNDOFF)
@ON_NODES
def test_the_error_of_every_plan(communicator: Make, layout: str, wire: str) -> None:
    comm = communicator(layout=layout, wire_dtype=wire, small_bytes=0, chunk_bytes=32 * 1024)
    plain = communicator(layout=layout, wire_dtype=wire, small_bytes=0, chunk_bytes=32 * 1024, native=False)
    for count in COUNTS:
        parts = parts_of(comm, count)
        for name in comm.algorithms("allreduce"):
            # Over all ranks a partial sum may go from node to node at every hop.
            roundings = comm.node_count if "_" in name and "doubling" not in name else comm.size
            found, fallback = np.empty_like(parts[0]), np.empty_like(parts[0])
            with comm.forced(name), plain.forced(name):
                comm.Allreduce(parts[comm.rank], found)
                plain.Allreduce(parts[comm.rank], fallback)
            check(comm, found, parts, roundings, wire)
            same_on_all(comm, found)
            assert found.tobytes() == fallback.tobytes()


@ON_NODES
def test_the_chosen_plan_rounds_once_for_each_node(communicator: Make, layout: str) -> None:
    comm = communicator(layout=layout, wire_dtype="bfloat16", small_bytes=0)
    for count in COUNTS:
        parts = parts_of(comm, count)
        found = np.empty_like(parts[0])
        comm.Allreduce(parts[comm.rank], found)
        check(comm, found, parts, comm.node_count, "bfloat16")


Call = Callable[[hpccoll.Communicator, Array, Array], Any]
CALLS: dict[str, tuple[bool, Call]] = {
    # Whether a rank gets all of the result, or a block of it.
    "Reduce": (True, lambda comm, give, take: comm.Reduce(give, take if comm.rank == 0 else None)),
    "Reduce_scatter_block": (False, lambda comm, give, take: comm.Reduce_scatter_block(give, take)),
    "Reduce_scatter": (
        False,
        lambda comm, give, take: comm.Reduce_scatter(give, take, [take.size] * comm.size),
    ),
    "Iallreduce": (True, lambda comm, give, take: comm.Iallreduce(give, take).Wait()),
    "Ireduce_scatter_block": (
        False,
        lambda comm, give, take: comm.Ireduce_scatter_block(give, take).Wait(),
    ),
}


@pytest.mark.parametrize("name", CALLS)
@ON_NODES
def test_other_calls(communicator: Make, layout: str, name: str) -> None:
    comm = communicator(layout=layout, wire_dtype="float16", small_bytes=0)
    whole, call = CALLS[name]
    block = 5003
    parts = parts_of(comm, block * comm.size)
    mine = slice(None) if whole else slice(comm.rank * block, (comm.rank + 1) * block)
    found = np.zeros_like(parts[0][mine])
    call(comm, parts[comm.rank], found)
    if name != "Reduce" or comm.rank == 0:
        together = np.array(parts, float)
        error = np.abs(found - together.sum(0)[mine]) / np.abs(together).sum(0)[mine]
        assert error.max() <= comm.node_count * 2**-11 * 1.01


@ON_NODES
def test_in_place_and_persistent(communicator: Make, layout: str) -> None:
    comm = communicator(layout=layout, wire_dtype="bfloat16", small_bytes=0)
    parts = parts_of(comm, 9001)
    once = np.empty_like(parts[0])
    comm.Allreduce(parts[comm.rank], once)
    inside = parts[comm.rank].copy()
    comm.Allreduce(MPI.IN_PLACE, inside)
    assert inside.tobytes() == once.tobytes()
    again = np.empty_like(once)
    request = comm.Allreduce_init(parts[comm.rank], again)
    for _ in range(2):
        again[...] = 0
        request.Start()
        request.Wait()
        assert again.tobytes() == once.tobytes()


@layouts({"2+2": (4,), "1+1": (2,)})
def test_for_one_call(communicator: Make, layout: str) -> None:
    comm = communicator(layout=layout, small_bytes=0)
    always = communicator(layout=layout, small_bytes=0, wire_dtype="bfloat16")
    parts = parts_of(comm, 4001)
    mine = parts[comm.rank]

    def summed(one: hpccoll.Communicator, op: Any, give: Array = mine) -> bytes:
        out = np.empty(give.size, np.float32)
        one.Allreduce(give, out, op)
        return out.tobytes()

    exact, rounded = summed(comm, MPI.SUM), summed(always, MPI.SUM)
    assert exact != rounded
    assert summed(comm, hpccoll.on_wire(MPI.SUM, "bfloat16")) == rounded
    assert summed(comm, hpccoll.on_wire(MPI.SUM, ml_dtypes.bfloat16)) == rounded
    assert summed(always, hpccoll.on_wire(MPI.SUM, "float32")) == exact
    assert (
        summed(comm, hpccoll.on_wire(hpccoll.AVG, "bfloat16"))
        == (np.frombuffer(rounded, np.float32) / np.float32(comm.size)).tobytes()
    )
    halves = mine.astype(np.float16)
    op = hpccoll.accumulate(MPI.SUM, "float32")
    assert summed(comm, hpccoll.on_wire(op, "float16"), halves) == summed(
        comm, hpccoll.on_wire(MPI.SUM, "float16"), halves.astype(np.float32)
    )


@layouts({"2+2": (4,), "1+1": (2,)})
def test_what_is_not_summed_in_float32_stays(communicator: Make, layout: str) -> None:
    comm = communicator(layout=layout, small_bytes=0, wire_dtype="bfloat16")
    for dtype, op in ((np.float64, MPI.SUM), (np.int32, MPI.SUM), (np.float32, MPI.MAX)):
        mine = (np.arange(3001) * 257 + comm.rank).astype(dtype)
        out = np.empty_like(mine)
        comm.Allreduce(mine, out, op)
        wanted = np.empty_like(mine)
        MPI.Intracomm.Allreduce(comm, mine, wanted, op)
        assert np.array_equal(out, wanted)
    total = np.empty(3001, np.float32)
    comm.Scan(np.full(3001, 257.0, np.float32), total)
    assert (total == 257.0 * (comm.rank + 1)).all()


@layouts({"2+2": (4,), "1+1": (2,)})
def test_infinities_and_numbers_too_large(communicator: Make, layout: str) -> None:
    comm = communicator(layout=layout, small_bytes=0)
    values = np.array([np.nan, np.inf, -np.inf, 1e30, 70000, 0.0, -0.0] * 300, np.float32)
    for wire, large, medium in (("bfloat16", 1e30, 70000), ("float16", np.inf, np.inf)):
        out = np.empty_like(values)
        comm.Allreduce(values, out, hpccoll.on_wire(MPI.SUM, wire))
        assert np.isnan(out[0::7]).all()
        assert (out[1::7] == np.inf).all()
        assert (out[2::7] == -np.inf).all()
        for start, wanted in ((3, large), (4, medium)):
            assert np.allclose(out[start::7], wanted * comm.size, rtol=0.03)
        assert (out[5::7] == 0).all()


def test_what_is_refused(communicator: Make) -> None:
    with pytest.raises(UsageTypeError, match="is no sum"):
        hpccoll.on_wire(MPI.MAX, "bfloat16")
    for dtype in ("float8", "float64", 5, None):
        with pytest.raises(UsageTypeError, match="must be one of bfloat16, float16, float32"):
            hpccoll.on_wire(MPI.SUM, dtype)  # type: ignore[arg-type]
    comm = communicator()
    ones = np.ones(3)
    with pytest.raises(UsageTypeError, match="are summed in float64"):
        comm.Allreduce(ones, np.empty(3), hpccoll.on_wire(MPI.SUM, "float16"))
    comm.Allreduce(ones, ones.copy())
    with pytest.raises(UsageError, match="wire_dtype is 'float8'"):
        communicator(wire_dtype="float8").Barrier()
    with pytest.raises(UsageError, match="reproducible is set"):
        communicator(wire_dtype="float16", reproducible=True).Barrier()


@layouts({"2+2": (4,), "1+1": (2,)})
def test_ranks_that_ask_for_other_dtypes(communicator: Make, layout: str) -> None:
    comm = communicator(layout=layout)
    op = hpccoll.on_wire(MPI.SUM, "float16") if comm.rank else MPI.SUM
    mine = np.ones(5000, np.float32)
    with pytest.raises(MismatchError, match="SUM as float16 between nodes"):
        comm.Allreduce(mine, np.empty_like(mine), op)


@layouts({"2+2": (4,)})
def test_half_of_the_bytes_are_said_to_leave_a_node(communicator: Make, layout: str) -> None:
    comm = communicator(layout=layout)
    whole = comm.explain("allreduce", 1 << 20)
    half = comm.explain("allreduce", 1 << 20, op=hpccoll.on_wire(MPI.SUM, "bfloat16"))
    said = {one.name: one.bytes_between_nodes for one in whole.candidates}
    assert len(half.candidates) >= 3
    assert all(one.bytes_between_nodes * 2 == said[one.name] > 0 for one in half.candidates)
    assert "as bfloat16" in str(half)
