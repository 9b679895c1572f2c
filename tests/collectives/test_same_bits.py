"""All ranks end with the same bits, whatever the plan: also of NaN, of zeros of both signs, of one element.

A loop that goes on until something computed is small enough ends on all ranks at once only if these agree
(NVIDIA/nccl#434, pytorch/pytorch PR#129501).
"""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from mpi4py import MPI

import hpccoll
from tests.collectives.conftest import Make
from tests.support.layouts import layouts, on_layouts
from tests.support.oracle import Array

OPERATORS = {"SUM": MPI.SUM, "PROD": MPI.PROD, "MAX": MPI.MAX, "MIN": MPI.MIN, "AVG": hpccoll.AVG}
# With these every plan works in many pieces, some of one element.
PIECES = {"small_bytes": 0, "segment_bytes": 96, "chunk_bytes": 512, "staging_bytes": 4096}


def drawn(dtype: str, count: int, draw: int, rank: int) -> Array:
    random = np.random.default_rng([draw, rank, count])
    if np.dtype(dtype).kind == "c":
        return (random.standard_normal(count) + 1j * random.standard_normal(count)).astype(dtype)
    return random.standard_normal(count).astype(dtype)


def everyone_has(world: MPI.Intracomm, result: Array) -> bool:
    mine = np.frombuffer(result.tobytes(), np.uint8)
    first = mine.copy()
    world.Bcast(first)
    return bool(world.allreduce(np.array_equal(mine, first), op=MPI.LAND))


@pytest.mark.parametrize("dtype", ["f2", "f4"])
@on_layouts(4, 5)
def test_of_random_sums(world: MPI.Intracomm, communicator: Make, layout: str, dtype: str) -> None:
    comm = communicator(layout=layout)
    for count, draws in ((1, 15), (7, 15), (10007, 20)):
        results = []
        for draw in range(draws):
            results.append(np.empty(count, dtype))
            comm.Allreduce(drawn(dtype, count, draw, comm.rank), results[-1])
        assert everyone_has(world, np.stack(results)), f"rank {comm.rank}: {count} elements"


@pytest.mark.parametrize("name", OPERATORS)
@layouts({"": (2, 3, 5), "1+1": (2,), "2+1": (3,), "2+2": (4,), "3+1": (4,), "cyclic:2+2": (4,), "4+1": (5,)})
def test_of_every_plan(world: MPI.Intracomm, communicator: Make, layout: str, name: str) -> None:
    comm = communicator(layout=layout, **PIECES)
    kinds = ["f8", "f4"] if name in ("MAX", "MIN") else ["f2", "f4", "c8", "c16"]
    for plan in comm.algorithms("allreduce"):
        with comm.forced(plan):
            for dtype in kinds:
                results = [np.empty(count, dtype) for count in (1, 1, 1, 101)]
                for draw, result in enumerate(results):
                    comm.Allreduce(drawn(dtype, result.size, draw, comm.rank), result, OPERATORS[name])
                assert everyone_has(world, np.concatenate(results)), f"rank {comm.rank}: {plan} of {dtype}"


@pytest.mark.parametrize("name", OPERATORS)
@layouts({"": (2, 3), "2+1": (3,), "cyclic:2+2": (4,), "4+1": (5,)})
def test_of_nan_and_zeros(world: MPI.Intracomm, communicator: Make, layout: str, name: str) -> None:
    """NaN of many bits and both signs; zeros of both signs."""
    comm = communicator(layout=layout, **PIECES)
    random = np.random.default_rng(comm.rank)
    odd: Any = random.choice([0x7FC00001, 0xFFC00020, 0x7F800000, 0xFF800000, 0x3F800000, 0x80000000, 0], 90)
    values = odd.astype(np.uint32).view(np.float32)
    zeros = random.choice(np.array([0.0, -0.0], np.float32), 90)
    for plan in comm.algorithms("allreduce"):
        # Between nodes `flat` is MPI's own, which keeps the one NaN or the other, as it comes.
        if plan == "flat" and comm.node_count > 1 and name not in ("MAX", "MIN"):
            continue
        with comm.forced(plan):
            for mine in (values, values[:1], zeros, zeros[:1]):
                result = np.empty_like(mine)
                comm.Allreduce(mine, result, OPERATORS[name])
                assert everyone_has(world, result), f"rank {comm.rank}: {plan} of {mine.size}"


@layouts({"": (3,), "2+1": (3,), "2+2": (4,), "cyclic:2+2": (4,)})
def test_again_with_the_same_plan(communicator: Make, layout: str) -> None:
    comm = communicator(layout=layout)
    for plan in comm.algorithms("allreduce"):
        with comm.forced(plan):
            mine = drawn("f4", 5003, 1, comm.rank)
            results = [np.empty_like(mine) for _ in range(3)]
            for result in results:
                comm.Allreduce(mine, result)
            assert len({result.tobytes() for result in results}) == 1, f"rank {comm.rank}: {plan}"
