"""Connecting the leaders of the nodes of a communicator as a tree; by TCP."""

from __future__ import annotations

import contextlib
import fcntl
import hashlib
import hmac
import json
import resource
import secrets
import select
import socket
import struct
import time
from collections.abc import Sequence
from typing import Any

from mpi4py import MPI

from hpccoll.runtime.control import Control
from hpccoll.runtime.lifelines import WATCH, Lifelines, Line
from hpccoll.runtime.peers import Peers
from hpccoll.topology.agreement import gather, gather_numbers
from hpccoll.topology.hosts import HostFacts
from hpccoll.topology.layout import Layout

CHILDREN = 8
SILENT_S = 20  # so long nothing answers before a connection is given up
CONNECT_S = 3.0
_PURPOSE = "connections between nodes"
_SIOCGIFADDR = 0x8915

_silent: set[HostFacts] = set()  # hosts that have not answered: no communicator waits for them again


def open_lifelines(
    comm: MPI.Intracomm,
    layout: Layout,
    hosts: Sequence[HostFacts],
    control: Control,
    peers: Peers,
    deadline: float,
) -> Lifelines | None:
    """Connect the leaders of all nodes; None on other ranks, and where there is one node.

    Collective over `comm`.  A connection that cannot be made (a firewall, too few descriptors, no thread to
    read it) is left out.
    Raises: CollectiveTimeoutError as `gather`.
    """
    if layout.node_count == 1:
        return None
    leads = layout.leader(layout.node(comm.rank)) == comm.rank
    if not leads:
        return _opened(comm, layout, hosts, control, peers, deadline, leads=False, reads=False)
    with WATCH.reserved() as reads:
        return _opened(comm, layout, hosts, control, peers, deadline, leads=True, reads=reads)


def _opened(
    comm: MPI.Intracomm,
    layout: Layout,
    hosts: Sequence[HostFacts],
    control: Control,
    peers: Peers,
    deadline: float,
    *,
    leads: bool,
    reads: bool,
) -> Lifelines | None:
    """`leads`: this rank leads its node; `reads`: it has a thread, without which it connects to nobody."""
    node = layout.node(comm.rank)
    parent = layout.leader((node - 1) // CHILDREN) if reads and node else None
    children = [
        layout.leader(child)
        for child in range(CHILDREN * node + 1, CHILDREN * node + 1 + CHILDREN)
        if reads and child < layout.node_count
    ]
    found: dict[int, socket.socket] = {}
    listener = _listener() if children else None
    try:
        offers = [json.loads(one) for one in gather(comm, _offer(listener, comm.rank), deadline, _PURPOSE)]
        secret = bytes.fromhex(offers[0]["secret"])
        if parent is not None:
            to, here = hosts[layout.node(parent)], hosts[node]
            connection = _connection(to, here, offers[parent], _hello(secret, comm.rank), deadline)
            if connection is not None:
                found[parent] = connection
        connected = gather_numbers(comm, bool(found), deadline, _PURPOSE)
        if listener is not None:
            found |= _accept(listener, secret, {child for child in children if connected[child]})
    except BaseException:
        for one in found.values():
            one.close()
        raise
    finally:
        if listener is not None:
            listener.close()
    if not leads:
        return None
    lines = []
    for rank, one in found.items():
        _prepare(one)
        lines.append(Line(one, rank, f"node {layout.node(rank)}, {hosts[layout.node(rank)].host_name}"))
    return Lifelines(comm.rank, lines, control, peers)


def _listener() -> socket.socket | None:
    """None where too many descriptors are in use, or nothing can be bound."""
    most = resource.getrlimit(resource.RLIMIT_NOFILE)[0]
    if most != resource.RLIM_INFINITY and WATCH.connections() > most // 4:
        return None
    try:
        listener = socket.socket()
    except OSError:
        return None
    try:
        listener.bind(("", 0))
        listener.listen(4 * CHILDREN)
    except OSError:
        listener.close()
        return None
    return listener


def _offer(listener: socket.socket | None, rank: int) -> bytes:
    """Where this rank listens; of rank 0 also what proves that a rank belongs to the communicator."""
    offer: dict[str, object] = {"addresses": [], "port": 0}
    if listener is not None:
        offer = {"addresses": _own_addresses(), "port": listener.getsockname()[1]}
    if rank == 0:
        offer["secret"] = secrets.token_bytes(16).hex()
    return json.dumps(offer).encode()


def _own_addresses() -> list[str]:
    """The IPv4 addresses of this host's interfaces, but for the loop-back."""
    found = []
    with contextlib.suppress(OSError), socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as probe:
        for _, name in socket.if_nameindex():
            with contextlib.suppress(OSError):  # it has none
                answer = fcntl.ioctl(probe, _SIOCGIFADDR, struct.pack("256s", name.encode()[:15]))
                found.append(socket.inet_ntoa(answer[20:24]))
    return [one for one in found if not one.startswith("127.")]


def _connection(
    to: HostFacts, here: HostFacts, offer: dict[str, Any], hello: bytes, deadline: float
) -> socket.socket | None:
    """A connection to a leader that listens, over which this rank has said who it is."""
    if to in _silent or not offer["port"]:
        return None
    if (to.net_namespace, to.boot_id) == (here.net_namespace, here.boot_id):
        addresses = ["127.0.0.1"]
    else:
        own = set(_own_addresses())  # a bridge of containers has the same address on every host
        addresses = [one for one in offer["addresses"] if one not in own]
    began = time.monotonic()
    connection = None
    with contextlib.suppress(OSError):
        connection = _connect(addresses, offer["port"], deadline)
        if connection is not None:
            connection.sendall(hello)
    if connection is None and time.monotonic() - began > CONNECT_S / 2:
        _silent.add(to)
    return connection


def _connect(addresses: Sequence[str], port: int, deadline: float) -> socket.socket | None:
    """A connection to the first address that answers."""
    deadline = min(deadline, time.monotonic() + CONNECT_S)
    trials: dict[int, socket.socket] = {}
    poll = select.poll()
    made: socket.socket | None = None
    try:
        for address in addresses:
            trial = socket.socket()
            trial.setblocking(False)
            trial.connect_ex((address, port))
            trials[trial.fileno()] = trial
            poll.register(trial, select.POLLOUT)
        while trials and made is None and (left := deadline - time.monotonic()) > 0:
            for number, _ in poll.poll(1e3 * left):
                trial = trials.pop(number)
                poll.unregister(number)
                if made is None and trial.getsockopt(socket.SOL_SOCKET, socket.SO_ERROR) == 0:
                    made = trial
                else:
                    trial.close()
    finally:
        for trial in trials.values():
            trial.close()
    if made is not None:
        made.settimeout(CONNECT_S)
    return made


def _accept(listener: socket.socket, secret: bytes, expected: set[int]) -> dict[int, socket.socket]:
    """The connections of these ranks, which they have all made; those that do not prove it are closed."""
    found: dict[int, socket.socket] = {}
    deadline = time.monotonic() + CONNECT_S
    while expected and (left := deadline - time.monotonic()) > 0:
        listener.settimeout(left)
        try:
            connection, _ = listener.accept()
        except OSError:
            break
        rank = _introduced(connection, secret, expected)
        if rank is None:
            connection.close()
        else:
            expected.discard(rank)
            found[rank] = connection
    return found


def _hello(secret: bytes, rank: int) -> bytes:
    number = struct.pack("<q", rank)
    return number + hmac.digest(secret, number, hashlib.sha256)


def _introduced(connection: socket.socket, secret: bytes, expected: set[int]) -> int | None:
    """Which of the expected ranks it is."""
    connection.settimeout(0.5)
    said = b""
    length = len(_hello(secret, 0))
    with contextlib.suppress(OSError):
        while len(said) < length:
            data = connection.recv(length - len(said))
            if not data:
                break
            said += data
    found = [rank for rank in expected if hmac.compare_digest(said, _hello(secret, rank))]
    return found[0] if found else None


def _prepare(connection: socket.socket) -> None:
    """Keep-alive by the kernel: `SILENT_S` without an answer ends it."""
    connection.setblocking(False)
    for level, option, value in (
        (socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1),
        (socket.IPPROTO_TCP, socket.TCP_NODELAY, 1),
        (socket.IPPROTO_TCP, socket.TCP_KEEPIDLE, SILENT_S // 2),
        (socket.IPPROTO_TCP, socket.TCP_KEEPINTVL, SILENT_S // 4),
        (socket.IPPROTO_TCP, socket.TCP_KEEPCNT, 2),
        (socket.IPPROTO_TCP, socket.TCP_USER_TIMEOUT, 1000 * SILENT_S),
    ):
        connection.setsockopt(level, option, value)
