"""All ranks in one process, for tests: mailboxes instead of messages, a meeting instead of a segment.

Programs of all ranks can be moved on in turn from one thread, or each from a thread of its own.
"""

from __future__ import annotations

from collections import defaultdict, deque
from collections.abc import Generator, Iterator, Sequence
from threading import Lock

import numpy as np

from hpccoll.transports.base import Array, Combine, GroupTransport, Network, Stages, Work


class Exchange:
    """What the ranks of a process share."""

    def __init__(self) -> None:
        self.lock = Lock()
        self.mail: dict[tuple[int, int, int], deque[Array]] = defaultdict(deque)
        self.meetings: dict[tuple[tuple[int, ...], int], dict[int, Sequence[Array]]] = defaultdict(dict)

    def network(self, rank: int) -> Network:
        return _Mailboxes(self, rank)

    def group(self, members: tuple[int, ...], rank: int) -> GroupTransport:
        return _Meeting(self, members, rank)


class _Done(Work):
    def test(self) -> bool:
        return True


class _Mailboxes(Network):
    def __init__(self, exchange: Exchange, rank: int) -> None:
        self._exchange = exchange
        self._rank = rank
        self._waiting: dict[tuple[int, int], deque[object]] = defaultdict(deque)

    def send(self, peer: int, data: Array, channel: int) -> Work:
        with self._exchange.lock:
            self._exchange.mail[self._rank, peer, channel].append(data.copy())
        return _Done()

    def receive(self, peer: int, data: Array, channel: int) -> Work:
        turn = object()
        self._waiting[peer, channel].append(turn)
        return Stages(self._take(peer, data, channel, turn))

    def _take(self, peer: int, data: Array, channel: int, turn: object) -> Generator[None, None, None]:
        mail = self._exchange.mail[peer, self._rank, channel]
        waiting = self._waiting[peer, channel]
        while not (waiting[0] is turn and mail):
            yield
        with self._exchange.lock:
            message = mail.popleft()
        waiting.popleft()
        if message.size != data.size:
            raise ValueError(f"message of {message.size} elements for a buffer of {data.size}")
        data[...] = message


class _Meeting(GroupTransport):
    def __init__(self, exchange: Exchange, members: tuple[int, ...], rank: int) -> None:
        self._exchange = exchange
        self._members = members
        self._me = members.index(rank)
        self._tickets = 0
        self._next = 1

    def reserve(self) -> int:
        self._tickets += 1
        return self._tickets

    def start(
        self,
        ticket: int,
        kind: str,
        root: int,
        source: Sequence[Array],
        target: Sequence[Array],
        counts: Sequence[int],
        combine: Combine,
    ) -> Work:
        return Stages(self._meet(ticket, kind, root, source, target, counts, combine))

    def _meet(
        self,
        ticket: int,
        kind: str,
        root: int,
        source: Sequence[Array],
        target: Sequence[Array],
        counts: Sequence[int],
        combine: Combine,
    ) -> Generator[None, None, None]:
        while self._next != ticket:
            yield
        self._next += 1
        meeting = self._exchange.meetings[self._members, ticket]
        with self._exchange.lock:
            meeting[self._me] = [piece.copy() for piece in source]
        while len(meeting) < len(self._members):
            yield
        given = [_joined(meeting[member]) for member in sorted(meeting)]
        result = _result(kind, self._me, root, given, counts, combine)
        room = sum(piece.size for piece in target)
        if target and room != result.size:
            raise ValueError(f"{kind} gives {result.size} elements for a buffer of {room}")
        offset = 0
        for piece in target:
            piece[...] = result[offset : offset + piece.size]
            offset += piece.size


def _joined(pieces: Sequence[Array]) -> Array:
    return np.concatenate([*pieces]) if pieces else np.empty(0)


def _result(
    kind: str, me: int, root: int, given: Sequence[Array], counts: Sequence[int], combine: Combine
) -> Array:
    """What member `me` gets, from what every member gives."""
    match kind:
        case "allreduce" | "reduce":
            return _combined(given, combine)
        case "reduce_scatter":
            return _block(_combined(given, combine), counts, me)
        case "scan":
            return _combined(given[: me + 1], combine)
        case "exscan":
            return _combined(given[:me], combine)
        case "broadcast":
            return given[root]
        case "scatter":
            return _block(given[root], counts, me)
        case "allgather" | "gather":
            return _joined([part for part in given if part.size])
        case "alltoall":
            return _joined([part for part in _column(given, counts, me) if part.size])
    raise ValueError(f"no kind {kind!r}")


def _combined(given: Sequence[Array], combine: Combine) -> Array:
    if not given:
        return np.empty(0)
    result: Array = given[0].copy()
    for part in given[1:]:
        combine(result, part, result)
    return result


def _block(whole: Array, counts: Sequence[int], member: int) -> Array:
    start = sum(counts[:member])
    return whole[start : start + counts[member]]


def _column(given: Sequence[Array], counts: Sequence[int], member: int) -> Iterator[Array]:
    """What every member has for one of them; blocks of equal length where nothing else is said."""
    size = len(given)
    for source, whole in enumerate(given):
        row = counts[source * size : (source + 1) * size] or [whole.size // size] * size
        yield _block(whole, row, member)
