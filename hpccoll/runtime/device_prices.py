"""By which links plans on devices are priced, and what their measured times are of: from facts of all ranks.

The facts are those that ranks tell one another when a communicator first meets an array on a device.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

from hpccoll.config import UNPRICED, Config
from hpccoll.plans.detected import HostLinks, fabric_of, links_of
from hpccoll.plans.links import Links
from hpccoll.plans.machines import machine_of
from hpccoll.topology.layout import Layout

Facts = Sequence[Mapping[str, Any]]


def names_of(layout: Layout, found: Facts) -> list[str]:
    """Of each rank's device, with its NVLink domain where that is not its node."""
    domains = layout.domain_of or ("",) * layout.size
    return [
        fact["name"] if domain == "" else f"{fact['name']} in NVLink domain {domain}"
        for fact, domain in zip(found, domains, strict=True)
    ]


def links_by(found: Facts, layout: Layout, config: Config, by_mpi: bool) -> tuple[Links | None, str]:
    """The links by which plans are priced, or None and why; the same on all ranks.

    `by_mpi`: steps between nodes are MPI's.
    """
    if config.device_machine == UNPRICED:
        return None, f"device_machine is {UNPRICED}"
    if config.device_machine:
        return machine_of(config.device_machine).links, ""
    if by_mpi:
        return None, "steps between nodes are MPI's"
    if config.layout:
        return None, "the nodes are virtual"
    if len({json.dumps(fact["links"]) for fact in found}) > 1:
        return None, "the hosts have different GPUs, links or network cards"
    host = HostLinks.of(found[0]["links"])
    # Where a cgroup hides the others, each rank sees its own GPU alone.
    host = replace(host, gpus=max(host.gpus, *layout.by_node.counts))
    most = max(len({layout.node_of[rank] for rank in members}) for members in layout.domains)
    fabric = fabric_of(host, most, found[0]["version"])
    return (None, fabric) if isinstance(fabric, str) else (links_of(fabric), "")
