"""`hpccoll scale OP`: a collective over more and more nodes, measured in one job or priced for a machine."""

from __future__ import annotations

import argparse
import importlib.util
import shlex
import sys
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from hpccoll.cli import scale_training
from hpccoll.cli.bench import flags
from hpccoll.cli.bench.elements import dtype_of
from hpccoll.cli.bench.options import Options
from hpccoll.cli.bench.options import read as read_options
from hpccoll.cli.tune.progress import Progress
from hpccoll.errors import HpccollError, UsageError
from hpccoll.plans.machines import Machine, machine_of
from hpccoll.scaling import study as studies
from hpccoll.scaling.network import Contention
from hpccoll.scaling.study import MEASURED, SIMULATED, Point, Study
from hpccoll.scaling.table import HEADER, LEGEND, UNITS, row, title
from hpccoll.topology.layout import Layout

NAME = "scale"
HELP = "a collective over more and more nodes: measured in one job, or priced for a machine; table and report"
_SIZED = {"minbytes": "1K", "maxbytes": "16M", "stepfactor": "4"}
_MOST_NODES = 65536
_CONTENTION: tuple[tuple[str, str, Callable[[str], Any], str], ...] = (
    ("--cards", "N", int, "network cards of a node (default: the machine's)"),
    ("--leaf", "N", int, "nodes under one leaf switch (default: one switch joins all)"),
    ("--oversubscription", "X", float, "bandwidth of a leaf's nodes over that of its way up (default: 1)"),
    ("--last", "N", int, "ranks on the last node, where there are several (default: as on the others)"),
)
_SLOW = (
    ("--slow-node", "NODE:PART", "a node whose network reaches this part of its rate; may be repeated"),
    ("--slow-rank", "RANK:PART", "a rank that moves and combines at this part of the speed; may be repeated"),
    ("--late", "RANK:US", "a rank that makes the call so many microseconds late; may be repeated"),
)


def configure(parser: argparse.ArgumentParser) -> None:
    """Adds the arguments of `hpccoll scale`: those of `hpccoll bench`, and its own."""
    flags.configure(parser)
    parser.set_defaults(**_SIZED)
    scale_training.configure(parser)
    own = parser.add_argument_group("the study (sizes: by default 1K to 16M, by factors of 4)")
    own.add_argument(
        "--nodes",
        metavar="LIST",
        help="numbers of nodes: 1,2,4 or 1..64, which doubles (default: 1, 2, 4, ... and all)",
    )
    own.add_argument(
        "--machine",
        metavar="NAME",
        help="do not measure: price the plans that would be taken on this machine (needs no mpirun)",
    )
    own.add_argument(
        "--gpus", metavar="N", type=int, help="with --machine: ranks on a node (default: its GPUs)"
    )
    shared = parser.add_argument_group("with --machine: what ranks share, and what is slow (docs/scaling.md)")
    for flag, metavar, kind, text in _CONTENTION:
        shared.add_argument(flag, metavar=metavar, type=kind, help=text)
    shared.add_argument(
        "--rails", action="store_true", help="each card of a node has leaf switches of its own"
    )
    for flag, metavar, text in _SLOW:
        shared.add_argument(flag, metavar=metavar, action="append", default=[], help=text)
    own.add_argument(
        "--with",
        metavar="FILE",
        nargs="+",
        default=[],
        dest="others",
        help="show these studies (files of --json) in the report too",
    )
    own.add_argument("--report", metavar="DIR", help="write a page, figures and points.csv to DIR")
    own.add_argument(
        "--again", action="store_true", help="measure all, also what the file of --json has already"
    )


def run(args: argparse.Namespace) -> int:
    """Exit status: 0; 1 where an element was wrong or a collective failed; 2 for misuse."""
    try:
        if args.operation == scale_training.OPERATION:
            return _training(args)
        options = read_options(args)
        _check(args, options)
        return _priced(args, options) if args.machine is not None else _measured(args, options)
    except UsageError as error:
        if _speaks(args):
            print(f"hpccoll scale: {error}", file=sys.stderr, flush=True)
        return 2


def _training(args: argparse.Namespace) -> int:
    for flag in ("--leaf", "--oversubscription", "--last", "--rails", *(one[0] for one in _SLOW)):
        if getattr(args, flag.lstrip("-").replace("-", "_")):
            raise UsageError(f"{flag}: a step of training is priced on even nodes")
    counts = node_counts(args.nodes or "1..64", _MOST_NODES)
    _checked_report(args)
    return scale_training.run(args, counts)


def node_counts(text: str | None, most: int) -> tuple[int, ...]:
    """The numbers of nodes that a text asks for, of at most `most`: `1,2,4`; `2..64`: doubled, and the last.

    Raises: UsageError, naming what is wrong.
    """
    found: list[int] = []
    for word in (f"1..{most}" if text is None else text).split(","):
        first, dots, last = word.strip().partition("..")
        try:
            begin, end = int(first), int(last if dots else first)
        except ValueError:
            raise UsageError(
                f"--nodes: {word.strip()!r} is neither a number nor a range such as 1..64"
            ) from None
        if not 1 <= begin <= end <= most:
            raise UsageError(f"--nodes: {word.strip()} is not between 1 and {most}, rising")
        while begin < end:
            found.append(begin)
            begin *= 2
        found.append(end)
    return tuple(sorted(set(found)))


def _check(args: argparse.Namespace, options: Options) -> None:
    for flag, given in (
        ("--compare", options.compare),
        ("-N/--run_cycles", options.cycles != 1),
        ("-r all", options.roots < 0),
        ("several types", len(options.datatypes) > 1),
        ("several operators", len(options.redops) > 1),
        ("--reproducible", options.reproducible),
        ("-C", options.cpu_time),
    ):
        if given:
            raise UsageError(f"{flag}: a study has one row for each size; see `hpccoll bench`")
    if options.json == "-":
        raise UsageError("--json - : name a file; a study that was stopped goes on from it")
    if args.gpus is not None and (args.machine is None or args.gpus < 1):
        raise UsageError(f"--gpus {args.gpus}: a number of at least 1, with --machine")
    for name in scale_training.FLAGS:
        if getattr(args, name):
            raise UsageError(f"--{name.replace('_', '-')} is for training: hpccoll scale training")
    if args.machine is None:
        for flag in (*(one[0] for one in _CONTENTION), *(one[0] for one in _SLOW), "--rails"):
            if getattr(args, flag.lstrip("-").replace("-", "_")):
                raise UsageError(f"{flag} is for what is simulated: say --machine NAME too")


def _study(options: Options, kind: str, source: str) -> Study:
    operation = options.operation
    redop = options.redops[0] if operation.reduces else "none"
    command = " ".join(shlex.quote(one) for one in ["hpccoll", *sys.argv[1:]])
    datatype = options.datatypes[0] if operation.sized else "none"
    return Study(operation.name, datatype, redop, kind, source, command=command)


# --- measured -----------------------------------------------------------------------------------


def _measured(args: argparse.Namespace, options: Options) -> int:
    from mpi4py import MPI

    import hpccoll
    from hpccoll.cli.output import abort, check_writable
    from hpccoll.scaling.measure import measure

    world = MPI.COMM_WORLD
    check_writable(world, options.json)
    settings: dict[str, Any] = {"layout": options.layout, "timeout_s": options.timeout_s}
    with hpccoll.Communicator(world, **settings) as whole:
        counts = node_counts(args.nodes, whole.node_count)
        keeper = _Keeper(args, options, whole) if world.rank == 0 else None
        left = world.bcast(None if keeper is None else keeper.attempt(counts))
        if isinstance(left, str):
            raise UsageError(left)
        try:
            measure(world, whole, options, left, _ignore if keeper is None else keeper.add)
        except HpccollError as error:  # the others are asleep
            print(f"hpccoll scale: {type(error).__name__}: {error}", file=sys.stderr, flush=True)
            abort(world, 1)
        return int(world.bcast(None if keeper is None else keeper.conclude()))


class _Keeper:
    """Rank 0's: prints rows as they come, and keeps them in the file, from which a stopped study goes on."""

    def __init__(self, args: argparse.Namespace, options: Options, whole: Any) -> None:
        hosts = list(dict.fromkeys(one.host_name for one in whole.machine.hosts))
        layout = whole.machine.layout.shortened()
        self._args, self._file = args, None if options.json is None else Path(options.json)
        self._study = _study(options, MEASURED, f"{layout} ranks on {_some(hosts)}")
        self._sizes = tuple(options.sizes)
        self._progress = _progress(0)
        self._status = 0
        self._others: list[Study] = []

    def attempt(self, counts: Sequence[int]) -> tuple[int, ...] | str:
        """The numbers of nodes that are left to do, or why the study cannot be made."""
        try:
            self._others = _checked_report(self._args)
        except UsageError as error:
            return str(error)
        try:
            if self._file is not None and self._file.exists() and not self._args.again:
                before = studies.read(self._file)
                if not before.continues(self._study):
                    return f"--json: {self._file} has another study ({title(before)}); --again replaces it"
                self._study = self._study.with_points(before.points)
        except UsageError as error:
            return f"--json: {error}; --again replaces it"
        done = {count for count in counts if len(self._study.on(count)) >= len(self._sizes)}
        left = tuple(count for count in counts if count not in done)
        self._progress = _progress(len(left))
        print("\n".join([title(self._study), HEADER, UNITS]), flush=True)
        for one in self._study.points:
            print(f"{row(self._study, one)}  (from {self._file})", flush=True)
        return left

    def add(self, points: list[Point], library: str) -> None:
        self._study = self._study.with_points(points)
        self._study.facts.update(MPI=library, date=time.strftime("%Y-%m-%d"))
        self._progress.clear()
        for one in points:
            print(row(self._study, one), flush=True)
        if (file := self._file) is not None:
            self._status = max(self._status, _tried(lambda: studies.write(file, self._study)))
        self._progress.done(1, f"{points[0].nodes if points else 'some'} nodes")

    def conclude(self) -> int:
        self._progress.clear()
        print(LEGEND)
        return max(
            self._status,
            _tried(lambda: _report(self._args, [self._study, *self._others])),
            _found(self._study),
        )


def _progress(parts: int) -> Progress:
    """On a terminal: rows go to standard output."""
    return Progress(sys.stderr if sys.stderr.isatty() else None, parts)


def _ignore(points: list[Point], library: str) -> None:
    """What the other ranks do with points."""


def _some(names: Sequence[str]) -> str:
    return ", ".join(names) if len(names) <= 4 else f"{names[0]}, {names[1]}, ... {names[-1]}"


# --- priced -------------------------------------------------------------------------------------


def _priced(args: argparse.Namespace, options: Options) -> int:
    from hpccoll.cli.plan_case import NOT_ON_DEVICES
    from hpccoll.scaling.simulate import simulate

    others = _checked_report(args)
    machine = machine_of(args.machine)
    operation = options.operation
    if machine.links.fabric is not None and operation.explained_as in NOT_ON_DEVICES:
        raise UsageError(
            f"--machine is {machine.name}: NCCL has no {operation.name}, it is made on the hosts"
        )
    if operation.ragged or not operation.sized:
        raise UsageError(f"--machine: {operation.name} has no price of its own")
    ranks = machine.ranks if args.gpus is None else args.gpus
    counts = node_counts(args.nodes, _MOST_NODES) if args.nodes else (1, 2, 4, 8, 16, 32, 64)
    contention = _contention(args)
    links = machine.links if args.cards is None else machine.links.with_cards(args.cards)
    layouts = [_layout(machine, count, ranks, args.last) for count in counts]
    words = [f"{machine.name}, {ranks} ranks a node", contention.words()]
    words += [f"{args.cards} network cards a node"] if args.cards is not None else []
    words += [f"{args.last} ranks on the last"] if args.last is not None else []
    study = _study(options, SIMULATED, ", ".join(filter(None, words)))
    print("\n".join([title(study), HEADER, UNITS]), flush=True)
    itemsize = dtype_of(options.datatypes[0]).itemsize
    priced = simulate(
        operation.explained_as,
        itemsize,
        operation.factor,
        layouts,
        tuple(options.sizes),
        links,
        contention,
    )
    progress = _progress(len(layouts) * len(tuple(options.sizes)))
    for point in priced:
        study = study.with_points([point])
        progress.clear()
        print(row(study, point), flush=True)
        progress.done(1, f"{point.nodes} nodes")
    progress.clear()
    print(LEGEND)
    if options.json is not None:
        studies.write(Path(options.json), study)
    _report(args, [study, *others])
    return 0


def _contention(args: argparse.Namespace) -> Contention:
    slow_nodes, slow_ranks, late_us = (
        dict(_pair(flag, text) for text in texts)
        for flag, texts in (
            ("--slow-node", args.slow_node), ("--slow-rank", args.slow_rank), ("--late", args.late)
        )
    )  # fmt: skip
    leaf = 0 if args.leaf is None else args.leaf
    if args.leaf is not None and leaf < 1:
        raise UsageError(f"--leaf {leaf}: a leaf switch joins at least one node")
    over = 1.0 if args.oversubscription is None else args.oversubscription
    return Contention(leaf, over, args.rails, slow_nodes, slow_ranks, late_us)


def _pair(flag: str, text: str) -> tuple[int, float]:
    index, _, value = text.partition(":")
    try:
        return int(index), float(value)
    except ValueError:
        raise UsageError(f"{flag} {text!r}: must be NUMBER:VALUE, such as 3:0.5") from None


def _layout(machine: Machine, nodes: int, ranks: int, last: int | None) -> Layout:
    if last is None or nodes == 1:
        return machine.layout(nodes, ranks)
    if not 1 <= last <= ranks:
        raise UsageError(f"--last {last}: must be between 1 and {ranks}, as on the other nodes")
    return Layout.parse(f"{nodes - 1}x{ranks}+{last}")


# --- the end ------------------------------------------------------------------------------------


def _checked_report(args: argparse.Namespace) -> list[Study]:
    """The studies of --with.  Raises: UsageError, before hours of measuring, where no report can be made."""
    if args.report is not None and importlib.util.find_spec("matplotlib") is None:
        raise UsageError("--report draws with matplotlib: pip install 'hpccoll[plot]'")
    if args.report is not None and Path(args.report).exists() and not Path(args.report).is_dir():
        raise UsageError(f"--report: {args.report} is no directory")
    if args.others and args.report is None:
        raise UsageError("--with is about the report: give --report DIR too")
    return [studies.read(Path(name)) for name in args.others]


def _report(args: argparse.Namespace, shown: Sequence[Study]) -> None:
    if args.report is not None:
        from hpccoll.scaling.report import write_report

        print(f"# report: {write_report(Path(args.report), shown)}")


def _tried(action: Callable[[], None]) -> int:
    """Do what may fail when all is measured; 0, or 2 once it is said why it failed."""
    try:
        action()
    except UsageError as error:
        print(f"hpccoll scale: {error}", file=sys.stderr, flush=True)
        return 2
    return 0


def _found(study: Study) -> int:
    return 1 if study.wrong else 0


def _speaks(args: argparse.Namespace) -> bool:
    """Whether this process is to tell what is wrong: rank 0, or the only one."""
    if args.machine is not None:
        return True
    from mpi4py import MPI

    return bool(MPI.COMM_WORLD.rank == 0)
