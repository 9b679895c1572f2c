"""`hpccoll plan COLLECTIVE`: which plan a call would take on a layout, what it costs, and its steps.

Needs no MPI and no cluster: selection is a function of the arguments and the HPCCOLL_ settings alone.  With
`--machine dgx-h100 --nodes 16` it is for a machine that need not be there.
"""

from __future__ import annotations

import argparse
from dataclasses import asdict
from typing import Any

from hpccoll.cli.output import JSON_HELP, STANDARD_OUTPUT, write_json
from hpccoll.cli.plan_case import Case, case_of
from hpccoll.files import write_text
from hpccoll.plans.catalogue import RECIPES
from hpccoll.plans.collective import BLOCKED, ROOTED
from hpccoll.plans.cost import LEVELS
from hpccoll.plans.draw import draw_svg, draw_text, table
from hpccoll.plans.flat import ONE_SHOT
from hpccoll.plans.lower import lower
from hpccoll.plans.machines import MACHINES, PLAIN, Machine
from hpccoll.plans.measured import Time
from hpccoll.plans.select import Candidate
from hpccoll.plans.steps import Plan
from hpccoll.plans.text import bytes_text, operation_text, time_text

NAME = "plan"
HELP = "which plan a collective takes on a layout, what it costs, and its steps; needs no MPI"
_ROOTED = [name for name in RECIPES if name in ROOTED]


def configure(parser: argparse.ArgumentParser) -> None:
    """Adds the arguments of `hpccoll plan`."""
    parser.add_argument("collective", choices=tuple(RECIPES), metavar="COLLECTIVE", help=", ".join(RECIPES))
    parser.add_argument(
        "--layout", metavar="TEXT", help='nodes and ranks, such as "4x8" or "3+1" (default: HPCCOLL_LAYOUT)'
    )
    parser.add_argument(
        "--machine",
        metavar="NAME",
        default=PLAIN,
        help="price it for this machine, on devices where that has GPUs (default: plain): "
        + "; ".join(f"{one.name} ({one.about})" for one in MACHINES.values()),
    )
    parser.add_argument("--nodes", metavar="N", type=int, help="of the machine, instead of --layout")
    parser.add_argument(
        "--gpus", "--ranks", metavar="P", type=int, dest="ranks", help="of each node (default: all)"
    )
    parser.add_argument(
        "--bytes",
        metavar="SIZE",
        default="1M",
        help="size as nccl-tests counts it: of a rank's buffer, where that has a block for each rank of all "
        "blocks; K, M and G are powers of 1024 (default: 1M)",
    )
    parser.add_argument(
        "--dtype", metavar="TYPE", default="float32", help="of the elements (default: float32)"
    )
    parser.add_argument("--algorithm", metavar="NAME", help="this plan instead of the cheapest one")
    parser.add_argument(
        "--root", metavar="R", type=int, default=0, help=f"of a {', '.join(_ROOTED)} (default: 0)"
    )
    parser.add_argument(
        "--tuning", metavar="FILE", help="also a table of `hpccoll tune`, of this layout, on any machine"
    )
    parser.add_argument("--rank", metavar="R", type=int, help="also list the operations of rank R")
    parser.add_argument("--svg", metavar="FILE", help="draw the plan to FILE")
    parser.add_argument("--json", metavar="FILE", help=JSON_HELP)


def run(args: argparse.Namespace) -> int:
    """Print the choice.  Returns the exit status 0.  UsageError for misuse."""
    case = case_of(args)
    if args.svg is not None:
        write_text(args.svg, draw_svg(case.plan, case.itemsize, case.machine.links))
    if args.json is not None:
        write_json(args.json, _as_dict(case))
    if args.json != STANDARD_OUTPUT:
        print(_report(case))
    return 0


# --- text ---------------------------------------------------------------------------------------


def _report(case: Case) -> str:
    what = case.collective.name
    if what != "barrier":
        what += f" of {bytes_text(case.nbytes)} ({_elements(case)})"
    parts = [
        f"{what} on {case.layout.describe()}{_machine_text(case.machine)}",
        f"plan: {case.chosen.plan} ({case.note})",
        "\n".join(_candidate_lines(case)),
        "\n".join(_level_lines(case)),
        draw_text(case.plan, case.itemsize, case.machine.links),
    ]
    if case.rank is not None:
        parts.append("\n".join(_program_lines(case.plan, case.rank, case.unit)))
    return "\n\n".join(parts)


def _machine_text(machine: Machine) -> str:
    return "" if machine.name == PLAIN else f" of {machine.name}: {machine.about}"


def _elements(case: Case) -> str:
    blocks = f"{case.collective.size} x " if case.collective.name in BLOCKED else ""
    return f"{blocks}{case.count} {case.dtype}"


def _candidate_lines(case: Case) -> list[str]:
    by_measurement = any(one.measured for one in case.candidates)
    head = ("measured",) if by_measurement else ()
    rows = [("   candidate", "predicted", *head, "leaves a node", "moves inside a node")]
    for one in case.candidates:
        mark = "->" if one is case.chosen else "  "
        cost = one.cost
        took = (_measured_text(one.measured),) if by_measurement else ()
        moved = bytes_text(cost.bytes_between_nodes), bytes_text(cost.bytes_inside_node)
        rows.append((f"{mark} {one.plan}", time_text(cost.time_s), *took, *moved))
    return [*table(rows), *([f"measured: {case.source}"] if case.source else [])]


def _measured_text(time: Time | None) -> str:
    if time is None:
        return "-"
    return f"{time_text(time.time_s)} ({time_text(time.low_s)} to {time_text(time.high_s)})"


def _level_lines(case: Case) -> list[str]:
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


def _program_lines(plan: Plan, rank: int, unit: str) -> list[str]:
    if any(step.algorithm == ONE_SHOT for step in plan.steps) or not plan.steps:
        return [f"rank {rank} has no program: its elements travel with the agreement check"]
    program = lower(plan, rank)
    head = (
        f"program of rank {rank}: {len(program.operations)} operations, {program.scratch} {unit} of scratch; "
        f"places count {unit}"
    )
    rows = [("#", "step", "operation", "after")]
    for number, operation in enumerate(program.operations):
        after = ", ".join(map(str, operation.after)) or "-"
        rows.append((str(number), str(operation.step), operation_text(operation), after))
    return [head, *table(rows)]


# --- JSON ---------------------------------------------------------------------------------------


def _as_dict(case: Case) -> dict[str, Any]:
    return {
        "collective": case.collective.name,
        "machine": case.machine.name,
        "layout": str(case.layout),
        "bytes": case.nbytes,
        "dtype": case.dtype,
        "count": case.count,
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
        "time_s": one.time_s,
        "measured_s": None if one.measured is None else asdict(one.measured),
        "busy_s": one.cost.busy_s,
        "bytes_between_nodes": one.cost.bytes_between_nodes,
        "bytes_inside_node": one.cost.bytes_inside_node,
    }


def _steps_as_dicts(case: Case) -> list[dict[str, Any]]:
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
