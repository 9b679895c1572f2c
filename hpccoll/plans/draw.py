"""A plan as a person sees it: a table of its steps with a time line, or a picture (picture.py)."""

from __future__ import annotations

from collections.abc import Sequence

from hpccoll.plans.cost import LEVELS, Cost, price
from hpccoll.plans.links import Links
from hpccoll.plans.picture import draw_svg
from hpccoll.plans.steps import Kind, Plan, Step
from hpccoll.plans.text import bytes_text, groups_text, mark, time_text

__all__ = ["draw_svg", "draw_text", "table"]

Groups = tuple[tuple[int, ...], ...]
TIME_LINE_COLUMNS = 88
MOST_ROOTS = 4


def draw_text(plan: Plan, itemsize: int, links: Links | None = None) -> str:
    """The steps in pipeline order, the groups they are for, and what each level does when.

    A row for each step: its number, its mark in the time line (kind and chunk), what it does, the family of
    groups and the root where it has one, the algorithm (native: the group's transport does it by itself),
    the most bytes of any group, the predicted time, and the steps it waits for.  The time line is to scale
    where the marks leave room.
    """
    if not plan.steps:
        return "no steps: the agreement that all ranks call the same is all there is"
    cost = price(plan, itemsize, links)
    head = ("step", "mark", "action", "groups", "root", "algorithm", "bytes a group", "time", "waits for")
    rows = [head, *(_row(plan, number, itemsize, cost) for number in range(len(plan.steps)))]
    families: dict[str, Groups] = {}
    for step in plan.steps:  # some steps leave the first node out
        families[step.family] = max(families.get(step.family, ()), step.groups, key=len)
    groups = [(f"{family}:", groups_text(members)) for family, members in families.items()]
    return "\n".join([*table(rows), "", *table(groups), "", *_time_line(plan, cost)])


def table(rows: Sequence[Sequence[str]]) -> list[str]:
    """Rows of cells as lines, in columns; the first column and the last one to the left as well as text."""
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    lines = ["  ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=True)) for row in rows]
    return [line.rstrip() for line in lines]


def _row(plan: Plan, number: int, itemsize: int, cost: Cost) -> tuple[str, ...]:
    step = plan.steps[number]
    most = max(step.elements(group) for group in range(len(step.groups))) * itemsize
    return (
        str(number),
        mark(step),
        f"{step.kind.value} of chunk {step.chunk}" if plan.chunks > 1 else step.kind.value,
        step.family,
        _roots(step),
        step.algorithm,
        bytes_text(most),
        time_text(cost.steps[number].time_s),
        ", ".join(map(str, step.after)) or "-",
    )


def _roots(step: Step) -> str:
    """World ranks of the roots of a step that has them."""
    if step.kind not in (Kind.REDUCE, Kind.BROADCAST, Kind.GATHER, Kind.SCATTER) or not step.roots:
        return "-"
    if len(step.groups) > MOST_ROOTS and not any(step.roots):
        return "first of each"
    if len(step.groups) > MOST_ROOTS and all(
        root == len(members) - 1 for members, root in zip(step.groups, step.roots, strict=True)
    ):
        return "last of each"
    ranks = [str(members[root]) for members, root in zip(step.groups, step.roots, strict=True)]
    return ",".join(ranks if len(ranks) <= MOST_ROOTS else [*ranks[: MOST_ROOTS - 1], "..."])


def _time_line(plan: Plan, cost: Cost) -> list[str]:
    """A line for each level that is used: a bar from start to end of each step, with its mark."""
    columns = _columns(plan, cost)
    used = [level for level in LEVELS if any(step.level == level for step in cost.steps)]
    lines = []
    for level in used:
        line = ""
        for step, priced, start in zip(plan.steps, cost.steps, cost.start_s, strict=True):
            if priced.level == level:
                bar = mark(step).ljust(columns[start + priced.time_s] - columns[start] - 1, "=")
                line = line.ljust(columns[start]) + bar
        lines.append(f"{level:8s} {line}")
    begin = f"0 (the check: {time_text(cost.start_s[0])})" if cost.start_s[0] else "0"
    end = time_text(cost.time_s)
    width = max(map(len, lines)) - 9 - len(begin)
    return [*lines, f"{'':8s} {begin}{end.rjust(max(width, len(end) + 2))}"]


def _columns(plan: Plan, cost: Cost) -> dict[float, int]:
    """The column of every moment at which a step starts or ends: to scale, but every mark has room."""
    ends = [start + step.time_s for start, step in zip(cost.start_s, cost.steps, strict=True)]
    first = cost.start_s[0]
    scale = TIME_LINE_COLUMNS / max(cost.time_s - first, 1e-12)
    columns: dict[float, int] = {}
    latest = 0
    for moment in sorted({*cost.start_s, *ends}):
        latest = max(latest, round((moment - first) * scale))
        for step, start, end in zip(plan.steps, cost.start_s, ends, strict=True):
            if end == moment:
                latest = max(latest, columns.get(start, latest) + len(mark(step)) + 1)
        columns[moment] = latest
    return columns
