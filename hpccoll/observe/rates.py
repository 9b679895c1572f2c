"""What the links of a node could carry: nominal rates, by what the machine is made of, and measured ones.

Nothing is guessed.  A rate that is not known is None, with the reason in its `source`.
"""

from __future__ import annotations

import math
from collections.abc import Iterable
from dataclasses import dataclass, field

from hpccoll.errors import UsageError
from hpccoll.topology.hardware.files import Files
from hpccoll.topology.hardware.model import Interface, RdmaPort
from hpccoll.topology.hardware.network import read_interfaces, read_rdma_ports

NODE, NETWORK = LEVELS = ("node", "network")


@dataclass(frozen=True)
class Rate:
    """`gbs`: 1e9 bytes a second of one node, None where that is not known; `source`: who says so, or why."""

    gbs: float | None
    source: str


@dataclass
class Rates:
    """The rates of the levels by name.

    "node": what all ranks of a node together copy in its memory; "network": what leaves a node, in one
    direction.  `measured`: for whoever has measured one to fill in.
    """

    nominal: dict[str, Rate] = field(default_factory=dict)
    measured: dict[str, Rate] = field(default_factory=dict)


def parse_rates(text: str) -> dict[str, float]:
    """Rates by level from "network:11.5,node:9".  Raises: UsageError for anything else."""
    found: dict[str, float] = {}
    for part in filter(None, (piece.strip() for piece in text.split(","))):
        level, _, number = part.partition(":")
        try:
            gbs = float(number)
        except ValueError:
            gbs = math.nan
        if level not in LEVELS or not 0 < gbs < math.inf:
            raise UsageError(
                f"metrics_rates is {text!r}: must be like network:11.5,node:9, in 1e9 bytes a second and node"
            )
        found[level] = gbs
    return found


def nominal_rates(virtual: bool, several: bool) -> dict[str, Rate]:
    """The nominal rates of this rank's node.  Local; reads /sys.

    `virtual`: the nodes are not real ones; `several`: there is more than one.
    """
    if not several:
        network = Rate(None, "there is one node")
    elif virtual:
        network = Rate(None, "the nodes are virtual: nothing leaves the host")
    else:
        files = Files("/")
        network = nominal_network(read_rdma_ports(files), read_interfaces(files))
    return {NODE: Rate(None, "no nominal rate is known of a host's memory"), NETWORK: network}


def nominal_network(ports: Iterable[RdmaPort], interfaces: Iterable[Interface]) -> Rate:
    """All active ports of RDMA cards together; without any, the one network card that is up."""
    active = [port for port in ports if port.active]
    if active:
        names = ", ".join(port.name for port in active)
        rates = [port.rate_gbit_s for port in active if port.rate_gbit_s is not None]
        if len(rates) < len(active):
            return Rate(None, f"not all of {names} tell their rate")
        return Rate(sum(rates) / 8, names)
    cards = [one for one in interfaces if one.kind in ("ethernet", "infiniband") and one.state == "up"]
    if not cards:
        return Rate(None, "no network card is up")
    names = ", ".join(one.name for one in cards)
    if len(cards) > 1:
        return Rate(None, f"several network cards are up ({names}): which of them MPI uses is not known")
    speed = cards[0].speed_mbit_s
    return Rate(None, f"{names} does not tell its rate") if speed is None else Rate(speed / 8000, names)
