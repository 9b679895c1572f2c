"""What joins the GPUs of this host: NVLinks, an NVLink fabric that reaches beyond it (an NVL72 rack), cards.

NVML says the former without a CUDA context.  GPUs of one cluster and one clique reach one another over
NVLink, on other hosts too; so NCCL takes their hosts for one node, unless NCCL_MNNVL_ENABLE=0.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from hpccoll.plans.detected import HostLinks
from hpccoll.topology.hardware.domains import fabric_key
from hpccoll.topology.hardware.files import Files
from hpccoll.topology.hardware.model import Gpu, RdmaPort
from hpccoll.topology.hardware.network import read_rdma_ports
from hpccoll.topology.hardware.nvml import joined_gpus
from hpccoll.topology.layout import Layout


def own_fabric(environ: Mapping[str, str]) -> str:
    """Cluster and clique of the GPUs that this process sees; "" where they are on none, or not all on one."""
    if environ.get("NCCL_MNNVL_ENABLE", "").strip() == "0":
        return ""
    keys = {fabric_key(gpu) for gpu in visible(joined_gpus(), environ.get("CUDA_VISIBLE_DEVICES"))}
    found = keys.pop() if len(keys) == 1 else None
    return "" if found is None else ".".join(found[1:])


def visible(gpus: Sequence[Gpu], text: str | None) -> tuple[Gpu, ...]:
    """The GPUs that CUDA_VISIBLE_DEVICES leaves; as CUDA does, those before the first that is not there.

    Numbers are taken for those of NVML, which they are where all GPUs of a host are of one kind.
    """
    if text is None or "MIG" in text:
        return tuple(gpus)
    found: list[Gpu] = []
    for item in map(str.strip, text.split(",")):
        if item.isdecimal():
            matching = list(gpus[int(item) : int(item) + 1])
        else:
            matching = [gpu for gpu in gpus if item.startswith("GPU-") and gpu.uuid.startswith(item)]
        if len(matching) != 1:
            break
        found += matching
    return tuple(found)


def with_domains(nodes: Layout, fabrics: Sequence[str]) -> Layout:
    """The nodes with the NVLink domains of their ranks; the nodes as they are where these are the same.

    `fabrics`: of each rank, "" for a rank on none, whose domain is its node.
    """
    keys = [fabric or node for fabric, node in zip(fabrics, nodes.node_of, strict=True)]
    joined = Layout.from_keys(nodes.node_of, keys)
    return nodes if joined.domain_of == nodes.node_of else joined


def own_links() -> HostLinks:
    """What NCCL has on this host."""
    return links_from(joined_gpus(), read_rdma_ports(Files()))


def links_from(gpus: Sequence[Gpu], ports: Sequence[RdmaPort]) -> HostLinks:
    """The same from what was read."""
    versions = {link.version or 0.0 for gpu in gpus for link in gpu.links if link.active}
    kinds = {link.peer_kind for gpu in gpus for link in gpu.links if link.active}
    return HostLinks(
        gpus=len(gpus),
        nvlink=versions.pop() if len(versions) == 1 else 0.0,
        lanes=min((gpu.active_links for gpu in gpus), default=0),
        switched="gpu" not in kinds and "cpu" not in kinds,
        cards=tuple(sorted((one.link_layer or "", one.rate_gbit_s or 0.0) for one in ports if one.active)),
    )
