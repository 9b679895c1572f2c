"""Before data moves, all ranks agree that they call the same; small payloads travel along.

Every rank puts what it calls (fingerprint.py) into its slot of the node's control segment and arrives.  On
one node each rank then looks at all slots.  On several nodes the leaders do, pass on what their nodes
call in ceil(log2 N) rounds, and publish the verdict:

    rank        arrive                                                   verdict
    leader      arrive, all arrived, compare -> rounds with leaders -> publish

A rank whose arguments are wrong takes part and says so, hence every rank raises.

With checksums all of it is checked: slots and verdicts (control.py), and the messages by the network.

With a payload this is the `one_shot` plan: every rank's elements lie beside its fingerprint, so that on
one node all ranks read and combine everything in rank order; on several nodes each leader combines its
node's, and then the nodes' in node order.  Bytes between nodes: N - 1 node payloads leave each node.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING, Any

import numpy as np

from hpccoll.errors import HpccollError
from hpccoll.runtime import engine
from hpccoll.runtime.control import ARRIVALS_PER_CALL, Control
from hpccoll.runtime.fingerprint import Called, disagreement
from hpccoll.runtime.verdict import NodeEntry, merge, pack_calls, pack_entries, unpack_calls, unpack_entries
from hpccoll.runtime.wait import Waits
from hpccoll.topology.layout import Layout
from hpccoll.transports.base import Array, Combine
from hpccoll.transports.mpi import MpiNetwork

if TYPE_CHECKING:
    from hpccoll._native import _core


@dataclass
class Payload:
    """Elements that travel along: `mode` is "reduce", "gather" or "broadcast".

    `out`: where this rank wants the result (all of it), or None.  `elements`: of one rank's payload, the
    first of `give`; what `give` has beyond them is only for `Agreement.said_in_node`.
    """

    mode: str
    give: Array
    out: Array | None
    elements: int
    dtype: np.dtype[Any]
    root: int
    combine: Combine | None


def arrival_number(sequence: int, again: bool = False) -> int:
    """The number of an arrival in the control segment, where each call has two."""
    return ARRIVALS_PER_CALL * sequence + again


class Agreement:
    """One rank's side of the agreement of a communicator.

    `called` is told what this rank calls, for the record.

    Attributes:
        settle: what all ranks do together about a disagreement on devices, before they raise it.

    """

    def __init__(
        self,
        layout: Layout,
        rank: int,
        network: MpiNetwork,
        native: _core.Network | None,
        control: Control,
        channel: int,
        spin_s: float,
        called: Callable[[int, bytes], None],
    ) -> None:
        self._layout = layout
        self._rank = rank
        self._node = layout.node(rank)
        self._network = network
        self._native = native
        self._spin_s = spin_s
        self._channel = channel
        self._control = control
        self._called = called
        self._leaders = layout.groups("LEADERS")[0]
        self.awaited: int | None = None  # the leader whose word this one waits for
        self.settle: Callable[[HpccollError], Waits] = _nothing_to_settle

    def check(
        self,
        sequence: int,
        fingerprint: bytes,
        text: str,
        payload: Payload | None,
        again: bool = False,
        arrived: bool = False,
        spread: _core.Spread | None = None,
    ) -> Waits:
        """Arrive, and return once all ranks arrived with the same fingerprint; `payload.out` is filled.

        A call may agree twice, the second time `again`.  `arrived`: this rank has arrived before;
        `spread`: it leads its node and has begun to tell the other leaders.

        Raises: MismatchError, UsageError on every rank when the calls differ or one was refused.
        """
        control = self._control
        self._called(sequence, fingerprint)
        sequence = arrival_number(sequence, again)
        if arrived:
            control.has_arrived(sequence)
        else:
            elements = 0 if payload is None else payload.elements
            control.arrive(sequence, fingerprint, text, None if payload is None else payload.give, elements)
        if self._layout.node_count == 1:
            yield from control.all_arrived(sequence)
            calls = control.deviating(sequence, fingerprint)
            if calls:
                yield from self._disagree(calls)
            if payload is not None and payload.out is not None:
                self._combine_node(sequence, payload, payload.out)
            return
        if control.me == 0:
            yield from control.all_arrived(sequence)
            yield from self._lead(sequence, fingerprint, payload, spread)
        else:
            yield from control.verdict(sequence)
        problem = control.problem(sequence)
        if problem:
            yield from self._disagree(unpack_calls(problem))
        if payload is not None and payload.out is not None:
            payload.out[...] = control.result(sequence, payload.out.size, payload.dtype)

    def _disagree(self, calls: Sequence[Called]) -> Waits:
        """Raises what all ranks raise."""
        error = disagreement(calls, self._rank, self._layout.size)
        if error.on_devices:
            yield from self.settle(error)
        raise error

    @property
    def room(self) -> int:
        """How many bytes each rank may send along."""
        return self._control.room

    def said_in_node(self, sequence: int, count: int, dtype: np.dtype[Any]) -> dict[int, Array]:
        """What each rank of this node has sent along with the call that has just agreed, by rank."""
        arrival = arrival_number(sequence)
        return {
            rank: self._control.payload(arrival, member, count, dtype, whole=True).copy()
            for member, rank in enumerate(self._control.members)
        }

    def _lead(
        self, sequence: int, fingerprint: bytes, payload: Payload | None, spread: _core.Spread | None
    ) -> Waits:
        """Exchange with the other leaders and publish the verdict and the result in this node."""
        if spread is None:
            calls = self._control.deviating(sequence, fingerprint)
            told = b"" if calls else self._node_payload(sequence, payload)
            entries = {self._node: NodeEntry(fingerprint, calls, told)}
            yield from self._spread(entries)
        else:
            yield from self._spreading(spread)
            entries = unpack_entries(spread.data)
        differing = merge(entries, self._layout.nodes)
        result = None
        if payload is not None and not differing:
            result = self._assemble(sequence, entries, payload)
        self._control.publish(sequence, pack_calls(differing), result)

    def _spread(self, entries: dict[int, NodeEntry]) -> Waits:
        """After round k every leader has the entries of 2^k nodes: its own and those before it."""
        if self._native is not None:
            spread = engine.core().Spread(
                self._native, self._leaders, self._node, self._channel, pack_entries(entries)
            )
            yield from self._spreading(spread)
            entries.update(unpack_entries(spread.data))
        else:
            yield from self._spread_here(entries)

    def _spreading(self, spread: _core.Spread) -> Waits:
        """Until the C extension has done all rounds."""
        while not spread.advance():
            self.awaited = spread.awaited
            yield partial(spread.run, spin_s=self._spin_s)
        self.awaited = None

    def _spread_here(self, entries: dict[int, NodeEntry]) -> Waits:
        """The rounds without the extension."""
        count = len(self._leaders)
        distance = 1
        while distance < count:
            to = self._leaders[(self._node + distance) % count]
            origin = self._leaders[(self._node - distance) % count]
            message = np.frombuffer(pack_entries(entries), np.uint8)
            sending = self._network.send(to, message, self._channel)
            receiving = self._network.receive_message(origin, self._channel)
            self.awaited = origin
            while not receiving.test():
                yield None
            self.awaited = None
            entries.update(unpack_entries(receiving.data))
            while not sending.test():
                yield None
            distance *= 2

    def _node_payload(self, sequence: int, payload: Payload | None) -> bytes:
        members = self._control.members
        if payload is None or (payload.mode == "broadcast" and payload.root not in members):
            return b""
        elements = payload.elements * (len(members) if payload.mode == "gather" else 1)
        together = np.empty(elements, payload.dtype)
        self._combine_node(sequence, payload, together)
        return together.tobytes()

    def _combine_node(self, sequence: int, payload: Payload, out: Array) -> None:
        """The node's payloads into `out`: combined, one after the other, or the root's."""
        members, count = self._control.members, payload.elements

        def given(member: int) -> Array:
            return self._control.payload(sequence, member, count, payload.dtype)

        if payload.mode == "broadcast":
            out[...] = given(members.index(payload.root))
        elif payload.mode == "gather":
            for member in range(len(members)):
                out[member * count : (member + 1) * count] = given(member)
        else:
            _combine(out, [given(member) for member in range(len(members))], payload.combine)

    def _assemble(self, sequence: int, entries: dict[int, NodeEntry], payload: Payload) -> Array:
        """All nodes' payloads, as the result."""
        parts = {node: np.frombuffer(entry.payload, payload.dtype) for node, entry in entries.items()}
        count = payload.elements
        if payload.mode == "gather":
            result = self._control.room_for_result(sequence, count * self._layout.size, payload.dtype)
            for node, part in parts.items():
                for member, rank in enumerate(self._layout.nodes[node]):
                    result[rank * count : (rank + 1) * count] = part[member * count : (member + 1) * count]
            return result
        result = self._control.room_for_result(sequence, count, payload.dtype)
        if payload.mode == "broadcast":
            result[...] = parts[self._layout.node(payload.root)]
        else:
            _combine(result, [parts[node] for node in range(len(parts))], payload.combine)
        return result


def _nothing_to_settle(error: HpccollError) -> Waits:
    yield from ()


def _combine(out: Array, parts: list[Array], combine: Combine | None) -> None:
    """All parts in their order into `out`, which may be none of them but the first."""
    out[...] = parts[0]
    for part in parts[1:]:
        if combine is not None:
            combine(out, part, out)
