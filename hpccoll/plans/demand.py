"""What one group's part of a step asks of the machine, link by link: the cost model before links are shared.

`cost` prices a step with all its groups at once, each node like the others and every link free of others.
`hpccoll.scaling` lets groups of all steps meet on links; what each asks for is here, from the same formulas
and constants, so that without contention both come to the same time.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from functools import lru_cache
from typing import NamedTuple

from hpccoll.plans import cost
from hpccoll.plans.algorithm import arriving_of, traffic_of
from hpccoll.plans.flat import ONE_SHOT
from hpccoll.plans.links import Fabric, Links
from hpccoll.plans.loads import Load, Shape, Sizes
from hpccoll.plans.lower import ALGORITHMS
from hpccoll.plans.nccl_model import EXCHANGES, Way, nccl_load, taken_way
from hpccoll.plans.steps import NATIVE, Kind, Plan, Step
from hpccoll.topology.layout import Layout

MEMORY, MESSAGES = "memory", "messages"


class Pattern(NamedTuple):
    """Who sends to whom: an algorithm's step, of members (or nodes) in the group's order."""

    algorithm: str
    kind: Kind
    lengths: tuple[int, ...]
    root: int
    by_node: bool  # the members are the group's nodes
    phase: int = 0


class Demand(NamedTuple):
    """Of one group.  Nodes are numbered as its members come to them.

    `fixed_s`: hops, and what is not on shared links; `combining_s`: of the busiest member, what is not done
    while bytes move.
    `sent`, `arriving`: bytes by node, over the network.  `inside`: bytes by node, over its memory or as
    messages (`by`).  `of_gpu`, `switched`: bytes of each member's own links.  `least_s`: that the moving
    takes at least, however free the links are.  `pattern`: of what goes between nodes.  `then`: what follows
    over other links, for algorithms that have phases.
    """

    fixed_s: float
    combining_s: float = 0.0
    sent: tuple[float, ...] = ()
    arriving: tuple[float, ...] = ()
    inside: tuple[float, ...] = ()
    by: str = MEMORY
    of_gpu: float = 0.0
    switched: float = 0.0
    least_s: float = 0.0
    pattern: Pattern | None = None
    then: tuple[Demand, ...] = ()

    @property
    def crosses(self) -> bool:
        """Bytes leave a node, in this phase or a later one."""
        return any(self.sent) or any(one.crosses for one in self.then)


def demands(plan: Plan, step: Step, itemsize: int, links: Links) -> Sequence[Demand]:
    """For each group of a step."""
    if step.algorithm == ONE_SHOT:
        return (Demand(cost.load_of(plan, step, itemsize, links).time_s),) * len(step.groups)
    sizes = Sizes(itemsize, plan.wire_itemsize(itemsize), plan.segment)
    return _of_groups(plan.layout, cost.shape_of(step), sizes, links)


@lru_cache(maxsize=32)
def _of_groups(layout: Layout, shape: Shape, sizes: Sizes, links: Links) -> tuple[Demand, ...]:
    together = _together(layout, shape)
    small: dict[tuple[int, ...], Layout] = {}  # groups that lie alike have one
    found = []
    for group, members in enumerate(shape.groups):
        nodes = tuple(layout.node_of[member] for member in members)
        key = nodes if len(set(nodes)) > 1 else (-1,) * len(nodes)
        if key not in small:
            small[key] = Layout.from_keys(key)
        alone = shape._replace(
            groups=(tuple(range(len(members))),),
            roots=(shape.roots[group],) if shape.roots else (),
            lengths=(shape.lengths[group],),
        )
        found.append(_demand(small[key], alone, sizes, links, together, layout.node_count))
    return tuple(found)


def _together(layout: Layout, shape: Shape) -> int:
    """Groups that leave the same node, at most."""
    leaving = [0] * layout.node_count
    for members in shape.groups:
        nodes = {layout.node_of[member] for member in members}
        for node in nodes if len(nodes) > 1 else ():
            leaving[node] += 1
    return max(1, *leaving)


@lru_cache(maxsize=512)
def _demand(
    layout: Layout, shape: Shape, sizes: Sizes, links: Links, together: int, node_count: int
) -> Demand:
    if shape.algorithm != NATIVE:
        return _by_messages(layout, shape, sizes, links)
    if links.fabric is not None:
        return _by_nccl(layout, shape, sizes.itemsize, links.fabric, together)
    if shape.family == "NODE" or node_count == 1:
        hand_overs_s, outside, staged = cost.of_memory(shape, 0, sizes.itemsize, links)
        # As bytes of callers' arrays, of which the memory's rate is.
        return Demand(hand_overs_s, inside=(outside + staged * links.memory_gbs / links.staged_gbs,))
    links = replace(links, network_gbs=links.network_gbs * links.mpi_efficiency)
    every = cost.alternatives(layout, shape, sizes, links)
    best = min(every, key=lambda name: every[name].time_s)
    found = _by_messages(layout, shape._replace(algorithm=best), sizes, links)
    return _more_between(found, 1 / links.mpi_efficiency)


def _more_between(one: Demand, factor: float) -> Demand:
    return one._replace(
        sent=tuple(nbytes * factor for nbytes in one.sent),
        arriving=tuple(nbytes * factor for nbytes in one.arriving),
        then=tuple(_more_between(later, factor) for later in one.then),
    )


def _by_messages(layout: Layout, shape: Shape, sizes: Sizes, links: Links) -> Demand:
    time_s = cost.messages(layout, shape, sizes, links).time_s
    (lengths,), root = shape.lengths, shape.root(0)
    of_members = cost.of_members(shape.kind, layout.size, lengths)
    algorithm = ALGORITHMS[shape.algorithm]
    combines = algorithm.combines(shape.kind, of_members) if shape.kind.reduces else 0
    combining_s = combines * sizes.itemsize / (links.combine_gbs * 1e9)
    found = []
    moving_s = 0.0
    for number, phase in enumerate(cost.traffics(shape.algorithm, shape.kind, lengths, root, layout.node_of)):
        sent, inside, arriving = (
            tuple(float(phase[node][at] * size) for node in range(layout.node_count))
            for at, size in enumerate((sizes.between, sizes.itemsize, sizes.between))
        )
        network_s = max(*arriving, *sent) / (links.network_gbs * 1e9)
        moving_s += max(network_s, max(inside) / (links.message_gbs * 1e9))
        pattern = Pattern(shape.algorithm, shape.kind, tuple(of_members), root, by_node=False, phase=number)
        found.append(Demand(0.0, 0.0, sent, arriving, inside, MESSAGES, pattern=pattern))
    first, *rest = found
    acting_s = cost.together_s(shape, lengths, root, layout.node_of, moving_s, combining_s, sizes)
    # What is combined meanwhile takes at least its time, the rest comes in addition.
    alone_s = max(moving_s, combining_s)
    each_s = combining_s / len(found)
    return first._replace(
        fixed_s=time_s - acting_s,
        combining_s=acting_s - alone_s,
        least_s=each_s,
        then=tuple(one._replace(least_s=each_s) for one in rest),
    )


def _by_nccl(layout: Layout, shape: Shape, itemsize: int, fabric: Fabric, together: int) -> Demand:
    if layout.size == 1:
        return Demand(0.0)
    load = nccl_load(layout, shape, itemsize, fabric)
    if shape.kind in EXCHANGES:
        return _exchange(layout, shape, itemsize, fabric, load)
    name, way = taken_way(layout, shape, itemsize, fabric, together)
    between = tuple(way.between / way.part for _ in range(layout.node_count))
    latency_s = way.latency_us * 1e-6
    alone_s = way.time_s(fabric, fabric.group_rate(max(layout.counts)))
    return Demand(
        latency_s,
        sent=between,
        arriving=between,
        of_gpu=way.inside / way.part,
        switched=way.switched,
        least_s=alone_s - latency_s,
        pattern=_between_nodes(name, shape, layout, way),
    )


# What NCCL's algorithms are between nodes.
_SHAPES = {"tree": "tree", "NVLS tree": "tree", "PAT": "recursive_doubling"}


def _between_nodes(name: str, shape: Shape, layout: Layout, way: Way) -> Pattern | None:
    if not way.between:
        return None
    algorithm = _SHAPES.get(name.split(",")[0], "ring")
    return Pattern(algorithm, Kind.ALLREDUCE, (1,) * layout.node_count, shape.root(0), by_node=True)


def _exchange(layout: Layout, shape: Shape, itemsize: int, fabric: Fabric, load: Load) -> Demand:
    (lengths,), root = shape.lengths, shape.root(0)
    algorithm = ALGORITHMS["direct"]
    arrive = algorithm.arriving(shape.kind, lengths, root, layout.node_of)
    arriving = tuple(float(arrive.get(node, 0) * itemsize) for node in range(layout.node_count))
    empty = shape._replace(lengths=((0,) * len(lengths),))
    latency_s = nccl_load(layout, empty, itemsize, fabric).time_s
    return Demand(
        latency_s,
        sent=tuple(map(float, load.sent)),
        arriving=arriving,
        least_s=load.time_s - latency_s,
        pattern=Pattern("direct", shape.kind, lengths, root, by_node=False),
    )


def crossing(pattern: Pattern, of_node: Sequence[float], places: Sequence[int], node_of: Sequence[int],
             *, into: bool) -> dict[int, float]:  # fmt: skip
    """Bytes that leave (or come to) each place above the nodes, such as the switch of a rack.

    `of_node`: bytes that each node sends (or gets); `places`: each node's; `node_of`: the members' nodes.
    """
    algorithm = ALGORITHMS[pattern.algorithm]
    ends = range(len(of_node)) if pattern.by_node else node_of
    call = (pattern.kind, pattern.lengths, pattern.root)
    phases = () if pattern.by_node else algorithm.phases(*call)

    def elements(where: Sequence[int]) -> dict[int, int]:
        if phases:
            edges = phases[pattern.phase]
            if into:
                return arriving_of(edges, where)
            return {place: between for place, (between, _) in traffic_of(edges, where).items()}
        if into:
            return algorithm.arriving(*call, where)
        return {place: between for place, (between, _) in algorithm.traffic(*call, where).items()}

    far = elements([places[node] for node in ends])
    near: dict[int, float] = {}
    for node, count in elements(list(ends)).items():
        near[places[node]] = near.get(places[node], 0.0) + count
    together: dict[int, float] = {}
    for node, nbytes in enumerate(of_node):
        together[places[node]] = together.get(places[node], 0.0) + nbytes
    return {place: together[place] * far[place] / near[place] for place in far if near.get(place)}
