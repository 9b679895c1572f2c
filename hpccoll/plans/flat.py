"""Plans of one step over all ranks.

`flat` leaves the step to the transport of the world (shared memory on one node, NCCL on devices, MPI's
own collective between nodes); `one_shot` lets the payload travel with the agreement check, for small
messages; the others are the algorithms by name.
"""

from __future__ import annotations

from hpccoll.plans.collective import BLOCKED, Collective
from hpccoll.plans.spans import Region
from hpccoll.plans.steps import NATIVE, Kind, Step
from hpccoll.topology.layout import Layout

ONE_SHOT = "one_shot"


def one_step(collective: Collective, layout: Layout, algorithm: str = NATIVE) -> tuple[Step, ...]:
    """The collective as a single step of the world."""
    world = layout.groups("WORLD")
    regions: tuple[Region, ...] = (collective.everything,)
    if collective.name in BLOCKED:
        regions = tuple(collective.block(rank) for rank in world[0])
    root = collective.root if collective.name in ("reduce", "broadcast", "gather", "scatter") else 0
    return (Step(Kind(collective.name), "WORLD", world, (regions,), (root,), algorithm),)
