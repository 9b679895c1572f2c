"""What carries bytes: link classes of at most three constants, and what the nodes of a machine have of them.

A class says nothing of message sizes.  Each constant has one source, beside it; `CALIBRATED` are those that
were fitted to a published figure (docs/cost-model.md), one figure each.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

from hpccoll.errors import UsageError

_TUNING = "NCCL 2.20 (NVIDIA/nccl@b647562), src/graph/tuning.cc, hwLat"
_LANES = "NCCL 2.32, src/graph/topo.h: a lane's rate, over that of the data sheet"
_SHEET = "data sheet"
_FIGURE = "the figure of 32 KiB"


@dataclass(frozen=True)
class LinkClass:
    """A kind of link, in one direction.

    `latency_us`: a hop of a short message.  `gbs`: 1e9 bytes a second, of one GPU, or of one network card.
    `efficiency`: the part of it that a long collective gets.  `sources`: of the three.
    """

    name: str
    latency_us: float
    gbs: float
    efficiency: float
    sources: tuple[str, str, str]

    @property
    def rate(self) -> float:
        """Bytes a second that a long collective gets."""
        return self.gbs * self.efficiency * 1e9


# Through NVSwitch: what a GPU sends to others of its node, whichever they are.
NVLINK3 = LinkClass(
    "NVLink 3", 2.6, 300, 235 / 300, (_FIGURE, _SHEET, "NVIDIA/nccl@01afd20, tuning.cc: most on an A100")
)
NVLINK4 = LinkClass("NVLink 4", 0.76, 450, 20.6 / 25, (_FIGURE, _SHEET, _LANES))
NVLINK5 = LinkClass("NVLink 5", 1.4, 900, 40.1 / 50, (_FIGURE, _SHEET, _LANES))
# Reduced and multiplied in the switch (NVLS): S (n+1)/n bytes a GPU for an all-reduce of S.  The latency is
# that of the whole call; one of the 16 or 24 channels is left out.
_NVLS = "NCCL 2.32, src/tuning/nvls.cc: part of the lanes' rate, one channel less"
SWITCH4 = LinkClass("NVLink 4, in the switch", 23, 450, 20.6 / 25 * 0.85 * 15 / 16, (_TUNING, _SHEET, _NVLS))
SWITCH5 = LinkClass("NVLink 5, in the switch", 23, 900, 40.1 / 50 * 0.74 * 23 / 24, (_TUNING, _SHEET, _NVLS))
_PCIE = "NCCL 2.32, src/graph/topo.h: 12.0 of 15.75 in generation 3"
PCIE4 = LinkClass("PCIe 4 x16", 1.0, 31.5, 12 / 15.75, (_TUNING, _SHEET, _PCIE))
HDR = LinkClass("InfiniBand HDR", 5.0, 25, 24 / 25, (_TUNING, _SHEET, "NVIDIA/nccl#412: a card peaks at 24"))
NDR = LinkClass(
    "InfiniBand NDR", 5.0, 50, 47 / 50, (_TUNING, _SHEET, "NVIDIA/nccl-tests#290: 46 to 48 a card")
)
EFA = LinkClass(
    "EFA, 400 Gbit/s a GPU",
    17.5,
    50,
    0.969,
    (_FIGURE, _SHEET, "stas00/ml-engineering, TODO: ib_write_bw gets 193.72 of 200 Gbit/s"),
)
ETHERNET_1 = LinkClass(
    "Ethernet, 1 Gbit/s",
    25,
    0.125,
    1.0,
    ("the default", _SHEET, "benchmarks/results, cluster-2-4-hosts-1gbit: a host sends 125 MB/s"),
)
CLASSES = {
    one.name: one
    for one in (
        NVLINK3, NVLINK4, NVLINK5, SWITCH4, SWITCH5, PCIE4, HDR, NDR, EFA, ETHERNET_1,
    )
}  # fmt: skip
CALIBRATED = (NVLINK3, NVLINK4, NVLINK5, EFA)  # their latency


@dataclass(frozen=True)
class Fabric:
    """What NCCL has: the links of a node's GPUs, and its network cards.

    `inside`: of each GPU; `switch`: the same, where the switch reduces; `network`: of each of the node's
    `cards`; `gpus`: how many a node has.  `pat`: NCCL has its logarithmic algorithm, since 2.23.
    """

    gpus: int
    inside: LinkClass
    switch: LinkClass | None
    cards: int
    network: LinkClass
    pat: bool = True

    @property
    def node_rate(self) -> float:
        """Bytes a second that leave a node over all its cards."""
        return self.cards * self.network.rate

    def group_rate(self, members: int) -> float:
        """Bytes a second that leave a node for a group with so many members there, by the cards near them."""
        near = max(1.0, members * self.cards / self.gpus)
        return min(near, self.cards) * self.network.rate


@dataclass(frozen=True)
class Links:
    """What the two levels give.  The defaults are those of a plain host: they order plans, no more.

    `*_latency_us`: one message or hand-over; `*_gbs`: 1e9 bytes a second and node.  `memory_gbs` is what all
    ranks of a node together copy, from and to arrays of their callers; `staging_gbs` the same in our own
    segments, which another core's cache has (None: as much as in arrays); `message_gbs` what MPI
    moves between two ranks of a node; `block_bytes` the piece in which shared memory hands elements over;
    `mpi_efficiency` the part of the network's bandwidth that MPI's own collectives reach, which do not
    pipeline the levels; `combine_gbs` what one rank combines of what messages bring it.  With a `fabric`, the
    ranks have GPUs, and native steps are NCCL's.
    """

    node_latency_us: float = 1.5
    memory_gbs: float = 35.0
    staging_gbs: float | None = None
    message_latency_us: float = 2.0
    message_gbs: float = 4.5
    network_latency_us: float = 25.0
    network_gbs: float = 1.2
    block_bytes: int = 1024 * 1024
    mpi_efficiency: float = 0.6
    combine_gbs: float = 14.0
    fabric: Fabric | None = None

    @property
    def staged_gbs(self) -> float:
        """What all ranks of a node together copy in our segments."""
        return self.memory_gbs if self.staging_gbs is None else self.staging_gbs

    def with_cards(self, cards: int) -> Links:
        """The same with another number of network cards a node.

        UsageError: none, more than there are GPUs, or a machine without GPUs, which has one.
        """
        if self.fabric is None:
            raise UsageError("--cards: hosts without GPUs have one network card here")
        if not 1 <= cards <= self.fabric.gpus:
            raise UsageError(f"--cards {cards}: must be between 1 and the node's {self.fabric.gpus} GPUs")
        fabric = replace(self.fabric, cards=cards)
        return replace(self, network_gbs=fabric.node_rate / 1e9, fabric=fabric)
