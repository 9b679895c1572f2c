"""In what hosts differ that should be alike."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass

from hpccoll.topology.hardware.files import format_numbers
from hpccoll.topology.hardware.model import Host, PciDevice
from hpccoll.topology.hardware.words import bytes_text, known, link_text, port_text, yes_no


@dataclass(frozen=True)
class Difference:
    """What a host has otherwise than most hosts; both in words.

    Attributes:
        aspect: such as "NVLink".
        own: what this host has.
        usual: what most hosts have; of equally many, the first.

    """

    aspect: str
    own: str
    usual: str


def differences(hosts: Sequence[Host]) -> tuple[tuple[Difference, ...], ...]:
    """For each host, where it differs from the majority."""
    tables = [traits(host) for host in hosts]
    usual = {
        aspect: Counter(table[aspect] for table in tables).most_common(1)[0][0]
        for aspect in ASPECTS
        if tables
    }
    return tuple(
        tuple(Difference(name, table[name], usual[name]) for name in ASPECTS if table[name] != usual[name])
        for table in tables
    )


def traits(host: Host) -> dict[str, str]:
    """What should be the same on all hosts of a job, in words, by aspect."""
    return {aspect: ask(host) for aspect, ask in ASPECTS.items()}


def counted(words: Iterable[str]) -> str:
    """`8 x this, 1 x that`, in the order in which they come; "none" for nothing."""
    return ", ".join(f"{count} x {word}" for word, count in Counter(words).items()) or "none"


def _processor(host: Host) -> str:
    found = host.processor
    return f"{known(found.model)}, {known(found.sockets)} sockets, {known(found.cores)} cores"


def _links(host: Host) -> str:
    """For each GPU what is active, which one lane down changes."""
    return counted(f"{gpu.active_links} of {len(gpu.links)} lanes" for gpu in host.gpus)


def _fabric(host: Host) -> str:
    fabrics = [gpu.fabric for gpu in host.gpus if gpu.fabric is not None]
    return counted(f"{one.state}, clique {one.clique}" if one.cluster else one.state for one in fabrics)


def _pcie(kind: str) -> Callable[[Host], str]:
    def ask(host: Host) -> str:
        return counted(link_text(device) for device in host.pci if device.kind == kind)

    return ask


def _ports(host: Host) -> str:
    return counted(map(port_text, host.rdma_ports))


def _gpu_direct(host: Host) -> str:
    found = host.gpu_direct
    modules = f"nvidia_peermem {yes_no(found.peermem)}, dma-buf {yes_no(found.dma_buf)}"
    return f"{modules}, IOMMU {yes_no(found.iommu)}"


def _acs(host: Host) -> str:
    def word(device: PciDevice) -> str:
        return known(None) if device.acs is None else "on" if device.acs else "off"

    return counted(sorted(word(device) for device in host.pci if device.kind == "bridge"))


def _numa(host: Host) -> str:
    cores = counted(format_numbers(node.cpus) or "no cores" for node in host.numa_nodes)
    return f"{len(host.numa_nodes)}: {cores}"


ASPECTS: dict[str, Callable[[Host], str]] = {
    "product": lambda host: known(host.product),
    "processor": _processor,
    "memory": lambda host: bytes_text(host.memory_bytes, digits=2),
    "NUMA nodes": _numa,
    "GPUs": lambda host: counted(gpu.name for gpu in host.gpus),
    "GPU memory": lambda host: counted(bytes_text(gpu.memory_bytes, digits=2) for gpu in host.gpus),
    "MIG": lambda host: counted(yes_no(gpu.mig) for gpu in host.gpus),
    "NVLink": _links,
    "NVLink fabric": _fabric,
    "PCIe of GPUs": _pcie("gpu"),
    "network ports": _ports,
    "PCIe of network cards": _pcie("network"),
    "GPUDirect RDMA": _gpu_direct,
    "ACS of PCIe bridges": _acs,
    "/dev/shm": lambda host: bytes_text(host.shm_bytes, digits=2),
    "kernel": lambda host: known(host.kernel),
    "driver": lambda host: known(host.driver),
    "CUDA of the driver": lambda host: known(host.cuda),
    "/etc/nccl.conf": lambda host: ", ".join("=".join(pair) for pair in host.nccl_conf) or "nothing",
}
"""What is compared, in the order in which it is shown."""
