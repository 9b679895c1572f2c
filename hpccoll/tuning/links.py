"""Latency and bandwidth by group: of MPI's messages between neighbours in a group, all at the same time.

Ranks of a group meet in pairs, the first with the second, the third with the fourth.  All pairs are at it
together, as in a collective: the rails of a node share its network.
"""

from __future__ import annotations

import time
from collections.abc import Sequence
from dataclasses import dataclass
from statistics import median

import numpy as np
from mpi4py import MPI
from numpy.typing import NDArray

from hpccoll.topology.agreement import gather, wait_all
from hpccoll.topology.layout import Layout

FAMILIES = ("NODE", "LEADERS", "RAIL")
SMALL_BYTES, LARGE_BYTES = 8, 4 << 20
SMALL_ROUNDS, LARGE_ROUNDS = 200, 5
_STEP = "measuring links"


@dataclass(frozen=True)
class Link:
    """What a family of groups gives: the median pair's latency, and the bytes that a node sends or moves.

    `latency_us`: half of there and back of 8 bytes.  `node_gbs`: 1e9 bytes a second in one direction, of all
    pairs whose first is on one node together, at the median node.
    """

    family: str
    pairs: int
    latency_us: float
    node_gbs: float


def measure(comm: MPI.Intracomm, layout: Layout, deadline: float) -> tuple[Link, ...]:
    """The links of every family that has pairs.  Collective; the same on all ranks.

    `comm`: one on which nothing else is going on.  Raises: CollectiveTimeoutError.
    """
    found = []
    for family in FAMILIES:
        pairs = pairs_of(layout.groups(family))
        if pairs:
            found.append(_measure(comm, layout, family, pairs, deadline))
    return tuple(found)


def pairs_of(groups: Sequence[Sequence[int]]) -> list[tuple[int, int]]:
    """Neighbours in each group, every rank at most once."""
    return [pair for group in groups for pair in zip(group[::2], group[1::2], strict=False)]


def for_model(links: Sequence[Link]) -> dict[str, float]:
    """What the cost model takes of them, by its names: messages in a node, and between nodes all rails'."""
    by_family = {link.family: link for link in links}
    found: dict[str, float] = {}
    inside = by_family.get("NODE")
    if inside is not None:
        found |= {"message_latency_us": inside.latency_us, "message_gbs": inside.node_gbs}
    between = by_family.get("RAIL", by_family.get("LEADERS"))
    if between is not None:
        # One pair alone has the latency; all rails together fill the network.
        alone = by_family.get("LEADERS", between)
        found |= {"network_latency_us": alone.latency_us, "network_gbs": between.node_gbs}
    return found


def _measure(
    comm: MPI.Intracomm, layout: Layout, family: str, pairs: Sequence[tuple[int, int]], deadline: float
) -> Link:
    peer = {rank: other for pair in pairs for rank, other in (pair, pair[::-1])}.get(comm.rank)
    mine = _Pair(comm, peer, any(pair[0] == comm.rank for pair in pairs), deadline)
    own = [mine.there_and_back_s() / 2, mine.one_way_s()]
    told = gather(comm, np.array(own).tobytes(), deadline, _STEP)
    times = [np.frombuffer(told[pair[0]]) for pair in pairs]
    rates: dict[int, float] = {}
    for pair, (_, large_s) in zip(pairs, times, strict=True):
        node = layout.node(pair[0])
        rates[node] = rates.get(node, 0.0) + LARGE_BYTES / float(large_s) / 1e9
    return Link(
        family, len(pairs), median(float(small_s) * 1e6 for small_s, _ in times), median(rates.values())
    )


class _Pair:
    """A rank's part; `peer` is None for one that only waits.  Medians of all turns but the first."""

    def __init__(self, comm: MPI.Intracomm, peer: int | None, first: bool, deadline: float) -> None:
        self._comm, self._peer, self._first, self._deadline = comm, peer, first, deadline
        self._small, self._large = np.zeros(SMALL_BYTES, np.uint8), np.zeros(LARGE_BYTES, np.uint8)

    def there_and_back_s(self) -> float:
        """Of a small message, again and again."""
        self._together()
        times = [self._turn(self._small) for _ in range(SMALL_ROUNDS + 1)]
        return median(times[1:])

    def one_way_s(self) -> float:
        """Of a large one, and a small answer.

        All begin together in each turn: pairs that drift apart would have the link for themselves, one in
        each direction.
        """
        times = []
        for _ in range(LARGE_ROUNDS + 1):
            self._together()
            times.append(self._turn(self._large))
        self._together()
        return median(times[1:])

    def _turn(self, data: NDArray[np.uint8]) -> float:
        begin = time.perf_counter()
        for buffer, sends in ((data, self._first), (self._small, not self._first)):
            if self._peer is not None:
                start = self._comm.Isend if sends else self._comm.Irecv
                self._wait(start(buffer, self._peer, 1))
        return time.perf_counter() - begin

    def _together(self) -> None:
        self._wait(self._comm.Ibarrier())

    def _wait(self, request: MPI.Request) -> None:
        wait_all([request], self._deadline, _STEP, self._comm.rank)
