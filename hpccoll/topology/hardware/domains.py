"""Which GPUs NVLink joins: a fabric that spans hosts, a host's switches, pairs within a PCIe box.

The answer is a key for each GPU, equal where they are joined, as `Layout.from_keys` takes for its NVLink
domains.
"""

from __future__ import annotations

from collections.abc import Sequence

from hpccoll.topology.hardware.document import Survey
from hpccoll.topology.hardware.model import Gpu, Host
from hpccoll.topology.layout import Layout

Key = tuple[str, ...]


def gpu_domains(host: Host) -> dict[str, Key]:
    """For the UUID of each GPU of a host, the key of its NVLink domain.

    A GPU of which no link is active is a domain of its own.
    """
    here = host.boot_id or host.name or ""
    islands = _islands(host.gpus)
    return {gpu.uuid: _key(gpu, here, islands) for gpu in host.gpus}


def has_nvlink(host: Host) -> bool:
    """Whether any two GPUs, of this host or of a fabric, are joined."""
    return any(gpu.active_links for gpu in host.gpus)


def joined_layout(layout: Layout, survey: Survey) -> Layout | None:
    """The layout with the NVLink domains of the GPUs that the ranks use.

    Each rank has the device that `choose_visible_devices` gives it.  None where a rank sees no device, its
    GPU is not among those of its host, or no NVLink is known: the domains are then the nodes.
    """
    from hpccoll.topology.devices import choose_visible_devices

    visible: Sequence[Sequence[str]] = [process.visible_devices or () for process in survey.processes]
    if len(visible) != layout.size or not all(visible) or not any(map(has_nvlink, survey.hosts)):
        return None
    keys: list[Key] = []
    for rank, ordinal in enumerate(choose_visible_devices(layout, visible)):
        domains = gpu_domains(survey.hosts[survey.host_of[rank]])
        if ordinal is None or visible[rank][ordinal] not in domains:
            return None
        keys.append(domains[visible[rank][ordinal]])
    return Layout.from_keys(layout.node_of, keys)


def fabric_key(gpu: Gpu) -> Key | None:
    """The fabric and clique that a GPU is on; None where that does not reach beyond the host."""
    fabric = gpu.fabric
    if fabric is not None and fabric.state == "completed" and fabric.cluster and gpu.active_links:
        return "fabric", fabric.cluster, str(fabric.clique)
    return None


def _key(gpu: Gpu, here: str, islands: dict[str, str]) -> Key:
    return fabric_key(gpu) or ("host", here, islands[gpu.uuid])


def _islands(gpus: Sequence[Gpu]) -> dict[str, str]:
    """The components of the graph of GPUs and switches, each named after its first GPU."""
    names = {gpu.uuid: gpu.uuid for gpu in gpus}
    at = {gpu.address: gpu.uuid for gpu in gpus}

    def join(one: str, other: str) -> None:
        old, kept = names[other], names[one]
        for uuid, name in names.items():
            if name == old:
                names[uuid] = kept

    switched: list[str] = []
    for gpu in gpus:
        for link in gpu.links:
            if link.active and link.peer in at:
                join(gpu.uuid, at[link.peer])
            elif link.active and link.peer_kind != "cpu" and gpu.uuid not in switched:
                # Every GPU of a host reaches every other through its switches, whichever they are.
                switched.append(gpu.uuid)
    for uuid in switched[1:]:
        join(switched[0], uuid)
    return names
