r"""What ranks share on a machine: cards, memory, switches above the nodes; and what is slow or late.

Each leaf switch joins `leaf` neighbouring nodes; above the leaves everything is one switch (a fat tree whose
upper levels are full).  A leaf's way up carries what leaves its nodes at full rate, over `oversubscription`:

              core switch
            /      |      \          each way up: nodes of a leaf x their cards / oversubscription
        leaf 0   leaf 1   leaf 2
        / | \    / | \    / | \      with `rails`: a leaf for every card, which joins that card of its nodes
       n0 n1 n2 n3 n4 n5 n6 n7 n8
"""

from __future__ import annotations

from dataclasses import dataclass, field

import numpy as np
from numpy.typing import NDArray

from hpccoll.errors import UsageError
from hpccoll.plans.links import Links
from hpccoll.topology.layout import Layout

Floats = NDArray[np.float64]
INSIDE, SWITCH, MEMORY, MESSAGES = "NVLink", "NVLink switch", "memory", "messages"
OUT, IN, UP, DOWN = "network out", "network in", "leaf up", "leaf down"


@dataclass(frozen=True)
class Contention:
    """What is not even.

    Attributes:
        leaf: nodes under one leaf switch; 0: one switch joins all.
        oversubscription: bandwidth of a leaf's nodes over that of its way up, 1 or more.
        rails: every card of a node has a leaf of its own.
        slow_nodes: by node, the part of the rate that its network cards reach.
        slow_ranks: by rank, the part of the others' speed at which it moves and combines elements.
        late_us: by rank, how much later it makes the call.

    """

    leaf: int = 0
    oversubscription: float = 1.0
    rails: bool = False
    slow_nodes: dict[int, float] = field(default_factory=dict)
    slow_ranks: dict[int, float] = field(default_factory=dict)
    late_us: dict[int, float] = field(default_factory=dict)

    def __post_init__(self) -> None:
        if self.leaf < 0:
            raise UsageError(f"--leaf {self.leaf}: a leaf switch joins at least one node")
        if not self.oversubscription >= 1:
            raise UsageError(f"--oversubscription {self.oversubscription:g}: must be at least 1")
        if self.oversubscription > 1 and not self.leaf:
            raise UsageError("--oversubscription is that of leaf switches: say --leaf N too")
        for flag, found in (("--slow-node", self.slow_nodes), ("--slow-rank", self.slow_ranks)):
            for index, part in found.items():
                if index < 0 or not 0 < part <= 1:
                    raise UsageError(f"{flag} {index}:{part:g}: a number, and a part of the rate in (0, 1]")
        for rank, late in self.late_us.items():
            if rank < 0 or not 0 <= late < float("inf"):
                raise UsageError(f"--late {rank}:{late:g}: a rank, and microseconds")

    def __bool__(self) -> bool:
        return bool(self.oversubscription > 1 or self.slow_nodes or self.slow_ranks or self.late_us)

    def words(self) -> str:
        """What it is, for titles; "" where all is even."""
        found = []
        if self.leaf and self.oversubscription > 1:
            kind = "rail leaves" if self.rails else "leaves"
            found.append(f"{kind} of {self.leaf} nodes, {self.oversubscription:g}:1")
        found += [f"node {node} at {part:g} of the network" for node, part in self.slow_nodes.items()]
        found += [f"rank {rank} at {part:g} of the speed" for rank, part in self.slow_ranks.items()]
        found += [f"rank {rank} {late:g} us late" for rank, late in self.late_us.items()]
        return ", ".join(found)


class Network:
    """The links of a machine as numbers: a capacity each, in bytes a second, and a class in words."""

    def __init__(self, layout: Layout, links: Links, contention: Contention) -> None:
        fabric = links.fabric
        nodes = layout.node_count
        self._contention = contention
        self.cards = fabric.cards if fabric else 1
        self.node_of = np.array(layout.node_of)
        local = np.array([layout.local_rank(rank) for rank in range(layout.size)])
        # The card near a GPU; hosts have one.
        self.card_of = local * self.cards // (fabric.gpus if fabric else 1) % self.cards
        card_rate = fabric.network.rate if fabric else links.network_gbs * 1e9
        self._begins: dict[str, int] = {}
        parts: list[Floats] = []
        of_cards = np.full((nodes, self.cards), card_rate)
        for node, part in contention.slow_nodes.items():
            if node < nodes:
                of_cards[node] *= part
        of_ranks = np.ones(layout.size)
        for rank, part in contention.slow_ranks.items():
            if rank < layout.size:
                of_ranks[rank] *= part
        leaf = contention.leaf or nodes
        self.leaf_of = np.arange(nodes) // leaf
        self.leaf_cards = self.cards if contention.rails else 1
        full = card_rate * self.cards / self.leaf_cards / contention.oversubscription
        ways = np.bincount(self.leaf_of)[:, None] * np.full(self.leaf_cards, full)
        for name, rates in (
            (OUT, of_cards), (IN, of_cards), (UP, ways), (DOWN, ways),
            (MEMORY, np.full(nodes, links.memory_gbs * 1e9)),
            (MESSAGES, np.full(nodes, links.message_gbs * 1e9)),
            (INSIDE, of_ranks * (fabric.inside.rate if fabric else 1)),
            (SWITCH, of_ranks * (fabric.switch.rate if fabric and fabric.switch else 1)),
        ):  # fmt: skip
            self._begins[name] = sum(map(len, parts))
            parts.append(rates.ravel())
        self.capacity = np.concatenate(parts)
        self.slow = of_ranks

    def first(self, name: str) -> int:
        """Number of the first link of a class."""
        return self._begins[name]

    def classes(self) -> list[tuple[str, slice]]:
        """Each class and its links."""
        ends = [*list(self._begins.values())[1:], len(self.capacity)]
        return [
            (name, slice(begin, end)) for (name, begin), end in zip(self._begins.items(), ends, strict=True)
        ]

    @property
    def has_leaves(self) -> bool:
        """Ways up that could be too narrow: with more than one leaf."""
        return bool(self.leaf_of[-1] > 0) and self._contention.oversubscription > 1
