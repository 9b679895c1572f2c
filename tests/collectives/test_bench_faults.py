"""`hpccoll bench` finds what is broken, in every collective and every way to call it."""

from __future__ import annotations

import argparse
import io
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from mpi4py import MPI

import hpccoll
from hpccoll.cli import bench
from hpccoll.cli.bench.operations import OPERATIONS
from hpccoll.cli.bench.options import read
from hpccoll.cli.bench.sweep import Sweep

pytestmark = [pytest.mark.mpi, pytest.mark.ranks(3)]

COMM = MPI.COMM_WORLD
NAMES = [name for name, row in OPERATIONS.items() if row.sized]
# The root, 0, gives there but does not receive in both halves; and rank 0 has no exclusive scan.
RECEIVER = dict.fromkeys(("broadcast", "scatter", "scatterv", "exscan"), 1)

Fault = Callable[[tuple[np.ndarray[Any, Any], ...]], None]


class Late:
    """A request, or a persistent one, after whose Wait something breaks."""

    def __init__(self, request: Any, fault: Callable[[], None]) -> None:
        self.Start = getattr(request, "Start", None)
        self.Free = request.Free
        self._request, self._fault = request, fault

    def Wait(self) -> None:  # noqa: N802  mpi4py's name
        self._request.Wait()
        self._fault()


def broken(method: str, rank: int, fault: Fault) -> type[hpccoll.Communicator]:
    """Communicators whose method damages the arrays that it was given, on one rank, when it is done."""

    def call(self: Any, *arguments: Any, **options: Any) -> Any:
        request = getattr(super(kind, self), method)(*arguments, **options)
        if self.rank != rank:
            return request
        plain = [one[0] if isinstance(one, list) else one for one in arguments]
        arrays = tuple(one.view(np.uint8) for one in plain if isinstance(one, np.ndarray))
        if request is not None:
            return Late(request, lambda: fault(arrays))
        fault(arrays)
        return None

    kind: Any = type("Broken", (hpccoll.Communicator,), {method: call})
    made: type[hpccoll.Communicator] = kind
    return made


def wrong(name: str, rank: int, fault: Fault, flags: str = "") -> tuple[int | None, ...]:
    """The wrong elements that a row of 4 KiB shows, out of place and in place."""
    parser = argparse.ArgumentParser()
    bench.configure(parser)
    options = read(
        parser.parse_args([name, "-b", "4K", "-e", "4K", "-n", "2", "-c", "2", *flags.split()]), {}
    )
    sweep = Sweep(COMM, options, io.StringIO())
    with broken(options.mode.method(options.operation.method), rank, fault)(COMM) as comm:
        sweep.measure(comm)
    (row,) = sweep.outcome.rows
    found = tuple(half.wrong for half in row.halves)
    assert sweep.conclude(["bench"]) == (1 if any(found) else 0)
    assert sweep.outcome.out_of_bounds == 0
    return found


def length_at(name: str, rank: int) -> int:
    """How many elements the rank's result has in that row."""
    operation = OPERATIONS[name]
    place = operation.place(rank, COMM.size, 0, operation.count(4096, 4, COMM.size))
    return sum(piece.length for piece in operation.result(place))


def one_element(arrays: tuple[np.ndarray[Any, Any], ...]) -> None:
    arrays[-1][3] ^= 0x40


def rolled(arrays: tuple[np.ndarray[Any, Any], ...]) -> None:
    arrays[-1][:] = np.roll(arrays[-1], 4)


def input_written(arrays: tuple[np.ndarray[Any, Any], ...]) -> None:
    arrays[0][3] ^= 0x40


def nothing(arrays: tuple[np.ndarray[Any, Any], ...]) -> None:
    pass


@pytest.mark.parametrize(
    ("name", "flags"),
    [
        *((name, "") for name in NAMES),
        *((name, "--nonblocking") for name in ("allreduce", "broadcast", "alltoallw")),
        *((name, "--persistent") for name in ("scan", "gatherv", "reduce_scatter")),
    ],
)
def test_one_wrong_element_is_counted(name: str, flags: str) -> None:
    rank = RECEIVER.get(name, 0)
    assert wrong(name, rank, one_element, flags) == (1, 1)


@pytest.mark.parametrize("name", NAMES)
def test_elements_at_the_wrong_place_are_counted(name: str) -> None:
    rank = RECEIVER.get(name, 0)
    length = length_at(name, rank)
    assert length > 50
    found = wrong(name, rank, rolled)
    assert all(count is not None and 0.9 * length < count <= length for count in found)


@pytest.mark.parametrize("name", NAMES)
def test_an_input_that_changes_is_counted(name: str) -> None:
    # In place the first array is often that of the results.
    assert wrong(name, 0, input_written) == (1, 1)


def test_without_a_fault_nothing_is_wrong() -> None:
    assert wrong("allreduce", 0, nothing) == wrong("alltoallv", 0, nothing, "--persistent") == (0, 0)


def test_an_exclusive_scan_leaves_rank_0_alone_in_place() -> None:
    """Out of place, nothing is said of rank 0's receive buffer; in place, it keeps what it gave."""
    assert wrong("exscan", 0, rolled)[0] == 0
    assert wrong("exscan", 0, one_element) == (0, 1)
