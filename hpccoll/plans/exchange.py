"""Two-level plans of gather, scatter and all-to-all: what crosses between two nodes goes together.

                          messages between N nodes of L ranks      bytes a node sends (blocks of B bytes)
    gather, scatter       N - 1 instead of (N - 1) L               the same
    alltoall, direct      N (N - 1) L L                            (N - 1) L L B
    alltoall, rail        N (N - 1) L                              the same
    alltoall, two_level   N (N - 1)                                the same

Source: J. L. Traeff, A. Rougier, "MPI collectives and datatypes for hierarchical all-to-all communication",
EuroMPI/ASIA 2014.
"""

from __future__ import annotations

from hpccoll.plans.collective import Collective
from hpccoll.plans.pairs import Crossing, Pairs
from hpccoll.plans.spans import union
from hpccoll.plans.steps import Kind, Step
from hpccoll.plans.two_level import heads
from hpccoll.topology.layout import Layout

Groups = tuple[tuple[int, ...], ...]


def gather_through_leaders(
    collective: Collective, layout: Layout, between: str, chunks: int
) -> tuple[Step, ...]:
    """Gather: to one rank of each node (the root in its own node), then over these to the root."""
    node, leaders, head_of = heads(layout, collective.root)
    own = tuple(tuple(collective.block(rank) for rank in members) for members in node)
    of_node = tuple(union(blocks) for blocks in own)
    return (
        Step(Kind.GATHER, "NODE", node, own, head_of),
        Step(
            Kind.GATHER,
            "LEADERS",
            leaders,
            (of_node,),
            (leaders[0].index(collective.root),),
            between,
            after=(0,),
        ),
    )


def scatter_through_leaders(
    collective: Collective, layout: Layout, between: str, chunks: int
) -> tuple[Step, ...]:
    """Scatter: from the root to one rank of each node, then inside the nodes."""
    node, leaders, head_of = heads(layout, collective.root)
    own = tuple(tuple(collective.block(rank) for rank in members) for members in node)
    of_node = tuple(union(blocks) for blocks in own)
    return (
        Step(Kind.SCATTER, "LEADERS", leaders, (of_node,), (leaders[0].index(collective.root),), between),
        Step(Kind.SCATTER, "NODE", node, own, head_of, after=(0,)),
    )


def alltoall_through_leaders(
    collective: Collective, layout: Layout, between: str, chunks: int
) -> tuple[Step, ...]:
    """All-to-all: blocks for other nodes to the leader, between leaders, from the leader; the rest inside."""
    node, leaders = layout.groups("NODE"), layout.groups("LEADERS")
    own = tuple(tuple((rank,) for rank in members) for members in node)
    roots = (0,) * len(node)
    outgoing = tuple(Crossing(collective, members, outgoing=True) for members in node)
    incoming = tuple(Crossing(collective, members, outgoing=False) for members in node)
    return (
        Step(Kind.GATHER, "NODE", node, outgoing, roots),
        Step(Kind.ALLTOALL, "NODE", node, tuple(Pairs(collective, ranks, ranks) for ranks in own)),
        Step(
            Kind.ALLTOALL,
            "LEADERS",
            leaders,
            (Pairs(collective, node, node, others_only=True),),
            (),
            between,
            after=(0,),
        ),
        Step(Kind.SCATTER, "NODE", node, incoming, roots, after=(2,)),
    )


def alltoall_by_rails(collective: Collective, layout: Layout, between: str, chunks: int) -> tuple[Step, ...]:
    """All-to-all: in the node to the rank on the target's rail, then on every rail.  Uniform layouts."""
    node, rails = layout.groups("NODE"), layout.groups("RAIL")
    inside = tuple(Pairs(collective, [(rank,) for rank in members], rails) for members in node)
    on_rail = tuple(
        Pairs(collective, node, [(rank,) for rank in members], others_only=True) for members in rails
    )
    return (
        Step(Kind.ALLTOALL, "NODE", node, inside),
        Step(Kind.ALLTOALL, "RAIL", rails, on_rail, (), between, after=(0,)),
    )
