"""Checks of network cards, and of their way to GPUs."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator

from hpccoll.doctor.finding import ABSENT, NOTE, UNKNOWN, WRONG, Finding, unknown
from hpccoll.doctor.hardware import LEAVE_OUT, no_cards, no_gpus
from hpccoll.topology.hardware.affinity import DISTANCES, bridges_above, nearest
from hpccoll.topology.hardware.document import Survey
from hpccoll.topology.hardware.model import Host, RdmaPort
from hpccoll.topology.hardware.words import rate_text

FAR = DISTANCES.index("PHB")  # from here on the way leads through the processor


def ports(host: Host, survey: Survey) -> Iterator[Finding]:
    """Ports of InfiniBand and RoCE that are down, or slower than others of their kind."""
    if not host.rdma_ports:
        yield no_cards(host, "rdma_ports", "no InfiniBand, RoCE or EFA")
        return
    best: dict[object, float] = {}
    for one in survey.hosts:
        for port in one.rdma_ports:
            if port.active and port.rate_gbit_s is not None:
                best[_kind(one, port)] = max(best.get(_kind(one, port), 0.0), port.rate_gbit_s)
    for port in host.rdma_ports:
        usual = best.get(_kind(host, port))
        place = f"/sys/class/infiniband/{port.device}/ports/{port.port}"
        if not port.active and _may_be_unused(host, port, survey):
            yield Finding(
                NOTE,
                f"port {port.name} is {port.state or 'not active'}, the other port of its card is active",
                f"{place}/state",
                "nothing, where it has no cable",
            )
        elif not port.active and (usual is not None or not any(one.active for one in host.rdma_ports)):
            yield Finding(
                WRONG,
                f"port {port.name} is {port.state or 'not active'}"
                + (f", physically {port.physical_state}" if port.physical_state else ""),
                f"{place}/state",
                f"cable, switch port, subnet manager (ibstat {port.device}). {LEAVE_OUT}{host.name}, or name "
                f"the other ports: NCCL_IB_HCA=^{port.device}",
            )
        elif usual is not None and port.rate_gbit_s is not None and port.rate_gbit_s < usual:
            yield Finding(
                WRONG,
                f"port {port.name} runs at {rate_text(port.rate_gbit_s)}, others of its kind at "
                f"{rate_text(usual)}",
                f"{place}/rate",
                f"cable and switch port: mlxlink -d {port.device} says why. {LEAVE_OUT}{host.name}",
            )


def bonds(host: Host, survey: Survey) -> Iterator[Finding]:
    """Bonds that run on a part of their links."""
    found = [one for one in host.interfaces if one.kind == "bond"]
    if not found:
        yield Finding(ABSENT, "no bond")
    for bond in found:
        parts = [one for one in host.interfaces if one.master == bond.name]
        down = [one.name for one in parts if one.state == "down"]
        if down:
            yield Finding(
                WRONG,
                f"{bond.name} runs on {len(parts) - len(down)} of its {len(parts)} links: "
                f"{', '.join(down)} {'is' if len(down) == 1 else 'are'} down",
                f"/sys/class/net/{down[0]}/operstate and master",
                f"cable and switch port (ethtool {down[0]}; /proc/net/bonding/{bond.name}). "
                f"{LEAVE_OUT}{host.name}",
            )


def network_of_gpus(host: Host, survey: Survey) -> Iterator[Finding]:
    """GPUs that are farther from a network card than most of the host's."""
    if not host.gpus:
        yield no_gpus(host, "no GPU")
        return
    if not any(port.active for port in host.rdma_ports):
        yield Finding(ABSENT, "no InfiniBand, RoCE or EFA that is active")
        return
    words = {gpu.index: next((one.distance for one in nearest(host, gpu)), None) for gpu in host.gpus}
    ranked = {index: DISTANCES.index(word) for index, word in words.items() if word is not None}
    if not ranked:
        card = f"pci {host.gpus[0].address}"
        yield Finding(
            UNKNOWN,
            "how near GPUs and network cards are is not known",
            host.why(f"{card} numa_node") or host.why("pci") or "/sys/bus/pci/devices",
            "in a virtual machine NCCL does not know it either: its provider has a file for NCCL_TOPO_FILE",
        )
        return
    usual = min(Counter(ranked.values()).items(), key=lambda one: (-one[1], one[0]))[0]
    far = [index for index, rank in ranked.items() if rank > usual and rank >= FAR]
    if 2 * len(far) >= len(ranked):
        # One card cannot be near the GPUs of two sockets.
        yield Finding(
            NOTE,
            f"GPUs {', '.join(map(str, far))} are farther from the network than the others: "
            f"{', '.join(sorted({str(words[index]) for index in far}))}",
            "PCIe tree; words of nvidia-smi topo -m",
            "the machine has too few cards for more: ranks on the near GPUs should be those that send most",
        )
        far = []
    for gpu in host.gpus:
        if gpu.index in far:
            yield Finding(
                WRONG,
                f"GPU {gpu.index} is far from the network: {words[gpu.index]}, the others {DISTANCES[usual]}",
                "PCIe tree; words of nvidia-smi topo -m",
                "the card of this GPU is in a slot of another processor, or missing: move it. Until then "
                "NCCL_CROSS_NIC=1 may help; data go through the processors",
            )


def gpu_direct(host: Host, survey: Survey) -> Iterator[Finding]:
    """Neither way of GPUDirect RDMA."""
    if not host.gpus:
        yield no_gpus(host, "no GPU")
        return
    if not host.rdma_ports:
        yield Finding(ABSENT, "no InfiniBand, RoCE or EFA")
        return
    found = host.gpu_direct
    if found.peermem or found.dma_buf:
        return
    if None in (found.peermem, found.dma_buf):
        yield unknown(host, "gpu_direct", "whether network cards reach GPU memory is not known")
        return
    yield Finding(
        WRONG,
        "GPUDirect RDMA is off: what goes to the network is copied through the host's memory",
        "nvidia_peermem is not in /proc/modules, and the driver's modules do not export memory by dma-buf",
        "modprobe nvidia-peermem, or install the open kernel modules of the driver (from 515 on)",
    )


def acs(host: Host, survey: Survey) -> Iterator[Finding]:
    """Bridges that send traffic between cards up to the processor."""
    cards = [gpu.address for gpu in host.gpus] + [port.address for port in host.rdma_ports if port.address]
    bridges = {one.address: one for card in cards if host.gpus for one in bridges_above(host, card)}
    if not host.gpus:
        yield no_gpus(host, "no GPU")
        return
    if not bridges:
        yield Finding(ABSENT, "no PCIe bridge above a GPU")
        return
    on = [address for address, one in bridges.items() if one.acs]
    dark = [address for address, one in bridges.items() if one.acs is None]
    if on:
        yield Finding(
            WRONG,
            f"ACS is on in {len(on)} of {len(bridges)} PCIe bridges above GPUs and network cards: traffic "
            "between them goes through the processor",
            f"config space of {', '.join(sorted(on)[:3])}{', ...' if len(on) > 3 else ''}",
            "turn it off in the firmware (IOMMU, ACS), or by setpci for these bridges at boot; in virtual "
            "machines turn ATS on instead",
        )
    elif dark:
        yield Finding(
            UNKNOWN,
            "whether ACS is on is not known",
            host.why(f"pci {dark[0]} acs") or "only root can read it",
        )


def _may_be_unused(host: Host, port: RdmaPort, survey: Survey) -> bool:
    """The other port of the same card is active, and no other host has this one in use."""
    slot = _slot(port)
    same = [one for one in host.rdma_ports if one.active and slot is not None and _slot(one) == slot]
    used = any(one.active and one.name == port.name for other in survey.hosts for one in other.rdma_ports)
    return bool(same) and not used


def _slot(port: RdmaPort) -> str | None:
    return None if port.address is None else port.address.partition(".")[0]


def _kind(host: Host, port: RdmaPort) -> object:
    """What ports of one kind have in common: the model of the card and the link layer."""
    card = host.pci_device(port.address)
    return (None, None) if card is None else (card.vendor, card.device), port.link_layer
