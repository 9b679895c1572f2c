"""Before data moves, all ranks agree that they call the same; small payloads travel along.

Every rank puts what it calls (fingerprint.py) into a slot of its node's segment and marks that it arrived. On
one node each rank then looks at all slots.  On several nodes the leaders do, pass on what their nodes
call in ceil(log2 N) rounds, and publish the verdict in their segment:

    ranks of a node    slot, ARRIVED                                     read VERDICT
    leader                     compare -> rounds with other leaders -> VERDICT

A rank whose arguments are wrong takes part and says so, hence every rank raises.  Slots are used in
turns of two: whoever arrives at call s + 1 has read all of call s, so call s + 2 may overwrite it.

With a payload this is the `one_shot` plan: every rank's elements lie beside its fingerprint, so that on
one node all ranks read and combine everything in rank order; on several nodes each leader combines its
node's, and all combine the nodes' in node order.  Bytes between nodes: N - 1 node payloads to each node.
"""

from __future__ import annotations

import struct
from dataclasses import dataclass
from functools import lru_cache
from typing import Any

import numpy as np

from hpccoll.memory.flags import Flags, open_flags, spin_time_us
from hpccoll.memory.segments import Segment
from hpccoll.runtime.fingerprint import FINGERPRINT_BYTES, REFUSED_BYTE, Called, disagreement
from hpccoll.runtime.verdict import NodeEntry, merge, pack_calls, pack_entries, unpack_calls, unpack_entries
from hpccoll.runtime.wait import Waits
from hpccoll.topology.layout import Layout
from hpccoll.transports.base import Array, Combine
from hpccoll.transports.mpi import MpiNetwork

TEXT_BYTES = 462
HEAD_BYTES = FINGERPRINT_BYTES + 2 + TEXT_BYTES  # fingerprint, length of the text, text: 512
LINE = 8  # words in a cache line
PAGE = 4096
ARRIVED, STEP = range(2)  # words in the line of a member


@dataclass(frozen=True)
class SegmentLayout:
    """Where things are in a node's control segment; `members` ranks, payloads of at most so many bytes.

    words       0: abort flag;  a line for every member: ARRIVED, STEP;  a line: VERDICT
    abort text  1 page
    slots       [2][members]  head | payload
    results     [2]           head | payload of all
    """

    members: int
    slot_payload: int
    result_payload: int

    @property
    def verdict_word(self) -> int:
        return LINE * (1 + self.members)

    @property
    def abort_text(self) -> int:
        return -(-(self.verdict_word + LINE) * 8 // PAGE) * PAGE

    @property
    def slots(self) -> int:
        return self.abort_text + PAGE

    @property
    def slot_bytes(self) -> int:
        return HEAD_BYTES + -(-self.slot_payload // 64) * 64

    @property
    def results(self) -> int:
        return self.slots + 2 * self.members * self.slot_bytes

    @property
    def result_bytes(self) -> int:
        return HEAD_BYTES + -(-self.result_payload // 64) * 64

    @property
    def total(self) -> int:
        return self.results + 2 * self.result_bytes


@dataclass
class Payload:
    """Elements that travel along: `mode` is "reduce", "gather" or "broadcast".

    `out`: where this rank wants the result (all of it), or None.  `elements`: of one rank's payload.
    """

    mode: str
    give: Array
    out: Array | None
    elements: int
    dtype: np.dtype[Any]
    root: int
    combine: Combine | None


class Agreement:
    """One rank's side of the agreement of one communicator."""

    def __init__(
        self,
        layout: Layout,
        rank: int,
        network: MpiNetwork,
        segment: Segment | None,
        shape: SegmentLayout,
        channel: int,
        native: bool | None,
    ) -> None:
        self._layout = layout
        self._rank = rank
        self._network = network
        self._channel = channel
        self._shape = shape
        node = layout.node(rank)
        self._members = layout.nodes[node]
        self._me = layout.local_rank(rank)
        self._leads = self._me == 0
        self._leaders = layout.groups("LEADERS")[0] if layout.node_count > 1 else (rank,)
        if segment is None:
            self._memory: Array = np.zeros(shape.total, np.uint8)
            buffer = self._memory.data
        else:
            buffer = segment.buffer
            self._memory = segment.array(np.uint8, 0, shape.total)
        self._buffer = buffer
        spin_us = spin_time_us(layout.local_size(rank))
        self._flags: Flags = open_flags(buffer[: shape.abort_text], native=native, spin_us=spin_us)
        self._noted = -1
        self.awaited: int | None = None  # the leader whose word this one waits for
        self._slot = lru_cache(maxsize=None)(self._slot_view)

    # --- the check ------------------------------------------------------------------------------

    def check(self, sequence: int, fingerprint: bytes, text: str, payload: Payload | None) -> Waits:
        """Arrive, and return once all ranks have arrived with the same fingerprint; `payload.out` is filled.

        Raises: MismatchError, UsageError on every rank when the calls differ or one was refused.
        """
        self._arrive(sequence, fingerprint, text, payload)
        if self._layout.node_count == 1:
            yield from self._all_arrived(sequence)
            self._compare(sequence, fingerprint)
            if payload is not None and payload.out is not None:
                self._combine_slots(sequence, payload, payload.out)
            return
        if self._leads:
            yield from self._all_arrived(sequence)
            yield from self._lead(sequence, fingerprint, payload)
        else:
            yield from self._verdict(sequence)
        self._take_result(sequence, fingerprint, payload)

    def missing(self, sequence: int) -> tuple[int, ...]:
        """Ranks of this node that have not arrived at a call."""
        return tuple(
            rank
            for member, rank in enumerate(self._members)
            if self._flags.load(LINE * (1 + member)) < sequence + 1
        )

    def _arrive(self, sequence: int, fingerprint: bytes, text: str, payload: Payload | None) -> None:
        start = self._slot(sequence % 2, self._me)
        said = text.encode()[:TEXT_BYTES]
        self._buffer[start : start + FINGERPRINT_BYTES] = fingerprint
        if fingerprint[REFUSED_BYTE]:
            words = struct.pack("<H", len(said)) + said
            self._buffer[start + FINGERPRINT_BYTES : start + FINGERPRINT_BYTES + len(words)] = words
        if payload is not None and payload.give.size:
            self._elements(start + HEAD_BYTES, payload.give.size, payload.dtype)[...] = payload.give
        self._flags.store(LINE * (1 + self._me), sequence + 1)

    def _all_arrived(self, sequence: int) -> Waits:
        flags, count, wanted = self._flags, len(self._members), sequence + 1

        def wait(seconds: float) -> object:
            return flags.wait_reached(LINE, count, LINE, wanted, seconds)

        while not flags.reached(LINE, count, LINE, wanted):
            yield wait

    def _verdict(self, sequence: int) -> Waits:
        flags, word, wanted = self._flags, self._shape.verdict_word, sequence + 1

        def wait(seconds: float) -> object:
            return flags.wait_reached(word, 1, 1, wanted, seconds)

        while flags.load(word) < wanted:
            yield wait

    def _compare(self, sequence: int, fingerprint: bytes) -> None:
        calls = self._deviating(sequence, fingerprint)
        if calls:
            raise disagreement(calls, self._rank, self._layout.size)

    def _deviating(self, sequence: int, fingerprint: bytes) -> list[Called]:
        """What each member of this node called, when not all called this, or one was refused; else empty."""
        same = True
        starts = [self._slot(sequence % 2, member) for member in range(len(self._members))]
        for start in starts:
            other = self._buffer[start : start + FINGERPRINT_BYTES]
            same = same and other == fingerprint and not other[REFUSED_BYTE]
        if same:
            return []
        return [
            Called((rank,), *self._said(start)) for rank, start in zip(self._members, starts, strict=True)
        ]

    def _said(self, start: int) -> tuple[bytes, str]:
        call = bytes(self._buffer[start : start + FINGERPRINT_BYTES])
        if not call[REFUSED_BYTE]:
            return call, ""
        at = start + FINGERPRINT_BYTES
        (length,) = struct.unpack_from("<H", self._buffer, at)
        return call, bytes(self._buffer[at + 2 : at + 2 + min(length, TEXT_BYTES)]).decode(errors="replace")

    # --- payloads -------------------------------------------------------------------------------

    def _slot_view(self, half: int, member: int) -> int:
        return self._shape.slots + (half * self._shape.members + member) * self._shape.slot_bytes

    def _elements(self, start: int, count: int, dtype: np.dtype[Any]) -> Array:
        return self._memory[start : start + count * dtype.itemsize].view(dtype)

    def _payload_of(self, sequence: int, member: int, payload: Payload) -> Array:
        start = self._slot(sequence % 2, member) + HEAD_BYTES
        return self._elements(start, payload.elements, payload.dtype)

    def _combine_slots(self, sequence: int, payload: Payload, out: Array) -> None:
        """The node's payloads into `out`: combined, one after the other, or the root's."""
        count = payload.elements
        if payload.mode == "broadcast":
            out[...] = self._payload_of(sequence, self._members.index(payload.root), payload)
            return
        if payload.mode == "gather":
            for member in range(len(self._members)):
                out[member * count : (member + 1) * count] = self._payload_of(sequence, member, payload)
            return
        combine = payload.combine
        out[...] = self._payload_of(sequence, 0, payload)
        for member in range(1, len(self._members)):
            if combine is not None:
                combine(out, self._payload_of(sequence, member, payload), out)

    # --- between nodes --------------------------------------------------------------------------

    def _lead(self, sequence: int, fingerprint: bytes, payload: Payload | None) -> Waits:
        """Exchange with the other leaders and publish the verdict and the result in this node."""
        node = self._layout.node(self._rank)
        calls = self._deviating(sequence, fingerprint)
        own = NodeEntry(fingerprint, calls, self._node_payload(sequence, payload))
        entries = {node: own}
        yield from self._spread(entries, node)
        start = self._result(sequence)
        verdict = merge(entries, self._layout.nodes)
        if payload is not None and not verdict:
            self._assemble(entries, payload, start + HEAD_BYTES)
        packed = pack_calls(verdict)[: self._shape.result_bytes - HEAD_BYTES] if verdict else b""
        self._buffer[start : start + 4] = struct.pack("<I", len(packed))
        self._buffer[start + HEAD_BYTES : start + HEAD_BYTES + len(packed)] = packed
        self._flags.store(self._shape.verdict_word, sequence + 1)

    def _spread(self, entries: dict[int, NodeEntry], node: int) -> Waits:
        """After round k every leader has the entries of 2^k nodes: its own and those before it."""
        count = len(self._leaders)
        distance = 1
        while distance < count:
            to = self._leaders[(node + distance) % count]
            origin = self._leaders[(node - distance) % count]
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
        if payload is None:
            return b""
        if payload.mode == "broadcast":
            if payload.root not in self._members:
                return b""
            return self._payload_of(sequence, self._members.index(payload.root), payload).tobytes()
        elements = payload.elements * (len(self._members) if payload.mode == "gather" else 1)
        together = np.empty(elements, payload.dtype)
        self._combine_slots(sequence, payload, together)
        return together.tobytes()

    def _assemble(self, entries: dict[int, NodeEntry], payload: Payload, start: int) -> None:
        """All nodes' payloads into the result area."""
        parts = {node: np.frombuffer(entry.payload, payload.dtype) for node, entry in entries.items()}
        count = payload.elements
        if payload.mode == "broadcast":
            self._elements(start, count, payload.dtype)[...] = parts[self._layout.node(payload.root)]
        elif payload.mode == "gather":
            result = self._elements(start, count * self._layout.size, payload.dtype)
            for node, part in parts.items():
                for member, rank in enumerate(self._layout.nodes[node]):
                    result[rank * count : (rank + 1) * count] = part[member * count : (member + 1) * count]
        else:
            result = self._elements(start, count, payload.dtype)
            result[...] = parts[0]
            for node in range(1, len(parts)):
                if payload.combine is not None:
                    payload.combine(result, parts[node], result)

    def _take_result(self, sequence: int, fingerprint: bytes, payload: Payload | None) -> None:
        start = self._result(sequence)
        (length,) = struct.unpack_from("<I", self._buffer, start)
        if length:
            verdict = bytes(self._buffer[start + HEAD_BYTES : start + HEAD_BYTES + length])
            raise disagreement(unpack_calls(verdict), self._rank, self._layout.size)
        if payload is not None and payload.out is not None:
            payload.out[...] = self._elements(start + HEAD_BYTES, payload.out.size, payload.dtype)

    def _result(self, sequence: int) -> int:
        return self._shape.results + sequence % 2 * self._shape.result_bytes

    # --- what each rank is doing, and abort ----------------------------------------------------------------------------------

    def note_step(self, step: int) -> None:
        """Record, for the other ranks' reports, which step of its plan this rank is in."""
        if step != self._noted:
            self._noted = step
            self._flags.store(LINE * (1 + self._me) + STEP, step)

    def where_others_are(self) -> str:
        """The calls and steps in which the other ranks of this node are, in words."""
        words = []
        for member, rank in enumerate(self._members):
            if member != self._me:
                line = LINE * (1 + member)
                call, step = self._flags.load(line) - 1, self._flags.load(line + STEP)
                words.append(f"; rank {rank} is in call #{call}, step {step}")
        return "".join(words)

    def abort(self, reason: str) -> None:
        """Tell the ranks of this node why the communicator is broken; the first reason stays."""
        text = reason.encode()[: PAGE - 4]
        if self._flags.load(0) == 0:
            at = self._shape.abort_text
            self._buffer[at + 4 : at + 4 + len(text)] = text
            self._buffer[at : at + 4] = struct.pack("<I", len(text))
            self._flags.store_first(0, self._rank + 1)

    def aborted(self) -> tuple[int, str] | None:
        """The rank that gave the communicator up, and why."""
        who = self._flags.load(0)
        if who == 0:
            return None
        at = self._shape.abort_text
        (length,) = struct.unpack_from("<I", self._buffer, at)
        return who - 1, bytes(self._buffer[at + 4 : at + 4 + min(length, PAGE - 4)]).decode(errors="replace")
