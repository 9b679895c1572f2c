"""Operations and places in words: for reports of a proof, of a rank that is late, and for `hpccoll plan`."""

from __future__ import annotations

from collections.abc import Sequence

from hpccoll.plans.program import Combine, Copy, GroupCall, Operation, Place, Receive, Send
from hpccoll.plans.steps import Kind, Step
from hpccoll.topology.notation import format_ranks
from hpccoll.units import in_binary_unit, number_text

SYMBOLS = {
    Kind.ALLREDUCE: "A",
    Kind.REDUCE: "R",
    Kind.BROADCAST: "B",
    Kind.REDUCE_SCATTER: "RS",
    Kind.ALLGATHER: "AG",
    Kind.GATHER: "G",
    Kind.SCATTER: "S",
    Kind.ALLTOALL: "X",
    Kind.SCAN: "P",
    Kind.EXSCAN: "E",
    Kind.PREPEND: "F",
}


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


def mark(step: Step) -> str:
    """A step in a time line: its kind and its chunk."""
    return f"{SYMBOLS[step.kind]}{step.chunk}"


def bytes_text(count: int) -> str:
    """A number of bytes to three digits: `12 B`, `1.5 KiB`, `64 MiB`."""
    size, unit = in_binary_unit(count)
    return f"{number_text(size)} {unit}"


def time_text(seconds: float) -> str:
    """A time to three digits: `12.3 us`, `4.5 ms`, `1.2 s`."""
    for unit, factor in (("us", 1e6), ("ms", 1e3)):
        if round(seconds * factor) < 1000:
            return f"{number_text(seconds * factor)} {unit}"
    return f"{number_text(seconds)} s"


def groups_text(groups: Sequence[tuple[int, ...]], most: int = 16) -> str:
    """Groups of ranks: `4 of 8: 0-7 | 8-15 | 16-23 | 24-31`; of more than `most` the first and the last."""
    sizes = sorted({len(group) for group in groups})
    size = f"{sizes[0]}" if len(sizes) == 1 else f"{sizes[0]} to {sizes[-1]}"
    shown = [_ranks(group) for group in groups]
    if len(shown) > most:
        shown = [*shown[: most - 2], "...", shown[-1]]
    return f"{len(groups)} of {size}: {' | '.join(shown)}"


def _ranks(group: Sequence[int], most: int = 10) -> str:
    """Ranks in their order, which may be that of a group: `0-7`, `0,8,16`, `0,8,...,504`."""
    if len(group) > 2 and list(group) == list(range(group[0], group[0] + len(group))):
        return f"{group[0]}-{group[-1]}"
    shown = [str(rank) for rank in group]
    if len(shown) > most:
        shown = [*shown[: most - 2], "...", shown[-1]]
    return ",".join(shown)
