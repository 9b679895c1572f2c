"""What `hpccoll plan` is asked for: from the command line and the settings to candidates."""

from __future__ import annotations

import argparse
from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from hpccoll.cli.sizes import parse_bytes
from hpccoll.config import Config, load
from hpccoll.dtypes import ROWS, Row
from hpccoll.errors import UsageError
from hpccoll.ops.wire import CARRIED
from hpccoll.plans.catalogue import make_plan, recipe_of
from hpccoll.plans.collective import BLOCKED, REDUCTIONS, ROOTED, SCANS, Collective
from hpccoll.plans.cost import price
from hpccoll.plans.flat import ONE_SHOT
from hpccoll.plans.machines import PLAIN, Machine, machine_of
from hpccoll.plans.measured import Measured
from hpccoll.plans.select import WHOLE, Candidate, Tuning, candidates, choose
from hpccoll.plans.steps import Order, Plan
from hpccoll.topology.layout import Layout
from hpccoll.tuning.table import from_toml

NOT_ON_DEVICES = (*SCANS, "barrier")


@dataclass(frozen=True)
class Case:
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
    source: str

    @property
    def plan(self) -> Plan:
        return self.chosen.made


def case_of(args: argparse.Namespace) -> Case:
    """The case of a command line.  UsageError: it makes none."""
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
    measured = _measured(args.tuning, machine, layout)
    if args.tuning is not None:
        machine = replace(machine, links=measured.links)
    tuning = _tuning(config, row, reduces and not on_devices, wire, machine, measured)
    choice = choose(collective, layout, itemsize, tuning)
    found = choice.candidates
    chosen = found[0]
    note = choice.why + (" of the reproducible plans" if tuning.order is Order.FOLD else "")
    if args.algorithm is not None:
        _named("--algorithm", lambda text: recipe_of(name, text, layout), args.algorithm)
        chosen, note = _asked_for(args.algorithm, collective, layout, itemsize, tuning)
        same = [one for one in found if one.name == chosen.name]  # it is among them unless not considered
        chosen, found = (same[0], found) if same else (chosen, (*found, chosen))
    asked = used, count, args.dtype, itemsize, unit
    return Case(machine, collective, layout, *asked, found, chosen, note, rank, measured.source)


def _measured(file: str | None, machine: Machine, layout: Layout) -> Measured:
    """What a table says of a layout, whatever machine it is of."""
    if file is None:
        return Measured()
    if machine.name != PLAIN:
        raise UsageError("--tuning goes without --machine: the table has a machine of its own")
    try:
        text = Path(file).read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        raise UsageError(f"--tuning: cannot read {file}: {getattr(error, 'strerror', error)}") from None
    table = from_toml(text, file)
    if table.fingerprint.layout != str(layout):
        raise UsageError(f"--tuning: {file} is of layout {table.fingerprint.layout}, not {layout}")
    return table.measured(f"{file}, on {'; '.join(table.fingerprint.hardware)}")


def _tuning(
    config: Config, row: Row, reduces: bool, wire: str, machine: Machine, measured: Measured
) -> Tuning:
    """What the settings say; the operator is taken for one that commutes and is native."""
    rounds = reduces and row.kind not in ("bool", "int", "uint")
    return Tuning(
        order=Order.FOLD if config.reproducible and rounds else Order.ANY,
        small_bytes=config.small_bytes,
        segment_bytes=config.segment_bytes,
        chunk_bytes=config.chunk_bytes,
        wire=wire,
        links=machine.links,
        measured=measured,
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
