"""Sizes and settings of the system: shared memory, limits, kernel modules, NVIDIA's driver, variables."""

from __future__ import annotations

import os
import re

from hpccoll.topology.hardware.files import Files, number_list
from hpccoll.topology.hardware.model import GpuDirect

PREFIXES = (
    "CUDA_VISIBLE_DEVICES",
    "FI_",
    "HPCCOLL_",
    "MPICH_",
    "MPIR_CVAR_",
    "MV2_",
    "NCCL_",
    "NVIDIA_VISIBLE_DEVICES",
    "OMPI_MCA_",
    "OMP_NUM_THREADS",
    "UCX_",
)
_SECRET = re.compile(r"SECRET|TOKEN|PASSWORD|KEY", re.IGNORECASE)
_UNITS = {"": 1, "k": 1 << 10, "m": 1 << 20, "g": 1 << 30, "t": 1 << 40}
_DMA_BUF_KERNEL, _DMA_BUF_DRIVER = (5, 12), 515


def read_shm(files: Files, memory_bytes: int | None) -> tuple[int | None, int | None]:
    """The size of /dev/shm, and what is free of it where this machine is asked."""
    text = files.text("proc/self/mounts", "shm_bytes")
    fields = [line.split() for line in (text or "").splitlines()]
    mounts = [line for line in fields if len(line) >= 4 and line[1] == "/dev/shm"]
    size = None
    if text is not None and not mounts:
        files.note("shm_bytes", "/proc/self/mounts: nothing is mounted at /dev/shm")
    elif mounts:
        # The last mount hides those before it.
        size = _mounted_bytes(mounts[-1][2], mounts[-1][3], memory_bytes)
        if size is None:
            files.note("shm_bytes", f"/proc/self/mounts: no size in {mounts[-1][3][:80]!r}")
    free = None
    if files.is_this_machine:
        try:
            found = os.statvfs("/dev/shm")
        except OSError as error:
            files.note("shm_free_bytes", f"/dev/shm: {error.strerror}")
        else:
            size, free = found.f_blocks * found.f_frsize, found.f_bavail * found.f_frsize
    return size, free


def _mounted_bytes(kind: str, options: str, memory_bytes: int | None) -> int | None:
    match = re.search(r"(?:^|,)size=([0-9]{1,15})([kmgt]?)(%?)(?:,|$)", options, re.IGNORECASE)
    if match is None:  # half of the memory, by tmpfs(5)
        return memory_bytes // 2 if kind == "tmpfs" and memory_bytes is not None else None
    number, unit, percent = int(match[1]), match[2].lower(), match[3]
    if percent:
        return None if memory_bytes is None else memory_bytes * number // 100
    return number * _UNITS[unit]


def read_memlock(files: Files) -> int | None:
    """How much memory this process may lock; -1: no limit."""
    return files.parsed("proc/self/limits", "memlock_bytes", _memlock)


def _memlock(text: str) -> int:
    match = re.search(r"^Max locked memory +([0-9]{1,20}|unlimited) ", text, re.MULTILINE)
    if match is None:
        raise ValueError("no line about locked memory")
    return -1 if match[1] == "unlimited" else int(match[1])


def read_allowed_cpus(files: Files) -> tuple[int, ...]:
    """The logical processors that this process may use."""
    return files.parsed("proc/self/status", "cpus", _allowed) or ()


def _allowed(text: str) -> tuple[int, ...]:
    match = re.search(r"^Cpus_allowed_list:\s*([0-9,-]+)\s*$", text, re.MULTILINE)
    if match is None:
        raise ValueError("no line about processors")
    return number_list(match[1])


def read_driver(files: Files) -> tuple[str | None, bool | None]:
    """The version of NVIDIA's driver, and whether its modules are the open ones; None without a driver."""
    if not files.exists("proc/driver/nvidia/version"):
        return None, None
    text = files.text("proc/driver/nvidia/version", "driver")
    line = next((one for one in (text or "").splitlines() if "Kernel Module" in one), "")
    match = re.search(r"Kernel Module.*?\s([0-9]{3,4}(?:\.[0-9]+){1,3})\s", line + " ")
    if match is None:
        if text is not None:
            files.note("driver", "/proc/driver/nvidia/version: no version in it")
        return None, None
    return match[1], "Open Kernel Module" in line


def read_gpu_direct(files: Files, kernel: str | None) -> GpuDirect:
    """Which of the two ways of GPUDirect RDMA there can be, and what may slow them."""
    modules = files.text("proc/modules", "gpu_direct peermem")
    peermem = None
    if modules is not None:
        loaded = {line.split()[0] for line in modules.splitlines() if line.split()}
        peermem = bool(loaded & {"nvidia_peermem", "nv_peer_mem", "efa_nv_peermem"})
    version, open_driver = read_driver(files)
    match = re.match(r"([0-9]{1,3})\.([0-9]{1,4})", kernel or "")
    dma_buf = None
    if version is not None and open_driver is not None and match is not None:
        new_kernel = (int(match[1]), int(match[2])) >= _DMA_BUF_KERNEL
        dma_buf = open_driver and new_kernel and int(version.partition(".")[0]) >= _DMA_BUF_DRIVER
    else:
        files.note(
            "gpu_direct dma_buf", "NVIDIA's driver is not loaded" if version is None else "no kernel release"
        )
    groups = files.exists("sys/kernel/iommu_groups")
    iommu = bool(files.names("sys/kernel/iommu_groups", "gpu_direct iommu")) if groups else None
    if not groups:
        files.note("gpu_direct iommu", "no directory /sys/kernel/iommu_groups")
    return GpuDirect(peermem=peermem, open_driver=open_driver, dma_buf=dma_buf, iommu=iommu)


def read_environment(files: Files) -> tuple[tuple[str, str], ...]:
    """The process's variables about communication, sorted; values of what sounds secret are not shown."""
    if files.is_this_machine:  # /proc has those that the process was started with
        found = dict(os.environ)
    else:
        raw = files.raw("proc/self/environ", "environment") or b""
        pairs = (item.partition("=") for item in raw.decode("utf-8", errors="replace").split("\0"))
        found = {name: value for name, _, value in pairs}
    return tuple(
        sorted((name, _shown(name, value)) for name, value in found.items() if name.startswith(PREFIXES))
    )


def read_imex_channels(files: Files) -> int | None:
    """Through how many channels memory of other hosts may be reached; None where there is no /dev to look."""
    if not files.exists("dev"):
        files.note("imex_channels", "no directory /dev")
        return None
    at = "dev/nvidia-caps-imex-channels"
    return len(files.names(at)) if files.exists(at) else 0


def read_nccl_conf(files: Files) -> tuple[tuple[str, str], ...]:
    """The settings in /etc/nccl.conf, which hold where a variable is not set."""
    if not files.exists("etc/nccl.conf"):
        return ()
    text = files.text("etc/nccl.conf", "nccl_conf") or ""
    pairs = (line.strip().partition("=") for line in text.splitlines() if not line.strip().startswith("#"))
    return tuple((name.strip(), _shown(name, value.strip())) for name, sign, value in pairs if sign)


def _shown(name: str, value: str) -> str:
    if _SECRET.search(name):
        return "(not shown)"
    return "".join(char if char.isprintable() else "?" for char in value[:500])
