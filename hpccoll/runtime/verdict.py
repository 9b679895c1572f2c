"""What leaders send each other in the agreement check, packed and merged.

message   [ node 4 | length 4 | entry ] ...
entry     fingerprint 48 | length of the calls 4 | calls | payload
calls     [ fingerprint 48 | ranks 2 | length of the text 2 | rank 4 ... | text ] ...
"""

from __future__ import annotations

import struct
from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from hpccoll.runtime.fingerprint import FINGERPRINT_BYTES, REFUSED_BYTE, Called

MOST_CALLS = 8  # different calls that are told
MOST_RANKS = 200  # ranks of one call that are named


@dataclass(frozen=True)
class NodeEntry:
    """A leader's fingerprint, the calls of its node when not all are that one, and the node's payload."""

    fingerprint: bytes
    calls: Sequence[Called]
    payload: bytes


def pack_calls(calls: Sequence[Called]) -> bytes:
    """The first few calls."""
    packed = b""
    for one in calls[:MOST_CALLS]:
        ranks = one.ranks[:MOST_RANKS]
        text = one.text.encode()[:400]
        packed += one.call + struct.pack(f"<HH{len(ranks)}i", len(ranks), len(text), *ranks) + text
    return packed


def unpack_calls(data: bytes) -> list[Called]:
    """What `pack_calls` packed; a cut end is left out."""
    calls: list[Called] = []
    at = 0
    while at + FINGERPRINT_BYTES + 4 <= len(data):
        call = data[at : at + FINGERPRINT_BYTES]
        count, length = struct.unpack_from("<HH", data, at + FINGERPRINT_BYTES)
        at += FINGERPRINT_BYTES + 4
        if at + 4 * count > len(data):
            break
        ranks = struct.unpack_from(f"<{count}i", data, at)
        at += 4 * count
        calls.append(Called(ranks, call, data[at : at + length].decode(errors="replace")))
        at += length
    return calls


def pack_entries(entries: Mapping[int, NodeEntry]) -> bytes:
    """A message with the entries of some nodes."""
    packed = []
    for node, entry in entries.items():
        calls = pack_calls(entry.calls)
        body = entry.fingerprint + struct.pack("<I", len(calls)) + calls + entry.payload
        packed.append(struct.pack("<iI", node, len(body)) + body)
    return b"".join(packed)


def unpack_entries(message: bytes) -> dict[int, NodeEntry]:
    """What `pack_entries` packed."""
    entries: dict[int, NodeEntry] = {}
    at = 0
    while at < len(message):
        node, length = struct.unpack_from("<iI", message, at)
        body = message[at + 8 : at + 8 + length]
        (calls,) = struct.unpack_from("<I", body, FINGERPRINT_BYTES)
        begin = FINGERPRINT_BYTES + 4
        entries[node] = NodeEntry(
            body[:FINGERPRINT_BYTES], unpack_calls(body[begin : begin + calls]), body[begin + calls :]
        )
        at += 8 + length
    return entries


def merge(entries: Mapping[int, NodeEntry], nodes: Sequence[tuple[int, ...]]) -> list[Called]:
    """Empty when all nodes agree; else who called what, refused calls first; the same on every leader."""
    first = entries[0].fingerprint
    if all(entry.fingerprint == first and not entry.calls for entry in entries.values()):
        return []
    ranks: dict[tuple[bytes, str], list[int]] = defaultdict(list)
    for node, entry in sorted(entries.items()):
        for one in entry.calls or [Called(nodes[node], entry.fingerprint)]:
            ranks[one.call, one.text] += one.ranks
    calls = [Called(tuple(sorted(who)), call, text) for (call, text), who in ranks.items()]
    return sorted(calls, key=lambda one: (one.call[REFUSED_BYTE] == 0, one.ranks))
