"""How near devices are to one another on PCIe, in the words of `nvidia-smi topo -m`.

========  ======================================================================================
PIX       through one switch at most
PXB       through several switches, not through the processor
PHB       through the root complex of one PCIe tree
NODE      between PCIe trees of one NUMA node
SYS       between NUMA nodes
========  ======================================================================================
"""

from __future__ import annotations

from dataclasses import dataclass

from hpccoll.topology.hardware.model import Gpu, Host, PciDevice, RdmaPort

DISTANCES = ("PIX", "PXB", "PHB", "NODE", "SYS")

_ONE_SWITCH = 2  # its port above the device, and the one that leads up
_MAX_DEPTH = 64


@dataclass(frozen=True)
class Affinity:
    """How near a network port is to a GPU: one of `DISTANCES`, or None where the places are not known."""

    gpu: Gpu
    port: RdmaPort
    distance: str | None


def distance(host: Host, first: str | None, second: str | None) -> str | None:
    """How near two devices of given PCI addresses are; None where that is not known."""
    one, other = host.pci_device(first), host.pci_device(second)
    if one is None or other is None:
        return None
    if _card(one) == _card(other):
        return "PIX"
    above, also_above = _above(host, one), _above(host, other)
    common = next((bridge for bridge in above if bridge in also_above), None)
    if common is not None:
        steps = max(above.index(common), also_above.index(common)) + 1
        return "PIX" if steps <= _ONE_SWITCH else "PXB"
    if one.root is not None and one.root == other.root:
        return "PHB"
    here, there = numa_node(host, one), numa_node(host, other)
    if here is None or there is None:
        return None
    return "NODE" if here == there else "SYS"


def affinities(host: Host, gpu: Gpu) -> tuple[Affinity, ...]:
    """All network ports of the host with their distance from a GPU, the nearest first, then by name."""
    found = [Affinity(gpu, port, distance(host, gpu.address, port.address)) for port in host.rdma_ports]
    return tuple(sorted(found, key=lambda one: _rank(one.distance)))


def nearest(host: Host, gpu: Gpu, *, active: bool = False) -> tuple[Affinity, ...]:
    """The network ports that are nearest to a GPU; `active`: of those that carry traffic only.

    () where there is none, or no distance is known.
    """
    found = [
        one for one in affinities(host, gpu) if one.distance is not None and (one.port.active or not active)
    ]
    return tuple(one for one in found if one.distance == found[0].distance)


def numa_node(host: Host, device: PciDevice | None) -> int | None:
    """The NUMA node of a device; the only one of the host where the kernel does not say."""
    if device is not None and device.numa_node is not None:
        return device.numa_node
    with_processors = [node.index for node in host.numa_nodes if node.cpus]
    return with_processors[0] if device is not None and len(with_processors) == 1 else None


def bridges_above(host: Host, address: str | None) -> tuple[PciDevice, ...]:
    """The bridges between a device and the root complex, the nearest first."""
    device = host.pci_device(address)
    if device is None:
        return ()
    found = (host.pci_device(bridge) for bridge in _above(host, device))
    return tuple(bridge for bridge in found if bridge is not None)


def _above(host: Host, device: PciDevice) -> list[str]:
    found: list[str] = []
    parent = device.parent
    while parent is not None and parent not in found and len(found) < _MAX_DEPTH:
        found.append(parent)
        bridge = host.pci_device(parent)
        parent = None if bridge is None else bridge.parent
    return found


def _card(device: PciDevice) -> str:
    """The address without the function: ports of one card."""
    return device.address.partition(".")[0]


def _rank(word: str | None) -> int:
    return len(DISTANCES) if word is None else DISTANCES.index(word)
