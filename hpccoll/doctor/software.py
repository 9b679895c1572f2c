"""Checks of libraries, limits and variables of the ranks."""

from __future__ import annotations

from collections.abc import Callable, Iterator

from hpccoll.doctor.finding import ABSENT, NOTE, UNKNOWN, WRONG, Finding
from hpccoll.doctor.hardware import no_gpus
from hpccoll.topology.hardware.document import Survey
from hpccoll.topology.hardware.model import Host, Process
from hpccoll.topology.hardware.words import layer_text
from hpccoll.topology.notation import format_ranks, sides_of

LEAST_MEMLOCK = 64 << 20
_OWN = ("CUDA_VISIBLE_DEVICES", "NVIDIA_VISIBLE_DEVICES", "HPCCOLL_TRACE_DIR")  # may differ between ranks
_INTERFACES = (
    "FI_TCP_IFACE",
    "MPIR_CVAR_CH3_NETWORK_IFACE",
    "NCCL_SOCKET_IFNAME",
    "OMPI_MCA_btl_tcp_if_include",
    "OMPI_MCA_oob_tcp_if_include",
    "UCX_NET_DEVICES",
)
_LOCAL = ("loopback", "docker", "bridge", "veth", "virtual")


def mpi(survey: Survey) -> Iterator[Finding]:
    """Different MPI libraries in one job."""
    yield from _differs(
        survey,
        "MPI library",
        lambda one: one.mpi_library,
        "each rank loads the MPI of its own environment: source the same one on all hosts (module load, "
        "the path of the virtual environment) before srun or mpiexec",
    )


def nccl(survey: Survey) -> Iterator[Finding]:
    """Different versions of NCCL in one job."""
    if not any(host.gpus for host in survey.hosts):
        yield _without_gpus(survey)
        return
    yield from _differs(
        survey,
        "version of NCCL",
        lambda one: one.nccl,
        "install the same nvidia-nccl package on all hosts, or one virtual environment that all see",
    )


def cuda(survey: Survey) -> Iterator[Finding]:
    """An NCCL built for a CUDA that a host's driver does not know yet."""
    if not any(host.gpus for host in survey.hosts):
        yield _without_gpus(survey)
        return
    if not survey.processes:
        yield Finding(ABSENT, "no job was asked")
        return
    dark: list[int] = []
    old: dict[tuple[str, str, str], list[int]] = {}
    for rank, process in enumerate(survey.processes):
        host = survey.hosts[survey.host_of[rank]]
        if process.nccl_cuda is None or host.cuda is None:
            dark.append(rank)
        elif _major(process.nccl_cuda) > _major(host.cuda):
            key = process.nccl_cuda, host.cuda, host.driver or "unknown"
            old.setdefault(key, []).append(rank)
    yield from _unknown(survey, dark, "whether NCCL's CUDA and the driver fit is not known")
    for (wanted, known, driver), ranks in old.items():
        yield Finding(
            WRONG,
            f"{_which(survey, ranks)}: NCCL was built for CUDA {wanted}, and driver {driver} knows CUDA up "
            f"to {known}",
            "the package of NCCL; NVML",
            f"install packages for CUDA {_major(known)} (hpccoll[cuda{_major(known)}]), or a newer driver",
        )


def cuda_aware(survey: Survey) -> Iterator[Finding]:
    """An MPI that cannot take device arrays."""
    if not any(host.gpus for host in survey.hosts):
        yield _without_gpus(survey)
        return
    ranks = [rank for rank, one in enumerate(survey.processes) if one.mpi_cuda_aware is False]
    if ranks:
        yield Finding(
            NOTE,
            f"{_which(survey, ranks)}: MPI is not CUDA-aware, so Send and Recv of device arrays go through "
            "the host",
            "what MPI says of itself",
            "an MPI built with CUDA (Open MPI with UCX and CUDA, MPICH with yaksa and CUDA) sends them "
            "directly; collectives go over NCCL and need none",
        )


def locked_memory(survey: Survey) -> Iterator[Finding]:
    """Too little memory that may be locked, where a network card needs it."""
    if not any(host.rdma_ports for host in survey.hosts):
        yield Finding(ABSENT, "no InfiniBand, RoCE or EFA")
        return
    dark = [rank for rank, one in enumerate(survey.processes) if one.memlock_bytes is None]
    yield from _unknown(survey, dark, "how much memory may be locked is not known")
    small = [
        rank
        for rank, one in enumerate(survey.processes)
        if one.memlock_bytes is not None and 0 <= one.memlock_bytes < LEAST_MEMLOCK
    ]
    if small:
        least = min(survey.processes[rank].memlock_bytes or 0 for rank in small)
        yield Finding(
            WRONG,
            f"{_which(survey, small)} may lock {least >> 10} KiB of memory: InfiniBand and RoCE need more",
            "/proc/self/limits, Max locked memory",
            "ulimit -l unlimited in /etc/security/limits.conf, and LimitMEMLOCK=infinity for slurmd; "
            "with srun: --propagate=NONE",
        )


def variables(survey: Survey) -> Iterator[Finding]:
    """Variables that differ between ranks."""
    if len(survey.processes) < 2:
        yield Finding(ABSENT, "one process")
        return
    settings = [dict(process.environment) for process in survey.processes]
    for name in sorted({name for one in settings for name in one} - set(_OWN)):
        sides = sides_of(one.get(name, "(not set)") for one in settings)
        if len(sides) > 1:
            yield Finding(
                WRONG,
                f"{name} differs between ranks: {_sides_text(sides)}",
                "the ranks' environments",
                f"set it once, before the launcher, and have it passed on: srun --export=ALL, "
                f"mpiexec -genv {name} ..., mpirun -x {name}",
            )


def transport(survey: Survey) -> Iterator[Finding]:
    """InfiniBand, RoCE or EFA, and NCCL told not to use it."""
    if not any(port.active for host in survey.hosts for port in host.rdma_ports):
        yield Finding(ABSENT, "no InfiniBand, RoCE or EFA that is active")
        return
    for number, host in enumerate(survey.hosts):
        if not any(port.active for port in host.rdma_ports):
            continue
        ranks = survey.ranks(number)
        asked = [(f"rank {rank}", dict(survey.processes[rank].environment)) for rank in ranks]
        for who, settings in asked or [("/etc/nccl.conf", {})]:
            found = {**dict(host.nccl_conf), **settings}
            efa = _ports(host) == "EFA"  # which libfabric drives, and NCCL's own verbs do not
            provider = found.get("FI_PROVIDER", "")
            if efa and provider and "efa" not in provider.split(";"):
                yield Finding(
                    WRONG,
                    f"{host.name}: libfabric is told to leave EFA: FI_PROVIDER={provider} ({who})",
                    "the rank's environment",
                    "unset FI_PROVIDER, or FI_PROVIDER=efa",
                )
            bad_values = (
                (("NCCL_NET", "Socket"),) if efa else (("NCCL_IB_DISABLE", "1"), ("NCCL_NET", "Socket"))
            )
            for name, bad in bad_values:
                if found.get(name, "").strip() == bad:
                    yield Finding(
                        WRONG,
                        f"{host.name}: NCCL goes over sockets, though {_ports(host)} is there: "
                        f"{name}={bad} ({who})",
                        "the rank's environment, /etc/nccl.conf",
                        f"unset {name}",
                    )
            if not efa and found.get("NCCL_IB_HCA") and not _matches(found["NCCL_IB_HCA"], host):
                yield Finding(
                    WRONG,
                    f"{host.name}: NCCL_IB_HCA={found['NCCL_IB_HCA']} names no active port of {_ports(host)} "
                    f"({who})",
                    "the rank's environment, /etc/nccl.conf",
                    "unset NCCL_IB_HCA, or name ports that hpccoll topo shows as ACTIVE",
                )


def interfaces(survey: Survey) -> Iterator[Finding]:
    """Interfaces chosen by a variable that lead nowhere."""
    asked = False
    said: dict[tuple[str, str, str], list[int]] = {}
    for rank, process in enumerate(survey.processes):
        host = survey.hosts[survey.host_of[rank]]
        for name, value in process.environment:
            if name in _INTERFACES and value and not value.startswith("^"):
                asked = True
                for wrong in _wrong_interfaces(host, value):
                    said.setdefault((name, value, wrong), []).append(rank)
    if not asked:
        yield Finding(ABSENT, "no interface is chosen by a variable")
    for (name, value, wrong), ranks in said.items():
        yield Finding(
            WRONG,
            f"{name}={value} ({format_ranks(ranks)}): {wrong}",
            "/sys/class/net",
            f"name the interface of the network between the hosts, or unset {name}",
        )


def _wrong_interfaces(host: Host, value: str) -> Iterator[str]:
    for item in value.lstrip("=").split(","):
        name = item.split(":")[0].strip()
        found = [one for one in host.interfaces if one.name == name or one.name.startswith(name)]
        if not name or "/" in name or any(port.device == name for port in host.rdma_ports):
            continue  # a network's address, or an RDMA device for UCX
        if not found:
            yield f"{host.name} has no interface {name}"
        elif all(one.kind in _LOCAL for one in found):
            yield f"{name} is a {found[0].kind} interface, which does not lead to other hosts"
        elif all(one.state == "down" for one in found):
            yield f"{name} is down on {host.name}"


def _major(version: str) -> int:
    digits = version.partition(".")[0]
    return int(digits) if digits.isdecimal() else 0


def _without_gpus(survey: Survey) -> Finding:
    """No host has one; unknown where a driver was not asked."""
    words = [no_gpus(host, "no GPU") for host in survey.hosts]
    return next((one for one in words if one.word == UNKNOWN), Finding(ABSENT, "no GPU"))


def _matches(value: str, host: Host) -> bool:
    """Whether NCCL_IB_HCA leaves an active port."""
    names = [one.strip() for one in value.lstrip("^=").split(",") if one.strip()]
    exact, without = "=" in value[:2], value.startswith("^")

    def named(device: str, port: str) -> bool:
        return any(
            one in (device, port) or (not exact and ":" not in one and device.startswith(one))
            for one in names
        )

    return any(named(port.device, port.name) != without for port in host.rdma_ports if port.active)


def _ports(host: Host) -> str:
    layers = sorted({layer_text(port) or "InfiniBand" for port in host.rdma_ports if port.active})
    return " and ".join(layers)


def _differs(survey: Survey, what: str, ask: Callable[[Process], str | None], cure: str) -> Iterator[Finding]:
    """That not all ranks have the same."""
    if not survey.processes:
        yield Finding(ABSENT, "no job was asked")
        return
    yield from _unknown(
        survey,
        [rank for rank, one in enumerate(survey.processes) if ask(one) is None],
        f"the {what} is not known",
    )
    sides = sides_of(text for one in survey.processes if (text := ask(one)) is not None)
    if len(sides) > 1:
        ranks = sides_of(ask(one) or "unknown" for one in survey.processes)
        yield Finding(
            WRONG, f"the {what} differs between ranks: {_sides_text(ranks)}", "asked of each rank", cure
        )


def _unknown(survey: Survey, ranks: list[int], words: str) -> Iterator[Finding]:
    if ranks:
        reasons = [one.reason for one in survey.processes[ranks[0]].unknown]
        yield Finding(UNKNOWN, f"{_which(survey, ranks)}: {words}", "; ".join(reasons[:2]))


def _which(survey: Survey, ranks: list[int]) -> str:
    return "all ranks" if len(ranks) == len(survey.processes) > 1 else format_ranks(ranks)


def _sides_text(sides: dict[str, list[int]]) -> str:
    shown = [f"{text} ({format_ranks(ranks)})" for text, ranks in list(sides.items())[:4]]
    return ", ".join(shown) + (f" and {len(sides) - 4} more" if len(sides) > 4 else "")
