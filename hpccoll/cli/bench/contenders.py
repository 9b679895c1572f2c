"""What can carry a collective out: hpccoll by selection or by a plan of one name, and MPI's own call."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass
from functools import partial
from typing import Any

import numpy as np
from mpi4py import MPI

from hpccoll.cli.bench.elements import dtype_of
from hpccoll.cli.bench.operations import Place
from hpccoll.cli.bench.results import Case, Crossing
from hpccoll.errors import UsageError
from hpccoll.ops import AVG, Operator

PLAIN = "mpi"
_MPI_OPERATORS = {"sum": MPI.SUM, "prod": MPI.PROD, "max": MPI.MAX, "min": MPI.MIN}


@dataclass(frozen=True)
class Taken:
    """What carried a case out: the plan's name, the plan in words, the bytes that it moves if known."""

    name: str
    plan: str
    crossing: Crossing | None


@dataclass(frozen=True)
class Contender:
    """One way.  `algorithm` is a plan's name, "mpi", or None for selection."""

    comm: Any
    algorithm: str | None = None

    def inside(self) -> AbstractContextManager[Any]:
        """Calls made inside it go this way."""
        if self.algorithm is None or self.algorithm == PLAIN:
            return nullcontext()
        forced: AbstractContextManager[Any] = self.comm.forced(self.algorithm)
        return forced

    def call(self, case: Case, place: Place, buffers: tuple[Any, ...], out: Any) -> Callable[[], None]:
        """The call, ready to be made.  `buffers`: its positional arguments; `out`: this rank's result."""
        options: dict[str, Any] = {"root": case.root} if case.operation.rooted else {}
        if self.algorithm == PLAIN:
            return _plain_call(self.comm, case, place, buffers, out, options)
        if case.redop is not None:
            options["op"] = operator_of(case.redop)
        return partial(getattr(self.comm, case.operation.method), *buffers, **options)

    def taken(self, case: Case) -> Taken:
        """What carries the case out."""
        if self.algorithm == PLAIN:
            return Taken(PLAIN, PLAIN, None)
        with self.inside():
            best = self._explained(case).candidates[0]
        cost = best.cost
        return Taken(best.name, best.plan, Crossing(cost.bytes_inside_node, cost.bytes_between_nodes))

    def _explained(self, case: Case) -> Any:
        options: dict[str, Any] = {} if case.redop is None else {"op": operator_of(case.redop)}
        if case.operation.sized:
            options["dtype"] = dtype_of(case.datatype)
        return self.comm.explain(case.operation.name, case.nbytes, root=max(0, case.root), **options)


def operator_of(redop: str) -> MPI.Op | Operator:
    """The operator of a name in the table."""
    return AVG if redop == "avg" else _MPI_OPERATORS[redop]


def check_plain(case: Case) -> None:
    """Raises UsageError when MPI has no such reduction, as for bfloat16."""
    if case.redop is None:
        return
    one = np.ones(1, dtype_of(case.datatype))
    try:
        MPI.COMM_SELF.Allreduce(one, np.empty_like(one), _MPI_OPERATORS.get(case.redop, MPI.SUM))
    except (MPI.Exception, BufferError, KeyError, TypeError, ValueError):
        raise UsageError(f"MPI has no {case.redop} of {case.datatype}") from None


def _plain_call(
    comm: MPI.Intracomm,
    case: Case,
    place: Place,
    buffers: tuple[Any, ...],
    out: Any,
    options: dict[str, Any],
) -> Callable[[], None]:
    method = getattr(comm, case.operation.method)
    if case.redop is None:
        # Moved as bytes: MPI does not know every type.
        return partial(method, *(_as_bytes(buffer) for buffer in buffers), **options)
    options["op"] = _MPI_OPERATORS.get(case.redop, MPI.SUM)
    call = partial(method, *buffers, **options)
    if case.redop != "avg" or not case.operation.result(place):
        return call
    return partial(_call_and_divide, call, out, place.size)


def _as_bytes(buffer: Any) -> Any:
    return [buffer.view(np.uint8), MPI.BYTE] if isinstance(buffer, np.ndarray) else buffer


def _call_and_divide(call: Callable[[], None], out: Any, ranks: int) -> None:
    """MPI has no average: the sum, then the division that a caller adds."""
    call()
    if out.dtype.kind in "iu":
        np.copyto(out, np.trunc(out / ranks), casting="unsafe")
    else:
        parts = out.view(out.real.dtype)
        np.divide(parts, parts.dtype.type(ranks), out=parts)
