"""All ranks agree on who shares a node: equal identities first, then proof.

The first rank of each candidate node lays a token into the shared memory directory and the others look::

    identity says            probe says                     result
    (0 1 2 3)                all see rank 0's token         (0 1 2 3)
    (0 1 2 3)                2 and 3 do not see it          second round among 2 and 3: (0 1) (2 3)
    (0 1 2 3)                rank 0 cannot lay one          (0 1 2 3), without shared memory
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass
from enum import IntEnum

from mpi4py import MPI

from hpccoll.errors import HpccollError
from hpccoll.topology.agreement import gather, gather_numbers
from hpccoll.topology.hosts import HostFacts, Probe, offer_probe, sees
from hpccoll.topology.layout import Layout
from hpccoll.topology.notation import format_ranks

_STEP = "topology discovery: shared memory probe"


@dataclass(frozen=True)
class Verdict:
    """Who shares a node.

    Attributes:
        layout: the nodes.
        shares_memory: every node's ranks have proved that they see the same shared memory directory.
        text: what identity and probe found, in words.

    """

    layout: Layout
    shares_memory: bool
    text: str


class _Look(IntEnum):
    UNSEEN = 0
    SEEN = 1
    NO_PROBE = 2


def agree_on_nodes(
    comm: MPI.Intracomm, facts: Sequence[HostFacts], shm_directory: str, deadline: float
) -> Verdict:
    """The nodes by identity and shared memory probe.

    Collective over `comm`; same answer on every rank.

    Args:
        comm: a communicator on which nothing else is going on.
        facts: those of each rank, in rank order.
        shm_directory: where this rank makes its shared memory.
        deadline: on the clock of `time.monotonic`, seconds.

    Raises:
        CollectiveTimeoutError: a rank did not take part before `deadline`.

    """
    candidates = Layout.from_keys([fact.key for fact in facts])
    leaders = [candidates.leader(node) for node in candidates.node_of]
    looks, failure = _first_round(comm, candidates, leaders, shm_directory, deadline)
    unseen = [rank for rank, look in enumerate(looks) if look == _Look.UNSEEN]
    labels = leaders
    if unseen:
        labels = _second_round(comm, candidates, leaders, unseen, shm_directory, deadline)
    layout = Layout.from_keys(labels)
    return Verdict(layout, not failure, _describe(candidates, unseen, failure))


def _first_round(
    comm: MPI.Intracomm, candidates: Layout, leaders: Sequence[int], shm_directory: str, deadline: float
) -> tuple[list[int], str]:
    """How each rank sees its leader's token, and why the first leader that could not lay one could not."""
    rank = comm.rank
    leads = leaders[rank] == rank and candidates.local_size(rank) > 1
    with _Offer(shm_directory if leads else None) as offer:
        offers = _Offers(gather(comm, offer.payload, deadline, _STEP))
        own = _Look.SEEN
        if candidates.local_size(rank) > 1:
            own = offers.look(leaders[rank])
        looks = gather_numbers(comm, own, deadline, _STEP)
    return looks, offers.first_failure


def _second_round(
    comm: MPI.Intracomm,
    candidates: Layout,
    leaders: Sequence[int],
    unseen: Sequence[int],
    shm_directory: str,
    deadline: float,
) -> list[int]:
    """A label per rank, equal on a node: the lowest rank whose token it sees.

    Every rank that saw nothing lays a token, so that two rounds do however many nodes share an identity.
    """
    rank = comm.rank
    searches = rank in unseen
    with _Offer(shm_directory if searches else None) as offer:
        offers = _Offers(gather(comm, offer.payload, deadline, _STEP))
        label = leaders[rank]
        if searches:
            mates = [other for other in unseen if candidates.node(other) == candidates.node(rank)]
            label = next((other for other in mates if offers.look(other) == _Look.SEEN), rank)
        return gather_numbers(comm, label, deadline, _STEP)


class _Offer:
    """The token of this rank while it is to be seen; nothing where `directory` is None."""

    def __init__(self, directory: str | None) -> None:
        self._probe: Probe | None = None
        found: dict[str, str] = {}
        if directory is not None:
            try:
                self._probe = offer_probe(directory)
                found = {"path": self._probe.path, "token": self._probe.token.hex()}
            except HpccollError as error:
                found = {"failure": str(error)[:400]}
        self.payload = json.dumps(found).encode()

    def __enter__(self) -> _Offer:
        return self

    def __exit__(self, *_: object) -> None:
        if self._probe is not None:
            self._probe.segment.close()


class _Offers:
    """The tokens of all ranks."""

    def __init__(self, payloads: Sequence[bytes]) -> None:
        self._found: list[dict[str, str]] = [json.loads(payload) for payload in payloads]
        self.first_failure = next((found["failure"] for found in self._found if "failure" in found), "")

    def look(self, rank: int) -> _Look:
        found = self._found[rank]
        if "failure" in found:
            return _Look.NO_PROBE
        return _Look.SEEN if sees(found["path"], bytes.fromhex(found["token"])) else _Look.UNSEEN


def _describe(candidates: Layout, unseen: Sequence[int], failure: str) -> str:
    if failure:
        return f"identity alone, no shared memory: {failure}"
    if unseen:
        return f"the identity is the same, but {format_ranks(unseen)} cannot see the memory of the first rank"
    if max(candidates.counts) == 1:
        return "one rank a node: nothing to probe"
    return "boot id and shared memory directory agree, and all ranks of a node see its first rank's token"
