"""The links of a machine from what was found of its hosts, where figures bear out their classes."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from hpccoll.plans import links
from hpccoll.plans.links import Fabric, LinkClass, Links

PAT_SINCE = 22300  # NCCL 2.23, as it numbers itself
_SWITCHED: dict[float, tuple[str, int, LinkClass, LinkClass | None]] = {
    3.0: ("A100", 12, links.NVLINK3, None),
    4.0: ("H100, H200", 18, links.NVLINK4, links.SWITCH4),
    5.0: ("B200", 18, links.NVLINK5, links.SWITCH5),
}
_INFINIBAND = {200.0: links.HDR, 400.0: links.NDR}
EFA_LAYER = "Unspecified"  # what the driver of EFA says where others say InfiniBand or Ethernet


@dataclass(frozen=True)
class HostLinks:
    """What NCCL has on a host.

    Attributes:
        gpus: how many.
        nvlink: the version of their NVLinks; 0 for none.
        lanes: of each, the least that are active.
        switched: they lead to switches, not from GPU to GPU.
        cards: link layer and rate in Gbit/s of every active port of InfiniBand, RoCE and EFA.

    """

    gpus: int
    nvlink: float
    lanes: int
    switched: bool
    cards: tuple[tuple[str, float], ...]

    @staticmethod
    def of(told: Mapping[str, Any]) -> HostLinks:
        """The same from JSON."""
        return HostLinks(**{**told, "cards": tuple(map(tuple, told["cards"]))})


def fabric_of(host: HostLinks, hosts: int, nccl: int) -> Fabric | str:
    """What `hosts` such hosts are that one NVLink domain joins; or why they have no price.

    `nccl`: its version, as it numbers itself.
    """
    if host.nvlink not in _SWITCHED or not host.switched:
        return "prices are for GPUs that NVSwitches join"
    name, lanes, inside, switch = _SWITCHED[host.nvlink]
    if host.lanes != lanes:
        return f"{host.lanes} NVLinks of a GPU are active, where {name} have {lanes}"
    found = _network(host)
    if isinstance(found, str):
        return found
    cards, network = found
    return Fabric(host.gpus * hosts, inside, switch, cards * hosts, network, pat=nccl >= PAT_SINCE)


def links_of(fabric: Fabric) -> Links:
    """The same for pricing."""
    return Links(
        network_latency_us=fabric.network.latency_us, network_gbs=fabric.node_rate / 1e9, fabric=fabric
    )


def _network(host: HostLinks) -> tuple[int, LinkClass] | str:
    """Cards that serve the GPUs, and their class."""
    if not host.cards:
        return "the network between the nodes is not one that has a price: no InfiniBand and no EFA"
    layers = {layer for layer, _ in host.cards}
    if layers == {EFA_LAYER}:
        total = sum(rate for _, rate in host.cards)
        if total == 400 * host.gpus:
            return host.gpus, links.EFA
        return f"EFA of {total:g} Gbit/s a host has no price: 400 for each GPU have"
    rates = [rate for layer, rate in host.cards if layer == "InfiniBand"]
    fastest = max(rates, default=0.0)
    if fastest not in _INFINIBAND:
        known = ", ".join(f"{rate:g}" for rate in _INFINIBAND)
        return f"the network between the nodes has no price: InfiniBand of {known} has"
    # Others, for storage, are not nearer to any GPU.
    return min(rates.count(fastest), host.gpus), _INFINIBAND[fastest]
