"""Operations and places in words: for reports of a proof, of a rank that is late, and for `hpccoll plan`."""

from __future__ import annotations

from collections.abc import Sequence

from hpccoll.plans.program import Combine, Copy, GroupCall, Operation, Place, Receive, Send
from hpccoll.topology.notation import format_ranks


def place_text(place: Place) -> str:
    """A place as it would be written in Python: `output[0:4]`."""
    return f"{place.memory.name.lower()}[{place.start}:{place.stop}]"


def places_text(places: Sequence[Place]) -> str:
    """Several places, in their order."""
    return ", ".join(map(place_text, places)) or "nothing"


def operation_text(operation: Operation) -> str:
    """What an operation does."""
    match operation:
        case Send():
            return f"send {place_text(operation.source)} to rank {operation.peer}"
        case Receive():
            return f"receive {place_text(operation.target)} from rank {operation.peer}"
        case Combine():
            left, right = place_text(operation.left), place_text(operation.right)
            return f"combine {left} with {right} into {place_text(operation.target)}"
        case Copy():
            return f"copy {place_text(operation.source)} to {place_text(operation.target)}"
        case GroupCall():
            return (
                f"{operation.kind.value} of {operation.family}, {format_ranks(operation.members)}: "
                f"give {places_text(operation.source)}, get {places_text(operation.target)}"
            )
    return repr(operation)
