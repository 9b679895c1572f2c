"""Where a call is in its plan, from the operations that are under way."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, NamedTuple

from hpccoll.plans.program import GroupCall, Operation, Place, Receive, Send

if TYPE_CHECKING:
    from hpccoll.runtime.planning import Planned


class Where(NamedTuple):
    """A place in a call: step of its plan, chunk (-1: none), who is waited for (-1: a group, or nobody).

    `done` of `total` elements have been moved by this rank's operations.
    """

    step: int = -1
    chunk: int = -1
    peer: int = -1
    family: str = ""
    done: int = 0
    total: int = 0


def place_of(under_way: Sequence[Operation], planned: Planned) -> Where:
    """Where a call is whose program has nothing else to do than wait for these."""
    if planned.schedule is None or not under_way:
        return Where()
    first = next((one for one in under_way if isinstance(one, Receive)), under_way[0])
    step = planned.plan.steps[first.step]
    operations = planned.schedule.program.operations
    waiting = _following(under_way, planned)
    moved = [_elements(one) for one in operations]
    return Where(
        step=first.step,
        chunk=step.chunk,
        peer=first.peer if isinstance(first, (Receive, Send)) else -1,
        family=first.family if isinstance(first, GroupCall) else step.family,
        done=sum(moved) - sum(moved[index] for index in waiting),
        total=sum(moved),
    )


def _following(under_way: Sequence[Operation], planned: Planned) -> set[int]:
    """The indices of operations under way, and of all that wait for them."""
    assert planned.schedule is not None
    known = {id(one) for one in under_way}
    left = [index for index, one in enumerate(planned.schedule.program.operations) if id(one) in known]
    started = set(left)
    found = set(left)
    while left:
        index = left.pop()
        after = list(planned.schedule.released_by_end[index])
        if index not in started and index in planned.schedule.released_by_start:
            after.append(planned.schedule.released_by_start[index])
        for one in after:
            if one not in found:
                found.add(one)
                left.append(one)
    return found


def _elements(operation: Operation) -> int:
    """How many elements an operation brings from one rank to others."""
    match operation:
        case Send():
            return _length(operation.source)
        case Receive():
            return _length(operation.target)
        case GroupCall():
            return max(sum(map(_length, operation.source)), sum(map(_length, operation.target)))
    return 0


def _length(place: Place) -> int:
    return place.stop - place.start
