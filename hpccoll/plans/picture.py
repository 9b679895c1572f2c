"""A plan as a self-contained SVG: its schedule, then the layout with what one chunk does, step by step.

    title         what it costs
    schedule      a lane for each level, a bar for each step, coloured by chunk; a legend
    step          the nodes with their ranks; arrows for messages, or through the node's shared memory
    ...           (the steps of chunk 0)

Of a large layout the first nodes are shown, and the first ranks of each.
"""

from __future__ import annotations

from html import escape
from itertools import islice
from math import floor, log10

from hpccoll import svg
from hpccoll.plans.cost import LEVELS, Cost, edges, price
from hpccoll.plans.flat import ONE_SHOT
from hpccoll.plans.links import Links
from hpccoll.plans.select import describe
from hpccoll.plans.steps import NATIVE, Kind, Plan, Step
from hpccoll.plans.text import bytes_text, mark, time_text
from hpccoll.svg import COLOURS, FILL, INK, LINE, QUIET

WIDTH, MARGIN, LANE = 1000, 32, 46
LABELS = 112  # where the lanes begin
SHELF_FILL = "#dde4ec"
ACTIVE, INSIDE, BETWEEN = "#ffffff", "#5f7b99", COLOURS[0]
NAMES = {"NODE": "inside nodes", "network": "between nodes"}

MOST_RANKS, MOST_NODES, MOST_ARROWS = 8, 8, 400
MOST_ARROWS_A_RANK = 8  # with more than that, those of one rank are drawn
RADIUS, PITCH, WIDEST_PITCH, GAP = 10, 26, 44, 14  # four nodes of eight fill a row
ARC = 40  # room above and below a row of nodes for arrows between ranks
BOX = 60  # height of a node


def draw_svg(plan: Plan, itemsize: int, links: Links | None = None) -> str:
    """The whole picture; text in the viewer's sans-serif font, nothing loaded from elsewhere."""
    cost = price(plan, itemsize, links)
    parts: list[str] = []
    y = _title(parts, plan, itemsize, cost)
    if plan.steps:
        y = _schedule(parts, plan, cost, y + 18)
        for number, step in enumerate(plan.steps):
            if step.chunk == 0:
                y = _stage(parts, plan, number, step, itemsize, y + 34)
    return svg.document(WIDTH, round(y + MARGIN), [*_definitions(), *parts])


def _title(parts: list[str], plan: Plan, itemsize: int, cost: Cost) -> float:
    layout = plan.layout
    size = bytes_text(plan.collective.elements * itemsize)
    if plan.collective.name == "alltoall":
        size += " of all ranks"
    parts.append(svg.text(MARGIN, 46, f"{plan.collective.name}: {describe(plan)}", 22, weight=600))
    facts = [f"{size} on layout {layout.shortened()}", f"predicted {time_text(cost.time_s)}"]
    if layout.node_count > 1:
        facts.append(f"{bytes_text(cost.bytes_between_nodes)} leave the busiest node")
    parts.append(svg.text(MARGIN, 70, "  ·  ".join(facts), 14, QUIET))
    return 76


# --- schedule -----------------------------------------------------------------------------------


def _schedule(parts: list[str], plan: Plan, cost: Cost, top: float) -> float:
    used = [level for level in LEVELS if any(step.level == level for step in cost.steps)]
    scale = (WIDTH - MARGIN - LABELS - MARGIN) / max(cost.time_s, 1e-12)
    left = MARGIN + LABELS
    bottom = top + LANE * len(used)
    middle = {level: top + LANE * (lane + 0.5) for lane, level in enumerate(used)}
    for moment in _ticks(cost.time_s):
        x = left + moment * scale
        parts.append(svg.line([(x, top), (x, bottom + 5)], LINE))
        parts.append(svg.text(x, bottom + 19, time_text(moment) if moment else "0", 11, QUIET, "middle"))
    for level in used:
        parts.append(svg.text(MARGIN, middle[level] + 5, NAMES[level], 14))
    if cost.start_s[0]:
        about = "All ranks agree that they call the same"
        parts.append(
            _bar(left, top + 6, cost.start_s[0] * scale, bottom - top - 12, "#b8c2cc", "check", about)
        )
    for step, priced, start in zip(plan.steps, cost.steps, cost.start_s, strict=True):
        for earlier in step.after:
            before = cost.steps[earlier]
            x = left + (cost.start_s[earlier] + before.time_s) * scale
            to = left + start * scale
            if before.level != priced.level:
                ends = [(x, middle[before.level]), (to, middle[priced.level])]
                parts.append(svg.line(ends, _colour(step), 1.2, opacity=0.45))
    for number, (step, priced, start) in enumerate(zip(plan.steps, cost.steps, cost.start_s, strict=True)):
        label = step.kind.value.replace("_", "-") + (f" {step.chunk}" if plan.chunks > 1 else "")
        about = f"step {number}: {_sentence(step, plan)}, {time_text(priced.time_s)} from {time_text(start)}"
        parts.append(
            _bar(
                left + start * scale, middle[priced.level] - 16, priced.time_s * scale, 32,
                _colour(step), label, about, mark(step),
            )
        )  # fmt: skip
    return _legend(parts, plan, bottom + 42) if plan.chunks > 1 else bottom + 24


def _legend(parts: list[str], plan: Plan, y: float) -> float:
    parts.append(svg.text(MARGIN, y, "chunk", 12, QUIET))
    for chunk in range(plan.chunks):
        x = MARGIN + LABELS + 46 * chunk
        parts.append(svg.box(x, y - 11, 14, 14, COLOURS[chunk % len(COLOURS)], round_=3))
        parts.append(svg.text(x + 20, y, str(chunk), 12, QUIET))
    return y + 6


def _bar(
    x: float, y: float, width: float, height: float, fill: str, label: str, about: str, short: str = ""
) -> str:
    drawn = max(width - 1, 1.5)
    shown = label if len(label) * 6.6 + 8 < drawn else short if len(short) * 7.5 + 4 < drawn else ""
    text = svg.text(x + drawn / 2, y + height / 2 + 4, shown, 12, "#ffffff", "middle") if shown else ""
    return f"<g><title>{escape(about)}</title>{svg.box(x, y, drawn, height, fill, round_=3)}{text}</g>"


def _ticks(longest: float) -> list[float]:
    """Round moments from 0 to the end, four to ten of them."""
    power = 10.0 ** floor(log10(longest)) if longest > 0 else 1.0
    step = next(power * factor for factor in (0.1, 0.2, 0.5, 1.0) if longest <= 10 * power * factor)
    return [step * index for index in range(int(longest / step + 1e-9) + 1)]


# --- the layout, and what a step does on it -----------------------------------------------------


class _Board:
    """Where the ranks of the layout are drawn: nodes in rows, the first ranks of each."""

    def __init__(self, plan: Plan, top: float, room: float) -> None:
        layout = plan.layout
        self.shown = [node[:MOST_RANKS] for node in layout.nodes[:MOST_NODES]]
        self.more = [len(node) - len(ranks) for node, ranks in zip(layout.nodes, self.shown, strict=False)]
        self.hidden_nodes = layout.node_count - len(self.shown)
        slots = [len(ranks) + bool(more) for ranks, more in zip(self.shown, self.more, strict=True)]
        free = WIDTH - 2 * MARGIN - (GAP + 14) * len(slots)
        self.pitch = max(PITCH, min(WIDEST_PITCH, free / sum(slots)))
        self.boxes: list[tuple[float, float, float]] = []  # left, top, width
        self.at: dict[int, tuple[float, float]] = {}
        x, y = float(MARGIN), top + room
        for ranks, places in zip(self.shown, slots, strict=True):
            width = self.pitch * places + 14
            if x > MARGIN and x + width > WIDTH - MARGIN:
                x, y = float(MARGIN), y + BOX + GAP + 2 * room
            self.boxes.append((x, y, width))
            for place, rank in enumerate(ranks):
                self.at[rank] = (x + 7 + self.pitch * (place + 0.5), y + 20)
            x += width + GAP
        self.bottom = y + BOX + room

    def draw(self, parts: list[str], active: set[int]) -> None:
        for (x, y, width), ranks, more in zip(self.boxes, self.shown, self.more, strict=True):
            parts.append(svg.box(x, y, width, BOX, FILL, LINE, 6))
            if more:
                parts.append(
                    svg.text(x + width - self.pitch / 2 - 7, y + 24, f"+{more}", 10, QUIET, "middle")
                )
            for rank in ranks:
                at_x, at_y = self.at[rank]
                ink = INK if rank in active else LINE
                parts.append(
                    f'<circle cx="{at_x:.1f}" cy="{at_y:.1f}" r="{RADIUS}" fill="{ACTIVE}" stroke="{ink}"/>'
                )
                parts.append(svg.text(at_x, at_y + 3.5, str(rank), 10 if rank < 1000 else 8, ink, "middle"))
        if self.hidden_nodes:
            text = f"and {self.hidden_nodes} more nodes"
            parts.append(svg.text(WIDTH - MARGIN, self.boxes[-1][1] + BOX + 16, text, 12, QUIET, "end"))


def _stage(parts: list[str], plan: Plan, number: int, step: Step, itemsize: int, top: float) -> float:
    most = max(step.elements(group) for group in range(len(step.groups))) * itemsize
    heading = f"step {number}: {_sentence(step, plan)}, {bytes_text(most)} in each group"
    parts.append(svg.text(MARGIN, top, heading, 14, weight=600))
    by_messages = step.algorithm not in (NATIVE, ONE_SHOT)
    on_node = step.family == "NODE" or plan.layout.node_count == 1
    board = _Board(plan, top + 10, ARC if by_messages else 0 if on_node else 14)
    active = {rank for group in step.groups if len(group) > 1 for rank in group}
    board.draw(parts, active)
    if by_messages:
        _messages(parts, plan, step, board)
    elif on_node and step.algorithm == NATIVE:
        if step.kind is not Kind.PREPEND:  # which each rank does on its own
            _through_memory(parts, step, board)
    else:
        _whole(parts, step, board)
    return board.bottom


def _messages(parts: list[str], plan: Plan, step: Step, board: _Board) -> None:
    """An arrow for each pair of ranks; those that go right above the ranks, those that go left below."""
    pairs = {(edge.source, edge.target): None for edge in islice(edges(plan, step), MOST_ARROWS * 50)}
    drawn = [pair for pair in pairs if pair[0] in board.at and pair[1] in board.at]
    if len(drawn) > MOST_ARROWS_A_RANK * len(board.at):
        sender = drawn[0][0]
        drawn = [pair for pair in drawn if pair[0] == sender]
        text = f"what rank {sender} sends; the others do likewise"
        parts.append(svg.text(MARGIN, board.boxes[-1][1] + BOX + 16, text, 12, QUIET))
    drawn = drawn[:MOST_ARROWS]
    faint = 0.85 if len(drawn) <= 40 else 0.45
    for source, target in drawn:
        crosses = plan.layout.node(source) != plan.layout.node(target)
        parts.append(_arrow(board.at[source], board.at[target], "between" if crosses else "inside", faint))


def _through_memory(parts: list[str], step: Step, board: _Board) -> None:
    """Arrows down to the node's shared memory and up from it."""
    for x, y, width in board.boxes:
        parts.append(svg.box(x + 6, y + 46, width - 12, 9, SHELF_FILL, "#aab7c4", 3))
    for group, members in enumerate(step.groups):
        gives, gets = _gives_and_gets(step, group)
        for rank in members:
            if rank not in board.at or len(members) == 1:
                continue
            x, y = board.at[rank]
            both = 4 if rank in gives and rank in gets else 0
            if rank in gives:
                parts.append(svg.line([(x - both, y + RADIUS), (x - both, y + 25)], INSIDE, 1.6, "inside"))
            if rank in gets:
                parts.append(
                    svg.line([(x + both, y + 26), (x + both, y + RADIUS + 1)], INSIDE, 1.6, "inside")
                )


def _gives_and_gets(step: Step, group: int) -> tuple[set[int], set[int]]:
    members = set(step.groups[group])
    root = {step.groups[group][step.roots[group] if step.roots else 0]}
    if step.kind in (Kind.REDUCE, Kind.GATHER):
        return members, root
    if step.kind is Kind.BROADCAST:
        return root, members - root
    if step.kind is Kind.SCATTER:
        return root, members
    if step.kind is Kind.EXSCAN:
        return members, members - set(step.groups[group][:1])
    return members, members


def _whole(parts: list[str], step: Step, board: _Board) -> None:
    """A step that the transport of the whole world does by itself."""
    text = "travels with the check" if step.algorithm == ONE_SHOT else "one call of the transport (MPI's own)"
    for y in sorted({y for _, y, _ in board.boxes}):
        right = max(x + width for x, top, width in board.boxes if top == y)
        parts.append(svg.box(MARGIN, y + BOX + 8, right - MARGIN, 18, SHELF_FILL, "#aab7c4", 4))
        parts.append(svg.text((MARGIN + right) / 2, y + BOX + 21, text, 11, QUIET, "middle"))
    for x, y in board.at.values():
        parts.append(svg.line([(x, y + RADIUS), (x, y + BOX - 14)], BETWEEN, 1.2, "between", opacity=0.7))


def _sentence(step: Step, plan: Plan) -> str:
    but = " but the first" if len(step.groups) < plan.layout.node_count else ""
    where = {
        "NODE": f"in every node{but}",
        "LEADERS": "over one rank of each node",
        "RAIL": f"on {len(step.groups)} rails",
        "LAST": "over the last rank of each node",
        "WORLD": "over all ranks",
    }.get(step.family, f"in {step.family}")
    how = "" if step.algorithm == NATIVE else f" ({step.algorithm.replace('_', ' ')})"
    chunk = f" of chunk {step.chunk}" if plan.chunks > 1 else ""
    return f"{step.kind.value.replace('_', '-')}{chunk} {where}{how}"


# --- shapes -------------------------------------------------------------------------------------


def _colour(step: Step) -> str:
    return COLOURS[step.chunk % len(COLOURS)]


def _definitions() -> list[str]:
    return [
        f'<marker id="{name}" viewBox="0 0 8 8" refX="7" refY="4" markerWidth="5" markerHeight="5" '
        f'orient="auto"><path d="M0,0 L8,4 L0,8 Z" fill="{colour}"/></marker>'
        for name, colour in (("inside", INSIDE), ("between", BETWEEN))
    ]


def _arrow(start: tuple[float, float], end: tuple[float, float], level: str, opacity: float) -> str:
    """A curve between two ranks; within a row it goes to the right above them, to the left below."""
    (x0, y0), (x1, y1) = start, end
    if y0 != y1:
        down = 1 if y1 > y0 else -1
        y0, y1 = y0 + down * RADIUS, y1 - down * (RADIUS + 2)
        bend = f"C{x0:.1f},{y0 + down * 40:.1f} {x1:.1f},{y1 - down * 40:.1f}"
    else:
        up = -1 if x1 > x0 else 1
        y0, y1 = y0 + up * RADIUS, y1 + up * (RADIUS + 2)
        bow = min(ARC * 1.3, 8 + abs(x1 - x0) * 0.16)
        lean = min(24.0, abs(x1 - x0) / 4) * (1 if x1 > x0 else -1)
        bend = f"C{x0 + lean:.1f},{y0 + up * bow:.1f} {x1 - lean:.1f},{y1 + up * bow:.1f}"
    colour = BETWEEN if level == "between" else INSIDE
    return (
        f'<path d="M{x0:.1f},{y0:.1f} {bend} {x1:.1f},{y1:.1f}" fill="none" stroke="{colour}" '
        f'stroke-width="1.4" opacity="{opacity}" marker-end="url(#{level})"/>'
    )
