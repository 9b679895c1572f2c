"""What a waiting call waits for: for the recorder, and for who reads the error."""

from __future__ import annotations

import logging
import math
import time
import weakref
from collections.abc import Callable, Sequence

from hpccoll.errors import CollectiveTimeoutError
from hpccoll.observe.caller import calling_line
from hpccoll.observe.place import Where, place_of
from hpccoll.plans.program import Receive
from hpccoll.plans.text import operation_text
from hpccoll.runtime.agreement import Agreement, arrival_number
from hpccoll.runtime.control import Control
from hpccoll.runtime.movement import Movement
from hpccoll.runtime.planning import Planned
from hpccoll.runtime.presence import Presence
from hpccoll.topology.layout import Layout
from hpccoll.topology.notation import format_ranks

LOG = logging.getLogger("hpccoll")
# So long after a deadline a rank that knows less leaves the word to those that know more.
HEARSAY_S, UNKNOWN_S = 0.25, 0.5


class Reports:
    """On the calls of one rank."""

    def __init__(
        self,
        layout: Layout,
        rank: int,
        control: Control,
        agreement: Agreement,
        movement: Movement,
        presence: Presence,
        warn_after_s: float,
    ) -> None:
        self._layout = layout
        self._rank = rank
        self._control = control
        self._agreement = agreement
        self._movement = movement
        self._presence = presence
        self._warn_after_s = warn_after_s or math.inf
        self._latest = 0
        me = weakref.ref(self)  # what listens to other nodes outlives a communicator that is dropped
        presence.asks(lambda: None if (one := me()) is None else one._awaited())

    def watch(self, collective: str, sequence: int, line: str | None = None) -> Callable[[], None]:
        """What is to be called again and again while a call waits: it warns when that takes long.

        One rank of a node does, after `warn_after_s` seconds, after twice as many, and so on.  `line`: of the
        caller, where that is not the one who waits.
        """
        self._latest = sequence
        began = time.monotonic()
        pause_s = self._warn_after_s

        def look() -> None:
            nonlocal pause_s
            waited_s = time.monotonic() - began
            if waited_s < pause_s:
                return
            pause_s *= 2
            missing = self._control.missing(arrival_number(sequence))
            if self._rank == min(set(self._control.members) - set(missing), default=self._rank):
                what, _, _ = self._waits_for(sequence)
                LOG.warning(
                    "rank %d has waited %.0f s in %s #%d%s: %s",
                    self._rank, waited_s, collective, sequence,
                    calling_line() if line is None else line, what,
                )  # fmt: skip

        return look

    def where(self, sequence: int, planned: Planned | None) -> Where:
        """Where a call of this rank is."""
        if planned is not None:
            return place_of(self._movement.under_way(sequence), planned)
        if self._agreement.awaited is not None:
            return Where(peer=self._agreement.awaited, family="LEADERS")
        missing = self._control.missing(arrival_number(sequence))
        if self._rank in missing:
            return Where()  # it waits for an earlier call
        leader = self._control.members[0]
        return Where(peer=missing[0] if missing else leader if leader != self._rank else -1, family="NODE")

    def late(
        self, collective: str, sequence: int, timeout_s: float, over_s: float, line: str | None = None
    ) -> CollectiveTimeoutError | None:
        """The error of a call that is late by so many seconds; None where another rank may know better.

        `line` as in `watch`.
        """
        what, suspects, patience_s = self._waits_for(sequence)
        if over_s < patience_s:
            return None
        place = calling_line() if line is None else line
        return CollectiveTimeoutError(
            f"{collective} #{sequence}{place} is not complete after {timeout_s:g} s: {what}",
            collective=collective,
            sequence=sequence,
            rank=self._rank,
            suspects=suspects,
        )

    def _waits_for(self, sequence: int) -> tuple[str, Sequence[int], float]:
        """In words, which ranks that are, and how long somebody else may say more."""
        if stopped := self._presence.peers.stopped():
            return f"{self._here(stopped)}: stopped by a signal", stopped, 0.0
        if missing := self._control.missing(arrival_number(sequence)):
            return f"{self._here(missing)} did not call it", missing, 0.0
        awaited = self._agreement.awaited
        if awaited is not None:
            awaited = self._presence.to_blame(awaited)
            node, who = self._layout.node(awaited), format_ranks((awaited,))
            leads = awaited == self._layout.leader(node)
            what = f"node {node} did not answer" + (
                f" ({who} speaks for it)" if leads else f": {who} is missing"
            )
            return what, (awaited,), HEARSAY_S
        if under_way := self._movement.waiting_for():
            what = "waiting for " + "; ".join(map(operation_text, under_way[:3]))
            peers = sorted({one.peer for one in under_way if isinstance(one, Receive)})
            nodes = sorted({self._layout.node(peer) for peer in peers})
            # Who waits for ranks of its own node leaves the word to those who wait for another one.
            elsewhere = nodes not in ([], [self._layout.node(self._rank)])
            if elsewhere:
                what = f"node {', '.join(map(str, nodes))} sends nothing: {what}"
            what += self._control.where_others_are()
            return what, peers[:16], HEARSAY_S if elsewhere else UNKNOWN_S
        leader = format_ranks(self._control.members[:1])
        return f"waiting for {leader}, which leads this node", (), UNKNOWN_S

    def _awaited(self) -> int | None:
        """For whom this leader waits: another one, or a rank of its node."""
        if self._agreement.awaited is not None:
            return self._agreement.awaited
        missing = self._control.missing(arrival_number(self._latest))
        return missing[0] if missing and self._rank not in missing else None

    def _here(self, ranks: Sequence[int]) -> str:
        """Ranks of this rank's node."""
        node = f" on node {self._layout.node(self._rank)}" if self._layout.node_count > 1 else ""
        return format_ranks(ranks) + node
