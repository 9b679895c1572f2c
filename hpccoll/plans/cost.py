"""Price of a plan: alpha-beta for each level, and the bytes that truly cross it.

A step costs its chain of messages times the latency of the slowest link it uses, plus its bytes over the
bandwidth of what carries them: between nodes all ranks of a node share the node's network bandwidth,
inside a node they share its memory bandwidth.  Steps of different chunks overlap where they use
different levels: the plan's time is that of the schedule in which every level does its steps in order.
Formulas: R. Thakur et al. (2005), P. Patarasuk and X. Yuan (2009), see the algorithms' modules.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace
from math import ceil, log2

from hpccoll.plans.algorithm import Edge
from hpccoll.plans.flat import ONE_SHOT
from hpccoll.plans.lower import ALGORITHMS
from hpccoll.plans.spans import length, split_evenly
from hpccoll.plans.steps import NATIVE, Kind, Plan, Step


@dataclass(frozen=True)
class Links:
    """What the two levels give.  The defaults are those of a plain host: they order plans, no more.

    `*_latency_us`: one message or hand-over; `*_gbs`: 1e9 bytes a second and node.  `memory_gbs` is what all
    ranks of a node together copy; `message_gbs` what MPI moves between two ranks of a node; `block_bytes`
    the piece in which shared memory hands elements over; `mpi_efficiency` the part of the network's
    bandwidth that MPI's own collectives reach, which do not pipeline the levels.
    """

    node_latency_us: float = 6.0
    memory_gbs: float = 25.0
    message_latency_us: float = 4.0
    message_gbs: float = 3.0
    network_latency_us: float = 25.0
    network_gbs: float = 1.2
    block_bytes: int = 256 * 1024
    mpi_efficiency: float = 0.6


@dataclass(frozen=True)
class StepCost:
    """One step's time and bytes: the most that leaves a node, and the most that moves inside one."""

    time_s: float
    bytes_between_nodes: int
    bytes_inside_node: int
    level: str  # "NODE" or "network": what it keeps busy


@dataclass(frozen=True)
class Cost:
    """A plan's time, the busy time of each level, and bytes: the most that any node sends or moves."""

    time_s: float
    busy_s: dict[str, float]
    bytes_between_nodes: int
    bytes_inside_node: int
    steps: tuple[StepCost, ...]


def price(plan: Plan, itemsize: int, links: Links | None = None) -> Cost:
    """The cost of a plan whose elements have `itemsize` bytes."""
    links = links or Links()
    costs = [_step(plan, step, itemsize, links) for step in plan.steps]
    begin = 0.0 if _carries_payload(plan) else agreement_s(plan, links)
    free = {"NODE": begin, "network": begin}
    busy = {"NODE": 0.0, "network": 0.0}
    finish: list[float] = []
    for step, cost in zip(plan.steps, costs, strict=True):
        start = max([free[cost.level], *(finish[index] for index in step.after)])
        finish.append(start + cost.time_s)
        free[cost.level] = finish[-1]
        busy[cost.level] += cost.time_s
    return Cost(
        max(finish, default=begin),
        busy,
        sum(cost.bytes_between_nodes for cost in costs),
        sum(cost.bytes_inside_node for cost in costs),
        tuple(costs),
    )


def agreement_s(plan: Plan, links: Links) -> float:
    """The check that all ranks call the same: arrivals in the node, then the leaders, then the verdict."""
    nodes = plan.layout.node_count
    if nodes == 1:
        return links.node_latency_us * 1e-6
    return (2 * links.node_latency_us + ceil(log2(nodes)) * links.network_latency_us) * 1e-6


def _carries_payload(plan: Plan) -> bool:
    return any(step.algorithm == ONE_SHOT for step in plan.steps)


def edges(plan: Plan, step: Step) -> Iterator[Edge]:
    """Messages of a lowered step between world ranks, in elements."""
    algorithm = ALGORITHMS[step.algorithm]
    for group, members in enumerate(step.groups):
        root = step.roots[group] if step.roots else 0
        regions = step.regions[group]
        if step.kind.by_member:
            lengths = [length(one) for one in regions]
        else:
            lengths = split_evenly(length(regions[0]), len(members))
        for edge in algorithm.edges(step.kind, lengths, root):
            yield Edge(members[edge.source], members[edge.target], edge.elements)


def _step(plan: Plan, step: Step, itemsize: int, links: Links) -> StepCost:
    if step.algorithm == ONE_SHOT:
        return _one_shot(plan, itemsize, links)
    if step.algorithm == NATIVE:
        if step.family == "NODE" or plan.layout.node_count == 1:
            return _shared_memory(step, itemsize, links)
        return _native_between(plan, step, itemsize, links)
    return _messages(plan, step, itemsize, links)


def _messages(plan: Plan, step: Step, itemsize: int, links: Links) -> StepCost:
    layout = plan.layout
    sent = [0] * layout.node_count
    inside = [0] * layout.node_count
    for source, target, elements in edges(plan, step):
        node = layout.node(source)
        (inside if layout.node(target) == node else sent)[node] += elements * itemsize
    longest = max(len(members) for members in step.groups)
    rounds = ALGORITHMS[step.algorithm].rounds(step.kind, longest)
    crosses = any(sent)
    latency_us = links.network_latency_us if crosses else links.message_latency_us
    bandwidth = links.network_gbs if crosses else links.message_gbs
    largest = max((step.elements(group) for group in range(len(step.groups))), default=0)
    fill = rounds.fills * min(plan.segment, largest) * itemsize / (bandwidth * 1e9)
    moving = max(max(sent) / (links.network_gbs * 1e9), max(inside) / (links.message_gbs * 1e9))
    time_s = rounds.messages * latency_us * 1e-6 + fill + moving
    return StepCost(time_s, max(sent), max(inside), "network" if crosses else "NODE")


def _shared_memory(step: Step, itemsize: int, links: Links) -> StepCost:
    """Bytes read and written per element of the region: copy in, combine, copy out by `count` ranks."""
    most = slowest = 0.0
    for group, members in enumerate(step.groups):
        count, bytes_ = len(members), step.elements(group) * itemsize
        if count == 1:
            continue
        passes = {
            Kind.ALLREDUCE: 5 * count + 1,
            Kind.REDUCE: 3 * count + 3,
            Kind.REDUCE_SCATTER: 3 * count + 1,
            Kind.BROADCAST: 2 * count,
            Kind.ALLGATHER: 2 * count + 2,
            Kind.GATHER: 4,
            Kind.SCATTER: 4,
        }[step.kind]
        blocks = max(1, ceil(bytes_ / links.block_bytes))
        time_s = blocks * links.node_latency_us * 1e-6 + passes * bytes_ / (links.memory_gbs * 1e9)
        slowest, most = max(slowest, time_s), max(most, passes * bytes_)
    return StepCost(slowest, 0, int(most), "NODE")


def _native_between(plan: Plan, step: Step, itemsize: int, links: Links) -> StepCost:
    """The transport's own call over several nodes: the best of the algorithms we know, less efficient."""
    links = replace(links, network_gbs=links.network_gbs * links.mpi_efficiency)
    alternatives = [
        _messages(plan, replace(step, algorithm=name), itemsize, links)
        for name, algorithm in ALGORITHMS.items()
        if step.kind in algorithm.kinds
    ]
    return min(alternatives, key=lambda cost: cost.time_s)


def _one_shot(plan: Plan, itemsize: int, links: Links) -> StepCost:
    """Every rank's payload in the node's slots; the leaders pass node payloads on, doubling each round."""
    layout, collective = plan.layout, plan.collective
    payload = collective.count * itemsize
    per_node = payload * (max(layout.counts) if collective.name == "allgather" else 1)
    between = per_node * (layout.node_count - 1)
    time_s = agreement_s(plan, links) + between / (links.network_gbs * 1e9)
    inside = payload * max(layout.counts) ** 2
    # Every rank reads every payload in short pieces: an eighth of the bandwidth of long copies.
    time_s += 8 * inside / (links.memory_gbs * 1e9)
    return StepCost(time_s, between, inside, "network" if between else "NODE")


