"""Processors, NUMA nodes and memory, from /sys/devices/system, /proc/cpuinfo and /proc/meminfo."""

from __future__ import annotations

import re

from hpccoll.topology.hardware.files import Files, number_list, whole
from hpccoll.topology.hardware.model import NumaNode, Processor

_SYSTEM = "sys/devices/system"


def read_processor(files: Files) -> Processor:
    """The processors of the host together."""
    cpus = files.parsed(f"{_SYSTEM}/cpu/online", "processor cpus", number_list) or ()
    cores = _cores_of_cpuinfo(files) or _cores_of_sysfs(files, cpus)
    return Processor(
        model=_model(files),
        architecture=files.text("proc/sys/kernel/arch"),
        cpus=cpus,
        cores=len(cores) or None,
        sockets=len({package for package, _ in cores}) or None,
    )


def _cores_of_cpuinfo(files: Files) -> set[tuple[int, int]]:
    """Package and core of each processor; none on Arm, where the file does not say."""
    text = files.text("proc/cpuinfo") or ""
    packages, cores = (
        re.findall(rf"^{name}\s*: ([0-9]{{1,9}})$", text, re.MULTILINE) for name in ("physical id", "core id")
    )
    if len(packages) != len(cores):
        return set()
    return {(int(package), int(core)) for package, core in zip(packages, cores, strict=True)}


def _cores_of_sysfs(files: Files, cpus: tuple[int, ...]) -> set[tuple[int, int]]:
    found = set()
    for cpu in cpus:
        at = f"{_SYSTEM}/cpu/cpu{cpu}/topology"
        package = files.parsed(f"{at}/physical_package_id", None, whole)
        core = files.parsed(f"{at}/core_id", None, whole)
        if package is None or core is None:
            files.note("processor cores", f"/{at}: not readable")
            return set()
        found.add((package, core))
    return found


def read_numa_nodes(files: Files) -> tuple[NumaNode, ...]:
    """The NUMA nodes; none where the kernel has no notion of them."""
    nodes = []
    for name in files.names(f"{_SYSTEM}/node", "numa_nodes"):
        match = re.fullmatch(r"node([0-9]{1,5})", name)
        if match is None:
            continue
        at, what = f"{_SYSTEM}/node/{name}", f"numa_nodes {match[1]}"
        cpulist = files.raw(f"{at}/cpulist", f"{what} cpus")  # empty for memory without processors
        cpus: tuple[int, ...] = ()
        if cpulist is not None and cpulist.strip():
            cpus = files.parsed(f"{at}/cpulist", f"{what} cpus", number_list) or ()
        nodes.append(
            NumaNode(
                index=int(match[1]),
                cpus=cpus,
                memory_bytes=files.parsed(f"{at}/meminfo", f"{what} memory_bytes", _total),
                distances=files.parsed(f"{at}/distance", f"{what} distances", _numbers) or (),
            )
        )
    if not nodes and not any(one.what == "numa_nodes" for one in files.unknown):
        files.note("numa_nodes", f"/{_SYSTEM}/node: no NUMA node in it")
    return tuple(nodes)


def read_memory_bytes(files: Files) -> int | None:
    """The memory of the host."""
    return files.parsed("proc/meminfo", "memory_bytes", _total)


def _total(text: str) -> int:
    match = re.search(r"MemTotal: *([0-9]{1,15}) kB", text)
    if match is None:
        raise ValueError("no MemTotal")
    return int(match[1]) * 1024


def _numbers(text: str) -> tuple[int, ...]:
    return tuple(map(whole, text.split()))


def _model(files: Files) -> str | None:
    """The name of the first processor; on Arm, which has none, the numbers of its maker and part."""
    text = files.text("proc/cpuinfo", "processor model")
    if text is None:
        return None
    lines = [line.partition(":") for line in text.splitlines()]
    found = {name.strip().lower(): value.strip() for name, _, value in reversed(lines) if value.strip()}
    if "model name" in found:
        return found["model name"]
    if "cpu implementer" in found and "cpu part" in found:
        return f"Arm implementer {found['cpu implementer']} part {found['cpu part']}"
    files.note("processor model", "/proc/cpuinfo: no name in it")
    return None
