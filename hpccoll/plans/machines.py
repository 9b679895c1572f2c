"""Machines that plans can be priced for without having them: a name, what a node has, and its links."""

from __future__ import annotations

from dataclasses import dataclass
from types import MappingProxyType

from hpccoll.errors import UsageError
from hpccoll.plans import links
from hpccoll.plans.detected import links_of
from hpccoll.plans.links import Fabric, LinkClass, Links
from hpccoll.topology.layout import Layout

PLAIN = "plain"


@dataclass(frozen=True)
class Machine:
    """`ranks`: of a node (an NVLink domain, where that spans hosts), one for each GPU where it has GPUs."""

    name: str
    about: str
    ranks: int
    links: Links

    def layout(self, nodes: int, ranks: int | None = None) -> Layout:
        """So many nodes with so many ranks each, all of a node's by default.

        UsageError: none at all, more than a node has GPUs, or more than a layout may have.
        """
        a_node = self.ranks if ranks is None else ranks
        if nodes < 1 or a_node < 1:
            raise UsageError(f"{nodes} nodes of {a_node} ranks: there must be at least one of each")
        if self.links.fabric is not None and a_node > self.ranks:
            raise UsageError(f"{a_node} ranks a node: {self.name} has {self.ranks} GPUs in one")
        return Layout.parse(f"{nodes}x{a_node}")


def _gpus(gpus: int, inside: LinkClass, switch: LinkClass | None, cards: int, network: LinkClass) -> Links:
    return links_of(Fabric(gpus, inside, switch, cards, network))


# Two EPYC 7763, by data sheets 204.8 GB/s of memory a socket.  Assumed are 0.8 of it for copies, 2 us for a
# message of MPI over InfiniBand, and the default's part of the network for MPI's own collectives.
_HOSTS = Links(memory_gbs=2 * 204.8 * 0.8, network_latency_us=2.0, network_gbs=links.HDR.rate / 1e9)

MACHINES = MappingProxyType(
    {
        machine.name: machine
        for machine in (
            Machine(PLAIN, "hosts with the defaults, 10 Gbit/s between them", 8, Links()),
            Machine(
                "cpu-1gbit",
                "hosts with 1 Gbit/s between them",
                8,
                Links(
                    network_latency_us=links.ETHERNET_1.latency_us, network_gbs=links.ETHERNET_1.rate / 1e9
                ),
            ),
            Machine("cpu-hdr", "2 x 64 cores, one InfiniBand HDR card", 128, _HOSTS),
            Machine("pcie4", "8 GPUs on PCIe 4, one HDR card", 8, _gpus(8, links.PCIE4, None, 1, links.HDR)),
            Machine("dgx-a100", "8 A100, 8 HDR cards", 8, _gpus(8, links.NVLINK3, None, 8, links.HDR)),
            Machine(
                "dgx-h100", "8 H100, 8 NDR cards", 8, _gpus(8, links.NVLINK4, links.SWITCH4, 8, links.NDR)
            ),
            Machine(
                "hgx-h200", "8 H200, 8 NDR cards", 8, _gpus(8, links.NVLINK4, links.SWITCH4, 8, links.NDR)
            ),
            Machine(
                "hgx-b200", "8 B200, 8 NDR cards", 8, _gpus(8, links.NVLINK5, links.SWITCH5, 8, links.NDR)
            ),
            Machine("aws-p5en", "8 H200, EFA", 8, _gpus(8, links.NVLINK4, links.SWITCH4, 8, links.EFA)),
            Machine("aws-p6-b200", "8 B200, EFA", 8, _gpus(8, links.NVLINK5, links.SWITCH5, 8, links.EFA)),
            Machine(
                "gb200-nvl72",
                "72 B200 in one NVLink domain, 72 NDR cards",
                72,
                _gpus(72, links.NVLINK5, links.SWITCH5, 72, links.NDR),
            ),
        )
    }
)


def machine_of(name: str) -> Machine:
    """The machine of a name.  UsageError: there is none."""
    if name not in MACHINES:
        raise UsageError(f"no machine {name!r}; there are {', '.join(MACHINES)}")
    return MACHINES[name]
