"""`hpccoll bench --device cuda` where there is no GPU and no package for one."""

from __future__ import annotations

import subprocess
import sys
from types import SimpleNamespace
from typing import Any

import pytest
from mpi4py import MPI

from hpccoll import cli
from hpccoll.cli.bench import kinds
from hpccoll.cli.bench.on_device.contenders import OVER_HOST, OnDevice, addresses
from hpccoll.cli.bench.on_device.packages import lacking
from hpccoll.cli.bench.operations import OPERATIONS, Operation
from hpccoll.cli.bench.results import Case
from hpccoll.ops.on_device import Travel, travel
from hpccoll.plans.collective import SCANS

HERE = {"cuda.bindings", "nccl.bindings", "cupy"}
SEND, TAKE = 100_000, 200_000
COUNT, ITEMSIZE = 5, 8
BLOCK = COUNT * ITEMSIZE


def finder(found: set[str]) -> Any:
    """As `find_spec`, which raises where the package around a module is missing too."""

    def find(name: str) -> object:
        if name in found:
            return name
        if "." in name:
            raise ModuleNotFoundError(name)
        return None

    return find


@pytest.mark.parametrize(
    ("missing", "redops", "said"),
    [
        (set(), ("avg",), ""),
        ({"cupy"}, ("sum",), ""),
        ({"cupy"}, ("sum", "avg"), "CuPy, which divides not found: pip install"),
        ({"nccl.bindings"}, (), "nccl4py not found: pip install 'hpccoll[cuda12]'"),
        (HERE, (), "cuda-bindings and nccl4py not found"),
    ],
)
def test_missing_packages_are_named(missing: set[str], redops: tuple[str, ...], said: str) -> None:
    text = lacking(redops, finder(HERE - missing))
    assert text.startswith(said)
    assert bool(text) is bool(said)


def measured(arguments: str) -> int:
    return cli.main(["bench", *arguments.split()])


def test_without_packages_it_is_misuse_and_says_what_to_do(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(kinds, "lacking", lambda redops: lacking(redops, finder(set())))
    assert measured("allreduce -b 8 -e 8 --device cuda") == 2
    assert capsys.readouterr() == (
        "",
        "hpccoll bench: --device cuda: rank 0: cuda-bindings and nccl4py not found: "
        "pip install 'hpccoll[cuda12]', or [cuda13]\n",
    )


def test_host_arrays_import_nothing_for_gpus() -> None:
    code = (
        "import sys, argparse; from hpccoll.cli import bench; parser = argparse.ArgumentParser(); "
        "bench.configure(parser); status = bench.run(parser.parse_args('allreduce -b 8 -e 8 -n 1'.split())); "
        "assert not {'cuda.bindings', 'nccl', 'cupy'} & set(sys.modules); sys.exit(status)"
    )
    done = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, timeout=60, check=False
    )
    assert done.returncode == 0, done


def buffers(operation: Operation, rank: int, root: int, *, in_place: bool) -> tuple[int, int]:
    """What NCCL is given on a rank of 3."""
    place = operation.place(rank, 3, root, COUNT)
    ours = SimpleNamespace(address=SEND), SimpleNamespace(address=TAKE)
    arguments = operation.arguments(*ours, place, MPI.IN_PLACE if in_place else None)
    return addresses(operation.name, arguments, place, ITEMSIZE)


@pytest.mark.parametrize("name", ["allreduce", "allgather", "reduce_scatter", "alltoall"])
def test_plain_calls_out_of_place(name: str) -> None:
    assert buffers(OPERATIONS[name], 1, -1, in_place=False) == (SEND, TAKE)


@pytest.mark.parametrize(
    ("name", "at"),
    [
        ("allreduce", (TAKE, TAKE)),
        # As NCCL's documentation says of blocks in place.
        ("allgather", (TAKE + 2 * BLOCK, TAKE)),
        ("reduce_scatter", (TAKE, TAKE + 2 * BLOCK)),
    ],
)
def test_plain_calls_in_place(name: str, at: tuple[int, int]) -> None:
    assert buffers(OPERATIONS[name], 2, -1, in_place=True) == at


@pytest.mark.parametrize(
    ("name", "root", "other", "root_in_place", "other_in_place"),
    [
        ("broadcast", (SEND, SEND), (TAKE, TAKE), (TAKE, TAKE), (TAKE, TAKE)),
        ("reduce", (SEND, TAKE), (SEND, 0), (TAKE, TAKE), (SEND, 0)),
        ("gather", (SEND, TAKE), (SEND, 0), (TAKE + BLOCK, TAKE), (SEND, 0)),
        ("scatter", (SEND, TAKE), (0, TAKE), (SEND, SEND + BLOCK), (0, TAKE)),
    ],
)
def test_plain_calls_with_a_root(
    name: str, root: Any, other: Any, root_in_place: Any, other_in_place: Any
) -> None:
    operation = OPERATIONS[name]
    assert buffers(operation, 1, 1, in_place=False) == root
    assert buffers(operation, 2, 1, in_place=False) == other
    assert buffers(operation, 1, 1, in_place=True) == root_in_place
    assert buffers(operation, 2, 1, in_place=True) == other_in_place


def comm_on_devices(chosen: str = "flat") -> Any:
    """Says of calls what a communicator over NCCL does, for which `chosen` is the fastest plan."""

    def travels(collective: str, how: Any, dtype: Any, *, ragged: bool) -> Travel | None:
        return travel(how, dtype, scans=collective in SCANS)

    side = SimpleNamespace(travels=travels, explain=lambda *asked: SimpleNamespace(plan=chosen))
    return SimpleNamespace(size=2, _context=SimpleNamespace(on_devices=SimpleNamespace(side=side)))


@pytest.mark.parametrize(
    ("name", "datatype", "redop", "plan"),
    [
        ("allreduce", "float", "sum", "two_level"),
        ("allreduce", "complex64", "avg", "two_level"),
        ("allreduce", "float", "max", "two_level, by kernels"),  # NCCL drops NaN
        ("allreduce", "int16", "sum", "two_level, by kernels"),
        ("allreduce", "int32", "avg", "flat, by kernels"),  # all ranks' elements at once
        ("reduce_scatterv", "float", "sum", "two_level"),
        ("alltoall", "complex128", None, "two_level"),
    ],
)
def test_how_elements_travel(name: str, datatype: str, redop: str | None, plan: str) -> None:
    case = Case(OPERATIONS[name], datatype, redop, -1, 4, 16)
    one = OnDevice(comm_on_devices(), "two_level", by_nccl=("flat", "two_level"))
    assert one.expected(case).plan == plan


@pytest.mark.parametrize(
    ("algorithm", "redop", "chosen", "name"),
    [
        (None, "sum", "flat", "flat"),
        (None, "sum", "two_level", "two_level"),
        ("two_level", "sum", "flat", "two_level"),
        ("flat", "sum", "two_level", "flat"),
        ("ring", "sum", "flat", "flat"),
        ("two_level", "mulsum", "two_level", "flat"),  # the operator is of one communicator
    ],
)
def test_the_plan_that_a_call_of_nccl_takes(
    algorithm: str | None, redop: str, chosen: str, name: str
) -> None:
    case = Case(OPERATIONS["allreduce"], "float", redop, -1, 4, 16)
    one = OnDevice(comm_on_devices(chosen), algorithm, by_nccl=("flat", "two_level"))
    assert (one.expected(case).name, one.expected(case).crossing) == (name, None)
    assert not one.expected(case).plan.endswith(OVER_HOST)
