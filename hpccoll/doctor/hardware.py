"""Checks of what hosts are made of."""

from __future__ import annotations

from collections.abc import Iterator

from hpccoll.doctor.finding import ABSENT, NOTE, UNKNOWN, WRONG, Finding, unknown
from hpccoll.topology.hardware.compare import differences
from hpccoll.topology.hardware.document import Survey
from hpccoll.topology.hardware.domains import fabric_key
from hpccoll.topology.hardware.model import Gpu, Host
from hpccoll.topology.hardware.words import degraded, link_text

LEAVE_OUT = "Until then leave the host out: #SBATCH --exclude="


def gpus(host: Host, survey: Survey) -> Iterator[Finding]:
    """GPUs that PCIe shows and the driver does not, as after a fault that takes one off the bus."""
    there = [one.address for one in host.pci if one.kind == "gpu"]
    if not there:
        yield no_gpus(host, "no GPU")
        return
    if not host.gpus and host.why("gpus") is not None:
        yield unknown(host, "gpus", f"whether the driver shows the {len(there)} GPUs on PCIe is not known")
        return
    driven = {gpu.address for gpu in host.gpus}
    lost = [address for address in there if address not in driven]
    if lost and driven & set(there):
        yield Finding(
            WRONG,
            f"the driver shows {len(driven)} of {len(there)} GPUs: {', '.join(lost)} not",
            "/sys/bus/pci/devices; NVML",
            "dmesg | grep -i xid says why (79: it has fallen off the bus); restart the host, or reseat the "
            f"card; in a container: start it with all GPUs. {LEAVE_OUT}{host.name}",
        )
    elif lost:
        yield Finding(
            WRONG,
            f"the driver shows none of the {len(there)} GPUs on PCIe",
            "/sys/bus/pci/devices; NVML",
            "nvidia-smi says why; in a container: docker run --gpus all",
        )


def nvlink(host: Host, survey: Survey) -> Iterator[Finding]:
    """Lanes of NVLink that carry nothing: fewer than the best GPU of the same model has."""
    if not host.gpus:
        yield no_gpus(host, "no NVLink")
        return
    every = [gpu for one in survey.hosts for gpu in one.gpus]
    if not any(gpu.active_links for gpu in host.gpus) and not any(gpu.active_links for gpu in every):
        yield Finding(ABSENT, "no NVLink")
        return
    yield from _fewer_everywhere(host, every)
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


def _fewer_everywhere(host: Host, every: list[Gpu]) -> Iterator[Finding]:
    """As many lanes dead on all GPUs of a model is how some are sold; or all have lost a switch."""
    for name in dict.fromkeys(gpu.name for gpu in host.gpus):
        counts = {(one.active_links, len(one.links)) for one in every if one.name == name}
        ((active, of),) = counts if len(counts) == 1 else ((0, 0),)
        if 0 < active < of:
            yield Finding(
                NOTE,
                f"each {name} has {active} of {of} lanes of NVLink",
                "NVML: the others are inactive, on all of them",
                "models for some countries are sold so; else a switch is missing: nvidia-smi nvlink -s",
            )


def fabric(host: Host, survey: Survey) -> Iterator[Finding]:
    """GPUs whose NVLink fabric has not come up, or by which other hosts cannot be reached."""
    if not host.gpus:
        yield no_gpus(host, "no NVLink fabric")
        return
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
    if any(map(fabric_key, host.gpus)):
        yield from _imex(host)


def _imex(host: Host) -> Iterator[Finding]:
    if host.imex_channels is None:
        yield unknown(host, "imex_channels", "whether GPUs reach memory of other hosts is not known")
    elif not host.imex_channels:
        yield Finding(
            WRONG,
            "no IMEX channel: GPUs do not reach those of other hosts over NVLink, and NCCL takes the network",
            "/dev/nvidia-caps-imex-channels",
            "systemctl start nvidia-imex; nvidia-modprobe -c 0, or a channel of the job's (Slurm: "
            "switch/nvidia_imex); containers must be given it",
        )


def pcie(host: Host, survey: Survey) -> Iterator[Finding]:
    """PCIe links that are narrower or slower than the card."""
    cards = [one for one in host.pci if one.kind in ("gpu", "network")]
    if not cards:
        yield no_cards(host, "pci", "no GPU or network card on PCIe")
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


def mig(host: Host, survey: Survey) -> Iterator[Finding]:
    """GPUs that are cut into instances, between which there is no peer access."""
    if not host.gpus:
        yield no_gpus(host, "no GPU")
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


def no_gpus(host: Host, words: str) -> Finding:
    """That there is none; unknown where the driver was not asked, and PCIe shows one or was not read."""
    sees = any(one.kind == "gpu" for one in host.pci) or host.why("pci") is not None
    return (
        unknown(host, "gpus", words + " is known of") if sees and host.why("gpus") else Finding(ABSENT, words)
    )


def no_cards(host: Host, what: str, words: str) -> Finding:
    """That there is none; unknown where that could not be read."""
    return Finding(ABSENT, words) if host.why(what) is None else unknown(host, what, words)


def _card_text(host: Host, address: str) -> str:
    gpu = next((one for one in host.gpus if one.address == address), None)
    if isinstance(gpu, Gpu):
        return f"GPU {gpu.index}"
    port = next((one for one in host.rdma_ports if one.address == address), None)
    interface = next((one for one in host.interfaces if one.address == address), None)
    if port is not None:
        return f"network card {port.device}"
    return f"network card {interface.name}" if interface is not None else f"card {address}"
