"""Rings, trees and transports from logs of NCCL_DEBUG=INFO, of one process or of many in one file.

Lines of other programs, prefixes of launchers and times are passed over::

    host:4015539:4015652 [0] NCCL INFO Channel 00/08 :    0   1   2   3
    host:4015539:4015652 [0] NCCL INFO Trees [0] 1/-1/-1->0->-1 [1] 1/4/-1->0->-1
    host:4015539:4015652 [0] NCCL INFO Channel 00/0 : 0[0] -> 1[1] via P2P/CUMEM
    host:4015539:4015652 [0] NCCL INFO Channel 02/0 : 3[3] -> 4[0] [receive] via NET/IB/2/GDRDMA
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field

__all__ = ["NcclCommunicator", "NcclConnection", "NcclLog", "NcclTree", "parse_log"]

_MAX_LINE = 1 << 20  # a ring of 100,000 ranks

_MARK = re.compile(r" NCCL (INFO|WARN) ")
_HEAD = re.compile(r"([^\s:\]>]{1,255}):(\d{1,10}):(\d{1,10}) \[-?\d{1,5}\](?: \S{1,200})?$")
_MAX_HEAD = 600  # host, process, thread, and the line of NCCL's source that warns
_VERSION = re.compile(r"NCCL version (\d{1,3}\.\d{1,3}\.\d{1,3})")
_INIT = re.compile(
    r"comm (?P<comm>0x[0-9a-f]{1,16}) rank (?P<rank>\d{1,7}) nranks (?P<nranks>\d{1,7}) cudaDev \d{1,4}"
    r"(?: nvmlDev \d{1,4})? busId (?P<bus>[0-9a-f]{1,16})(?: commId (?P<id>0x[0-9a-f]{1,16}))?"
    r".{0,60}? - Init (?P<step>START|COMPLETE)"
)
_RING = re.compile(r"Channel (\d{1,3})/(\d{1,3}) : +((?:\d{1,7} +)*\d{1,7})$")
_TREE = re.compile(r"\[(\d{1,3})\] (-?\d{1,7})/(-?\d{1,7})/(-?\d{1,7})->(\d{1,7})->(-?\d{1,7})")
_CONNECTION = re.compile(
    r"Channel (?P<channel>\d{1,3})(?:/(?P<index>\d{1,2}))? : (?P<source>\d{1,7})\[[0-9a-f]{1,8}\] -> "
    r"(?P<target>\d{1,7})\[[0-9a-f]{1,8}\] (?:\[(?P<way>send|receive)\] )?via (?P<via>[^\s].{0,100})"
)
_NET = re.compile(r"NET/([^/]{1,60})/(\d{1,4})(?:\((\d{1,7})\))?(.*)")
_CHANNELS = re.compile(
    r"(\d{1,4}) coll channels, (?:(\d{1,4}) collnet channels, )?"
    r"(?:(\d{1,4}) nvls channels, )?(\d{1,4}) p2p channels"
)
_NVLS = re.compile(r"NVLS multicast support is (not )?available")
_SETTING = re.compile(r"(NCCL_[A-Z0-9_]{1,60}) set (?:by environment )?to (.{0,500}?)\.?$")
_NETWORK = re.compile(r"Using network (\S{1,60})")
_DEVICES = re.compile(r"\[(\d{1,4})\](\S{1,60}?):(\d{1,3})/(IB|RoCE)")


@dataclass(frozen=True)
class NcclConnection:
    """A way between two ranks that NCCL has set up.

    Attributes:
        channel: its number.
        source, target: ranks of the communicator.
        transport: "P2P", "SHM", "NET", "COLLNET".
        detail: as NCCL writes it: "CUMEM", "direct pointer/read", "IB/2/GDRDMA".
        network: "IB", "Socket", ...; "" where it is not NET.
        device: NCCL's number of the network device; None where it is not NET.
        gdr: GPUDirect RDMA; None where it is not NET.
        way: "send" or "receive", whichever end says it; "" where both are one.

    """

    channel: int
    source: int
    target: int
    transport: str
    detail: str
    network: str = ""
    device: int | None = None
    gdr: bool | None = None
    way: str = ""


@dataclass(frozen=True)
class NcclTree:
    """The place of a rank in the tree of a channel; `parent` is None at the root."""

    channel: int
    rank: int
    parent: int | None
    children: tuple[int, ...]


@dataclass
class NcclCommunicator:
    """What the log has of one communicator.

    Attributes:
        id: NCCL's commId; "" where no line names it.
        size: how many ranks; 0 where no line says.
        ranks: those that say in this log that they are ready, with the PCI bus id of their device.
        rings: for each channel the ranks in order, from the log of rank 0.
        trees: of the ranks in this log.
        connections: in the order of the log, each once.
        channels: how many of each kind: "coll", "collnet", "nvls", "p2p".
        nvls: the devices can do multicast; None where no line says.

    """

    id: str
    size: int = 0
    ranks: dict[int, str] = field(default_factory=dict)
    rings: dict[int, tuple[int, ...]] = field(default_factory=dict)
    trees: list[NcclTree] = field(default_factory=list)
    connections: list[NcclConnection] = field(default_factory=list)
    channels: dict[str, int] = field(default_factory=dict)
    nvls: bool | None = None

    def transports(self) -> dict[str, int]:
        """How many connections go by each transport; NET with its network and with or without GPUDirect."""
        counts: dict[str, int] = {}
        for one in self.connections:
            name = one.transport
            if one.transport == "NET":
                name = f"NET/{one.network}" + ("/GDRDMA" if one.gdr else "")
            counts[name] = counts.get(name, 0) + 1
        return counts


@dataclass
class NcclLog:
    """A whole log.

    Attributes:
        versions: of NCCL, as they come; more than one is a mixed job.
        communicators: as they come.
        networks: what NCCL says that it uses: "IB", "Socket".
        devices: network devices by NCCL's number: ("mlx5_0:1", "IB" or "RoCE").
        settings: variables that NCCL has read, with the value.
        warnings: texts of WARN lines, each once.

    """

    versions: list[str] = field(default_factory=list)
    communicators: list[NcclCommunicator] = field(default_factory=list)
    networks: list[str] = field(default_factory=list)
    devices: dict[int, tuple[str, str]] = field(default_factory=dict)
    settings: dict[str, str] = field(default_factory=dict)
    warnings: list[str] = field(default_factory=list)


def parse_log(lines: str | Iterable[str]) -> NcclLog:
    """What is in a log, given as a text or as lines; lines cut off or of other programs are passed over."""
    reader = _Reader()
    for line in lines.splitlines() if isinstance(lines, str) else lines:
        reader.line(line[:_MAX_LINE].rstrip())
    return reader.log


class _Reader:
    """Attributes each line to the communicator that its thread, or else its process, makes."""

    def __init__(self) -> None:
        self.log = NcclLog()
        self.known: dict[str, NcclCommunicator] = {}
        self.by_thread: dict[tuple[str, ...], NcclCommunicator] = {}
        self.seen: set[tuple[str, NcclConnection]] = set()

    def line(self, line: str) -> None:
        if "NCCL" not in line:
            return
        version = _VERSION.search(line)
        if version is not None:
            _once(self.log.versions, version[1])
        mark = _MARK.search(line)
        if mark is None:
            return
        head = _HEAD.search(line[max(0, mark.start() - _MAX_HEAD) : mark.start()])
        text = line[mark.end() :]
        if head is None:
            return
        if mark[1] == "WARN":
            _once(self.log.warnings, text.strip())
            return
        where = head[1], head[2], head[3]
        started = _INIT.search(text)
        if started is not None:
            self.init(where, started)
        elif not self.about_all(text):
            self.about(where, text)

    def init(self, where: tuple[str, str, str], found: re.Match[str]) -> None:
        comm = self.named(found["id"] or "")
        comm.size = max(comm.size, int(found["nranks"]))
        self.by_thread[where] = self.by_thread[where[:2]] = comm
        if found["step"] == "COMPLETE":
            comm.ranks[int(found["rank"])] = found["bus"]

    def communicator(self, where: tuple[str, str, str]) -> NcclCommunicator:
        return self.by_thread.get(where) or self.by_thread.get(where[:2]) or self.named("")

    def named(self, name: str) -> NcclCommunicator:
        if name not in self.known:
            self.known[name] = NcclCommunicator(name)
            self.log.communicators.append(self.known[name])
        return self.known[name]

    def about_all(self, text: str) -> bool:
        """Whether a line is about the process, which it then has been told from."""
        log = self.log
        setting = _SETTING.match(text)
        network = _NETWORK.search(text)
        if setting is not None:
            log.settings[setting[1]] = setting[2]
        elif network is not None:
            _once(log.networks, network[1])
        elif text.startswith("NET/IB : Using"):
            for number, device, port, layer in _DEVICES.findall(text):
                log.devices[int(number)] = f"{device}:{port}", layer
        else:
            return False
        return True

    def about(self, where: tuple[str, str, str], text: str) -> None:
        """A line about the communicator of a thread, which is made by the first that says something."""
        if (ring := _RING.match(text)) is not None:
            self.communicator(where).rings[int(ring[1])] = tuple(map(int, ring[3].split()))
        elif text.startswith("Trees "):
            self.communicator(where).trees += _trees(text)
        elif (match := _CONNECTION.match(text)) is not None:
            self.connection(self.communicator(where), match)
        elif (count := _CHANNELS.match(text)) is not None:
            names = ("coll", "collnet", "nvls", "p2p")
            found = zip(names, count.groups(), strict=True)
            self.communicator(where).channels = {
                name: int(number) for name, number in found if number is not None
            }
        elif (nvls := _NVLS.match(text)) is not None:
            self.communicator(where).nvls = nvls[1] is None

    def connection(self, comm: NcclCommunicator, match: re.Match[str]) -> None:
        transport, _, detail = match["via"].strip().partition("/")
        net = _NET.match(match["via"].strip())
        found = NcclConnection(
            channel=int(match["channel"]),
            source=int(match["source"]),
            target=int(match["target"]),
            transport=transport,
            detail=detail,
            network=net[1] if net else "",
            device=int(net[2]) if net else None,
            gdr="GDRDMA" in net[4] if net else None,
            way=match["way"] or "",
        )
        if (comm.id, found) not in self.seen:
            self.seen.add((comm.id, found))
            comm.connections.append(found)


def _trees(text: str) -> Iterator[NcclTree]:
    """`child/child/child->rank->parent` for each channel, -1 for none."""
    for channel, *below, rank, parent in _TREE.findall(text):
        children = tuple(int(child) for child in below if int(child) >= 0)
        yield NcclTree(int(channel), int(rank), int(parent) if int(parent) >= 0 else None, children)


def _once(found: list[str], text: str) -> None:
    if text not in found:
        found.append(text)
