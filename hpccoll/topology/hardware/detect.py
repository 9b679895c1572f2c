"""Reading a host and a process below a root directory."""

from __future__ import annotations

import os
from pathlib import Path

from hpccoll.errors import UsageError
from hpccoll.topology.hardware import network, nvml, pci, processors, system
from hpccoll.topology.hardware.document import Survey, decode, load
from hpccoll.topology.hardware.domains import fabric_key
from hpccoll.topology.hardware.files import Files, in_order
from hpccoll.topology.hardware.model import Host, Process

SOFTWARE = "software.json"
"""Where a root directory names the libraries: mpi_library, mpi_cuda_aware, nccl, visible_devices."""

_UNNAMED = (
    "To Be Filled By O.E.M.",
    "System Product Name",
    "System manufacturer",
    "Default string",
    "Not Specified",
)


def detect_host(root: str | os.PathLike[str] = "/") -> Host:
    """What a host is made of.  Local; never raises: what cannot be read is None, with a reason in `unknown`.

    Args:
        root: holds sys/, proc/ and etc/ of the host, and nvml.json, which stands for the driver; "/" is this
            machine, whose driver is asked.

    """
    files = Files(root)
    kernel = files.text("proc/sys/kernel/osrelease", "kernel")
    memory_bytes = processors.read_memory_bytes(files)
    shm_bytes, shm_free_bytes = system.read_shm(files, memory_bytes)
    driver, cuda, gpus = nvml.read_gpus(files)
    return Host(
        name=files.text("proc/sys/kernel/hostname", "name"),
        boot_id=files.text("proc/sys/kernel/random/boot_id", "boot_id"),
        product=_product(files),
        kernel=kernel,
        processor=processors.read_processor(files),
        numa_nodes=processors.read_numa_nodes(files),
        memory_bytes=memory_bytes,
        shm_bytes=shm_bytes,
        shm_free_bytes=shm_free_bytes,
        pci=pci.read_pci(files),
        driver=driver or system.read_driver(files)[0],
        cuda=cuda,
        gpus=gpus,
        rdma_ports=network.read_rdma_ports(files),
        interfaces=network.read_interfaces(files),
        gpu_direct=system.read_gpu_direct(files, kernel),
        nccl_conf=system.read_nccl_conf(files),
        imex_channels=system.read_imex_channels(files) if any(map(fabric_key, gpus)) else None,
        unknown=tuple(dict.fromkeys(files.unknown)),
    )


def detect_process(root: str | os.PathLike[str] = "/") -> Process:
    """What a process may use, and its libraries where a root directory names them.  Local; never raises.

    Of this machine (`root` "/") the libraries are left unknown: who asks has loaded them, and adds them.
    """
    files = Files(root)
    software = Process()
    if files.exists(SOFTWARE):
        found = files.parsed(SOFTWARE, "software", _json)
        try:
            software = decode(Process, found) if found is not None else software
        except UsageError as error:
            files.note("software", f"{SOFTWARE}: {str(error)[:200]}")
    return Process(
        cpus=system.read_allowed_cpus(files),
        memlock_bytes=system.read_memlock(files),
        mpi_library=software.mpi_library,
        mpi_cuda_aware=software.mpi_cuda_aware,
        nccl=software.nccl,
        nccl_cuda=software.nccl_cuda,
        visible_devices=software.visible_devices,
        environment=system.read_environment(files),
        unknown=tuple(files.unknown),
    )


def survey_below(path: str | os.PathLike[str]) -> Survey:
    """The hosts that a path describes: a saved document, a root directory, or a directory of root
    directories.

    Raises:
        UsageError: it is none of them.

    """
    at = Path(path)
    if at.is_file():
        return load(at)
    if not at.is_dir():
        raise UsageError(f"{path}: no such file or directory")
    roots = (
        [at] if _is_root(at) else sorted(filter(_is_root, at.iterdir()), key=lambda one: in_order(one.name))
    )
    if not roots:
        raise UsageError(
            f"{path}: neither it nor a directory in it has sys/ or proc/: it must hold the files of a host, "
            "or directories that do, or be a file written by hpccoll topo --json"
        )
    return Survey(
        hosts=tuple(map(detect_host, roots)),
        processes=tuple(map(detect_process, roots)),
        host_of=tuple(range(len(roots))),
    )


def _is_root(path: Path) -> bool:
    return (path / "sys").is_dir() or (path / "proc").is_dir()


def _json(text: str) -> object:
    import json

    try:
        return json.loads(text)
    except RecursionError as error:
        raise ValueError("nested too deeply") from error


def _product(files: Files) -> str | None:
    names = [files.text(f"sys/class/dmi/id/{name}") for name in ("sys_vendor", "product_name")]
    known = [name for name in names if name and name not in _UNNAMED]
    if not known:
        # On Arm without DMI the device tree names the board.
        return files.text("sys/firmware/devicetree/base/model", "product")
    return " ".join(known)
