"""Plans of two levels: inside the nodes, then between them.

Each works in chunks; the steps are listed in the order in which a pipeline does them, so that chunk k is
between the nodes while chunk k + 1 is inside (three chunks, R = into the node, N = network, B = out):

    NODE      R0  R1  B0  R2  B1  B2
    network       N0  N1  N2

Bytes that leave a node in an all-reduce of S bytes over N nodes: 2 (N-1)/N S, whichever plan.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace

from hpccoll.plans.collective import BEFORE, GIVEN, RESULT, Collective
from hpccoll.plans.spans import Region, length, split, split_evenly, union, without
from hpccoll.plans.steps import Kind, Step
from hpccoll.topology.layout import Layout

Groups = tuple[tuple[int, ...], ...]


def reduce_ring_broadcast(
    collective: Collective, layout: Layout, between: str, chunks: int
) -> tuple[Step, ...]:
    """All-reduce: reduce to each node's leader, all-reduce over the leaders, broadcast.  Any layout."""
    node, leaders = layout.groups("NODE"), layout.groups("LEADERS")

    def stages(part: Region) -> list[Step]:
        whole = ((part,),)
        roots = (0,) * len(node)
        return [
            Step(Kind.REDUCE, "NODE", node, whole * len(node), roots),
            Step(Kind.ALLREDUCE, "LEADERS", leaders, whole, (), between),
            Step(Kind.BROADCAST, "NODE", node, whole * len(node), roots),
        ]

    return pipeline(collective.everything, chunks, stages)


def scatter_rail_gather(
    collective: Collective, layout: Layout, between: str, chunks: int
) -> tuple[Step, ...]:
    """All-reduce: reduce-scatter in the node, all-reduce on every rail, all-gather in the node.

    Every rank carries its share between the nodes, so that all rails (and NICs) work.  Uniform layouts.
    """
    node, rails = layout.groups("NODE"), layout.groups("RAIL")

    def stages(part: Region) -> list[Step]:
        shares = tuple(split(part, split_evenly(length(part), len(rails))))
        return [
            Step(Kind.REDUCE_SCATTER, "NODE", node, (shares,) * len(node)),
            Step(Kind.ALLREDUCE, "RAIL", rails, tuple((share,) for share in shares), (), between),
            Step(Kind.ALLGATHER, "NODE", node, (shares,) * len(node)),
        ]

    return pipeline(collective.everything, chunks, stages)


def reduce_through_leaders(
    collective: Collective, layout: Layout, between: str, chunks: int
) -> tuple[Step, ...]:
    """Reduce: to one rank of each node (the root in its own node), then over these to the root."""
    node, leaders, head_of = heads(layout, collective.root)

    def stages(part: Region) -> list[Step]:
        whole = ((part,),)
        return [
            Step(Kind.REDUCE, "NODE", node, whole * len(node), head_of),
            Step(Kind.REDUCE, "LEADERS", leaders, whole, (leaders[0].index(collective.root),), between),
        ]

    return pipeline(collective.everything, chunks, stages)


def broadcast_through_leaders(
    collective: Collective, layout: Layout, between: str, chunks: int
) -> tuple[Step, ...]:
    """Broadcast: from the root to one rank of each node, then inside the nodes."""
    node, leaders, head_of = heads(layout, collective.root)

    def stages(part: Region) -> list[Step]:
        whole = ((part,),)
        return [
            Step(Kind.BROADCAST, "LEADERS", leaders, whole, (leaders[0].index(collective.root),), between),
            Step(Kind.BROADCAST, "NODE", node, whole * len(node), head_of),
        ]

    return pipeline(collective.everything, chunks, stages)


def gather_through_leaders(
    collective: Collective, layout: Layout, between: str, chunks: int
) -> tuple[Step, ...]:
    """All-gather: inside the nodes, over the leaders, then the other nodes' blocks inside.  Any layout."""
    node, leaders = layout.groups("NODE"), layout.groups("LEADERS")
    own = tuple(tuple(collective.block(rank) for rank in members) for members in node)
    of_node = tuple(union(blocks) for blocks in own)
    others = tuple((without(collective.everything, mine),) for mine in of_node)
    return (
        Step(Kind.ALLGATHER, "NODE", node, own),
        Step(Kind.ALLGATHER, "LEADERS", leaders, (of_node,), (), between, after=(0,)),
        Step(Kind.BROADCAST, "NODE", node, others, (0,) * len(node), after=(1,)),
    )


def rail_gather(collective: Collective, layout: Layout, between: str, chunks: int) -> tuple[Step, ...]:
    """All-gather: on every rail, then the rails' blocks inside the node.  Uniform layouts."""
    node, rails = layout.groups("NODE"), layout.groups("RAIL")
    on_rail = tuple(tuple(collective.block(rank) for rank in members) for members in rails)
    of_rail = tuple(union(blocks) for blocks in on_rail)
    return (
        Step(Kind.ALLGATHER, "RAIL", rails, on_rail, (), between),
        Step(Kind.ALLGATHER, "NODE", node, (of_rail,) * len(node), after=(0,)),
    )


def scatter_through_leaders(
    collective: Collective, layout: Layout, between: str, chunks: int
) -> tuple[Step, ...]:
    """Reduce-scatter: reduce to the leader, reduce-scatter over the leaders, scatter.  Any layout."""
    node, leaders = layout.groups("NODE"), layout.groups("LEADERS")
    own = tuple(tuple(collective.block(rank) for rank in members) for members in node)
    of_node = tuple(union(blocks) for blocks in own)
    everything = ((collective.everything,),) * len(node)
    roots = (0,) * len(node)
    return (
        Step(Kind.REDUCE, "NODE", node, everything, roots),
        Step(Kind.REDUCE_SCATTER, "LEADERS", leaders, (of_node,), (), between, after=(0,)),
        Step(Kind.SCATTER, "NODE", node, own, roots, after=(1,)),
    )


def scatter_rail(collective: Collective, layout: Layout, between: str, chunks: int) -> tuple[Step, ...]:
    """Reduce-scatter: by rails inside the node, then on every rail.  Uniform layouts."""
    node, rails = layout.groups("NODE"), layout.groups("RAIL")
    on_rail = tuple(tuple(collective.block(rank) for rank in members) for members in rails)
    of_rail = tuple(union(blocks) for blocks in on_rail)
    return (
        Step(Kind.REDUCE_SCATTER, "NODE", node, (of_rail,) * len(node)),
        Step(Kind.REDUCE_SCATTER, "RAIL", rails, on_rail, (), between, after=(0,)),
    )


def scan_by_nodes(collective: Collective, layout: Layout, between: str, chunks: int) -> tuple[Step, ...]:
    """Scan, exscan: inside the nodes, over the nodes' totals, and these in front of what each rank has.

    For layouts whose nodes have consecutive ranks.
    """
    node = layout.groups("NODE")
    totals = (tuple(members[-1] for members in node),)
    last = tuple(len(members) - 1 for members in node)
    given, result, before = map(collective.part, (GIVEN, RESULT, BEFORE))
    inside = ((given, result),) * len(node)
    if collective.name == "scan":
        first = [Step(Kind.SCAN, "NODE", node, inside)]
        total = result
    else:
        first = [
            Step(Kind.EXSCAN, "NODE", node, inside),
            Step(Kind.REDUCE, "NODE", node, ((given,),) * len(node), last, after=(0,)),
        ]
        total = given
    done = len(first)
    later = len(node) - 1
    return (
        *first,
        Step(Kind.EXSCAN, "LAST", totals, ((total, before),), (), between, after=tuple(range(done))),
        Step(Kind.BROADCAST, "NODE", node[1:], ((before,),) * later, last[1:], after=(done,)),
        Step(Kind.PREPEND, "NODE", node[1:], ((before, result),) * later, after=(*range(done), done + 1)),
    )


def pipeline(everything: Region, chunks: int, stages: Callable[[Region], Sequence[Step]]) -> tuple[Step, ...]:
    """The stages of every chunk, listed in the order in which a pipeline does them."""
    parts = split(everything, split_evenly(length(everything), chunks))
    waiting = [[replace(step, chunk=chunk) for step in stages(part)] for chunk, part in enumerate(parts)]
    order = [
        (turn - lag, stage)
        for turn in range(chunks + 1)
        for stage, lag in enumerate((0, 0, 1)[: len(waiting[0])])
        if 0 <= turn - lag < chunks
    ]
    position = {key: index for index, key in enumerate(order)}
    return tuple(
        replace(waiting[chunk][stage], after=(position[chunk, stage - 1],) if stage else ())
        for chunk, stage in order
    )


def heads(layout: Layout, root: int) -> tuple[Groups, Groups, tuple[int, ...]]:
    """NODE groups, the group of one rank per node (the root in its node), its index in each node."""
    node = layout.groups("NODE")
    heads = tuple(root if root in members else members[0] for members in node)
    return node, (heads,), tuple(members.index(head) for members, head in zip(node, heads, strict=True))
