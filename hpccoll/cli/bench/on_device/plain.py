"""Plain calls of nccl4py's bindings, on a communicator of their own over the same ranks."""

from __future__ import annotations

import ctypes
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import numpy as np
from mpi4py import MPI
from nccl.bindings import nccl

from hpccoll.cli.bench.contenders import Contender
from hpccoll.cli.bench.elements import dtype_of, mulsum_factor
from hpccoll.cli.bench.modes import Mode
from hpccoll.cli.bench.on_device.contenders import addresses
from hpccoll.cli.bench.places import Place
from hpccoll.cli.bench.results import Case
from hpccoll.dtypes import ROWS, row_of
from hpccoll.transports.nccl import OPERATORS, TYPES
from hpccoll.unique_id import ID_BYTES

_OPERATORS = {name.lower(): operator for name, operator in OPERATORS.items()} | {"avg": int(nccl.RedOp.Avg)}
_BYTES = TYPES["uint8"]
_METHODS = (
    "Allreduce",
    "Reduce",
    "Bcast",
    "Allgather",
    "Reduce_scatter_block",
    "Gather",
    "Scatter",
    "Alltoall",
)


class Plain:
    """A communicator of NCCL, as a program makes one that has no library between.  Collective."""

    def __init__(self, world: MPI.Intracomm, stream: int) -> None:
        self.rank, self.size, self.stream = world.rank, world.size, stream
        made = nccl.get_unique_id() if world.rank == 0 else None
        unique_id = world.bcast(None if made is None else ctypes.string_at(made.ptr, ID_BYTES))
        config = nccl.Config()
        self.handle: Any = nccl.comm_init_rank_scalable(
            world.size, world.rank, 1, bytearray(unique_id), config.ptr
        )

    def close(self) -> None:
        """Free it.  Collective."""
        nccl.comm_destroy(self.handle)


def why_not(case: Case, size: int) -> str:
    """Empty, or why NCCL has no such call."""
    if case.operation.method not in _METHODS:
        return f"NCCL has no {case.operation.name}"
    if case.redop is None:
        return ""
    row = row_of(dtype_of(case.datatype))
    if row is None or row.nccl is None or row.name not in ROWS:
        return f"NCCL has no {case.datatype}"
    if row.kind == "float" and row.itemsize == 1:
        return f"NCCL sums {case.datatype} on some devices only"
    return ""


@dataclass(frozen=True)
class PlainNccl(Contender):
    """`comm` is a `Plain`.

    A call is enqueued, and where the others' are requests it is waited for, as theirs are.
    """

    settle: Callable[[], None] | None = None

    @property
    def is_plain(self) -> bool:
        return True

    def does(self, case: Case, *, in_place: bool) -> bool:
        """An all-to-all in place is none of NCCL's."""
        return not (in_place and case.operation.paired)

    def is_checked(self, case: Case) -> bool:
        """NCCL's average multiplies by 1/n before it sums, so that it is rounded in another way."""
        return case.redop != "avg"

    def result_start(self, case: Case, place: Place, *, in_place: bool) -> int:
        """In place, NCCL leaves a reduce-scatter's block where it was, MPI at the beginning."""
        return place.rank * place.count if in_place and case.operation.name == "reduce_scatter" else 0

    @contextmanager
    def bound(
        self, case: Case, place: Place, arguments: tuple[Any, ...], out: Any
    ) -> Iterator[Callable[[], None]]:
        dtype = dtype_of(case.datatype)
        source, target = addresses(case.operation.name, arguments, place, dtype.itemsize)
        kind, count, operator, made = _BYTES, place.count * dtype.itemsize, 0, False
        if case.redop is not None:
            row = row_of(dtype)
            assert row is not None
            kind, count = TYPES[str(row.nccl)], place.count
            made = case.redop == "mulsum"
            operator = self._scaled(place.rank, dtype, kind) if made else _OPERATORS[case.redop]
        call = self._call(case, source, target, count, kind, operator)
        settle = self.settle
        if self.mode is Mode.BLOCKING or settle is None:
            yield call
        else:
            yield lambda: (call(), settle())[0]
        if made:
            nccl.red_op_destroy(operator, self.comm.handle)

    def _scaled(self, rank: int, dtype: np.dtype[Any], kind: int) -> int:
        factor = np.array([mulsum_factor(rank)], dtype)
        residence = int(nccl.ScalarResidence.HostImmediate)
        return int(nccl.red_op_create_pre_mul_sum(factor.ctypes.data, kind, residence, self.comm.handle))

    def _call(
        self, case: Case, source: int, target: int, count: int, kind: int, operator: int
    ) -> Callable[[], None]:
        comm, stream, root = self.comm.handle, self.comm.stream, case.root
        match case.operation.name:
            case "allreduce":
                return lambda: nccl.all_reduce(source, target, count, kind, operator, comm, stream)
            case "reduce":
                return lambda: nccl.reduce(source, target, count, kind, operator, root, comm, stream)
            case "broadcast":
                return lambda: nccl.broadcast(source, target, count, kind, root, comm, stream)
            case "allgather":
                return lambda: nccl.all_gather(source, target, count, kind, comm, stream)
            case "reduce_scatter":
                return lambda: nccl.reduce_scatter(source, target, count, kind, operator, comm, stream)
            case "gather":
                return lambda: nccl.gather(source, target, count, kind, root, comm, stream)
            case "scatter":
                return lambda: nccl.scatter(source, target, count, kind, root, comm, stream)
        return lambda: nccl.allto_all(source, target, count, kind, comm, stream)
