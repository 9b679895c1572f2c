"""Ours on device arrays, by NCCL's calls or over the host; and what a plain call of NCCL's gets."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any

from mpi4py import MPI

from hpccoll.cli.bench.contenders import Contender, Taken, operator_of
from hpccoll.cli.bench.elements import dtype_of
from hpccoll.cli.bench.places import Place
from hpccoll.cli.bench.results import Case
from hpccoll.ops.on_device import Travel
from hpccoll.ops.table import arithmetic
from hpccoll.ops.table import operator_of as table_row
from hpccoll.plans.collective import SCANS

OVER_HOST, BY_KERNELS = ", over the host", ", by kernels"
_DEFAULT = "flat"  # NCCL's own call


@dataclass(frozen=True)
class OnDevice(Contender):
    """`by_nccl`: the plans that consist of NCCL's calls; empty where all goes over the host."""

    by_nccl: tuple[str, ...] = ()

    def expected(self, case: Case) -> Taken:
        how = self.travels(case)
        if how is None:
            found = super().expected(case)
            return replace(found, plan=f"{found.plan}{OVER_HOST}", crossing=None)
        wanted = self.algorithm
        if wanted is None and not case.operation.ragged:
            wanted = self._chosen(case, how)
        one_call = wanted not in self.by_nccl or case.redop == "mulsum"
        name = _DEFAULT if one_call or how.whole else str(wanted)
        return Taken(name, f"{name}{BY_KERNELS if how.kernel is not None else ''}", None)

    def _chosen(self, case: Case, how: Travel) -> str:
        """The plan that is taken where none is asked for."""
        if case.operation.explained_as in SCANS:
            return _DEFAULT
        side = self.comm._context.on_devices.side
        found: str = side.explain(case.operation.explained_as, case.nbytes, max(0, case.root), how, "").plan
        return found

    def travels(self, case: Case) -> Travel | None:
        """How elements travel; None over the host."""
        dtype, how = dtype_of(case.datatype), None
        if case.redop is not None:
            how = arithmetic(table_row(operator_of(case.redop)), dtype)
        side, operation = self.comm._context.on_devices.side, case.operation
        found: Travel | None = side.travels(operation.explained_as, how, dtype, ragged=operation.ragged)
        return found


def addresses(name: str, arguments: tuple[Any, ...], place: Place, itemsize: int) -> tuple[int, int]:
    """Where NCCL reads and writes, for the positional arguments of MPI's call; 0 for what a rank has not.

    Blocks in place: NCCL wants a rank's own block where it is among all blocks.
    """
    own = place.rank * place.count * itemsize
    if len(arguments) == 1:  # a broadcast
        return (arguments[0].address,) * 2
    first, second = arguments
    if first is MPI.IN_PLACE:
        blocks = second.address
        if name in ("allgather", "gather"):
            return blocks + own, blocks
        return blocks, blocks + own if name == "reduce_scatter" else blocks
    if second is MPI.IN_PLACE:  # the root of a scatter
        return first.address, first.address + own
    return (0 if first is None else first.address), (0 if second is None else second.address)
