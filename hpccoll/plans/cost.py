"""Price of a plan: alpha-beta for each level, and the bytes that truly cross it.

A step costs its chain of messages times the latency of the slowest link it uses, plus its bytes over the
bandwidth of what carries them: between nodes all ranks of a node share the node's network bandwidth,
inside a node they share its memory bandwidth; plus what the busiest rank combines.  Native steps of ranks
with GPUs are NCCL's (nccl_model.py).  Steps of different chunks overlap where they use different levels: the
plan's time is that of the schedule in which every level does its steps in order.
Formulas: R. Thakur et al. (2005), P. Patarasuk and X. Yuan (2009), see the algorithms' modules.

Selection prices hundreds of steps in which few differ in more than their place in the index space (equal
chunks, the same stage of another plan), and whose groups mostly lie alike (rails).  So steps are priced by
`Shape` and messages counted by the nodes of a group's members; both are remembered.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from functools import lru_cache
from math import ceil, log2

from hpccoll.plans.algorithm import Edge, Rounds, arriving_of, traffic_of
from hpccoll.plans.flat import ONE_SHOT, one_by_one, payload_elements
from hpccoll.plans.links import Links
from hpccoll.plans.loads import Load, Shape, Sizes
from hpccoll.plans.lower import ALGORITHMS
from hpccoll.plans.nccl_model import nccl_load
from hpccoll.plans.pairs import Crossing, Pairs
from hpccoll.plans.spans import Region, length, split_evenly
from hpccoll.plans.steps import NATIVE, Kind, Plan, Step
from hpccoll.topology.layout import Layout

LEVELS = ("NODE", "network")


@dataclass(frozen=True)
class StepCost:
    """One step's time and bytes: the most that leaves a node, and the most that moves inside one."""

    time_s: float
    bytes_between_nodes: int
    bytes_inside_node: int
    level: str  # "NODE" or "network": what it keeps busy


@dataclass(frozen=True)
class Cost:
    """A plan's time, the busy time of each level, and bytes: the most that any node sends or moves.

    `start_s`: when each step starts in the schedule that `time_s` is the length of.
    """

    time_s: float
    busy_s: dict[str, float]
    bytes_between_nodes: int
    bytes_inside_node: int
    steps: tuple[StepCost, ...]
    start_s: tuple[float, ...]


def price(plan: Plan, itemsize: int, links: Links | None = None) -> Cost:
    """The cost of a plan whose elements have `itemsize` bytes."""
    links = links or Links()
    loads = [load_of(plan, step, itemsize, links) for step in plan.steps]
    begin = 0.0 if carries_payload(plan) else agreement_s(plan, links)
    free = dict.fromkeys(LEVELS, begin)
    busy = dict.fromkeys(LEVELS, 0.0)
    starts: list[float] = []
    finish: list[float] = []
    for step, load in zip(plan.steps, loads, strict=True):
        level = load.level
        starts.append(max([free[level], *(finish[index] for index in step.after)]))
        finish.append(starts[-1] + load.time_s)
        free[level] = finish[-1]
        busy[level] += load.time_s
    return Cost(
        max(finish, default=begin),
        busy,
        _most([load.sent for load in loads]),
        _most([load.inside for load in loads]),
        tuple(StepCost(load.time_s, max(load.sent), max(load.inside), load.level) for load in loads),
        tuple(starts),
    )


def agreement_s(plan: Plan, links: Links) -> float:
    """The check that all ranks call the same: arrivals in the node, then the leaders, then the verdict."""
    nodes = plan.layout.node_count
    if links.fabric is not None:
        return 0.0  # a kind of call on devices is agreed once
    if nodes == 1:
        return links.node_latency_us * 1e-6
    return (2 * links.node_latency_us + ceil(log2(nodes)) * links.network_latency_us) * 1e-6


def edges(plan: Plan, step: Step) -> Iterator[Edge]:
    """Messages of a lowered step between world ranks, in elements."""
    shape = shape_of(step)
    for group, members in enumerate(step.groups):
        found = _edges(shape.algorithm, shape.kind, len(members), shape.lengths[group], shape.root(group))
        for source, target, elements in found:
            yield Edge(members[source], members[target], elements)


def _edges(algorithm: str, kind: Kind, count: int, lengths: tuple[int, ...], root: int) -> Iterator[Edge]:
    return ALGORITHMS[algorithm].edges(kind, of_members(kind, count, lengths), root)


def of_members(kind: Kind, count: int, lengths: tuple[int, ...]) -> Sequence[int]:
    """Elements of each member's part, as algorithms want to know them."""
    return lengths if kind.by_member or kind is Kind.ALLTOALL else split_evenly(lengths[0], count)


def shape_of(step: Step) -> Shape:
    """A step without its place in the index space."""
    # Groups often share one object for their regions: a node of a thousand is then measured once.
    known: dict[int, tuple[int, ...]] = {}
    for regions in step.regions:
        if id(regions) not in known:
            known[id(regions)] = _lengths(step.kind, regions)
    lengths = tuple(known[id(regions)] for regions in step.regions)
    return Shape(step.kind, step.family, step.groups, step.roots, step.algorithm, lengths)


def _lengths(kind: Kind, regions: Sequence[Region]) -> tuple[int, ...]:
    if isinstance(regions, Pairs):
        return regions.gives + regions.takes
    if isinstance(regions, Crossing):
        return regions.lengths
    return tuple(length(one) for one in (regions[:1] if kind.scans else regions))


def _most(of_steps: list[tuple[int, ...]]) -> int:
    """The largest sum of any node over all steps."""
    alike = Counter(of_steps)
    sums = (
        sum(times * value for times, value in zip(alike.values(), values, strict=True))
        for values in zip(*alike, strict=True)
    )
    return max(sums, default=0)


def carries_payload(plan: Plan) -> bool:
    """What one step of a plan takes."""
    return any(step.algorithm == ONE_SHOT for step in plan.steps)


def load_of(plan: Plan, step: Step, itemsize: int, links: Links) -> Load:
    """What one step of a plan takes."""
    if step.algorithm == ONE_SHOT:
        return _one_shot(plan, itemsize, links)
    sizes = Sizes(itemsize, plan.wire_itemsize(itemsize), plan.segment)
    return _load(plan.layout, shape_of(step), sizes, links)


@lru_cache(maxsize=128)
def _load(layout: Layout, shape: Shape, sizes: Sizes, links: Links) -> Load:
    if shape.algorithm != NATIVE:
        return messages(layout, shape, sizes, links)
    if links.fabric is not None:
        return nccl_load(layout, shape, sizes.itemsize, links.fabric)
    if shape.family == "NODE" or layout.node_count == 1:
        return shared_memory(layout, shape, sizes.itemsize, links)
    return _native_between(layout, shape, sizes, links)


def messages(layout: Layout, shape: Shape, sizes: Sizes, links: Links) -> Load:
    """A step by the messages of an algorithm, all groups at the same time."""
    sent = [0] * layout.node_count
    inside = [0] * layout.node_count
    node_of = layout.node_of
    alike = Counter(
        (shape.lengths[group], shape.root(group), tuple(node_of[member] for member in members))
        for group, members in enumerate(shape.groups)
    )
    moving = 0.0
    phases = [traffics(shape.algorithm, shape.kind, *each) for each in alike]
    for number in range(max(map(len, phases))):
        of_phase = [[0] * layout.node_count for _ in range(3)]
        for each, times in zip(phases, alike.values(), strict=True):
            for node, counts in each[number].items() if number < len(each) else ():
                for total, elements in zip(of_phase, counts, strict=True):
                    total[node] += times * elements
        between, within, arriving = of_phase
        network_s = max(*arriving, *between) * sizes.between / (links.network_gbs * 1e9)
        moving += max(network_s, max(within) * sizes.itemsize / (links.message_gbs * 1e9))
        for node in range(layout.node_count):
            sent[node] += between[node] * sizes.between
            inside[node] += within[node] * sizes.itemsize
    combines = max(_combines(shape.algorithm, shape.kind, lengths, len(nodes)) for lengths, _, nodes in alike)
    fixed_s = max(_chain_s(shape, *each, moving, sizes, links) for each in alike)
    combining_s = combines * sizes.itemsize / (links.combine_gbs * 1e9)
    acting_s = max(together_s(shape, *each, moving, combining_s, sizes) for each in alike)
    return Load(fixed_s + acting_s, tuple(sent), tuple(inside))


def _chain_s(
    shape: Shape,
    lengths: tuple[int, ...],
    root: int,
    nodes: tuple[int, ...],
    moving_s: float,
    sizes: Sizes,
    links: Links,
) -> float:
    """The longest chain of messages: their latency, and of those that wait for a segment, its way.

    The last segment's way is in `moving_s`, what the busiest link takes for all its bytes.
    """
    messages, fills, apart = _rounds(shape.algorithm, shape.kind, len(nodes))
    between = _between(shape.algorithm, shape.kind, lengths, root, nodes)
    how = ALGORITHMS[shape.algorithm]
    longest = min(sizes.segment, sum(lengths))
    inside_s, network_s = links.message_latency_us * 1e-6, links.network_latency_us * 1e-6
    if how.around:
        block = max(of_members(shape.kind, len(nodes), lengths), default=0) * sizes.itemsize
        return _around_s(messages, between, network_s, inside_s, block / (links.message_gbs * 1e9), moving_s)
    combined = longest * sizes.itemsize / (links.combine_gbs * 1e9) if shape.kind.reduces else 0.0
    if shape.kind is Kind.ALLREDUCE:
        combined /= 2  # on the way up, not on the way down
    found = 0.0
    for part, latency_s, itemsize, rate in (
        (1 - between, inside_s, sizes.itemsize, links.message_gbs),
        (between, network_s, sizes.between, links.network_gbs),
    ):
        way_s = longest * itemsize / (rate * 1e9) + combined
        found += part * (messages * latency_s + fills * way_s)
    found += max(0.0, apart * (between * network_s + (1 - between) * inside_s) / 4 - moving_s)
    if following := how.follows(shape.kind):
        name, kind = following
        passing = shape._replace(algorithm=name, kind=kind)
        each = tuple(of_members(shape.kind, len(nodes), lengths))
        found += _chain_s(passing, each, root, nodes, moving_s / 2, sizes, links)
    return found


def _around_s(
    rounds: int, between: float, network_s: float, inside_s: float, block_s: float, moving_s: float
) -> float:
    """What a ring takes beyond `moving_s`; `between` of its hops are between nodes.

    Where hops inside nodes are the shorter ones, blocks wait before those between, which then do not wait
    for latencies: at the end there is one, and the way inside the last node.  Where they are not, a round
    takes the mean hop.  `network_s`, `inside_s`: latencies; `block_s`: a block's way inside a node.
    """
    if not between:
        return rounds * inside_s
    hop_s = inside_s + block_s
    last_s = network_s + (1 / between - 1) * hop_s
    return max(last_s, rounds * (between * network_s + (1 - between) * hop_s) - (1 - between) * moving_s)


@lru_cache(maxsize=128)
def _between(
    algorithm: str, kind: Kind, lengths: tuple[int, ...], root: int, nodes: tuple[int, ...]
) -> float:
    """Of the longest chain of messages, the part that goes between nodes."""
    how = ALGORITHMS[algorithm]
    phases = traffics(algorithm, kind, lengths, root, nodes)
    cross = [any(between for between, _, _ in phase.values()) for phase in phases]
    if not how.along or not any(cross):
        return sum(cross) / len(cross)
    edges = list(_edges(algorithm, kind, len(nodes), lengths, root))
    return sum(nodes[source] != nodes[target] for source, target, _ in edges) / max(1, len(edges))


def together_s(
    shape: Shape,
    lengths: tuple[int, ...],
    root: int,
    nodes: tuple[int, ...],
    moving_s: float,
    combining_s: float,
    sizes: Sizes,
) -> float:
    """Moving and combining, in segments: one is combined while the next is on its way.

    Two stages of k segments take the longer one, and 1/k of the other.  Where a chain of segments fills
    first, that is in its fills already.  A ring is held up by its hops between nodes, if it has any: at the
    others there is time to combine.
    """
    how = ALGORITHMS[shape.algorithm]
    longer, shorter = max(moving_s, combining_s), min(moving_s, combining_s)
    if _rounds(shape.algorithm, shape.kind, len(nodes)).fills:
        return longer
    each = of_members(shape.kind, len(nodes), lengths)
    message = sum(each) if how.whole else max(each, default=0)
    part = min(1.0, sizes.segment / message if message else 1.0)
    if how.along:
        part *= _between(shape.algorithm, shape.kind, lengths, root, nodes) or 1.0
    return longer + shorter * part


# Of a phase, by node: elements sent to other nodes, moved inside, and come from other nodes.
Phase = dict[int, tuple[int, int, int]]


@lru_cache(maxsize=128)
def traffics(
    algorithm: str, kind: Kind, lengths: tuple[int, ...], root: int, nodes: tuple[int, ...]
) -> tuple[Phase, ...]:
    """The phases of a step for a group whose members are on `nodes`, one after the other."""
    how, of_each = ALGORITHMS[algorithm], of_members(kind, len(nodes), lengths)
    apart = [
        (traffic_of(edges, nodes), arriving_of(edges, nodes)) for edges in how.phases(kind, of_each, root)
    ]
    every = apart or [(how.traffic(kind, of_each, root, nodes), how.arriving(kind, of_each, root, nodes))]
    return tuple({node: (*sends[node], comes[node]) for node in sends} for sends, comes in every)


@lru_cache(maxsize=128)
def _combines(algorithm: str, kind: Kind, lengths: tuple[int, ...], count: int) -> int:
    """Elements that a member of a group of `count` combines, the one that has most to do."""
    return ALGORITHMS[algorithm].combines(kind, of_members(kind, count, lengths)) if kind.reduces else 0


@lru_cache(maxsize=128)
def _rounds(algorithm: str, kind: Kind, count: int) -> Rounds:
    return ALGORITHMS[algorithm].rounds(kind, count)


# Passes over all elements of the group's call: for each member, once, and over one member's part.  The root
# of a reduction copies out; in an all-gather a member's own part is in place, as it is after another step.
# What a core has just combined is in its cache.
_PASSES = {
    Kind.ALLREDUCE: (5, -2, 0),
    Kind.REDUCE: (3, 1, -2),
    Kind.REDUCE_SCATTER: (3, -1, 0),
    Kind.BROADCAST: (2, 0, 0),
    Kind.ALLGATHER: (2, 0, 0),
    Kind.GATHER: (0, 4, -2),
    Kind.SCATTER: (0, 4, -2),
    Kind.ALLTOALL: (0, 4, -2),
    Kind.SCAN: (7, 0, 0),
    Kind.EXSCAN: (7, 0, 0),
    Kind.PREPEND: (3, 0, 0),
}
# Of these, the passes over arrays of the callers, for each member and once; the others are over our segments.
_OUTSIDE = {
    Kind.ALLREDUCE: (2, 0),
    Kind.REDUCE: (1, 1),
    Kind.REDUCE_SCATTER: (1, 1),
    Kind.BROADCAST: (1, 0),
    Kind.ALLGATHER: (1, 0),
    Kind.GATHER: (0, 2),
    Kind.SCATTER: (0, 2),
    Kind.ALLTOALL: (0, 2),
    Kind.SCAN: (2, 0),
    Kind.EXSCAN: (2, 0),
    Kind.PREPEND: (3, 0),
}


def shared_memory(layout: Layout, shape: Shape, itemsize: int, links: Links) -> Load:
    """Copy in what others combine or keep, combine, copy out."""
    inside = [0] * layout.node_count
    slowest = 0.0
    for group, members in enumerate(shape.groups):
        hand_overs_s, outside, staged = of_memory(shape, group, itemsize, links)
        moving_s = outside / (links.memory_gbs * 1e9) + staged / (links.staged_gbs * 1e9)
        slowest = max(slowest, hand_overs_s + moving_s)
        inside[layout.node_of[members[0]]] += round(outside + staged)
    return Load(slowest, (0,) * layout.node_count, tuple(inside))


def of_memory(shape: Shape, group: int, itemsize: int, links: Links) -> tuple[float, float, float]:
    """Of one group in shared memory: seconds of hand-overs, bytes of callers' arrays, bytes of segments."""
    count, nbytes = len(shape.groups[group]), shape.total(group) * itemsize
    alone = shape.kind is Kind.PREPEND  # nothing is handed over
    if count == 1 and not alone:
        return 0.0, 0.0, 0.0
    per_member, once, part = _PASSES[shape.kind]
    passes = per_member * count + once + part / count
    of_each, of_all = _OUTSIDE[shape.kind]
    outside = min(passes, of_each * count + of_all)
    blocks = 0 if alone else max(1, ceil(nbytes / links.block_bytes))
    return blocks * links.node_latency_us * 1e-6, outside * nbytes, (passes - outside) * nbytes


def _native_between(layout: Layout, shape: Shape, sizes: Sizes, links: Links) -> Load:
    """The transport's own call over several nodes: the best of the algorithms we know, less efficient."""
    links = replace(links, network_gbs=links.network_gbs * links.mpi_efficiency)
    return min(alternatives(layout, shape, sizes, links).values(), key=lambda load: load.time_s)


def alternatives(layout: Layout, shape: Shape, sizes: Sizes, links: Links) -> dict[str, Load]:
    """By algorithm, all that can do a step."""
    return {
        name: messages(layout, shape._replace(algorithm=name), sizes, links)
        for name, algorithm in ALGORITHMS.items()
        if shape.kind in algorithm.kinds
    }


# Every rank reads all payloads; else those of all ranks are read once, or one rank's by all.
_READ_BY_ALL = ("allreduce", "allgather", "scan", "exscan")


def _one_shot(plan: Plan, itemsize: int, links: Links) -> Load:
    """Every rank's payload in the node's slots; the leaders pass node payloads on, doubling each round."""
    layout, collective = plan.layout, plan.collective
    payload = payload_elements(collective) * itemsize
    per_node = payload * (max(layout.counts) if one_by_one(collective, layout, plan.order) else 1)
    between = per_node * (layout.node_count - 1)
    time_s = agreement_s(plan, links) + between / (links.network_gbs * 1e9)
    ranks = max(layout.counts)
    inside = payload * ranks * (ranks if collective.name in _READ_BY_ALL else 1)
    # In short pieces: half of the bandwidth of long copies.
    time_s += 2 * inside / (links.memory_gbs * 1e9)
    return Load(time_s, (between,), (inside,))
