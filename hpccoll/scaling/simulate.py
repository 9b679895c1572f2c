"""The same study simulated: the plans that selection takes on machines that are not here, on shared links."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence

from hpccoll.plans.collective import BLOCKED, REDUCTIONS, Collective
from hpccoll.plans.links import Links
from hpccoll.plans.select import Tuning, candidates
from hpccoll.scaling.flows import simulate_plan
from hpccoll.scaling.network import Contention
from hpccoll.scaling.study import Point
from hpccoll.topology.layout import Layout


def simulate(
    collective: str,
    itemsize: int,
    factor: Callable[[int], float],
    layouts: Sequence[Layout],
    sizes: Sequence[int],
    links: Links,
    contention: Contention | None = None,
) -> Iterator[Point]:
    """A point for each layout and size.

    Args:
        collective: its name in `hpccoll plan`.
        itemsize: bytes of an element.
        factor: bus bandwidth over size per time, for a number of ranks.
        layouts: one for each number of nodes.
        sizes: in bytes, as nccl-tests counts them; rounded down to equal blocks where there are such.
        links: what the machine's links give.
        contention: what is not even, of which selection knows nothing.

    """
    tuning = Tuning(links=links)
    for layout in layouts:
        blocks = layout.size if collective in BLOCKED else 1
        for nbytes in sizes:
            count = nbytes // itemsize // blocks
            used = count * itemsize * blocks
            asked, width = (count, itemsize) if collective in REDUCTIONS else (count * itemsize, 1)
            best = candidates(Collective(collective, layout.size, asked), layout, width, tuning)[0]
            run = simulate_plan(best.made, width, links, contention)
            busbw = used / 1e9 / run.time_s * factor(layout.size) if run.time_s else 0.0
            yield Point(
                layout.node_count,
                layout.size,
                layout.shortened(),
                nbytes,
                best.plan,
                run.time_s * 1e6,
                busbw,
                used=run.used,
            )
