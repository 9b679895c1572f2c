"""Hosts as text: what each is made of, as a tree, and in what it differs from the others.

::

    dgx1  NVIDIA DGXA100: 2 x 64 cores, 8 NUMA nodes, 1 TiB
    ├── NUMA node 3  cores 48-63,176-191  126 GiB
    │   ├── PCIe switch 0000:01:00.0
    │   │   ├── GPU 0  NVIDIA A100-SXM4-40GB  0000:07:00.0  PCIe x16 at 16 GT/s  NVLink 3.0: 12 of 12 lanes
    ...
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field

from hpccoll.topology.hardware.affinity import affinities, bridges_above, numa_node
from hpccoll.topology.hardware.compare import Difference, counted, differences
from hpccoll.topology.hardware.document import Survey
from hpccoll.topology.hardware.domains import gpu_domains, has_nvlink
from hpccoll.topology.hardware.files import format_numbers
from hpccoll.topology.hardware.model import Gpu, Host, NumaNode, Process, RdmaPort
from hpccoll.topology.hardware.words import (
    bytes_text,
    known,
    link_text,
    nvlink_text,
    port_text,
    rate_text,
    yes_no,
)
from hpccoll.topology.notation import format_ranks, sides_of

_MAX_HOSTS = 64
_MAX_UNKNOWN = 8
_MAX_NAMES = 32
_MAX_SHARING = 8


@dataclass
class Branch:
    """A line and what hangs below it."""

    text: str
    below: list[Branch] = field(default_factory=list)

    def lines(self) -> Iterator[str]:
        """The branch as lines of a tree."""
        yield self.text
        for child in self.below:
            last = child is self.below[-1]
            for number, line in enumerate(child.lines()):
                lead = ("└── " if last else "├── ") if number == 0 else ("    " if last else "│   ")
                yield lead + line


def format_survey(survey: Survey, *, detail: bool = False) -> str:
    """All hosts: one of each kind in full, the others by name with what they have otherwise.

    Args:
        survey: what to show.
        detail: every host in full.

    """
    found = differences(survey.hosts)
    sections: list[str] = []
    for kind in (
        _kinds(survey.hosts, found)[:_MAX_HOSTS] if not detail else [[n] for n in range(len(survey.hosts))]
    ):
        first = kind[0]
        lines = list(host_tree(survey.hosts[first]).lines())
        if len(kind) > 1:
            names = ", ".join(known(survey.hosts[one].name) for one in kind[:_MAX_NAMES])
            lines.append(f"{len(kind)} hosts are so: {names}{', ...' * (len(kind) > _MAX_NAMES)}")
        lines += [f"! {one.aspect}: {one.own}; most hosts: {one.usual}" for one in found[first]]
        sections.append("\n".join(lines))
    sections += [
        "\n".join(lines) for lines in (_domains(survey), _sharing(survey), _processes(survey)) if lines
    ]
    return "\n\n".join(sections)


def host_tree(host: Host) -> Branch:
    """One host as a tree: NUMA nodes, PCIe switches, GPUs and network cards, then the rest."""
    top = Branch(_title(host))
    nodes = {
        node.index: Branch(_numa_text(node))
        for node in host.numa_nodes
        if node.cpus or len(host.numa_nodes) == 1
    }
    elsewhere = Branch("NUMA node unknown")
    switches: dict[str, Branch] = {}
    for address, text in _cards(host):
        place = nodes.get(_numa_index(host, address), elsewhere)
        bridges = bridges_above(host, address)
        # The highest bridge is the root port, the next a switch's port up, above one down.
        if len(bridges) >= 3:
            up = bridges[-2]
            if up.address not in switches:
                switches[up.address] = Branch(
                    f"PCIe switch {up.address}  {link_text(up)}{_acs_text(bridges)}"
                )
                place.below.append(switches[up.address])
            place = switches[up.address]
        place.below.append(Branch(text))
    top.below += [*nodes.values(), *([elsewhere] if elsewhere.below else [])]
    top.below += [
        branch for branch in (_switches(host), _near(host), _interfaces(host), *_rest(host)) if branch
    ]
    return top


def _kinds(hosts: Sequence[Host], found: Sequence[tuple[Difference, ...]]) -> list[list[int]]:
    """Hosts that have the same, together; the most common first."""
    kinds: dict[tuple[Difference, ...], list[int]] = {}
    for number, differs in enumerate(found):
        kinds.setdefault(differs, []).append(number)
    return sorted(kinds.values(), key=lambda kind: (len(found[kind[0]]) > 0, kind[0]))


def _title(host: Host) -> str:
    processor = host.processor
    cores = f"{known(processor.cores)} cores"
    if processor.sockets is not None and processor.sockets > 1 and processor.cores is not None:
        cores = f"{processor.sockets} x {processor.cores // processor.sockets} cores"
    nodes = [node for node in host.numa_nodes if node.cpus]
    parts = [f"{known(processor.model)}, {cores}", f"{len(nodes)} NUMA node{'s' * (len(nodes) != 1)}"]
    parts += [
        bytes_text(host.memory_bytes),
        counted(gpu.name for gpu in host.gpus) if host.gpus else "no GPU found",
    ]
    parts.append(counted(map(port_text, host.rdma_ports)) if host.rdma_ports else "no InfiniBand or RoCE")
    return f"{known(host.name)}  {host.product or 'unknown product'}: " + "; ".join(parts)


def _numa_text(node: NumaNode) -> str:
    cores = f"cores {format_numbers(node.cpus)}" if node.cpus else "cores unknown"
    return f"NUMA node {node.index}  {cores}  {bytes_text(node.memory_bytes)}"


def _cards(host: Host) -> Iterator[tuple[str | None, str]]:
    """Each GPU and each network port: PCI address and text; GPUs without a driver as PCI knows them."""
    for gpu in host.gpus:
        yield gpu.address, _gpu_text(host, gpu)
    driven = {gpu.address for gpu in host.gpus}
    for device in host.pci:
        if device.kind == "gpu" and device.address not in driven:
            number = "?" if device.device is None else f"{device.device:04x}"
            yield (
                device.address,
                f"GPU  NVIDIA device {number}  {device.address}  {link_text(device)}  not seen by NVML",
            )
    for port in host.rdma_ports:
        yield port.address, _port_text(host, port)


def _gpu_text(host: Host, gpu: Gpu) -> str:
    words = [
        f"GPU {gpu.index}",
        gpu.name,
        gpu.address,
        link_text(host.pci_device(gpu.address)),
        nvlink_text(gpu),
    ]
    if gpu.c2c_mb_s:
        words.append(f"NVLink-C2C {gpu.c2c_mb_s / 1000:.0f} GB/s")
    if gpu.fabric is not None and gpu.fabric.cluster:
        words.append(f"fabric {gpu.fabric.cluster[:8]} clique {gpu.fabric.clique} {gpu.fabric.state}")
    if gpu.mig:
        words.append("MIG")
    return "  ".join(words)


def _port_text(host: Host, port: RdmaPort) -> str:
    words = [
        f"NIC {port.name}",
        known(port.address),
        link_text(host.pci_device(port.address)),
        port_text(port),
    ]
    if port.physical_state not in (None, "LinkUp"):
        words.append(f"physically {port.physical_state}")
    return "  ".join([*words, *port.interfaces])


def _acs_text(bridges: Sequence[object]) -> str:
    return "  ACS on" if any(getattr(bridge, "acs", None) for bridge in bridges) else ""


def _numa_index(host: Host, address: str | None) -> int:
    found = numa_node(host, host.pci_device(address))
    return -1 if found is None else found


def _switches(host: Host) -> Branch | None:
    chips = [device for device in host.pci if device.kind == "nvswitch"]
    return (
        Branch(f"NVSwitch: {len(chips)} chips, {', '.join(chip.address for chip in chips)}")
        if chips
        else None
    )


def _near(host: Host) -> Branch | None:
    """For each GPU the network ports, nearest first."""
    if not host.gpus or not host.rdma_ports:
        return None
    branch = Branch("GPU to network, nearest first")
    for gpu in host.gpus:
        words: dict[str, list[str]] = {}
        for one in affinities(host, gpu):
            words.setdefault(known(one.distance), []).append(one.port.device)
        far = "; ".join(f"{word} {', '.join(dict.fromkeys(names))}" for word, names in words.items())
        branch.below.append(Branch(f"GPU {gpu.index}  {far}"))
    return branch


def _interfaces(host: Host) -> Branch | None:
    if not host.interfaces:
        return None
    branch = Branch("interfaces")
    for one in host.interfaces:
        speed = "" if one.speed_mbit_s is None else f"  {rate_text(one.speed_mbit_s / 1000)}"
        driver = "" if one.driver is None else f"  {one.driver}"
        branch.below.append(Branch(f"{one.name}  {one.kind}  {known(one.state)}{speed}{driver}"))
    return branch


def _rest(host: Host) -> Iterator[Branch]:
    direct = host.gpu_direct
    if host.gpus:
        acs = counted(
            "unknown" if bridge.acs is None else "on" if bridge.acs else "off"
            for bridge in host.pci
            if bridge.kind == "bridge"
        )
        yield Branch(
            f"GPUDirect RDMA: nvidia_peermem {yes_no(direct.peermem)}, dma-buf {yes_no(direct.dma_buf)}, "
            f"IOMMU {yes_no(direct.iommu)}, ACS of bridges: {acs}"
        )
    free = "" if host.shm_free_bytes is None else f", {bytes_text(host.shm_free_bytes)} free"
    yield Branch(f"/dev/shm {bytes_text(host.shm_bytes)}{free}")
    driver = f", NVIDIA driver {host.driver}, CUDA {known(host.cuda)}" if host.driver else ""
    yield Branch(f"kernel {known(host.kernel)}{driver}")
    if host.nccl_conf:
        yield Branch("/etc/nccl.conf: " + ", ".join("=".join(pair) for pair in host.nccl_conf))
    if host.unknown:
        branch = Branch(f"unknown: {len(host.unknown)} facts" if len(host.unknown) > 1 else "unknown: 1 fact")
        branch.below += [Branch(f"{one.what}: {one.reason}") for one in host.unknown[:_MAX_UNKNOWN]]
        if len(host.unknown) > _MAX_UNKNOWN:
            branch.below.append(Branch(f"and {len(host.unknown) - _MAX_UNKNOWN} more (--json has all)"))
        yield branch


def _domains(survey: Survey) -> list[str]:
    """The NVLink domains of all hosts: how many GPUs on how many hosts each has."""
    if not any(map(has_nvlink, survey.hosts)):
        return []
    members: dict[tuple[str, ...], list[tuple[int, int]]] = {}
    for number, host in enumerate(survey.hosts):
        domains = gpu_domains(host)
        for gpu in host.gpus:
            members.setdefault(domains[gpu.uuid], []).append((number, gpu.index))
    lines = ["NVLink domains"]
    for key, gpus in list(members.items())[:_MAX_HOSTS]:
        hosts = list(dict.fromkeys(number for number, _ in gpus))
        where = known(survey.hosts[hosts[0]].name) if len(hosts) == 1 else f"{len(hosts)} hosts"
        which = f" {', '.join(str(index) for _, index in gpus)}" if len(hosts) == 1 else ""
        name = f"fabric {key[1][:8]} clique {key[2]}: " if key[0] == "fabric" else ""
        lines.append(f"  {name}{len(gpus)} GPU{'s' * (len(gpus) > 1)}{which} on {where}")
    if len(members) > _MAX_HOSTS:
        lines.append(f"  and {len(members) - _MAX_HOSTS} more")
    return lines


def _sharing(survey: Survey) -> list[str]:
    """Ranks of a host that are bound to the same cores, and fewer of those than ranks."""
    bound: dict[tuple[int, tuple[int, ...]], list[int]] = {}
    for rank, (process, host) in enumerate(zip(survey.processes, survey.host_of, strict=True)):
        if process.cpus:
            bound.setdefault((host, process.cpus), []).append(rank)
    crowded = [(where, ranks) for where, ranks in bound.items() if len(ranks) > len(where[1])]
    lines = []
    for (host, cpus), ranks in crowded[:_MAX_SHARING]:
        cores = f"core {cpus[0]} alone" if len(cpus) == 1 else f"cores {format_numbers(cpus)}"
        lines.append(f"! {format_ranks(ranks)} on {known(survey.hosts[host].name)} may use {cores}")
    if len(crowded) > _MAX_SHARING:
        lines.append(f"! and {len(crowded) - _MAX_SHARING} more groups of ranks with fewer cores than ranks")
    return lines


def _processes(survey: Survey) -> list[str]:
    """What the processes use, and which of them use something else."""
    processes = survey.processes
    lines = []
    for title, ask in _SOFTWARE.items() if processes else ():
        sides = sides_of(map(ask, processes))
        where = {
            text: f"  ({format_ranks(ranks)})" if len(sides) > 1 else "" for text, ranks in sides.items()
        }
        lines += [f"{title:<13}{text}{ranks}" for text, ranks in where.items()]
    settings = [dict(process.environment) for process in processes]
    for name in sorted({name for found in settings for name in found}):
        sides = sides_of(found.get(name, "(not set)") for found in settings)
        text = "; ".join(f"{value} ({format_ranks(ranks)})" for value, ranks in sides.items())
        lines.append(f"{name}={next(iter(sides))}" if len(sides) == 1 else f"{name}: {text}")
    return lines


def _memlock_text(process: Process) -> str:
    if process.memlock_bytes == -1:
        return "no limit"
    return bytes_text(process.memlock_bytes)


_SOFTWARE: dict[str, Callable[[Process], str]] = {
    "memlock": _memlock_text,
    "MPI": lambda process: f"{known(process.mpi_library)}, CUDA-aware: {yes_no(process.mpi_cuda_aware)}",
    "NCCL": lambda process: known(process.nccl),
}
