"""GPUs of which a layout can be priced without having them, and the one place where they become `Links`.

Rates are what NCCL was measured to reach for long messages: inside a node the bus bandwidth of an
all-reduce without reduction in the switch (S. Bekman, "Machine Learning Engineering Open Book", chapter on
networks: 8 x A100 235, 8 x H200 368, 8 x B200 682 GB/s), between nodes that of one card for each GPU (HDR:
192 of 200 GB/s for 8 cards, nccl #812; NDR: 46 to 48 of 50, nccl-tests #290).  Operations and memory are
those of the data sheets.
"""

from __future__ import annotations

from dataclasses import dataclass

from hpccoll.errors import UsageError
from hpccoll.plans.cost import Links


@dataclass(frozen=True)
class Gpu:
    """One GPU of a node.

    Attributes:
        tflops: 16-bit operations with 32-bit sums, 1e12 a second.
        memory_gb: 1e9 bytes.
        inside_gbs, network_gbs: 1e9 bytes a second to the GPUs of the node, and to others.
        inside_us, network_us: of a message.

    """

    name: str
    tflops: float
    memory_gb: float
    inside_gbs: float
    network_gbs: float
    inside_us: float = 3.0
    network_us: float = 8.0


GPUS = {
    gpu.name: gpu
    for gpu in (
        Gpu("a100", 312, 80, 235, 24),
        Gpu("h100", 989, 80, 368, 46),
        Gpu("h200", 989, 141, 368, 46),
        Gpu("b200", 2250, 180, 682, 46),
    )
}


def gpu_of(name: str) -> Gpu:
    """The GPU of a name.  Raises: UsageError, naming those there are."""
    if name not in GPUS:
        raise UsageError(f"no GPU {name!r}; there are {', '.join(GPUS)}")
    return GPUS[name]


def links_of(gpu: Gpu, a_node: int) -> Links:
    """The links of a node of so many GPUs, as the cost model takes them.

    That model thinks of a node's copies, of which an all-gather by n ranks takes 2 n + 2 for the (n-1)/n
    parts that each rank receives: with twice `inside_gbs` of copies for each rank no step in shared memory
    is priced below what the links allow, in groups of any size.
    """
    return Links(
        node_latency_us=gpu.inside_us,
        memory_gbs=2 * gpu.inside_gbs * a_node,
        message_latency_us=gpu.inside_us,
        message_gbs=gpu.inside_gbs * a_node,
        network_latency_us=gpu.network_us,
        network_gbs=gpu.network_gbs * a_node,
        block_bytes=1 << 24,
        mpi_efficiency=1.0,
    )
