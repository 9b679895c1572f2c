"""Checks of what hosts are made of."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator

from hpccoll.doctor.finding import ABSENT, NOTE, UNKNOWN, WRONG, Finding, unknown
from hpccoll.topology.hardware.affinity import DISTANCES, bridges_above, nearest
from hpccoll.topology.hardware.compare import differences
from hpccoll.topology.hardware.document import Survey
from hpccoll.topology.hardware.model import Gpu, Host, RdmaPort
from hpccoll.topology.hardware.words import degraded, link_text, rate_text

LEAVE_OUT = "Until then leave the host out: #SBATCH --exclude="
FAR = DISTANCES.index("PHB")  # from here on the way leads through the processor


def nvlink(host: Host, survey: Survey) -> Iterator[Finding]:
    """Lanes of NVLink that carry nothing: fewer than the best GPU of the same model has."""
    if host.why("gpus") is not None and not host.gpus:
        yield unknown(host, "gpus", "whether there is NVLink is not known")
        return
    every = [gpu for one in survey.hosts for gpu in one.gpus]
    if not any(gpu.active_links for gpu in host.gpus) and not any(gpu.active_links for gpu in every):
        yield Finding(ABSENT, "no NVLink")
        return
    for gpu in host.gpus:
        most = max(one.active_links for one in every if one.name == gpu.name)
        if gpu.active_links < most:
            dead = [link.index for link in gpu.links if not link.active]
            yield Finding(
                WRONG,
                f"GPU {gpu.index} has {gpu.active_links} of {most} lanes of NVLink",
                f"NVML: lane{'s' * (len(dead) > 1)} {', '.join(map(str, dead))} inactive",
                f"nvidia-smi nvlink -s -i {gpu.index}; reset the GPU (nvidia-smi --gpu-reset -i {gpu.index}) "
                f"or the host, then have it repaired. {LEAVE_OUT}{host.name}",
            )


def fabric(host: Host, survey: Survey) -> Iterator[Finding]:
    """GPUs whose NVLink fabric has not come up."""
    found = [(gpu, gpu.fabric) for gpu in host.gpus if gpu.fabric is not None]
    managed = [(gpu, one) for gpu, one in found if one.state != "not supported"]
    if not managed:
        yield Finding(ABSENT, "no NVLink fabric")
    for gpu, one in managed:
        if one.state != "completed":
            yield Finding(
                WRONG,
                f"GPU {gpu.index} is not on the NVLink fabric: {one.state}",
                "NVML: state of the fabric",
                "systemctl status nvidia-fabricmanager (on NVL72: nvidia-imex too), and its log",
            )


def pcie(host: Host, survey: Survey) -> Iterator[Finding]:
    """PCIe links that are narrower or slower than the card."""
    cards = [one for one in host.pci if one.kind in ("gpu", "network")]
    if not cards:
        yield _no_cards(host, "pci", "no GPU or network card on PCIe")
    if dark := [card for card in cards if None in (card.width, card.max_width)]:
        yield Finding(
            UNKNOWN,
            f"the width of {', '.join(_card_text(host, card.address) for card in dark)} is not known",
            host.why(f"pci {dark[0].address}") or f"/sys/bus/pci/devices/{dark[0].address}",
        )
    for card in cards:
        if degraded(card):
            yield Finding(
                WRONG,
                f"{_card_text(host, card.address)} runs at less than it can: {link_text(card)}",
                f"/sys/bus/pci/devices/{card.address}/current_link_*",
                "reseat the card or its riser, look at the firmware's settings of the slot, and lspci -vv. "
                f"{LEAVE_OUT}{host.name}",
            )


def ports(host: Host, survey: Survey) -> Iterator[Finding]:
    """Ports of InfiniBand and RoCE that are down, or slower than others of their kind."""
    if not host.rdma_ports:
        yield _no_cards(host, "rdma_ports", "no InfiniBand or RoCE")
        return
    best: dict[object, float] = {}
    for one in survey.hosts:
        for port in one.rdma_ports:
            if port.active and port.rate_gbit_s is not None:
                best[_kind(one, port)] = max(best.get(_kind(one, port), 0.0), port.rate_gbit_s)
    for port in host.rdma_ports:
        usual = best.get(_kind(host, port))
        place = f"/sys/class/infiniband/{port.device}/ports/{port.port}"
        if not port.active and usual is not None:
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


def network_of_gpus(host: Host, survey: Survey) -> Iterator[Finding]:
    """GPUs that are farther from a network card than most of the host's."""
    if not host.gpus or not any(port.active for port in host.rdma_ports):
        yield Finding(ABSENT, "no GPU, or no InfiniBand or RoCE")
        return
    words = {gpu.index: next((one.distance for one in nearest(host, gpu)), None) for gpu in host.gpus}
    ranked = {index: DISTANCES.index(word) for index, word in words.items() if word is not None}
    if not ranked:
        yield Finding(UNKNOWN, "how near GPUs and network cards are is not known", host.why("pci") or "")
        return
    usual = Counter(ranked.values()).most_common(1)[0][0]
    for gpu in host.gpus:
        rank = ranked.get(gpu.index, usual)
        if rank > usual and rank >= FAR:
            yield Finding(
                WRONG,
                f"GPU {gpu.index} is far from the network: {words[gpu.index]}, the others {DISTANCES[usual]}",
                "PCIe tree; words of nvidia-smi topo -m",
                "the card of this GPU is in a slot of another processor, or missing: move it. Until then "
                "NCCL_CROSS_NIC=1 may help; data go through the processors",
            )


def gpu_direct(host: Host, survey: Survey) -> Iterator[Finding]:
    """Neither way of GPUDirect RDMA."""
    if not host.gpus or not host.rdma_ports:
        yield Finding(ABSENT, "no GPU, or no InfiniBand or RoCE")
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


def mig(host: Host, survey: Survey) -> Iterator[Finding]:
    """GPUs that are cut into instances, between which there is no peer access."""
    if not host.gpus:
        yield Finding(ABSENT, "no GPU")
    for gpu in host.gpus:
        if gpu.mig:
            yield Finding(
                NOTE,
                f"GPU {gpu.index} is cut into MIG instances, which NCCL cannot join",
                "NVML: MIG mode",
                f"nvidia-smi -i {gpu.index} -mig 0",
            )


def shared_memory(host: Host, survey: Survey) -> Iterator[Finding]:
    """/dev/shm too small."""
    if host.shm_bytes is None:
        yield unknown(host, "shm_bytes", "the size of /dev/shm is not known")
        return
    room = host.shm_bytes if host.shm_free_bytes is None else host.shm_free_bytes
    if room < LEAST_SHM:
        yield Finding(
            WRONG,
            f"/dev/shm has {room >> 20} MiB{'' if host.shm_free_bytes is None else ' free'}, of "
            f"{host.shm_bytes >> 20}; ranks of a node exchange data there, as NCCL does",
            "statvfs, or /proc/self/mounts",
            "docker run --shm-size=1g (its default is 64 MiB), or mount -o remount,size=1g /dev/shm; "
            "HPCCOLL_SHM_DIR names another tmpfs",
        )


LEAST_SHM = 256 << 20


def alike(survey: Survey) -> Iterator[Finding]:
    """Hosts that differ from most."""
    if len(survey.hosts) < 2:
        yield Finding(ABSENT, "one host")
        return
    for number, found in enumerate(differences(survey.hosts)):
        name = survey.hosts[number].name or f"host {number}"
        for one in found:
            yield Finding(
                NOTE,
                f"{name} differs from most hosts in {one.aspect}: {one.own}, most: {one.usual}",
                "hpccoll topo",
                "ask for hosts that are alike: #SBATCH --constraint=..., or leave it out: "
                f"#SBATCH --exclude={name}",
            )


def _no_cards(host: Host, what: str, words: str) -> Finding:
    return Finding(ABSENT, words) if host.why(what) is None else unknown(host, what, words)


def _kind(host: Host, port: RdmaPort) -> object:
    """What ports of one kind have in common: the model of the card and the link layer."""
    card = host.pci_device(port.address)
    return (None, None) if card is None else (card.vendor, card.device), port.link_layer


def _card_text(host: Host, address: str) -> str:
    gpu = next((one for one in host.gpus if one.address == address), None)
    if isinstance(gpu, Gpu):
        return f"GPU {gpu.index}"
    port = next((one for one in host.rdma_ports if one.address == address), None)
    interface = next((one for one in host.interfaces if one.address == address), None)
    if port is not None:
        return f"network card {port.device}"
    return f"network card {interface.name}" if interface is not None else f"card {address}"
