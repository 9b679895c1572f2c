"""Small calls whose elements travel with the agreement check."""

from __future__ import annotations

import numpy as np

from hpccoll.calls import Call
from hpccoll.runtime.agreement import Payload

_MODES = {
    "allreduce": "reduce",
    "reduce": "reduce",
    "reduce_scatter": "reduce",
    "allgather": "gather",
    "broadcast": "broadcast",
}


def payload_of(call: Call, rank: int, size: int) -> Payload | None:
    """What this rank sends along, and where the result of all goes; None for a barrier."""
    if call.collective == "barrier":
        return None
    mode = _MODES[call.collective]
    working = call.working
    elements = call.count * (size if call.collective == "reduce_scatter" else 1)
    total = call.count * size if call.collective in ("allgather", "reduce_scatter") else call.count
    give = call.give if call.give.dtype == working else call.give.astype(working)
    out = None
    if call.take is not None:
        direct = call.take.flat.dtype == working and call.take.count == total
        # A reduction reads all slots after this rank's own elements were copied there: in place is safe.
        out = call.take.flat if direct else np.empty(total, working)
    combine = call.arithmetic.combine if call.arithmetic is not None else None
    return Payload(mode, give, out, elements, working, call.root, combine)


def finish_payload(call: Call, payload: Payload, rank: int, size: int) -> None:
    """Bring this rank's part of the result to the caller's buffer."""
    if call.take is None or payload.out is None:
        return
    own = payload.out
    if call.collective == "reduce_scatter":
        own = own[rank * call.count : (rank + 1) * call.count]
    if call.arithmetic is not None:
        call.arithmetic.finish(own, size, call.take.flat)
    elif own is not call.take.flat:
        call.take.flat[...] = own
