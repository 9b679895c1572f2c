"""From the arguments of a collective to one checked description of the call.

Each function takes where the caller is and what it passed, in mpi4py's order, and gives a `Call`, or raises
UsageError: nothing has moved then.
"""

from __future__ import annotations

from hpccoll.calls.blocks import allgather, alltoall, barrier, broadcast, gather, scatter
from hpccoll.calls.call import Call, Where
from hpccoll.calls.ragged import allgatherv, alltoallv, alltoallw, gatherv, scatterv
from hpccoll.calls.reductions import allreduce, exscan, reduce, reduce_scatter, reduce_scatter_block, scan

__all__ = [
    "Call",
    "Where",
    "allgather",
    "allgatherv",
    "allreduce",
    "alltoall",
    "alltoallv",
    "alltoallw",
    "barrier",
    "broadcast",
    "exscan",
    "gather",
    "gatherv",
    "reduce",
    "reduce_scatter",
    "reduce_scatter_block",
    "scan",
    "scatter",
    "scatterv",
]
