"""Connections between leaders: what they make of what comes over them, and of how they end."""

from __future__ import annotations

import contextlib
import json
import resource
import socket
import struct
import time
from collections.abc import Iterator
from typing import Any

import pytest

from hpccoll.errors import AbortedError, CollectiveTimeoutError, PeerLostError
from hpccoll.runtime import connecting
from hpccoll.runtime.control import Farewell
from hpccoll.runtime.lifelines import _LONGEST, WATCH, Lifelines, Line
from hpccoll.runtime.peers import absent, absent_on_devices
from hpccoll.runtime.reason import FAILED, LATE, LOST, Reason


class FakeControl:
    """Keeps the first reason."""

    def __init__(self) -> None:
        self.reason: Reason | None = None

    def abort(self, reason: Reason) -> None:
        self.reason = self.reason or reason

    def aborted(self) -> Reason | None:
        return self.reason


class FakePeers:
    """A node in which nobody dies, or one rank has."""

    found: Reason | None = None

    def dead(self) -> Reason | None:
        return self.found


class Leader:
    """A leader with one connection, of which the test has the other end; nobody listens by itself."""

    def __init__(self, rank: int = 0, other: int = 4) -> None:
        mine, self.far = socket.socketpair()
        mine.setblocking(False)
        self.far.settimeout(5)
        self.control, self.peers = FakeControl(), FakePeers()
        self.line = Line(mine, other, "node 1, there")
        self.lifelines = Lifelines(rank, [self.line], self.control, self.peers)  # type: ignore[arg-type]
        WATCH.remove(self.lifelines)

    def hears(self, data: bytes) -> None:
        self.far.sendall(data)
        self.lifelines.hear(self.line)

    def said(self) -> list[bytes]:
        """All that has been sent."""
        self.far.setblocking(False)
        found = b""
        try:
            while data := self.far.recv(65536):
                found += data
        except BlockingIOError:
            pass
        messages = []
        while found:
            (length,) = struct.unpack_from("<I", found)
            messages.append(found[4 : 4 + length])
            found = found[4 + length :]
        return messages


@pytest.fixture
def leader() -> Iterator[Leader]:
    one = Leader()
    yield one
    one.far.close()
    one.line.connection.close()


def framed(message: bytes) -> bytes:
    return struct.pack("<I", len(message)) + message


REASON = Reason(4, LATE, "rank 5 did not call it", (5,))


def test_a_reason_is_kept_and_passed_on_once(leader: Leader) -> None:
    leader.hears(framed(b"R" + REASON.to_bytes()))
    assert leader.control.reason == REASON
    leader.hears(framed(b"R" + Reason(6, FAILED, "another").to_bytes()))
    assert leader.control.reason == REASON
    assert leader.said() == [b"R" + REASON.to_bytes()]


def test_messages_come_in_pieces_and_several_at_once(leader: Leader) -> None:
    data = framed(b"W" + json.dumps([4, 7]).encode()) + framed(b"R" + REASON.to_bytes())
    for piece in (data[:3], data[3:9], data[9:40]):
        leader.hears(piece)
    assert leader.lifelines.waits_for(4) == 7
    assert leader.control.reason is None
    leader.hears(data[40:])
    assert leader.control.reason == REASON


@pytest.mark.parametrize(
    "data",
    [
        struct.pack("<I", _LONGEST + 1),
        framed(b"R"),
        framed(b"R[1, 2]"),
        framed(b'R[1, "odd", "", []]'),
        framed(b'R[1e999, "lost", "", []]'),
        framed(b"W[1]"),
        framed(b"W[1e999, 2]"),
        framed(b"F{}"),
        framed(b"F" + b"[" * 8000),
        framed(b"\xff\xfe"),
        framed(b""),
    ],
)
def test_what_is_no_message_ends_the_connection_and_nothing_else(leader: Leader, data: bytes) -> None:
    leader.hears(data)
    assert leader.lifelines.lines == []
    assert leader.control.reason is None


def test_an_end_without_farewell_is_a_loss(leader: Leader) -> None:
    leader.far.close()
    leader.lifelines.hear(leader.line)
    found = leader.control.reason
    assert found is not None
    assert (found.kind, found.suspects) == (LOST, (4,))
    assert found.text.startswith("rank 4 (node 1, there) died, or its host")
    leader.lifelines.hear(leader.line)  # as when the thread is late: it is closed already


def test_an_end_after_a_farewell_is_none(leader: Leader) -> None:
    leader.hears(framed(b"F" + json.dumps([12, 5, "its program has ended"]).encode()))
    leader.far.close()
    leader.lifelines.hear(leader.line)
    assert leader.control.reason is None
    assert leader.lifelines.farewells == {4: Farewell(12, 5, "its program has ended")}
    assert absent(leader.lifelines.farewells, 11, 0) is None
    assert absent_on_devices(leader.lifelines.farewells, 5, 0) is None
    late = absent_on_devices(leader.lifelines.farewells, 6, 0)
    assert late is not None
    assert "rank 4 has left after 5 calls on devices, of 6 here: its program" in late.text
    found = absent(leader.lifelines.farewells, 12, 0)
    assert found is not None
    assert found.text == "rank 4 has left after 12 calls: its program has ended"


def test_who_leaves_says_so_and_nothing_afterwards(leader: Leader) -> None:
    leader.lifelines.leave(Farewell(3, 0, "done"))
    leader.lifelines.tell(REASON)
    assert leader.said() == [b"F" + json.dumps([3, 0, "done"]).encode()]
    assert leader.far.recv(1) == b""


def test_who_waits_for_whom_goes_round_once(leader: Leader) -> None:
    leader.lifelines.asks(lambda: 4)
    leader.hears(framed(b"W" + json.dumps([4, 5]).encode()))
    assert [json.loads(one[1:]) for one in leader.said()] == [[4, 5], [0, 4]]
    leader.hears(framed(b"W" + json.dumps([4, 5]).encode()))
    assert leader.said() == []


def test_a_tick_tells_what_the_node_has_given_up(leader: Leader) -> None:
    leader.lifelines.tick()
    assert leader.said() == []
    leader.control.reason = REASON
    leader.lifelines.tick()
    leader.lifelines.tick()
    assert leader.said() == [b"R" + REASON.to_bytes()]


def test_a_tick_finds_who_has_died(leader: Leader, monkeypatch: pytest.MonkeyPatch) -> None:
    leader.peers.found = Reason(0, LOST, "rank 1 died", (1,))
    leader.lifelines.tick()
    assert leader.control.reason is None  # it has just looked
    now = time.monotonic()
    monkeypatch.setattr(time, "monotonic", lambda: now + 10)
    leader.lifelines.tick()
    assert leader.control.reason == leader.peers.found


# --- reasons ----------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("kind", "raised"), [(LOST, PeerLostError), (LATE, CollectiveTimeoutError), (FAILED, AbortedError)]
)
def test_the_kind_is_the_same_on_all_ranks_but_the_one_to_blame(kind: str, raised: type[Exception]) -> None:
    reason = Reason(2, kind, "why", (3,))
    assert Reason.from_bytes(reason.to_bytes()) == reason
    for rank in (0, 2):
        error = reason.error("allreduce", 7, rank)
        assert type(error) is raised
        assert (error.collective, error.sequence, error.rank, error.suspects) == ("allreduce", 7, rank, (3,))
    assert "rank 2 gave up: why" in str(reason.error("allreduce", 7, 0))
    assert "gave up" not in str(reason.error("allreduce", 7, 2))
    assert type(reason.error("allreduce", 7, 3)) is AbortedError


def test_a_reason_fits_into_its_place() -> None:
    long = Reason.of(PeerLostError("\u20ac\x00" * 10_000, suspects=range(1000)), 1)
    assert len(long.to_bytes()) < 4096 * 4
    assert Reason.from_bytes(long.to_bytes()).text.endswith(" ...")


# --- connecting -------------------------------------------------------------------------------------


def connected() -> tuple[socket.socket, int]:
    listener = connecting._listener()
    assert listener is not None
    return listener, listener.getsockname()[1]


def test_only_ranks_of_the_communicator_are_taken() -> None:
    listener, port = connected()
    secret = b"s" * 16
    strangers = [connecting._connect(["127.0.0.1"], port, time.monotonic() + 5) for _ in range(4)]
    for one, hello in zip(
        strangers,
        (
            b"GET / HTTP/1.1\r\n\r\n" + b"x" * 40,
            connecting._hello(b"t" * 16, 3),
            connecting._hello(secret, 9),
            b"",
        ),
        strict=True,
    ):
        assert one is not None
        one.sendall(hello)
    assert strangers[3] is not None
    strangers[3].close()
    ours = connecting._connect(["127.0.0.1"], port, time.monotonic() + 5)
    assert ours is not None
    ours.sendall(connecting._hello(secret, 3))
    found = connecting._accept(listener, secret, {3})
    assert list(found) == [3]
    found[3].sendall(b"!")
    assert ours.recv(1) == b"!"
    for one in strangers[:3]:
        assert one is not None
        with contextlib.suppress(ConnectionResetError):  # closed with data that nobody has read
            assert one.recv(1) == b""
        one.close()
    for one in (listener, ours, found[3]):
        one.close()


def test_the_first_address_that_answers(monkeypatch: pytest.MonkeyPatch) -> None:
    listener, port = connected()
    monkeypatch.setattr(connecting, "CONNECT_S", 1.0)
    found = connecting._connect(["127.0.0.9", "127.0.0.1"], port, time.monotonic() + 5)
    assert found is not None
    found.close()
    began = time.monotonic()
    assert connecting._connect(["192.0.2.1"], 9, time.monotonic() + 5) is None  # nobody has this address
    assert connecting._connect([], port, time.monotonic() + 5) is None
    assert time.monotonic() - began < 3
    listener.close()


def test_who_does_not_come_is_not_waited_for_in_vain(monkeypatch: pytest.MonkeyPatch) -> None:
    listener, _ = connected()
    monkeypatch.setattr(connecting, "CONNECT_S", 0.3)
    began = time.monotonic()
    assert connecting._accept(listener, b"s", {1}) == {}
    assert time.monotonic() - began < 2
    listener.close()


def test_too_many_connections_are_not_made(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(WATCH, "connections", lambda: 1 << 40)
    monkeypatch.setattr(resource, "getrlimit", lambda kind: (1024, 4096))
    assert connecting._listener() is None


def test_own_addresses_are_addresses_of_interfaces() -> None:
    found: Any = connecting._own_addresses()
    assert all(socket.inet_aton(one) for one in found)
    assert not any(one.startswith("127.") for one in found)
