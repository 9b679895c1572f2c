"""Which plans the tests look at: all layouts of few ranks, random ones of many, every recipe."""

from __future__ import annotations

import random
from collections.abc import Iterable, Iterator, Sequence

from hpccoll.plans.catalogue import RECIPES, make_plan
from hpccoll.plans.collective import LOCALLY_RAGGED, ROOTED, Collective
from hpccoll.plans.flat import ONE_SHOT
from hpccoll.plans.select import WHOLE
from hpccoll.plans.steps import Plan
from hpccoll.topology.layout import Layout

COLLECTIVES = (
    "allreduce", "reduce", "broadcast", "allgather", "reduce_scatter", "gather", "scatter", "alltoall",
    "scan", "exscan",
)  # fmt: skip
RAGGED = ("allgather", "reduce_scatter", "gather", "scatter", "alltoall")
SEGMENT = 2  # elements: short, so that few elements make several messages


def all_layouts(size: int) -> Iterator[Layout]:
    """Every way to put ranks on nodes: the partitions of a set."""

    def extended(node_of: tuple[int, ...]) -> Iterator[Layout]:
        if len(node_of) == size:
            yield Layout(node_of)
            return
        for node in range(max(node_of, default=-1) + 2):
            yield from extended((*node_of, node))

    yield from extended(())


def random_layout(chance: random.Random, most: int) -> Layout:
    """Up to `most` ranks: dealt at random, or uniform so that rails exist, in a row or shuffled."""
    size, nodes = chance.randint(1, most), chance.randint(1, 8)
    if chance.random() < 0.5:
        return Layout.from_keys([chance.randrange(nodes) for _ in range(size)])
    keys = [node for node in range(nodes) for _ in range(max(1, size // nodes))]
    if chance.random() < 0.5:
        chance.shuffle(keys)
    return Layout.from_keys(keys)


def plans(
    collective: str,
    layout: Layout,
    counts: Iterable[int],
    roots: Sequence[int] = (0,),
    chunks: Sequence[int] = (1, 3),
    wire: str = "",
) -> Iterator[Plan]:
    """Every recipe that has a program, with every algorithm between nodes; of those that take a `wire`."""
    for recipe in RECIPES[collective]:
        if recipe.name == ONE_SHOT or not recipe.exists(layout) or (wire and recipe.name in WHOLE):
            continue
        for count in counts:
            for root in dict.fromkeys(roots) if collective in ROOTED else (0,):
                call = Collective(collective, layout.size, count, root)
                for between in recipe.between or (None,):
                    for parts in chunks if recipe.chunked and count > 1 else (1,):
                        yield make_plan(
                            recipe.name,
                            call,
                            layout,
                            segment=SEGMENT,
                            chunks=parts,
                            between=between,
                            wire=wire,
                        )


def ragged(
    collective: str, size: int, chance: random.Random, root: int = 0, lengths: Sequence[int] = (0, 1, 3, 4)
) -> Collective:
    """A call with blocks of unequal lengths, of which everything is known."""
    rows = [tuple(chance.choice(lengths) for _ in range(size)) for _ in range(size)]
    if collective == "alltoall":
        return Collective(collective, size, 0, gives=dict(enumerate(rows)))
    return Collective(collective, size, 0, root if collective in ROOTED else 0, rows[0])


def ragged_plans(
    collective: str,
    layout: Layout,
    chance: random.Random,
    root: int = 0,
    lengths: Sequence[int] = (0, 1, 3, 4),
) -> Iterator[Plan]:
    """Every recipe on blocks of unequal lengths, some of them empty."""
    call = ragged(collective, layout.size, chance, root, lengths)
    for recipe in RECIPES[collective]:
        if recipe.name == ONE_SHOT or not recipe.exists(layout):
            continue
        if recipe.name == "flat" and layout.node_count > 1 and collective in LOCALLY_RAGGED:
            continue  # MPI's own call is told its own counts only, which no program says
        for between in recipe.between or (None,):
            yield make_plan(recipe.name, call, layout, segment=SEGMENT, between=between)


def random_plan(chance: random.Random, most_ranks: int, counts: Sequence[int]) -> Plan:
    """Any of them on a random layout."""
    layout = random_layout(chance, most_ranks)
    collective, root = chance.choice(COLLECTIVES), chance.randrange(layout.size)
    found = plans(collective, layout, [chance.choice(counts)], [root], [chance.choice([1, 2, 3])])
    return chance.choice(list(found))


def text_of(plan: Plan) -> str:
    """What a failing test says about a plan."""
    call = plan.collective
    between = sorted({step.algorithm for step in plan.steps})
    return (
        f"{call.name} by {plan.name} ({', '.join(between)}, {plan.chunks} chunks) of {call.count} elements, "
        f"root {call.root}, on layout {plan.layout}"
    )
