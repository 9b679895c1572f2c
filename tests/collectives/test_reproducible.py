"""Reproducible mode: the bits of a result depend on the ranks' elements alone, not on where these are."""

from __future__ import annotations

from typing import Any

import ml_dtypes
import numpy as np
import pytest
from mpi4py import MPI

import hpccoll
from hpccoll import _native
from tests.collectives.conftest import Make
from tests.support.layouts import LAYOUTS
from tests.support.oracle import Array

OPERATORS: dict[str, tuple[Any, np.ufunc]] = {
    "SUM": (MPI.SUM, np.add),
    "PROD": (MPI.PROD, np.multiply),
    "AVG": (hpccoll.AVG, np.add),
}
TYPES = ["f2", "bfloat16", "f4", "f8", "c8", "c16"]
SETTINGS: dict[str, dict[str, Any]] = {
    "as it comes": {},
    "no small messages": {"small_bytes": 0},
    "in pieces": {"small_bytes": 0, "segment_bytes": 96, "chunk_bytes": 512, "staging_bytes": 4096},
    "no extension": {"native": False},
}
COUNT = 1003
some_ranks = pytest.mark.ranks(2, 3, 4, 5)


def dtype_of(name: str) -> np.dtype[Any]:
    return np.dtype(ml_dtypes.bfloat16 if name == "bfloat16" else name)


def drawn(name: str, count: int, rank: int, seed: int = 0) -> Array:
    """Numbers of many sizes and both signs, whose sum depends on the order."""
    random = np.random.default_rng([seed, rank])

    def part() -> Array:
        return random.standard_normal(count) * 2.0 ** random.integers(-6, 6, count)

    values = part() + 1j * part() if name.startswith("c") else part()
    return values.astype(dtype_of(name))


def folded(parts: list[Array], op: str, ranks: int | None = None) -> Array:
    """One operand after the other, in rank order, 16-bit floats in float32, rounded once."""
    dtype = parts[0].dtype
    wide = np.dtype(np.float32) if dtype.itemsize == 2 else dtype
    total = parts[0].astype(wide)
    for part in parts[1:]:
        total = OPERATORS[op][1](total, part.astype(wide))
    if op == "AVG":
        numbers = total.view(total.real.dtype)
        total = (numbers / numbers.dtype.type(ranks or len(parts))).view(wide)
    with np.errstate(over="ignore"):
        return total.astype(dtype)


def test_the_data_of_these_tests_depend_on_the_order() -> None:
    """Not those of 16 bits: most of their sums are exact in float32."""
    for name in ("f4", "f8", "c8", "c16"):
        parts = [drawn(name, COUNT, rank) for rank in range(3)]
        for op in OPERATORS:
            differ = (folded(parts, op) != folded(parts[::-1], op)).sum()
            assert differ > 50, f"{op} of {name}: {differ} of {COUNT}"


def results(comm: Any, name: str, op: str, seed: int = 0) -> dict[str, bytes]:
    """The bits of this rank's results of all reductions."""
    size, rank = comm.size, comm.rank
    send = drawn(name, COUNT * size, rank, seed)
    operator = OPERATORS[op][0]
    found = {}
    for collective, receive in (
        ("Allreduce", np.empty_like(send)),
        ("Reduce", np.empty_like(send)),
        ("Reduce_scatter_block", np.empty_like(send[:COUNT])),
        ("Scan", np.empty_like(send)),
        ("Exscan", np.zeros_like(send)),
    ):
        if op == "AVG" and "scan" in collective.lower():
            continue
        root = {"root": size - 1} if collective == "Reduce" else {}
        getattr(comm, collective)(send, receive, operator, **root)
        if collective != "Reduce" or rank == size - 1:
            found[collective] = receive.tobytes()
    return found


def wanted(size: int, rank: int, name: str, op: str, seed: int = 0) -> dict[str, bytes]:
    """The same, by NumPy."""
    parts = [drawn(name, COUNT * size, one, seed) for one in range(size)]
    total = folded(parts, op)
    found = {"Allreduce": total.tobytes()}
    if rank == size - 1:
        found["Reduce"] = total.tobytes()
    found["Reduce_scatter_block"] = total[rank * COUNT : (rank + 1) * COUNT].tobytes()
    if op != "AVG":
        found["Scan"] = folded(parts[: rank + 1], op).tobytes()
        found["Exscan"] = (folded(parts[:rank], op) if rank else np.zeros_like(total)).tobytes()
    return found


@pytest.mark.parametrize("settings", SETTINGS)
@pytest.mark.parametrize("op", OPERATORS)
@pytest.mark.parametrize("name", TYPES)
@some_ranks
def test_every_layout_has_the_bits_of_the_fold(
    world: MPI.Intracomm, communicator: Make, name: str, op: str, settings: str
) -> None:
    expected = wanted(world.size, world.rank, name, op)
    for layout in LAYOUTS[world.size]:
        comm = communicator(layout=layout, reproducible=True, **SETTINGS[settings])
        found = results(comm, name, op)
        assert found.keys() == expected.keys()
        wrong = [collective for collective in expected if found[collective] != expected[collective]]
        assert not wrong, f"rank {world.rank} on {layout!r}: {wrong}"


@pytest.mark.parametrize("name", ["f4", "bfloat16", "c16"])
@some_ranks
def test_a_plan_asked_for_by_name_does_not_change_the_bits(
    world: MPI.Intracomm, communicator: Make, name: str
) -> None:
    """It is not taken where it cannot keep the order."""
    size, rank = world.size, world.rank
    parts = [drawn(name, COUNT, one) for one in range(size)]
    expected = folded(parts, "SUM").tobytes()
    for layout in LAYOUTS[size]:
        for count_of_pieces in ("as it comes", "in pieces"):
            comm = communicator(layout=layout, reproducible=True, **SETTINGS[count_of_pieces])
            for plan in comm.algorithms("allreduce"):
                total = np.empty_like(parts[rank])
                with comm.forced(plan):
                    comm.Allreduce(parts[rank], total)
                assert total.tobytes() == expected, f"rank {rank}: {plan} on {layout!r}"


@pytest.mark.parametrize("name", ["f2", "f4", "c8"])
@pytest.mark.ranks(3, 4)
def test_the_place_of_an_element_does_not_matter(world: MPI.Intracomm, communicator: Make, name: str) -> None:
    """Alone, in the midst of others, strided, unaligned, backwards."""
    parts = [drawn(name, 257, rank) for rank in range(world.size)]
    mine, expected = parts[world.rank], folded(parts, "SUM")
    for layout in LAYOUTS[world.size]:
        comm = communicator(layout=layout, reproducible=True)
        for first, last in ((0, 257), (1, 2), (3, 100), (200, 257)):
            total = np.empty_like(mine[first:last])
            comm.Allreduce(mine[first:last], total)
            assert total.tobytes() == expected[first:last].tobytes(), f"rank {world.rank}: {first} to {last}"
        long, total = np.tile(mine, 40), np.empty_like(np.tile(mine, 40))
        comm.Allreduce(long, total)
        assert total.tobytes() == np.tile(expected, 40).tobytes(), f"rank {world.rank}: repeated"
        strided = np.repeat(mine, 2)
        comm.Allreduce(MPI.IN_PLACE, strided[1::2])
        assert strided[1::2].tobytes() == expected.tobytes(), f"rank {world.rank}: strided"
        back = np.empty_like(mine)
        comm.Allreduce(mine[::-1], back[::-1])
        assert back.tobytes() == expected.tobytes(), f"rank {world.rank}: backwards"
        memory = np.zeros(mine.nbytes + 1, np.uint8)
        unaligned = memory[1:].view(mine.dtype)
        unaligned[...] = mine
        comm.Allreduce(MPI.IN_PLACE, unaligned)
        assert unaligned.tobytes() == expected.tobytes(), f"rank {world.rank}: unaligned"


@pytest.mark.parametrize("form", ["request", "persistent", "counts", "zero copy"])
@pytest.mark.ranks(3, 4)
def test_every_form_of_call(world: MPI.Intracomm, communicator: Make, form: str) -> None:
    size, rank = world.size, world.rank
    parts = [drawn("f4", COUNT, one) for one in range(size)]
    mine, expected = parts[rank].copy(), folded(parts, "SUM")
    for layout in LAYOUTS[size]:
        comm = communicator(layout=layout, reproducible=True)
        total = np.empty_like(mine)
        if form == "request":
            comm.Iallreduce(mine, total).Wait()
        elif form == "persistent":
            request = comm.Allreduce_init(mine, total)
            for _ in range(2):
                total[:] = 0
                request.Start()
                request.Wait()
            request.Free()
        elif form == "zero copy":
            shared, total = comm.empty((COUNT,), np.float32), comm.empty((COUNT,), np.float32)
            shared[:] = mine
            comm.Allreduce(shared, total)
        else:
            lengths = [COUNT // 2, *[1] * (size - 2), COUNT - COUNT // 2 - (size - 2)]
            part = np.empty(lengths[rank], np.float32)
            comm.Reduce_scatter(mine, part, lengths)
            begin = sum(lengths[:rank])
            assert part.tobytes() == expected[begin : begin + lengths[rank]].tobytes(), f"rank {rank}"
            continue
        assert total.tobytes() == expected.tobytes(), f"rank {rank} on {layout!r}"


@pytest.mark.ranks(3, 4)
def test_a_users_operator_is_applied_in_rank_order(world: MPI.Intracomm, communicator: Make) -> None:
    """Also one that commutes, which otherwise may be applied in any order."""

    def add(left: Any, right: Any, datatype: MPI.Datatype) -> None:
        other = np.frombuffer(right, np.float32)
        other[:] = np.frombuffer(left, np.float32) + other

    parts = [drawn("f4", COUNT, one) for one in range(world.size)]
    expected = folded(parts, "SUM").tobytes()
    operator = MPI.Op.Create(add, commute=True)
    try:
        for layout in LAYOUTS[world.size]:
            comm = communicator(layout=layout, reproducible=True)
            total = np.empty(COUNT, np.float32)
            comm.Allreduce(parts[world.rank], total, operator)
            assert total.tobytes() == expected, f"rank {world.rank} on {layout!r}"
    finally:
        operator.Free()


@pytest.mark.ranks(4)
@pytest.mark.skipif(not _native.available(), reason="no extension")
def test_without_the_mode_the_bits_do_depend_on_the_plan(communicator: Make) -> None:
    """Else the mode would have no meaning, and these tests could not fail."""
    comm = communicator(layout="2+2")
    mine = drawn("f4", 9001, comm.rank)
    found = set()
    for plan in comm.algorithms("allreduce"):
        total = np.empty_like(mine)
        with comm.forced(plan):
            comm.Allreduce(mine, total)
        found.add(total.tobytes())
    assert len(found) > 1


@pytest.mark.ranks(2)
def test_the_environment_asks_for_it_too(world: MPI.Intracomm, monkeypatch: pytest.MonkeyPatch) -> None:
    assert not hpccoll.Communicator(world).config.reproducible
    monkeypatch.setenv("HPCCOLL_REPRODUCIBLE", "1")
    with hpccoll.Communicator(world) as comm:
        assert comm.config.reproducible
        assert comm.Dup().config.reproducible
        assert results(comm, "f4", "SUM") == wanted(2, comm.rank, "f4", "SUM")
    with hpccoll.Communicator(world, reproducible=False) as comm:
        assert not comm.config.reproducible


@pytest.mark.ranks(2, 3)
def test_the_ranks_must_agree_on_it(world: MPI.Intracomm) -> None:
    comm = hpccoll.Communicator(world, reproducible=world.rank == 0)
    with pytest.raises(hpccoll.MismatchError, match="different settings"):
        comm.Barrier()
    comm.close()
