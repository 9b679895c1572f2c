"""The control segment of a node: what each of its ranks calls, does, and why a communicator is broken.

    words       0: abort flag, 1: who writes the reason;  a line: VERDICT
                a line for every member: ARRIVED, STEP, LEFT, and its process: NUMBER, START, SPACE
    reason      1 page
    farewells   [members]     of ranks that have left
    slots       [2][members]  head | payload of one rank
    results     [2]           head | payload of all       (several nodes only)

A head ends with checksums, where they are asked for: of itself (fingerprint and text; or verdict), of the
elements that all read, and of the whole payload.

Slots are used in turns of two: whoever arrives at a call has read all of the one before it, so that the
one after it may overwrite that.  Calls that nobody arrives at (`checks="off"`) take no turn.
"""

from __future__ import annotations

import struct
from collections.abc import Callable
from dataclasses import dataclass
from functools import cached_property
from typing import Any, NamedTuple

import numpy as np

from hpccoll.memory.checksums import WORD, Checksum
from hpccoll.memory.flags import Flags
from hpccoll.memory.segments import Segment
from hpccoll.runtime.counts import Counts
from hpccoll.runtime.fingerprint import FINGERPRINT_BYTES, REFUSED_BYTE, Called
from hpccoll.runtime.reason import FAILED, Reason
from hpccoll.runtime.wait import Waits
from hpccoll.topology.layout import Layout
from hpccoll.transports.base import Array
from hpccoll.transports.corrupted import SEGMENT, Corrupted

TEXT_BYTES = 450
SUMS = FINGERPRINT_BYTES + 2 + TEXT_BYTES  # fingerprint, length of the text, text
HEAD_BYTES = SUMS + 12  # 512
OF_HEAD, OF_ELEMENTS, OF_PAYLOAD = range(3)  # checksums
LINE = 8  # words in a cache line
PAGE = 4096
ARRIVALS_PER_CALL = 2
ARRIVED, STEP, LEFT, NUMBER, START, SPACE = range(6)  # words in the line of a member
ABORTED, WRITER = range(2)  # words in the first line
FAREWELL_BYTES = 1024


class Farewell(NamedTuple):
    """What a rank says when it leaves: how many calls it has made, how many of them on devices, and why."""

    calls: int
    enqueued: int
    why: str


@dataclass(frozen=True)
class SegmentLayout:
    """Where things are for `members` ranks and payloads of at most so many bytes."""

    members: int
    slot_payload: int
    result_payload: int

    @cached_property
    def verdict_word(self) -> int:
        return LINE * (1 + self.members)

    @cached_property
    def reason(self) -> int:
        return -(-(self.verdict_word + LINE) * 8 // PAGE) * PAGE

    @cached_property
    def farewells(self) -> int:
        return self.reason + PAGE

    @cached_property
    def slots(self) -> int:
        return self.farewells + self.members * FAREWELL_BYTES

    @cached_property
    def slot_bytes(self) -> int:
        return HEAD_BYTES + -(-self.slot_payload // 64) * 64

    @cached_property
    def results(self) -> int:
        return self.slots + 2 * self.members * self.slot_bytes

    @cached_property
    def result_bytes(self) -> int:
        return HEAD_BYTES + -(-self.result_payload // 64) * 64

    @cached_property
    def total(self) -> int:
        return self.results + 2 * self.result_bytes


class Control:
    """The control segment as one rank of the node uses it; private memory where it is alone."""

    def __init__(
        self,
        layout: Layout,
        rank: int,
        segment: Segment | None,
        shape: SegmentLayout,
        open_flags: Callable[[memoryview], Flags],
        counts: Counts,
        checksum: Checksum | None = None,
    ) -> None:
        self._checksum = checksum
        self.members = layout.nodes[layout.node(rank)]
        self.me = layout.local_rank(rank)
        self._rank = rank
        self._shape = shape
        if segment is None:
            self._memory: Array = np.zeros(shape.total, np.uint8)
            self._buffer = self._memory.data
        else:
            self._memory = segment.array(np.uint8, 0, shape.total)
            self._buffer = segment.buffer
        self._flags = open_flags(self._buffer[: shape.reason])
        self._step = -1
        self._counts = counts
        self._half: dict[int, int] = {}  # of the slots, by call: of the last two arrivals

    # --- arrivals -------------------------------------------------------------------------------

    def arrive(
        self, sequence: int, fingerprint: bytes, text: str, payload: Array | None, elements: int = 0
    ) -> None:
        """Say what this rank calls; its payload lies beside it, the first `elements` of which are for all."""
        self._use_half(sequence, self._counts.arrive())
        start = self._slot(sequence, self.me)
        self._buffer[start : start + FINGERPRINT_BYTES] = fingerprint
        words = b""
        if fingerprint[REFUSED_BYTE]:
            said = text.encode()[:TEXT_BYTES]
            words = struct.pack("<H", len(said)) + said
            self._buffer[start + FINGERPRINT_BYTES : start + FINGERPRINT_BYTES + len(words)] = words
        if payload is not None and payload.size:
            self._elements(start + HEAD_BYTES, payload.size, payload.dtype)[...] = payload
        if self._checksum is not None:
            self._tell(start, sequence, OF_HEAD, np.frombuffer(fingerprint + words, np.uint8))
            if payload is not None:
                self._tell(start, sequence, OF_ELEMENTS, payload[:elements])
                self._tell(start, sequence, OF_PAYLOAD, payload)
        self._flags.store(LINE * (1 + self.me) + ARRIVED, sequence + 1)

    def has_arrived(self, sequence: int) -> None:
        """Take notice that repeats.c has arrived at a call, as the last one until this is called."""
        if sequence not in self._half:
            self._use_half(sequence, self._counts.arrivals - 1)

    def _use_half(self, sequence: int, arrival: int) -> None:
        if len(self._half) == 2:
            del self._half[min(self._half)]
        self._half[sequence] = arrival % 2

    def all_arrived(self, sequence: int) -> Waits:
        """Until every rank of the node has arrived at a call."""
        flags, count, wanted = self._flags, len(self.members), sequence + 1

        def wait(seconds: float) -> object:
            return flags.wait_reached(LINE, count, LINE, wanted, seconds)

        while not flags.reached(LINE, count, LINE, wanted):
            yield wait

    def missing(self, sequence: int) -> tuple[int, ...]:
        """Ranks of this node that have not arrived at a call."""
        return tuple(
            rank
            for member, rank in enumerate(self.members)
            if self._flags.load(LINE * (1 + member) + ARRIVED) < sequence + 1
        )

    def deviating(self, sequence: int, fingerprint: bytes) -> list[Called]:
        """What each rank of this node called, when not all called this, or one was refused; else empty.

        Raises: Corrupted.
        """
        # Read once: what is compared is what was checked.
        heads = [self._head(sequence, member) for member in range(len(self.members))]
        for member, head in enumerate(heads if self._checksum is not None else ()):
            data = np.frombuffer(head, np.uint8)
            start, giver = self._slot(sequence, member), self.members[member]
            self._check(start, sequence, OF_HEAD, data, giver, "what it calls")
        if all(head == fingerprint and not head[REFUSED_BYTE] for head in heads):
            return []
        return [Called((rank,), *_said(head)) for rank, head in zip(self.members, heads, strict=True)]

    @property
    def room(self) -> int:
        """How many bytes a payload may have."""
        return self._shape.slot_payload

    def payload(
        self, sequence: int, member: int, count: int, dtype: np.dtype[Any], *, whole: bool = False
    ) -> Array:
        """The elements that a rank of this node sent along; with checksums a copy that was checked.

        `whole`: all of them, not those for all ranks.  Raises: Corrupted.
        """
        start = self._slot(sequence, member)
        found = self._elements(start + HEAD_BYTES, count, dtype)
        if self._checksum is None:
            return found
        kind = OF_PAYLOAD if whole else OF_ELEMENTS
        giver = self.members[member]
        return self._check(start, sequence, kind, found.copy(), giver, "what travels with a call")

    def _slot(self, sequence: int, member: int) -> int:
        number = self._half[sequence] * self._shape.members + member
        return self._shape.slots + number * self._shape.slot_bytes

    def _elements(self, start: int, count: int, dtype: np.dtype[Any]) -> Array:
        return self._memory[start : start + count * dtype.itemsize].view(dtype)

    # --- verdicts -------------------------------------------------------------------------------

    def publish(self, sequence: int, problem: bytes, result: Array | None = None) -> None:
        """The leader's verdict for its node: empty, or who called what.

        `result`: with checksums the elements for the node, if there are any.
        """
        start = self._result(sequence)
        problem = problem[: self._verdict_room]
        self._buffer[start : start + 4] = struct.pack("<I", len(problem))
        if problem:
            self._buffer[start + HEAD_BYTES : start + HEAD_BYTES + len(problem)] = problem
        if self._checksum is not None:
            said = struct.pack("<I", len(problem)) + problem
            self._tell(start, sequence, OF_HEAD, np.frombuffer(said, np.uint8))
            if result is not None:
                self._tell(start, sequence, OF_ELEMENTS, result)
                self._elements(start + HEAD_BYTES, result.size, result.dtype)[...] = result
        self._flags.store(self._shape.verdict_word, sequence + 1)

    def verdict(self, sequence: int) -> Waits:
        """Until the leader has published its verdict."""
        flags, word, wanted = self._flags, self._shape.verdict_word, sequence + 1

        def wait(seconds: float) -> object:
            return flags.wait_reached(word, 1, 1, wanted, seconds)

        while flags.load(word) < wanted:
            yield wait

    def problem(self, sequence: int) -> bytes:
        """The verdict that was published.  Raises: Corrupted."""
        start = self._result(sequence)
        said = bytes(self._buffer[start : start + 4])
        (length,) = struct.unpack("<I", said)
        length = min(length, self._verdict_room)
        problem = bytes(self._buffer[start + HEAD_BYTES : start + HEAD_BYTES + length])
        if self._checksum is not None:
            data = np.frombuffer(said + problem, np.uint8)
            self._check(start, sequence, OF_HEAD, data, self.members[0], "its verdict")
        return problem

    @property
    def _verdict_room(self) -> int:
        return self._shape.result_bytes - HEAD_BYTES

    def room_for_result(self, sequence: int, count: int, dtype: np.dtype[Any]) -> Array:
        """Where the leader puts the elements of all nodes: there, or with checksums in memory of its own."""
        if self._checksum is not None:
            return np.empty(count, dtype)
        return self._elements(self._result(sequence) + HEAD_BYTES, count, dtype)

    def result(self, sequence: int, count: int, dtype: np.dtype[Any]) -> Array:
        """The elements that the leader brought from all nodes, to be copied.  Raises: Corrupted."""
        start = self._result(sequence)
        found = self._elements(start + HEAD_BYTES, count, dtype)
        if self._checksum is None:
            return found
        leader = self.members[0]
        return self._check(start, sequence, OF_ELEMENTS, found.copy(), leader, "the result of all nodes")

    # --- checksums ------------------------------------------------------------------------------

    def _head(self, sequence: int, member: int) -> bytes:
        """Fingerprint and text of a slot."""
        start = self._slot(sequence, member)
        head = bytes(self._buffer[start : start + SUMS])
        if not head[REFUSED_BYTE]:
            return head[:FINGERPRINT_BYTES]
        (said,) = struct.unpack_from("<H", head, FINGERPRINT_BYTES)
        return head[: FINGERPRINT_BYTES + 2 + min(said, TEXT_BYTES)]

    def _tell(self, start: int, sequence: int, kind: int, data: Array) -> None:
        assert self._checksum is not None
        word = self._checksum(data, sequence & WORD)
        struct.pack_into("<I", self._buffer, start + SUMS + 4 * kind, word)

    def _check(self, start: int, sequence: int, kind: int, data: Array, giver: int, what: str) -> Array:
        assert self._checksum is not None
        (told,) = struct.unpack_from("<I", self._buffer, start + SUMS + 4 * kind)
        found = self._checksum(data, sequence & WORD)
        if found != told:
            raise Corrupted(giver, data.nbytes, told, found, SEGMENT, where=what)
        return data

    def _result(self, sequence: int) -> int:
        return self._shape.results + self._half[sequence] * self._shape.result_bytes

    def geometry(self) -> dict[str, Any]:
        """Where things are, for repeats.c."""
        return {
            "control": self._buffer,
            "me": self.me,
            "members": len(self.members),
            "arrived": LINE + ARRIVED,
            "stride": LINE,
            "slots": self._shape.slots,
            "slot_bytes": self._shape.slot_bytes,
            "head_bytes": HEAD_BYTES,
            "verdict": self._shape.verdict_word,
            "results": self._shape.results,
            "result_bytes": self._shape.result_bytes,
        }

    # --- what each rank is doing, and abort -----------------------------------------------------

    def note_step(self, step: int) -> None:
        """Record, for the other ranks' reports, which step of its plan this rank is in."""
        if step != self._step:
            self._step = step
            self._flags.store(LINE * (1 + self.me) + STEP, step)

    def where_others_are(self) -> str:
        """The calls and steps in which the other ranks of this node are, in words."""
        words = []
        for member, rank in enumerate(self.members):
            if member != self.me:
                line = LINE * (1 + member)
                call = (self._flags.load(line + ARRIVED) - 1) // ARRIVALS_PER_CALL
                step = self._flags.load(line + STEP)
                words.append(f"; rank {rank} is in call #{call}, step {step}")
        return "".join(words)

    def abort(self, reason: Reason) -> None:
        """Tell the ranks of this node why the communicator is given up; the first reason stays."""
        if self._flags.load(ABORTED) or self._flags.store_first(WRITER, self._rank + 1) != self._rank + 1:
            return
        self._write(self._shape.reason, PAGE, reason.to_bytes())
        self._flags.store(ABORTED, self._rank + 1)

    def aborted(self) -> Reason | None:
        """Why the communicator was given up, if it was."""
        if self._flags.load(ABORTED) == 0:
            return None
        try:
            return Reason.from_bytes(self._read(self._shape.reason, PAGE))
        except ValueError as error:  # without the extension two ranks may have written at once
            return Reason(self._flags.load(ABORTED) - 1, FAILED, str(error))

    # --- who is there ---------------------------------------------------------------------------

    def introduce(self, number: int, start: int, space: int) -> None:
        """Tell the ranks of this node which process this rank is.

        `space`: where process numbers mean the same; 0 where that is not known.
        """
        line = LINE * (1 + self.me)
        self._flags.store(line + NUMBER, number)
        self._flags.store(line + START, start)
        self._flags.store(line + SPACE, space)

    def introduction(self, member: int) -> tuple[int, int, int]:
        """The process of a rank of this node, as it has told; space 0 before that."""
        line = LINE * (1 + member)
        space = self._flags.load(line + SPACE)
        return self._flags.load(line + NUMBER), self._flags.load(line + START), space

    def leave(self, farewell: Farewell) -> None:
        """Tell the ranks of this node that this one makes no more calls."""
        said = struct.pack("<q", farewell.enqueued) + farewell.why.encode()
        self._write(self._shape.farewells + self.me * FAREWELL_BYTES, FAREWELL_BYTES, said)
        self._flags.store(LINE * (1 + self.me) + LEFT, farewell.calls + 1)

    def left(self, member: int) -> Farewell | None:
        """What a rank of this node said when it left; None while it is there."""
        calls = self._flags.load(LINE * (1 + member) + LEFT)
        if calls == 0:
            return None
        said = self._read(self._shape.farewells + member * FAREWELL_BYTES, FAREWELL_BYTES)
        (enqueued,) = struct.unpack_from("<q", said)
        return Farewell(calls - 1, enqueued, said[8:].decode(errors="replace"))

    def _write(self, at: int, room: int, data: bytes) -> None:
        data = data[: room - 4]
        self._buffer[at : at + 4 + len(data)] = struct.pack("<I", len(data)) + data

    def _read(self, at: int, room: int) -> bytes:
        (length,) = struct.unpack_from("<I", self._buffer, at)
        return bytes(self._buffer[at + 4 : at + 4 + min(length, room - 4)])


def _said(head: bytes) -> tuple[bytes, str]:
    """A head's fingerprint, and its text if there is one."""
    return head[:FINGERPRINT_BYTES], head[FINGERPRINT_BYTES + 2 :].decode(errors="replace")
