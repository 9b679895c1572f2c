"""Small calls whose elements travel with the agreement check."""

from __future__ import annotations

import numpy as np

from hpccoll.calls import Call
from hpccoll.plans.collective import SCANS
from hpccoll.plans.flat import one_by_one, payload_elements
from hpccoll.plans.steps import Plan
from hpccoll.runtime.agreement import Payload
from hpccoll.transports.base import Array, Combine

_WHOLE = frozenset({"allreduce", "reduce", "broadcast", "allgather", "gather"})  # the result is all there is


def payload_of(call: Call, plan: Plan, give: Array) -> Payload | None:
    """What this rank sends along, and where the result of all goes; None for a barrier.

    `give`: the elements of the call in the dtype in which they travel, which `plan` counts.
    """
    collective = plan.collective
    if collective.name == "barrier":
        return None
    if collective.name in ("broadcast", "scatter"):
        mode = "broadcast"
    else:
        mode = "gather" if one_by_one(collective, plan.layout, plan.order) else "reduce"
    elements = payload_elements(collective)
    out = None
    if call.take is not None:
        total = elements * (collective.size if mode == "gather" else 1)
        direct = collective.name in _WHOLE and not (collective.reduces and mode == "gather")
        same = direct and call.take.flat.dtype == give.dtype
        # A reduction reads all slots after this rank's own elements were copied there: in place is safe.
        out = call.take.flat if same else np.empty(total, give.dtype)
    combine = call.arithmetic.combine if call.arithmetic is not None else None
    return Payload(mode, give, out, elements, give.dtype, call.root, combine)


def finish_payload(call: Call, plan: Plan, payload: Payload, rank: int) -> None:
    """Bring this rank's part of the result to the caller's buffer."""
    if call.take is None or (payload.out is call.take.flat and call.arithmetic is None):
        return
    own = _part_of(payload, plan, rank)
    if own is None:
        return
    if call.arithmetic is not None:
        call.arithmetic.finish(own, call.operands(rank, plan.layout.size), call.take.flat)
    else:
        call.take.flat.view(own.dtype)[...] = own


def _part_of(payload: Payload, plan: Plan, rank: int) -> Array | None:
    """The result of this rank, from what all ranks sent; None for the first of an exclusive scan."""
    name, count, out = plan.collective.name, plan.collective.count, payload.out
    if out is None:
        return None
    if payload.mode == "gather":
        by_rank = out.reshape(plan.layout.size, payload.elements)
        if name == "alltoall":
            return by_rank[:, rank * count : (rank + 1) * count].reshape(-1)
        if name in SCANS:
            last = rank + 1 if name == "scan" else rank
            return _fold(by_rank[:last], payload.combine) if last else None
        if plan.collective.reduces:
            out = _fold(by_rank, payload.combine)
    if name in ("reduce_scatter", "scatter"):
        return out[rank * count : (rank + 1) * count]
    return out


def _fold(rows: Array, combine: Combine | None) -> Array:
    """All rows combined one after the other."""
    total: Array = rows[0].copy()
    for row in rows[1:]:
        if combine is not None:
            combine(total, row, total)
    return total
