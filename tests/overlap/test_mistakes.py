"""What is wrong on one rank is an error on all that would wait for it, and the communicator stays usable."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from mpi4py import MPI

from hpccoll import GradientBuckets, MismatchError, UsageError, UsageTypeError
from hpccoll.overlap import broadcast
from tests.collectives.conftest import Make
from tests.support.layouts import layouts

FEW = layouts({"": (2,), "2+1": (3,)})
PROMPT_S = 15.0


def still_usable(comm: Any) -> None:
    one = np.ones(3)
    comm.Allreduce(MPI.IN_PLACE, one)
    assert (one == comm.size).all()


def on_last(right: dict[str, Any], wrong: dict[str, Any]) -> Callable[[Any], dict[str, Any]]:
    return lambda comm: wrong if comm.rank == comm.size - 1 else right


GOOD = {"arrays": {"w": np.zeros((3, 4)), "b": np.zeros(4)}}


@pytest.mark.parametrize(
    ("wrong", "kind", "words"),
    [
        ({"arrays": {"w": np.zeros((4, 3)), "b": np.zeros(4)}}, MismatchError, r"array 'w' differs in shape"),
        ({"arrays": {"w": np.zeros((3, 4), "f4"), "b": np.zeros(4)}}, MismatchError, r"'w' differs in dtype"),
        ({"arrays": {"w": np.zeros((3, 4))}}, MismatchError, r"array 'b' only on rank"),
        ({"arrays": [np.zeros((3, 4)), np.zeros(4)]}, MismatchError, r"kind of arrays differs"),
        ({**GOOD, "average": False}, MismatchError, r"average differs between ranks: True on rank"),
        ({**GOOD, "bucket_bytes": 99}, MismatchError, r"bucket_bytes differs"),
        ({**GOOD, "dtype_on_wire": "float16"}, MismatchError, r"dtype_on_wire differs"),
        ({**GOOD, "dtype_on_wire": "int8"}, UsageError, r"on rank \d: dtype_on_wire is 'int8'"),
        ({**GOOD, "bucket_bytes": 0}, UsageError, r"on rank \d: bucket_bytes is 0"),
        ({**GOOD, "unused": "skip"}, UsageError, r"on rank \d: unused is 'skip'"),
        ({"arrays": {"w": np.zeros((3, 4)), "b": None}}, UsageError, r"on rank \d: array 'b' is a NoneType"),
        ({"arrays": None}, UsageError, r"on rank \d: arrays is a NoneType"),
        ({"arrays": {"w": np.zeros((3, 4)), "b": np.zeros(0)}}, MismatchError, r"'b' differs in shape"),
        ({"arrays": {"w": "text"}}, UsageError, r"on rank \d: array 'w' is a str"),
        ({"arrays": {"w": np.zeros(3, object)}}, UsageError, r"on rank \d: array 'w' has dtype object"),
        ({"arrays": {"w": np.zeros(3, ">f8")}}, UsageError, r"byte order"),
        ({"arrays": {}}, UsageError, r"on rank \d: arrays is empty"),
        ({"arrays": np.broadcast_to(np.zeros(1), (3,))}, UsageError, r"arrays is a ndarray"),
        ({"arrays": [np.broadcast_to(np.zeros(1), (3,))]}, UsageError, r"read-only"),
        ({"arrays": {1.5: np.zeros(1)}}, UsageError, r"key 1.5"),
    ],
)
@FEW
def test_at_creation(
    communicator: Make, layout: str, wrong: dict[str, Any], kind: type[Exception], words: str
) -> None:
    comm = communicator(layout=layout)
    begin = time.monotonic()
    with pytest.raises(kind, match=words):
        GradientBuckets(comm, **on_last(GOOD, wrong)(comm))
    assert time.monotonic() - begin < PROMPT_S
    still_usable(comm)


@pytest.mark.ranks(2)
def test_a_communicator_of_mpi_alone(world: MPI.Intracomm) -> None:
    with pytest.raises(UsageTypeError, match=r"must be an hpccoll\.Communicator"):
        GradientBuckets(world, [np.zeros(1)])  # type: ignore[arg-type]


@FEW
def test_arrays_missing_on_one_rank(communicator: Make, layout: str) -> None:
    comm = communicator(layout=layout)
    arrays = [np.ones(50) for _ in range(6)]
    with GradientBuckets(comm, arrays, bucket_bytes=800, average=False) as buckets:
        assert len(buckets) == 3
        for missing in (0, 5, 3):
            for array in arrays:
                array[...] = 1
            for number in range(6):
                if not (comm.rank == 1 and number == missing):
                    buckets.ready(number)
            begin = time.monotonic()
            with pytest.raises(UsageError, match=rf"before these arrays were ready: {missing}"):
                buckets.wait()
            assert time.monotonic() - begin < PROMPT_S
            for number in range(6):
                arrays[number][...] = 1
                buckets.ready(number)
            buckets.wait()
            assert all((array == comm.size).all() for array in arrays)
    still_usable(comm)


@pytest.mark.ranks(2)
def test_arrays_missing_on_all_ranks(communicator: Make) -> None:
    comm = communicator()
    arrays = [np.ones(5) for _ in range(3)]
    with GradientBuckets(comm, arrays, check_finite=True) as buckets:
        buckets.ready(comm.rank)
        with pytest.raises(UsageError, match="before these arrays were ready"):
            buckets.wait()
        for number in range(3):
            buckets.ready(number)
        buckets.wait()
    still_usable(comm)


@FEW
def test_one_rank_makes_more_steps(communicator: Make, layout: str) -> None:
    """Without `uneven` its call meets another one, and both sides are told."""
    comm = communicator(layout=layout)
    with GradientBuckets(comm, [np.ones(50)]) as buckets:
        for _ in range(3 if comm.rank == 0 else 2):
            buckets.ready(0)
            if buckets.total_times.steps < 2:
                buckets.wait()
        other = buckets.wait if comm.rank == 0 else comm.Barrier
        with pytest.raises(MismatchError, match="different"):
            other()
    still_usable(comm)


@pytest.mark.ranks(2)
def test_mistakes_that_stay_on_a_rank(communicator: Make) -> None:
    comm = communicator()
    arrays = {"a": np.zeros(2), "b": np.zeros(2)}
    buckets = GradientBuckets(comm, arrays)
    if comm.rank == 1:
        buckets.ready("a")
        with pytest.raises(UsageError, match="'a' is ready already"):
            buckets.ready("a")
        with pytest.raises(UsageError, match="no array 'c'; there are 'a', 'b'"):
            buckets.ready("c")
        with pytest.raises(UsageError, match=r"must be float64 of shape \(2,\)"):
            buckets.ready("b", np.zeros(3))
    else:
        buckets.ready("a")
    buckets.ready("b")
    buckets.wait()
    buckets.close()
    buckets.close()
    with pytest.raises(UsageError, match="closed"):
        buckets.ready("a")
    with pytest.raises(UsageError, match="closed"):
        buckets.wait()


@FEW
def test_state_is_broadcast(communicator: Make, layout: str) -> None:
    comm = communicator(layout=layout)
    root = comm.size - 1
    rng = np.random.default_rng(comm.rank)
    arrays = {
        "w": rng.normal(size=(300, 7)),
        "steps": np.array(comm.rank),
        "strided": rng.integers(0, 9, (4, 6))[:, ::2],
        "empty": np.zeros((0, 3)),
        "f": rng.normal(size=30).astype(np.float32),
    }
    wanted = comm.bcast({key: array.copy() for key, array in arrays.items()}, root=root)
    names = list(arrays) if comm.rank else list(reversed(arrays))
    broadcast(comm, {name: arrays[name] for name in names}, root=root)
    for name, array in arrays.items():
        assert np.array_equal(array, wanted[name]), name
    with pytest.raises(UsageError, match="root is 9"):
        broadcast(comm, arrays, root=9 if comm.rank == 0 else 0)
    with pytest.raises(MismatchError, match="root differs"):
        broadcast(comm, arrays, root=comm.rank)
