"""`hpccoll plan COLLECTIVE`: which plan a call would take on a layout, what it costs, and its steps.

Needs no MPI and no cluster: selection is a function of the arguments and the HPCCOLL_ settings alone.
"""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from hpccoll.cli.sizes import parse_bytes
from hpccoll.config import Config, load
from hpccoll.dtypes import ROWS
from hpccoll.errors import UsageError
from hpccoll.plans.catalogue import RECIPES, recipe_of
from hpccoll.plans.collective import BLOCKED, REDUCTIONS, ROOTED, Collective
from hpccoll.plans.cost import LEVELS
from hpccoll.plans.draw import draw_svg, draw_text, table
from hpccoll.plans.flat import ONE_SHOT
from hpccoll.plans.lower import lower
from hpccoll.plans.select import Candidate, Tuning, candidates, fits_one_shot
from hpccoll.plans.steps import Plan
from hpccoll.plans.text import bytes_text, operation_text, time_text
from hpccoll.topology.layout import Layout

NAME = "plan"
HELP = "which plan a collective takes on a layout, what it costs, and its steps; needs no MPI"
STANDARD_OUTPUT = "-"


def configure(parser: argparse.ArgumentParser) -> None:
    """Adds the arguments of `hpccoll plan`."""
    parser.add_argument("collective", choices=tuple(RECIPES), metavar="COLLECTIVE", help=", ".join(RECIPES))
    parser.add_argument(
        "--layout", metavar="TEXT", help='nodes and ranks, such as "4x8" or "3+1" (default: HPCCOLL_LAYOUT)'
    )
    parser.add_argument(
        "--bytes",
        metavar="SIZE",
        default="1M",
        help="size as nccl-tests counts it, of all ranks' blocks for allgather and reduce_scatter; "
        "K, M and G are powers of 1024 (default: 1M)",
    )
    parser.add_argument(
        "--dtype", metavar="TYPE", default="float32", help="of the elements (default: float32)"
    )
    parser.add_argument("--algorithm", metavar="NAME", help="this plan instead of the cheapest one")
    parser.add_argument(
        "--root", metavar="R", type=int, default=0, help="of a reduce or broadcast (default: 0)"
    )
    parser.add_argument("--rank", metavar="R", type=int, help="also list the operations of rank R")
    parser.add_argument("--svg", metavar="FILE", help="draw the plan to FILE")
    parser.add_argument(
        "--json", metavar="FILE", help='write it to FILE as JSON; "-": to standard output alone'
    )


def run(args: argparse.Namespace) -> int:
    """Print the choice.  Returns the exit status: 0 good, 2 misuse."""
    try:
        case = _case(args)
        if args.svg is not None:
            _write(args.svg, draw_svg(case.plan, case.itemsize))
        if args.json is not None:
            document = json.dumps(_as_dict(case), indent=2) + "\n"
            if args.json == STANDARD_OUTPUT:
                sys.stdout.write(document)
                return 0
            _write(args.json, document)
    except UsageError as error:
        print(f"hpccoll plan: {error}", file=sys.stderr)
        return 2
    print(_report(case))
    return 0


@dataclass(frozen=True)
class _Case:
    """What was asked for, and what selection says to it.

    `itemsize`: bytes of an element as it travels (16-bit floats are reduced in float32).  `chosen`: the
    candidate shown, the cheapest one unless another was asked for.
    """

    collective: Collective
    layout: Layout
    nbytes: int
    dtype: str
    itemsize: int
    candidates: tuple[Candidate, ...]
    chosen: Candidate
    note: str
    rank: int | None

    @property
    def plan(self) -> Plan:
        return self.chosen.made


def _case(args: argparse.Namespace) -> _Case:
    config = load()
    layout = _layout(args.layout, config)
    root = _rank("--root", args.root, layout)
    rank = None if args.rank is None else _rank("--rank", args.rank, layout)
    nbytes = 0 if args.collective == "barrier" else _named("--bytes", parse_bytes, args.bytes)
    element, travelling = _itemsizes(args.dtype, args.collective)
    blocks = layout.size if args.collective in BLOCKED else 1
    count = nbytes // element // blocks
    collective = Collective(args.collective, layout.size, count, root if args.collective in ROOTED else 0)
    tuning = Tuning(True, config.small_bytes, config.segment_bytes, config.chunk_bytes)
    found = candidates(collective, layout, travelling, tuning)
    chosen, note = found[0], "lowest predicted time"
    if args.algorithm is not None:
        _named("--algorithm", lambda name: recipe_of(args.collective, name, layout), args.algorithm)
        (chosen,) = candidates(collective, layout, travelling, tuning, args.algorithm)
        note = "asked for by name"
        if args.algorithm == ONE_SHOT and not fits_one_shot(
            collective, layout, travelling, tuning.small_bytes
        ):
            note += f"; a call would not take it: more than HPCCOLL_SMALL_BYTES={tuning.small_bytes} allows"
        same = [one for one in found if one.name == chosen.name]  # it is among them unless not considered
        chosen, found = (same[0], found) if same else (chosen, (*found, chosen))
    used = count * element * blocks
    return _Case(collective, layout, used, args.dtype, travelling, found, chosen, note, rank)


def _layout(text: str | None, config: Config) -> Layout:
    if not text and not config.layout:
        raise UsageError('--layout is needed (or HPCCOLL_LAYOUT): nodes and ranks, such as "4x8" or "3+1"')
    layout: Layout = _named("--layout" if text else "HPCCOLL_LAYOUT", Layout.parse, text or config.layout)
    return layout


def _named(flag: str, read: Callable[[str], Any], text: str) -> Any:
    """What `read` makes of a text; its UsageError with the name of the flag."""
    try:
        return read(text)
    except UsageError as error:
        raise UsageError(f"{flag}: {error}") from None


def _rank(flag: str, rank: int, layout: Layout) -> int:
    if not 0 <= rank < layout.size:
        raise UsageError(f"{flag} is {rank}: layout {layout.shortened()} has ranks 0 to {layout.size - 1}")
    return rank


def _itemsizes(dtype: str, collective: str) -> tuple[int, int]:
    """Bytes of an element as the caller has it, and as it travels."""
    row = ROWS.get(dtype)
    if row is None:
        raise UsageError(f"--dtype is {dtype!r}: must be one of {', '.join(ROWS)}")
    own = 2 if dtype == "bfloat16" else np.dtype(dtype).itemsize
    if collective not in REDUCTIONS:
        return own, own
    if row.kind == "bool":
        raise UsageError(f"--dtype is {dtype!r}: a sum of truth values is not defined")
    return own, np.dtype(row.working).itemsize if row.working else own


def _write(path: str, text: str) -> None:
    try:
        Path(path).write_text(text, encoding="utf-8")
    except OSError as error:
        raise UsageError(f"cannot write {path}: {error.strerror}") from None


# --- text ---------------------------------------------------------------------------------------


def _report(case: _Case) -> str:
    what = case.collective.name
    if what != "barrier":
        what += f" of {bytes_text(case.nbytes)} ({_elements(case)})"
    parts = [
        f"{what} on {case.layout.describe()}",
        f"plan: {case.chosen.plan} ({case.note})",
        "\n".join(_candidate_lines(case)),
        "\n".join(_level_lines(case)),
        draw_text(case.plan, case.itemsize),
    ]
    if case.rank is not None:
        parts.append("\n".join(_program_lines(case.plan, case.rank)))
    return "\n\n".join(parts)


def _elements(case: _Case) -> str:
    blocks = f"{case.collective.size} x " if case.collective.name in BLOCKED else ""
    return f"{blocks}{case.collective.count} {case.dtype}"


def _candidate_lines(case: _Case) -> list[str]:
    rows = [("   candidate", "predicted", "leaves a node", "moves inside a node")]
    for one in case.candidates:
        mark = "->" if one is case.chosen else "  "
        cost = one.cost
        moved = bytes_text(cost.bytes_between_nodes), bytes_text(cost.bytes_inside_node)
        rows.append((f"{mark} {one.plan}", time_text(cost.time_s), *moved))
    return table(rows)


def _level_lines(case: _Case) -> list[str]:
    """What each level costs: of the busiest node."""
    cost = case.chosen.cost
    moved = {"NODE": cost.bytes_inside_node, "network": cost.bytes_between_nodes}
    names = {"NODE": "NODE (inside)", "network": "network (between)"}
    rows = [("level", "busy", "of the time", "bytes, busiest node")]
    for level in LEVELS:
        busy = cost.busy_s[level]
        share = f"{100 * busy / cost.time_s:.0f} %" if cost.time_s else "-"
        rows.append((names[level], time_text(busy), share, f"{bytes_text(moved[level])} ({moved[level]})"))
    return table(rows)


def _program_lines(plan: Plan, rank: int) -> list[str]:
    if any(step.algorithm == ONE_SHOT for step in plan.steps) or not plan.steps:
        return [f"rank {rank} has no program: its elements travel with the agreement check"]
    program = lower(plan, rank)
    head = (
        f"program of rank {rank}: {len(program.operations)} operations, {program.scratch} elements of scratch"
    )
    rows = [("#", "step", "operation", "after")]
    for number, operation in enumerate(program.operations):
        after = ", ".join(map(str, operation.after)) or "-"
        rows.append((str(number), str(operation.step), operation_text(operation), after))
    return [head, *table(rows)]


# --- JSON ---------------------------------------------------------------------------------------


def _as_dict(case: _Case) -> dict[str, Any]:
    return {
        "collective": case.collective.name,
        "layout": str(case.layout),
        "bytes": case.nbytes,
        "dtype": case.dtype,
        "count": case.collective.count,
        "root": case.collective.root,
        "chosen": case.chosen.name,
        "why": case.note,
        "candidates": [_candidate_as_dict(one) for one in case.candidates],
        "steps": _steps_as_dicts(case),
    }


def _candidate_as_dict(one: Candidate) -> dict[str, Any]:
    return {
        "name": one.name,
        "plan": one.plan,
        "chunks": one.made.chunks,
        "time_s": one.cost.time_s,
        "busy_s": one.cost.busy_s,
        "bytes_between_nodes": one.cost.bytes_between_nodes,
        "bytes_inside_node": one.cost.bytes_inside_node,
    }


def _steps_as_dicts(case: _Case) -> list[dict[str, Any]]:
    cost = case.chosen.cost
    return [
        {
            "kind": step.kind.value,
            "chunk": step.chunk,
            "family": step.family,
            "groups": step.groups,
            "algorithm": step.algorithm,
            "after": step.after,
            "level": priced.level,
            "start_s": start,
            "time_s": priced.time_s,
            "bytes_between_nodes": priced.bytes_between_nodes,
            "bytes_inside_node": priced.bytes_inside_node,
        }
        for step, priced, start in zip(case.plan.steps, cost.steps, cost.start_s, strict=True)
    ]
