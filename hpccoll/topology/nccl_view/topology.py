"""The machine as NCCL sees it: the file of NCCL_TOPO_DUMP_FILE.

::

    <system version="1">
      <cpu numaid="3" affinity="..." arch="x86_64" vendor="AuthenticAMD" ...>       host_hash since 2.23
        <pci busid="0000:01:00.0" class="0x060400" link_speed="16.0 GT/s PCIe" link_width="16">
          <pci busid="0000:07:00.0" class="0x030200" ...>
            <gpu dev="0" sm="80" rank="0" gdr="1"> <nvlink target="0000:c7:00.0" count="2" tclass="0x068000"/>
            </gpu>
          <pci busid="0000:0c:00.0" class="0x020700" ...>
            <nic> <net name="mlx5_0" dev="0" speed="200000" port="1" guid="0x..." gdr="1"/> </nic>
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from hpccoll.topology.nccl_view.elements import Element, parse

_SWITCH_CLASS = 0x068000


@dataclass(frozen=True)
class NcclLinks:
    """NVLinks of a GPU to one peer: its PCI address, how many, and whether it is a switch."""

    target: str
    count: int
    to_switch: bool


@dataclass(frozen=True)
class NcclGpu:
    """A GPU of the communicator.

    Attributes:
        dev: NVML's number of it.
        rank: in the communicator that wrote the file.
        sm: compute capability times 10.
        gdr: NCCL takes GPUDirect RDMA to be possible with it.
        address: on PCI.
        bridges: the PCI addresses above it, the nearest first.
        numa_node: None where the kernel does not say (-1).
        host: the hash by which NCCL tells hosts apart, "" before 2.23.
        links: NVLinks by peer.
        c2c_gb_s: to the processor of its module; None without.

    """

    dev: int
    rank: int
    sm: int | None
    gdr: bool | None
    address: str
    bridges: tuple[str, ...]
    numa_node: int | None
    host: str
    links: tuple[NcclLinks, ...]
    c2c_gb_s: float | None


@dataclass(frozen=True)
class NcclNet:
    """A network device that NCCL may use.

    Attributes:
        name: such as "mlx5_0".
        dev: NCCL's number of it, as in `NET/IB/2`.
        port: of the card.
        speed_gbit_s: of the link.
        gdr: NCCL uses GPUDirect RDMA with it.
        address: on PCI; None for what is not.
        bridges, numa_node, host: as for GPUs.

    """

    name: str
    dev: int
    port: int | None
    speed_gbit_s: float | None
    gdr: bool | None
    address: str | None
    bridges: tuple[str, ...]
    numa_node: int | None
    host: str


@dataclass(frozen=True)
class NcclTopology:
    """The whole file."""

    gpus: tuple[NcclGpu, ...]
    nets: tuple[NcclNet, ...]
    numa_nodes: tuple[int, ...]


@dataclass(frozen=True)
class _Place:
    host: str
    numa_node: int | None
    above: tuple[str, ...]  # the nearest first; the device itself is the first for what is in it


def parse_topology(document: str | bytes) -> NcclTopology:
    """The machine in the text of a NCCL_TOPO_DUMP_FILE.  Raises: UsageError, with the line."""
    system = parse(document, "system")
    gpus: list[NcclGpu] = []
    nets: list[NcclNet] = []
    for cpu in system.named("cpu"):
        for element, place in _leaves(cpu, _Place(cpu.text("host_hash") or "", _numa_node(cpu), ())):
            if element.name == "gpu":
                gpus.append(_gpu(element, place))
            else:
                nets.append(_net(element, place))
    numa_nodes = {node for node in map(_numa_node, system.named("cpu")) if node is not None}
    return NcclTopology(tuple(gpus), tuple(nets), tuple(sorted(numa_nodes)))


def _numa_node(cpu: Element) -> int | None:
    found = cpu.needed("numaid")
    return found if found >= 0 else None


def _leaves(element: Element, place: _Place) -> Iterator[tuple[Element, _Place]]:
    for child in element.children:
        if child.name in ("gpu", "net"):
            yield child, place
        elif child.name == "pci":
            address = child.text("busid") or "unknown"
            yield from _leaves(child, _Place(place.host, place.numa_node, (address, *place.above)))
        elif child.name == "nic":
            yield from _leaves(child, place)


def _gpu(element: Element, place: _Place) -> NcclGpu:
    links = tuple(
        NcclLinks(link.text("target") or "", link.needed("count"), link.number("tclass") == _SWITCH_CLASS)
        for link in element.named("nvlink")
    )
    c2c = [(one.number("bw", 0) or 0) * (one.number("count", 1) or 1) / 1000 for one in element.named("c2c")]
    return NcclGpu(
        dev=element.needed("dev"),
        rank=element.number("rank", -1) or 0,
        sm=element.number("sm"),
        gdr=_flag(element, "gdr"),
        address=place.above[0] if place.above else "unknown",
        bridges=place.above[1:],
        numa_node=place.numa_node,
        host=place.host,
        links=links,
        c2c_gb_s=sum(c2c) if c2c else None,
    )


def _net(element: Element, place: _Place) -> NcclNet:
    speed = element.number("speed")
    return NcclNet(
        name=element.text("name") or "",
        dev=element.needed("dev"),
        port=element.number("port"),
        speed_gbit_s=None if speed is None else speed / 1000,
        gdr=_flag(element, "gdr"),
        address=place.above[0] if place.above else None,
        bridges=place.above[1:],
        numa_node=place.numa_node,
        host=place.host,
    )


def _flag(element: Element, name: str) -> bool | None:
    found = element.number(name)
    return None if found is None else bool(found)
