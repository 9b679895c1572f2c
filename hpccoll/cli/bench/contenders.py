"""What can carry a collective out: hpccoll by selection or by a plan of one name, and MPI's own call."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, ExitStack, contextmanager, nullcontext
from dataclasses import dataclass, replace
from functools import partial
from itertools import accumulate
from typing import Any

import numpy as np
from mpi4py import MPI

from hpccoll.cli.bench.elements import dtype_of, mulsum_factor
from hpccoll.cli.bench.modes import Mode, bound
from hpccoll.cli.bench.options import PLAIN
from hpccoll.cli.bench.places import Blocks, Place
from hpccoll.cli.bench.results import Case, Crossing
from hpccoll.errors import UsageError
from hpccoll.ops.table import AVG, Operator, scaled_sum

_MPI_OPERATORS = {"sum": MPI.SUM, "prod": MPI.PROD, "max": MPI.MAX, "min": MPI.MIN}


@dataclass(frozen=True)
class Taken:
    """What carried a case out: the plan's name, the plan in words, the bytes that it moves if known."""

    name: str
    plan: str
    crossing: Crossing | None


@dataclass(frozen=True)
class Contender:
    """One way.  `algorithm` is a plan's name, "mpi", or None for selection; `reproducible` is of `comm`."""

    comm: Any
    algorithm: str | None = None
    mode: Mode = Mode.BLOCKING
    reproducible: bool = False

    def inside(self) -> AbstractContextManager[Any]:
        """Calls made inside it go this way."""
        if self.algorithm is None or self.is_plain:
            return nullcontext()
        forced: AbstractContextManager[Any] = self.comm.forced(self.algorithm)
        return forced

    @contextmanager
    def bound(
        self, case: Case, place: Place, arguments: tuple[Any, ...], out: Any
    ) -> Iterator[Callable[[], None]]:
        """The call, ready to be made.  `arguments`: its positional ones; `out`: this rank's result."""
        # MPI does not know every type: what is only moved goes there as bytes.
        as_bytes = self.is_plain and case.redop is None
        specs = tuple(_specification(one, case.operation.method, as_bytes) for one in arguments)
        options: dict[str, Any] = {"root": case.root} if case.operation.rooted else {}
        if case.redop is not None:
            rule = operator_of(case.redop, place.rank)
            options["op"] = _MPI_OPERATORS.get(case.redop, MPI.SUM) if self.is_plain else rule
        with ExitStack() as stack:
            with self.inside():
                call = stack.enter_context(bound(self.mode, self.comm, case.operation.method, specs, options))
            gets = any(piece.ranks for piece in case.operation.result(place))
            divides = self.is_plain and case.redop == "avg" and gets
            yield partial(_call_and_divide, call, out, place.size) if divides else call

    @property
    def is_plain(self) -> bool:
        """Whether it is the call that ours are compared with: MPI's own."""
        return self.algorithm == PLAIN

    def does(self, case: Case, *, in_place: bool) -> bool:
        """Whether there is such a call."""
        return True

    def is_checked(self, case: Case) -> bool:
        """Whether it rounds as documented, so that every element of its results is known."""
        return True

    def result_start(self, case: Case, place: Place, *, in_place: bool) -> int:
        """The first element of the receive buffer that is a result."""
        return 0

    def tally(self) -> Counter[str]:
        """How many calls each plan has carried out so far."""
        plans: Counter[str] = Counter()
        for (_, plan), calls in () if self.is_plain else self.comm.tally().items():
            plans[plan] += calls
        return plans

    def expected(self, case: Case) -> Taken:
        """What should carry the case out, as the communicator explains it: a ragged one with equal blocks."""
        if self.is_plain:
            return Taken(str(self.algorithm), str(self.algorithm), None)
        with self.inside():
            best = self._explained(case).candidates[0]
        cost = best.cost
        return Taken(best.name, best.plan, Crossing(cost.bytes_inside_node, cost.bytes_between_nodes))

    def predicted_s(self, case: Case) -> float:
        """The price of what should carry the case out."""
        with self.inside():
            predicted: float = self._explained(case).candidates[0].time_s
        return predicted

    def taken(self, case: Case, ran: Counter[str]) -> Taken:
        """What did carry it out; `ran` counts the calls of each plan."""
        expected = self.expected(case)
        name = "+".join(sorted(ran)) or expected.name
        if name != expected.name:
            return Taken(name, name, None)
        return replace(expected, crossing=None) if case.operation.ragged else expected

    def _explained(self, case: Case) -> Any:
        options: dict[str, Any] = {} if case.redop is None else {"op": operator_of(case.redop)}
        if case.operation.sized:
            options["dtype"] = dtype_of(case.datatype)
        return self.comm.explain(case.operation.explained_as, case.nbytes, root=max(0, case.root), **options)


def operator_of(redop: str, rank: int = 0) -> MPI.Op | Operator:
    """The operator of a name in the table; that of a mulsum is each rank's own."""
    if redop == "mulsum":
        return scaled_sum(mulsum_factor(rank))
    return AVG if redop == "avg" else _MPI_OPERATORS[redop]


def check_plain(case: Case, mode: Mode) -> None:
    """Raises UsageError when MPI has no such reduction, as for bfloat16, or no persistent collectives."""
    if mode is Mode.PERSISTENT:
        try:
            MPI.COMM_SELF.Barrier_init().Free()
        except (NotImplementedError, MPI.Exception):
            raise UsageError("this MPI has no persistent collectives") from None
    if case.redop is None:
        return
    one = np.ones(1, dtype_of(case.datatype))
    try:
        op = MPI.SUM if case.redop == "avg" else _MPI_OPERATORS[case.redop]
        MPI.COMM_SELF.Allreduce(one, np.empty_like(one), op)
    except (MPI.Exception, BufferError, KeyError, TypeError, ValueError):
        raise UsageError(f"MPI has no {case.redop} of {case.datatype}") from None


def _specification(argument: Any, method: str, as_bytes: bool) -> Any:
    """An argument as mpi4py takes it."""
    if isinstance(argument, Blocks):
        return _ragged_specification(argument, method, as_bytes)
    if as_bytes and isinstance(argument, np.ndarray):
        return [argument.view(np.uint8), MPI.BYTE]
    return argument


def _ragged_specification(blocks: Blocks, method: str, as_bytes: bool) -> list[Any]:
    if method != "Alltoallw" and not as_bytes:
        return [blocks.array, list(blocks.counts)]
    nbytes = [count * blocks.array.itemsize for count in blocks.counts]
    array = blocks.array.view(np.uint8)
    if method != "Alltoallw":
        return [array, nbytes, MPI.BYTE]
    starts = list(accumulate(nbytes, initial=0))[:-1]
    return [array, (nbytes, starts), [MPI.BYTE] * len(nbytes)]


def _call_and_divide(call: Callable[[], None], out: Any, ranks: int) -> None:
    """MPI has no average: the sum, then the division that a caller adds."""
    call()
    if out.dtype.kind in "iu":
        np.copyto(out, np.trunc(out / ranks), casting="unsafe")
    else:
        parts = out.view(out.real.dtype)
        np.divide(parts, parts.dtype.type(ranks), out=parts)
