"""Price of NCCL's own calls: the cheapest of its algorithms and protocols, as NCCL's tuner reckons.

A call costs a start, its hops, and its bytes over the slower of what a GPU sends inside the node and what
leaves the node, which a ring or tree does at the same time:

    algorithm   hops                               bytes of a GPU   bytes that leave a node
    ring        2 (n-1), of them 2 (N-1) between   2 (n-1)/n S      2 (n-1)/n S
    tree        2 (P-1) inside, 2 lg N between     2 S              2 S (N = 2: S)
    NVLS        in the switch                      S (n+1)/n        -
    NVLS tree   the same, 2 lg N between           S (P+1)/P        2 S (N = 2: S)

for an all-reduce of S bytes by n GPUs on N nodes of P; a ring has half of both for an all-gather or a
reduce-scatter, and S bytes for a broadcast or a reduction.  Protocols and their parts of the bandwidth are
facts of NCCL (2.20, src/graph/tuning.cc; PAT: 2.23), the same at every size; the corrections by size that its
tuner makes for trees are left out.  The part of the network that the NVLS tree gets is fitted.
Sources: bytes of trees NVIDIA/nccl#457, of NVLS nccl-tests#212; PAT: arXiv 2506.20252.
"""

from __future__ import annotations

from collections import Counter
from functools import lru_cache
from math import ceil, log2
from typing import NamedTuple

from hpccoll.plans.direct import Direct
from hpccoll.plans.links import Fabric, LinkClass
from hpccoll.plans.loads import Load, Shape
from hpccoll.plans.steps import Kind
from hpccoll.topology.layout import Layout


class Protocol(NamedTuple):
    """How NCCL hands elements over: its start, and what a hop takes longer than with LL (inside, between).

    `ring` and `tree`: the part of the bandwidth that carries elements.
    """

    start_us: float
    inside_us: float
    between_us: float
    ring: float
    tree: float


LL = Protocol(6.6, 0.0, 0.0, 1 / 4, 0.92 / 3.8)
LL128 = Protocol(14.0, 1.3, 1.3, 0.92, 0.92 * 120 / 128)
SIMPLE = Protocol(8.4, 2.8, 11.3, 1.0, 0.92)
PROTOCOLS = {"LL": LL, "LL128": LL128, "Simple": SIMPLE}
PAT_PART = 0.75
# Fitted to the one figure of it that there is (docs/cost-model.md): 4 GiB between 4 nodes of H200.
NVLS_TREE_PART = 0.83


class Spread(NamedTuple):
    """Where the members of a group are: how many, on how many nodes, at most so many on one."""

    members: int
    nodes: int
    most: int


class Way(NamedTuple):
    """One algorithm and protocol: its latency, and bytes on the wire.

    `inside`: of each GPU to others of its node; `between`: of each node with members; `switched`: of each GPU
    to and from the switch.  `part`: of the bandwidth that carries elements.
    """

    latency_us: float
    inside: float = 0.0
    between: float = 0.0
    switched: float = 0.0
    part: float = 1.0

    def time_s(self, fabric: Fabric, leaving_rate: float) -> float:
        """`leaving_rate`: bytes a second that leave a node for this group."""
        switch = fabric.switch.rate if fabric.switch else 1.0
        on_links = max(self.inside / fabric.inside.rate, self.between / leaving_rate) / self.part
        return self.latency_us * 1e-6 + max(on_links, self.switched / switch)


# By node, ascending: how many members a group has there.
Counts = tuple[tuple[int, int], ...]
EXCHANGES = (Kind.GATHER, Kind.SCATTER, Kind.ALLTOALL)


def nccl_load(layout: Layout, shape: Shape, itemsize: int, fabric: Fabric) -> Load:
    """A native step whose groups are NCCL communicators, all at the same time."""
    if shape.kind in EXCHANGES:
        return _exchange(layout, shape, itemsize, fabric)
    sent = [0.0] * layout.node_count
    inside = [0.0] * layout.node_count
    slowest = 0.0
    alike: Counter[tuple[int, Counts]] = Counter()
    leaving: Counter[int] = Counter()  # groups that leave a node, which share its cards
    for group, members in enumerate(shape.groups):
        counts = _counts(layout, members)
        if len(members) > 1:
            alike[shape.total(group), counts] += 1
        if len(counts) > 1:
            leaving.update(node for node, _ in counts)
    together = max(leaving.values(), default=1)
    for (elements, counts), times in alike.items():
        spread = Spread(sum(count for _, count in counts), len(counts), max(count for _, count in counts))
        rate = min(fabric.group_rate(spread.most), fabric.node_rate / together)
        way = best_way(shape.kind, spread, elements * itemsize, fabric, rate)
        slowest = max(slowest, way.time_s(fabric, rate))
        for node, count in counts:
            sent[node] += times * way.between
            inside[node] += times * count * (way.inside + way.switched)
    return Load(slowest, tuple(map(round, sent)), tuple(map(round, inside)))


def _counts(layout: Layout, members: tuple[int, ...]) -> Counts:
    node_of = layout.node_of
    return tuple(sorted(Counter(node_of[member] for member in members).items()))


def _exchange(layout: Layout, shape: Shape, itemsize: int, fabric: Fabric) -> Load:
    """Grouped sends and receives; in a gather or scatter all of them are the root's."""
    sent = [0] * layout.node_count
    inside = [0] * layout.node_count
    slowest = 0.0
    for group, members in enumerate(shape.groups):
        nodes = tuple(layout.node_of[member] for member in members)
        root = shape.root(group)
        traffic = Direct().traffic(shape.kind, shape.lengths[group], root, nodes)
        for node, (between, within) in traffic.items():
            sent[node] += between * itemsize
            inside[node] += within * itemsize
        if shape.kind is Kind.ALLTOALL:
            on_node = Counter(nodes)
            within_s = max(traffic[node][1] / on_node[node] for node in traffic) / fabric.inside.rate
            between_s = max(traffic[node][0] / fabric.group_rate(on_node[node]) for node in traffic)
        else:
            within_s = traffic[nodes[root]][1] / fabric.inside.rate
            between_s = sum(between for between, _ in traffic.values()) / fabric.group_rate(1)
        slowest = max(slowest, within_s * itemsize, between_s * itemsize)
    crosses = any(sent)
    latency_us = SIMPLE.start_us + _hops_us(0 if crosses else 1, 1 if crosses else 0, fabric, SIMPLE)
    shared_s = max(sent) / fabric.node_rate
    return Load(latency_us * 1e-6 + max(slowest, shared_s), tuple(sent), tuple(inside))


@lru_cache(maxsize=256)
def best_way(kind: Kind, spread: Spread, nbytes: int, fabric: Fabric, leaving_rate: float) -> Way:
    """The cheapest way to do a call on `nbytes` of a group."""
    return min(ways(kind, spread, nbytes, fabric).values(), key=lambda way: way.time_s(fabric, leaving_rate))


def taken_way(layout: Layout, shape: Shape, itemsize: int, fabric: Fabric, together: int) -> tuple[str, Way]:
    """The way that one group takes, by name, where as many groups as `together` leave each node."""
    counts = layout.counts
    spread = Spread(layout.size, len(counts), max(counts))
    rate = min(fabric.group_rate(spread.most), fabric.node_rate / together)
    nbytes = shape.total(0) * itemsize
    way = best_way(shape.kind, spread, nbytes, fabric, rate)
    return next((name, one) for name, one in ways(shape.kind, spread, nbytes, fabric).items() if one == way)


def ways(kind: Kind, spread: Spread, nbytes: int, fabric: Fabric) -> dict[str, Way]:
    """All that NCCL may choose from for a call of a group of at least two, by name."""
    found = {}
    for name, protocol in PROTOCOLS.items():
        found[f"ring, {name}"] = _ring(kind, spread, nbytes, fabric, protocol)
        if kind is Kind.ALLREDUCE:
            found[f"tree, {name}"] = _tree(spread, nbytes, fabric, protocol)
    if kind is Kind.ALLREDUCE and fabric.switch is not None and spread.most > 1:
        name = "NVLS" if spread.nodes == 1 else "NVLS tree"
        found[name] = _in_switch(spread, nbytes, fabric, fabric.switch)
    if fabric.pat and kind in (Kind.ALLGATHER, Kind.REDUCE_SCATTER) and spread.most == 1:
        found["PAT"] = _pat(spread, nbytes, fabric)
    return found


def _hops_us(inside: int, between: int, fabric: Fabric, protocol: Protocol) -> float:
    return inside * (fabric.inside.latency_us + protocol.inside_us) + between * _network_hop_us(
        fabric, protocol
    )


def _network_hop_us(fabric: Fabric, protocol: Protocol) -> float:
    return fabric.network.latency_us + protocol.between_us


def _ring(kind: Kind, spread: Spread, nbytes: int, fabric: Fabric, protocol: Protocol) -> Way:
    phases = 2 if kind is Kind.ALLREDUCE else 1
    all_hops, between = phases * (spread.members - 1), phases * (spread.nodes - 1)
    # A rooted call passes everything on; else a GPU keeps its share.
    share = 1.0 if kind in (Kind.BROADCAST, Kind.REDUCE) else phases * (spread.members - 1) / spread.members
    return Way(
        protocol.start_us + _hops_us(all_hops - between, between, fabric, protocol),
        share * nbytes if spread.most > 1 else 0.0,
        share * nbytes if spread.nodes > 1 else 0.0,
        part=protocol.ring,
    )


def _tree(spread: Spread, nbytes: int, fabric: Fabric, protocol: Protocol) -> Way:
    return Way(
        protocol.start_us + _hops_us(2 * (spread.most - 1), 2 * ceil(log2(spread.nodes)), fabric, protocol),
        2.0 * nbytes if spread.most > 1 else 0.0,
        _tree_bytes(spread, nbytes),
        part=protocol.tree,
    )


def _tree_bytes(spread: Spread, nbytes: int) -> float:
    """Over two trees; of two nodes each is the root of one and sends half in it, half in the other."""
    return float(min(spread.nodes - 1, 2) * nbytes)


def _in_switch(spread: Spread, nbytes: int, fabric: Fabric, switch: LinkClass) -> Way:
    """NVLS on one node, NVLS tree on several."""
    hops = 2 * ceil(log2(spread.nodes))
    return Way(
        switch.latency_us + hops * _network_hop_us(fabric, SIMPLE),
        between=_tree_bytes(spread, nbytes),
        switched=nbytes * (spread.most + 1) / spread.most,
        part=NVLS_TREE_PART,
    )


def _pat(spread: Spread, nbytes: int, fabric: Fabric) -> Way:
    """The logarithmic algorithm of groups with one GPU on each node."""
    latency_us = 8 + log2(spread.nodes) * _network_hop_us(fabric, SIMPLE) / 3.5 + 2.8 * spread.members
    return Way(latency_us, between=nbytes * (spread.members - 1) / spread.members, part=PAT_PART)
