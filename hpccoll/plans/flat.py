"""Plans of one step over all ranks.

`flat` leaves the step to the transport of the world (shared memory on one node, NCCL on devices, MPI's
own collective between nodes); `one_shot` lets the payload travel with the agreement check, for small
messages; the others are the algorithms by name.
"""

from __future__ import annotations

from collections.abc import Sequence

from hpccoll.plans.collective import BLOCKED, GIVEN, RESULT, ROOTED, SCANS, Collective
from hpccoll.plans.pairs import Pairs
from hpccoll.plans.spans import Region
from hpccoll.plans.steps import NATIVE, Kind, Order, Step
from hpccoll.topology.layout import Layout

ONE_SHOT = "one_shot"


def payload_elements(collective: Collective) -> int:
    """Elements that the rank with most to give sends along in a `one_shot` call."""
    blocks = collective.size if collective.name in ("reduce_scatter", "scatter", "alltoall") else 1
    return collective.count * blocks


def one_by_one(collective: Collective, layout: Layout, order: Order) -> bool:
    """Whether all ranks' payloads reach everybody as they are, rather than combined node by node."""
    if collective.name in ("allgather", "gather", "alltoall", *SCANS):
        return True
    return collective.reduces and order is Order.FOLD and layout.node_count > 1


def one_step(collective: Collective, layout: Layout, algorithm: str = NATIVE) -> tuple[Step, ...]:
    """The collective as a single step of the world."""
    world = layout.groups("WORLD")
    regions: Sequence[Region] = (collective.everything,)
    if collective.name == "alltoall":
        alone = [(rank,) for rank in world[0]]
        regions = Pairs(collective, alone, alone)
    elif collective.name in BLOCKED:
        regions = tuple(collective.block(rank) for rank in world[0])
    elif collective.name in SCANS:
        regions = (collective.part(GIVEN), collective.part(RESULT))
    root = collective.root if collective.name in ROOTED else 0
    return (Step(Kind(collective.name), "WORLD", world, (regions,), (root,), algorithm),)
