"""Hosts as an SVG: GPUs and NVLink above, PCIe switches and network cards below, rates on the lines.

::

    ┌ host ──────────────────────────────┐
    │ [         NVSwitch               ] │   or arcs between GPUs that are joined directly
    │   │478 GB/s  │          │          │
    │ [GPU 0]    [GPU 1]    [GPU 2]      │
    │   │63 GB/s   │          │          │
    │ [PCIe switch][PCIe switch]         │
    │   │          │          │          │
    │ [mlx5_0]   [mlx5_3]   [mlx5_4]     │
    │ [ NUMA node 0        ][NUMA node 1]│
    └───│──────────│──────────│──────────┘
        │400 Gbit/s                          [              network              ]

GPUs and cards stand in groups: what is under one PCIe switch together, groups by NUMA node.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from html import escape

from hpccoll import svg
from hpccoll.topology.hardware.affinity import bridges_above, numa_node
from hpccoll.topology.hardware.compare import differences
from hpccoll.topology.hardware.document import Survey
from hpccoll.topology.hardware.domains import gpu_domains
from hpccoll.topology.hardware.model import Gpu, Host, RdmaPort
from hpccoll.topology.hardware.pci import link_gb_s
from hpccoll.topology.hardware.words import (
    bandwidth_text,
    bytes_text,
    known,
    nvlink_text,
    pcie_bandwidth_text,
    port_text,
    rate_text,
)

MOST_HOSTS = 36
MARGIN, GAP, PAD = 24, 18, 12
COLUMN, CARD, GPU_HEIGHT, NIC_HEIGHT, BAR = 88, 80, 44, 34, 20
ROW_WIDTH = 1640
NVLINK, NETWORK, PCIE, WRONG = svg.COLOURS[2], svg.COLOURS[0], "#5f7b99", svg.COLOURS[5]
SWITCH_FILL, GPU_FILL, NIC_FILL, NUMA_FILL = "#d8ecdf", "#eaf5ee", "#e4ecf7", "#dde4ec"


@dataclass
class _Group:
    """What hangs from one PCIe switch, or from the processor: GPUs above, network ports below."""

    numa: int | None
    switch: str | None
    gpus: list[Gpu] = field(default_factory=list)
    ports: list[RdmaPort] = field(default_factory=list)

    @property
    def columns(self) -> int:
        return max(len(self.gpus), len(self.ports), 1)


@dataclass
class _Board:
    """Where the parts of a host are drawn."""

    host: Host
    groups: list[_Group]

    @property
    def width(self) -> float:
        columns = sum(group.columns for group in self.groups)
        return max(columns * COLUMN + GAP * (len(self.groups) - 1), 3 * COLUMN) + 2 * PAD

    @property
    def has_links(self) -> bool:
        return any(gpu.active_links for gpu in self.host.gpus)

    @property
    def has_switches(self) -> bool:
        return any(group.switch for group in self.groups)

    def rows(self) -> dict[str, float]:
        """The y of each row below the top of the host, and the height of all under "end"."""
        y, rows = 44.0, {}
        if self.has_links:
            rows["nvlink"], y = y, y + BAR + 26
        if self.host.gpus:
            rows["gpus"], y = y, y + GPU_HEIGHT + 24
        if self.has_switches:
            rows["switches"], y = y, y + BAR + 16
        if self.host.rdma_ports:
            rows["ports"], y = y, y + NIC_HEIGHT + 14
        rows["numa"], y = y, y + BAR + PAD
        rows["end"] = y
        return rows


def draw_survey(survey: Survey) -> str:
    """The picture of at most 36 hosts, in rows, and of the network that joins them."""
    shown = survey.hosts[:MOST_HOSTS]
    boards = [_Board(host, _groups(host)) for host in shown]
    widest = max([board.width for board in boards] + [ROW_WIDTH])
    parts: list[str] = []
    y, words_end = _title(parts, survey)
    differing, used = differences(survey.hosts), words_end
    for row in _rows(boards, widest):
        height = max(board.rows()["end"] for _, board in row)
        x = float(MARGIN)
        right = MARGIN + sum(board.width for _, board in row) + GAP * (len(row) - 1)
        used = max(used, right)
        for number, board in row:
            wrong = "; ".join(f"{one.aspect}: {one.own}, most hosts {one.usual}" for one in differing[number])
            _draw_host(parts, board, x, y, height, wrong)
            x += board.width + GAP
        if any(board.host.rdma_ports for _, board in row):
            y += height + 34
            parts.append(svg.box(MARGIN, y, right - MARGIN, BAR, NIC_FILL, NETWORK, 5))
            parts.append(_centred((MARGIN + right) / 2, y + 14, "network", 12, NETWORK))
            y += BAR + GAP
        else:
            y += height + GAP
    if len(survey.hosts) > len(shown):
        parts.append(
            svg.text(MARGIN, y + 12, f"and {len(survey.hosts) - len(shown)} more hosts", 13, svg.QUIET)
        )
        y += 24
    return svg.document(round(used + MARGIN), round(y + MARGIN - GAP), parts)


def _title(parts: list[str], survey: Survey) -> tuple[float, float]:
    """Draws it; returns where it ends below and to the right."""
    hosts, gpus = survey.hosts, sum(len(host.gpus) for host in survey.hosts)
    facts = [f"{len(hosts)} host{'s' * (len(hosts) != 1)}"]
    if gpus:
        domains = {key for host in hosts for key in gpu_domains(host).values()}
        facts.append(
            f"{gpus} GPU{'s' * (gpus > 1)} in {len(domains)} NVLink domain{'s' * (len(domains) > 1)}"
        )
    ports = sum(port.active for host in hosts for port in host.rdma_ports)
    facts.append(f"{ports} network port{'s' * (ports != 1)} active")
    names = list(dict.fromkeys(host.product or "unknown product" for host in hosts))
    title = ", ".join(names[:4]) or "no host"
    below = "  ·  ".join([*facts, "rates are nominal, each direction"])
    parts.append(svg.text(MARGIN, 40, title, 20, weight=600))
    parts.append(svg.text(MARGIN, 62, below, 13, svg.QUIET))
    return 78.0, MARGIN + max(len(title) * 12.0, len(below) * 7.0)


def _groups(host: Host) -> list[_Group]:
    found: dict[tuple[int | None, str | None], _Group] = {}

    def group_of(address: str | None) -> _Group:
        numa = numa_node(host, host.pci_device(address))
        bridges = bridges_above(host, address)
        switch = bridges[-2].address if len(bridges) >= 3 else None
        return found.setdefault((numa, switch), _Group(numa, switch))

    for gpu in host.gpus:
        group_of(gpu.address).gpus.append(gpu)
    for port in host.rdma_ports:
        group_of(port.address).ports.append(port)
    if not found:
        found[None, None] = _Group(None, None)
    return sorted(found.values(), key=lambda group: (group.numa is None, group.numa or 0))


def _rows(boards: Sequence[_Board], widest: float) -> list[list[tuple[int, _Board]]]:
    rows: list[list[tuple[int, _Board]]] = []
    room = 0.0
    for number, board in enumerate(boards):
        if not rows or board.width > room:
            rows.append([])
            room = widest
        rows[-1].append((number, board))
        room -= board.width + GAP
    return rows


def _draw_host(parts: list[str], board: _Board, left: float, top: float, height: float, wrong: str) -> None:
    host, rows = board.host, board.rows()
    about = f"{known(host.name)}: {host.product or 'unknown product'}" + (
        f". Differs: {wrong}" if wrong else ""
    )
    frame = svg.box(left, top, board.width, height, svg.FILL, WRONG if wrong else svg.LINE, 8)
    parts.append(f"<g><title>{escape(about)}</title>{frame}</g>")
    parts.append(svg.text(left + PAD, top + 18, known(host.name), 14, weight=600))
    processor = host.processor
    facts = f"{known(processor.cores)} cores, {bytes_text(host.memory_bytes)}"
    parts.append(svg.text(left + PAD, top + 33, facts, 11, svg.QUIET))
    if wrong:
        parts.append(svg.text(left + board.width - PAD, top + 18, "differs", 12, WRONG, "end", 600))
    x = left + PAD
    at: dict[str, float] = {}
    for group in board.groups:
        width = group.columns * COLUMN
        _draw_group(parts, board, group, x, top, top + height, at)
        x += width + GAP
    _draw_numa(parts, board, left + PAD, top + rows["numa"])
    if board.has_links:
        _draw_nvlink(parts, board, at, left, top)


def _draw_group(
    parts: list[str], board: _Board, group: _Group, x: float, top: float, bottom: float, at: dict[str, float]
) -> None:
    host, rows = board.host, board.rows()
    width = group.columns * COLUMN
    middle = rows.get("switches", rows["numa"])
    gpus = {gpu.uuid: x + width * (place + 0.5) / len(group.gpus) for place, gpu in enumerate(group.gpus)}
    at.update(gpus)
    if group.switch:
        way = [(x + width / 2, top + middle), (x + width / 2, top + rows["numa"])]
        parts.append(svg.line(way, PCIE, 1, opacity=0.4))
    for gpu in group.gpus:
        centre, y = gpus[gpu.uuid], top + rows["gpus"]
        way = [(centre, y + GPU_HEIGHT), (centre, top + middle)]
        if group.ports and not group.switch:  # past the cards, with which it shares nothing but the processor
            beside, bend = centre + COLUMN / 2, y + GPU_HEIGHT + 20
            way = [way[0], (centre, bend), (beside, bend), (beside, top + middle)]
        parts.append(svg.line(way, PCIE, 1.4))
        device = host.pci_device(gpu.address)
        rate = gpu.c2c_mb_s / 1000 if gpu.c2c_mb_s else link_gb_s(device)
        if rate is not None:
            parts.append(_centred(centre, y + GPU_HEIGHT + 15, bandwidth_text(rate), 10, PCIE, behind=True))
        words = [f"GPU {gpu.index}", _short(gpu.name), gpu.address]
        title = f"GPU {gpu.index}: {gpu.name}, {gpu.address}, {nvlink_text(gpu)}"
        parts.append(_card(centre, y, GPU_HEIGHT, GPU_FILL, NVLINK, words, title))
    for place, port in enumerate(group.ports):
        centre, y = x + width * (place + 0.5) / len(group.ports), top + rows["ports"]
        if group.switch:
            parts.append(svg.line([(centre, y), (centre, top + middle + BAR)], PCIE, 1.4))
        colour = NETWORK if port.active else WRONG
        parts.append(
            svg.line([(centre, y + NIC_HEIGHT), (centre, bottom + 34)], colour, 1.6 if port.active else 1)
        )
        label = rate_text(port.rate_gbit_s) if port.active else known(port.state)
        parts.append(_centred(centre, bottom + 20, label, 10, colour, behind=True))
        title = (
            f"{port.name}: {known(port.address)}, PCIe {pcie_bandwidth_text(host.pci_device(port.address))}, "
        )
        parts.append(
            _card(
                centre,
                y,
                NIC_HEIGHT,
                NIC_FILL,
                colour,
                [port.name, port.address or ""],
                title + port_text(port),
            )
        )
    if group.switch:
        y = top + rows["switches"]
        parts.append(svg.box(x + 4, y, width - 8, BAR, "#ffffff", PCIE, 4))
        parts.append(_centred(x + width / 2, y + 14, "PCIe switch" if width > COLUMN else "PCIe", 11, PCIE))


def _draw_numa(parts: list[str], board: _Board, x: float, y: float) -> None:
    """A bar under the groups of each NUMA node."""
    runs: list[tuple[int | None, float, float]] = []
    for group in board.groups:
        width = group.columns * COLUMN
        if runs and runs[-1][0] == group.numa:
            numa, begin, _ = runs.pop()
            runs.append((numa, begin, x + width))
        else:
            runs.append((group.numa, x, x + width))
        x += width + GAP
    for numa, begin, end in runs:
        label = (
            "processors" if numa is None else f"NUMA node {numa}" if end - begin > COLUMN else f"NUMA {numa}"
        )
        parts.append(svg.box(begin + 2, y, end - begin - 4, BAR, NUMA_FILL, "none", 4))
        parts.append(_centred((begin + end) / 2, y + 14, label, 11, svg.INK))


def _draw_nvlink(parts: list[str], board: _Board, at: dict[str, float], left: float, top: float) -> None:
    """A bar over the GPUs for switches; arcs where GPUs are joined directly."""
    rows = board.rows()
    y, feet = top + rows["nvlink"], top + rows["gpus"]
    by_address = {gpu.address: gpu for gpu in board.host.gpus}
    switched = [gpu for gpu in board.host.gpus if any(_to_switch(gpu, by_address))]
    if switched:
        first, last = min(at[gpu.uuid] for gpu in switched), max(at[gpu.uuid] for gpu in switched)
        begin, end = first - CARD / 2, max(last + CARD / 2, first + CARD / 2)
        fabric = next((gpu.fabric for gpu in switched if gpu.fabric and gpu.fabric.cluster), None)
        label = (
            "NVSwitch" if fabric is None else f"NVLink fabric {fabric.cluster[:8]}, clique {fabric.clique}"
        )
        for gpu in switched:
            parts.append(svg.line([(at[gpu.uuid], y + BAR), (at[gpu.uuid], feet)], NVLINK, 2.4))
            short = gpu.active_links < len(gpu.links)
            text = f"{gpu.active_links}/{len(gpu.links)} lanes" if short else bandwidth_text(gpu.nvlink_gb_s)
            parts.append(
                _centred(at[gpu.uuid], y + BAR + 17, text, 10, WRONG if short else NVLINK, behind=True)
            )
        parts.append(svg.box(begin, y, end - begin, BAR, SWITCH_FILL, NVLINK, 5))
        parts.append(_centred((begin + end) / 2, y + 14, label, 11, NVLINK))
    for gpu in board.host.gpus:
        for peer in dict.fromkeys(link.peer for link in gpu.links if link.active and link.peer in by_address):
            other = by_address[peer or ""]
            if gpu.index < other.index:
                rates = [link.speed_mb_s or 0 for link in gpu.links if link.active and link.peer == peer]
                _arc(parts, at[gpu.uuid], at[other.uuid], feet, y, bandwidth_text(sum(rates) / 1000))


def _to_switch(gpu: Gpu, by_address: dict[str, Gpu]) -> Sequence[bool]:
    return [link.active and link.peer not in by_address and link.peer_kind != "cpu" for link in gpu.links]


def _arc(parts: list[str], begin: float, end: float, feet: float, top: float, label: str) -> None:
    parts.append(
        f'<path d="M{begin:.1f},{feet:.1f} C{begin:.1f},{top:.1f} {end:.1f},{top:.1f} {end:.1f},{feet:.1f}" '
        f'fill="none" stroke="{NVLINK}" stroke-width="2.4"/>'
    )
    parts.append(_centred((begin + end) / 2, (feet + 3 * top) / 4 + 4, label, 10, NVLINK, behind=True))


def _card(
    centre: float, y: float, height: float, fill: str, stroke: str, words: Sequence[str], about: str
) -> str:
    shapes = [svg.box(centre - CARD / 2, y, CARD, height, fill, stroke, 5)]
    sizes = (12, 9, 9)
    for place, (text, size) in enumerate(zip(words, sizes, strict=False)):
        ink = svg.INK if place == 0 else svg.QUIET
        shapes.append(_centred(centre, y + 14 + 12 * place, text, size, ink))
    return f"<g><title>{escape(about)}</title>{''.join(shapes)}</g>"


def _centred(x: float, y: float, text: str, size: float, ink: str, *, behind: bool = False) -> str:
    """Text around `x`; `behind`: on white, so that a line under it does not cross it."""
    drawn = svg.text(x, y, text, size, ink, "middle")
    if not behind:
        return drawn
    width = len(text) * size * 0.56 + 4
    return svg.box(x - width / 2, y - size + 1, width, size + 2, "#ffffff", "none", 2) + drawn


def _short(name: str) -> str:
    """A GPU's name without its maker, cut to what a box holds."""
    return name.removeprefix("NVIDIA ")[:15]
