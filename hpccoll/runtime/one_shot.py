"""Small calls whose elements travel with the agreement check."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from hpccoll.calls import Call
from hpccoll.plans.flat import one_by_one, payload_elements
from hpccoll.plans.steps import Plan
from hpccoll.runtime.agreement import Payload
from hpccoll.transports.base import Array, Combine


@dataclass(frozen=True)
class Part:
    """`count` elements from `offset` on of the payloads of ranks first to last - 1, combined or in a row."""

    first: int
    last: int
    offset: int
    count: int


_WHOLE = frozenset({"allreduce", "reduce", "broadcast", "allgather", "gather"})  # the result is all there is


def payload_of(call: Call, plan: Plan, give: Array) -> Payload | None:
    """What this rank sends along, and where the result of all goes; None for a barrier.

    `give`: the elements of the call in the dtype in which they travel, which `plan` counts.
    """
    collective = plan.collective
    if collective.name == "barrier":
        return None
    mode = mode_of(plan)
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


def mode_of(plan: Plan) -> str:
    """How payloads travel: "reduce", "gather" or "broadcast"; "" for a barrier, which has none."""
    collective = plan.collective
    if collective.name == "barrier":
        return ""
    if collective.name in ("broadcast", "scatter"):
        return "broadcast"
    return "gather" if one_by_one(collective, plan.layout, plan.order) else "reduce"


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
    part, out = part_of(plan, payload.root, rank), payload.out
    if out is None or part.first == part.last:
        return None
    columns = slice(part.offset, part.offset + part.count)
    if payload.mode != "gather":
        return out[columns]
    rows = out.reshape(plan.layout.size, payload.elements)[part.first : part.last, columns]
    return _fold(rows, payload.combine) if plan.collective.reduces else rows.reshape(-1)


def part_of(plan: Plan, root: int, rank: int) -> Part:
    """Which elements of the payloads the result of a rank is made of."""
    name, size, count = plan.collective.name, plan.collective.size, plan.collective.count
    own = name in ("reduce_scatter", "scatter", "alltoall")
    first = root if name in ("broadcast", "scatter") else 0
    last = {"broadcast": root + 1, "scatter": root + 1, "scan": rank + 1, "exscan": rank}.get(name, size)
    return Part(first, last, rank * count if own else 0, count)


def _fold(rows: Array, combine: Combine | None) -> Array:
    """All rows combined one after the other."""
    total: Array = rows[0].copy()
    for row in rows[1:]:
        if combine is not None:
            combine(total, row, total)
    return total
