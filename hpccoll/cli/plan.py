"""`hpccoll plan COLLECTIVE`: which plan a call would take on a layout, what it costs, and its steps.

Needs no MPI and no cluster: selection is a function of the arguments and the HPCCOLL_ settings alone.  With
`--machine dgx-h100 --nodes 16` it is for a machine that need not be there.
"""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from hpccoll.cli.sizes import parse_bytes
from hpccoll.config import Config, load
from hpccoll.dtypes import ROWS, Row
from hpccoll.errors import UsageError
from hpccoll.ops.wire import CARRIED
from hpccoll.plans.catalogue import RECIPES, make_plan, recipe_of
from hpccoll.plans.collective import BLOCKED, REDUCTIONS, ROOTED, SCANS, Collective
from hpccoll.plans.cost import LEVELS, price
from hpccoll.plans.draw import draw_svg, draw_text, table
from hpccoll.plans.flat import ONE_SHOT
from hpccoll.plans.lower import lower
from hpccoll.plans.machines import MACHINES, PLAIN, Machine, machine_of
from hpccoll.plans.select import WHOLE, Candidate, Tuning, candidates
from hpccoll.plans.steps import Order, Plan
from hpccoll.plans.text import bytes_text, operation_text, time_text
from hpccoll.topology.layout import Layout

NAME = "plan"
HELP = "which plan a collective takes on a layout, what it costs, and its steps; needs no MPI"
STANDARD_OUTPUT = "-"
NOT_ON_DEVICES = (*SCANS, "barrier")
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
            _write(args.svg, draw_svg(case.plan, case.itemsize, case.machine.links))
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

    `count`: elements of the buffer or of a block, as the caller has them.  `collective` counts what travels:
    bytes, or where elements are combined those, of `itemsize` bytes (16-bit floats travel as float32).
    `chosen`: the candidate shown, the cheapest one unless another was asked for.
    """

    machine: Machine
    collective: Collective
    layout: Layout
    nbytes: int
    count: int
    dtype: str
    itemsize: int
    unit: str
    candidates: tuple[Candidate, ...]
    chosen: Candidate
    note: str
    rank: int | None

    @property
    def plan(self) -> Plan:
        return self.chosen.made


def _case(args: argparse.Namespace) -> _Case:
    config, name = load(), args.collective
    machine = _named("--machine", machine_of, args.machine)
    on_devices = machine.links.fabric is not None
    layout = _layout(args, machine, config)
    if on_devices and name in NOT_ON_DEVICES:
        raise UsageError(f"--machine is {machine.name}: NCCL has no {name}, it is made on the hosts")
    root = _rank("--root", args.root, layout)
    rank = None if args.rank is None else _rank("--rank", args.rank, layout)
    nbytes = 0 if name == "barrier" else _named("--bytes", parse_bytes, args.bytes)
    row = _row(args.dtype, name)
    blocks = layout.size if name in BLOCKED else 1
    count = nbytes // row.itemsize // blocks
    used = count * row.itemsize * blocks
    reduces = name in REDUCTIONS
    unit = (row.name if on_devices else row.working or row.name) if reduces else "bytes"
    itemsize = ROWS[unit].itemsize if reduces else 1
    travelling = count if reduces else count * row.itemsize
    collective = Collective(name, layout.size, travelling, root if name in ROOTED else 0)
    narrow = reduces and name not in SCANS and unit == CARRIED.name and layout.node_count > 1
    wire = config.wire_dtype if narrow and not on_devices else ""
    tuning = _tuning(config, row, reduces and not on_devices, wire, machine)
    found = candidates(collective, layout, itemsize, tuning)
    chosen = found[0]
    note = "lowest predicted time" + (" of the reproducible plans" if tuning.order is Order.FOLD else "")
    if args.algorithm is not None:
        _named("--algorithm", lambda text: recipe_of(name, text, layout), args.algorithm)
        chosen, note = _asked_for(args.algorithm, collective, layout, itemsize, tuning)
        same = [one for one in found if one.name == chosen.name]  # it is among them unless not considered
        chosen, found = (same[0], found) if same else (chosen, (*found, chosen))
    return _Case(
        machine, collective, layout, used, count, args.dtype, itemsize, unit, found, chosen, note, rank
    )  # fmt: skip


def _tuning(config: Config, row: Row, reduces: bool, wire: str, machine: Machine) -> Tuning:
    """What the settings say; the operator is taken for one that commutes and is native."""
    rounds = reduces and row.kind not in ("bool", "int", "uint")
    return Tuning(
        order=Order.FOLD if config.reproducible and rounds else Order.ANY,
        small_bytes=config.small_bytes,
        segment_bytes=config.segment_bytes,
        chunk_bytes=config.chunk_bytes,
        wire=wire,
        links=machine.links,
    )


def _asked_for(
    name: str, collective: Collective, layout: Layout, itemsize: int, tuning: Tuning
) -> tuple[Candidate, str]:
    """The plan of a name, also where no call would take it, and what there is to say about it."""
    best = candidates(collective, layout, itemsize, tuning, name)[0]
    note = "asked for by name"
    if best.name == name:
        return best, note
    if tuning.links.fabric is not None:
        raise UsageError(f"--algorithm: {name!r} of {collective.name} does not consist of NCCL's calls")
    segment = max(1, tuning.segment_bytes // itemsize)
    plan = make_plan(name, collective, layout, segment=segment, order=tuning.order)
    if tuning.wire and name in WHOLE:
        why = "it cannot round elements between nodes, and HPCCOLL_WIRE_DTYPE is set"
    elif plan.order < tuning.order:
        why = "its bits depend on the layout, and HPCCOLL_REPRODUCIBLE is set"
    elif name == ONE_SHOT:
        why = f"more than HPCCOLL_SMALL_BYTES={tuning.small_bytes} allows"
    else:
        why = f"more than the {tuning.native_bytes} bytes of MPI's own call"
    return Candidate(
        name, plan, price(plan, itemsize, tuning.links)
    ), f"{note}; a call would not take it: {why}"


def _layout(args: argparse.Namespace, machine: Machine, config: Config) -> Layout:
    text = args.layout
    if args.nodes is not None or args.ranks is not None:
        if text:
            raise UsageError("--layout goes without --nodes and --gpus")
        return machine.layout(1 if args.nodes is None else args.nodes, args.ranks)
    if not text and not config.layout:
        raise UsageError(
            '--layout is needed (or HPCCOLL_LAYOUT, or --nodes): nodes and ranks, such as "4x8" or "3+1"'
        )
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


def _row(dtype: str, collective: str) -> Row:
    row = ROWS.get(dtype)
    if row is None:
        raise UsageError(f"--dtype is {dtype!r}: must be one of {', '.join(ROWS)}")
    if collective in REDUCTIONS and row.kind == "bool":
        raise UsageError(f"--dtype is {dtype!r}: a sum of truth values is not defined")
    return row


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


def _elements(case: _Case) -> str:
    blocks = f"{case.collective.size} x " if case.collective.name in BLOCKED else ""
    return f"{blocks}{case.count} {case.dtype}"


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


def _as_dict(case: _Case) -> dict[str, Any]:
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
