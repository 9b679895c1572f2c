"""The channels that NCCL has found for each kind of algorithm: the file of NCCL_GRAPH_DUMP_FILE.

::

    <graphs version="1">
      <graph id="0" pattern="4" crossnic="0" nchannels="2" speedintra="20" speedinter="20" latencyinter="0"
             typeintra="NVL" typeinter="PIX" samechannels="1">
        <channel> <net dev="0"/> <gpu dev="0"/> <gpu dev="1"/> <net dev="0"/> </channel>

Speeds are NCCL's model in GB/s for a channel, not measured.
"""

from __future__ import annotations

from dataclasses import dataclass

from hpccoll.topology.nccl_view.elements import Element, parse

ALGORITHMS = {0: "ring", 1: "tree", 2: "collnet chain", 3: "nvls", 4: "collnet direct"}
"""What the `id` of a graph means, in NCCL's src/init.cc."""

PATTERNS = {1: "balanced tree", 2: "split tree", 3: "tree", 4: "ring", 5: "nvls", 6: "collnet direct"}
"""What its `pattern` means, in NCCL's src/include/graph.h."""


@dataclass(frozen=True)
class NcclChannel:
    """The way of a channel through a host.

    Attributes:
        gpus: NVML's numbers, in order.
        receive: the network device by which it comes in; None on one host.
        send: by which it goes out.

    """

    gpus: tuple[int, ...]
    receive: int | None
    send: int | None


@dataclass(frozen=True)
class NcclGraph:
    """The channels of one kind of algorithm.

    Attributes:
        algorithm: of `ALGORITHMS`, or "graph 7" where this version does not know it.
        pattern: of `PATTERNS`, likewise.
        channels: one after the other; fewer than `nchannels` are not written.
        speed_intra, speed_inter: GB/s of a channel, in NCCL's model.
        type_intra, type_inter: the worst kind of way inside the host and to the network: "NVL", "PIX", "SYS".
        cross_nic: a ring may come in by one card and go out by another.

    """

    algorithm: str
    pattern: str
    channels: tuple[NcclChannel, ...]
    speed_intra: float | None
    speed_inter: float | None
    type_intra: str | None
    type_inter: str | None
    cross_nic: int | None


def parse_graphs(document: str | bytes) -> tuple[NcclGraph, ...]:
    """The graphs in the text of a NCCL_GRAPH_DUMP_FILE.  Raises: UsageError, with the line."""
    return tuple(map(_graph, parse(document, "graphs").named("graph")))


def _graph(element: Element) -> NcclGraph:
    number, pattern = element.needed("id"), element.needed("pattern")
    return NcclGraph(
        algorithm=ALGORITHMS.get(number, f"graph {number}"),
        pattern=PATTERNS.get(pattern, f"pattern {pattern}"),
        channels=tuple(map(_channel, element.named("channel"))),
        speed_intra=element.decimal("speedintra"),
        speed_inter=element.decimal("speedinter"),
        type_intra=element.text("typeintra"),
        type_inter=element.text("typeinter"),
        cross_nic=element.number("crossnic"),
    )


def _channel(element: Element) -> NcclChannel:
    nets = [net.needed("dev") for net in element.named("net")]
    return NcclChannel(
        gpus=tuple(gpu.needed("dev") for gpu in element.named("gpu")),
        receive=nets[0] if nets else None,
        send=nets[-1] if nets else None,
    )
