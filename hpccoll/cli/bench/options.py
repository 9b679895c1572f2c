"""What the command line asks for, checked."""

from __future__ import annotations

import argparse
import os
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from hpccoll.cli.bench.elements import datatypes, redops
from hpccoll.cli.bench.flags import REFUSED
from hpccoll.cli.bench.modes import Mode
from hpccoll.cli.bench.operations import Operation, operation_of
from hpccoll.cli.sizes import parse_bytes
from hpccoll.errors import UsageError

AVERAGES = ("rank 0's", "the average of all ranks'", "the fastest rank's", "the slowest rank's")
MIN_BW_VARIABLE = "NCCL_TESTS_MIN_BW"
DEVICES = ("cpu", "cuda")
PLAIN, PLAIN_ON_DEVICE = "mpi", "nccl"
FEW_ROUNDS = 5  # fewer have no interval worth the name
_ALL_ROOTS = -1
_MOST = 2**31 - 1


@dataclass(frozen=True)
class Options:
    """What to measure and how.  `roots` is a rank, or -1 for all; 0 cycles never end."""

    operation: Operation
    min_bytes: int
    max_bytes: int
    step_bytes: int
    step_factor: int
    iterations: int
    warmup: int
    calls: int
    cycles: int
    check: int
    redops: tuple[str, ...]
    datatypes: tuple[str, ...]
    roots: int
    blocking: int
    timeout_s: float | None
    cpu_time: bool
    timestamps: bool
    average: int
    memory: bool
    unalign: int
    per_iteration: bool
    skip: int
    algorithm: str | None
    compare: bool
    rounds: int
    within_pct: float | None
    mode: Mode
    reproducible: bool
    layout: str | None
    device: str
    per_level: bool
    link_gbs: float | None
    json: str | None
    min_bandwidth: float | None
    overlap: bool = False

    @property
    def on_device(self) -> bool:
        """Arrays are in the memory of GPUs."""
        return self.device != DEVICES[0]

    @property
    def sizes(self) -> Iterator[int]:
        """The sizes asked for, in bytes."""
        if not self.operation.sized:
            yield 0
            return
        nbytes = self.min_bytes
        while nbytes <= self.max_bytes:
            yield nbytes
            nbytes = nbytes * self.step_factor if self.step_factor > 1 else nbytes + self.step_bytes

    def all_roots(self, size: int) -> tuple[int, ...]:
        """The roots asked for, of `size` ranks; -1 stands for none.

        Raises: UsageError for a root that is no rank.
        """
        if not self.operation.rooted:
            return (-1,)
        if self.roots == _ALL_ROOTS:
            return tuple(range(size))
        if self.roots >= size:
            raise UsageError(f"-r/--root is {self.roots}: must be a rank, 0 to {size - 1}")
        return (self.roots,)


def read(args: argparse.Namespace, environ: Mapping[str, str] | None = None) -> Options:
    """The options from the parsed command line.

    Raises: UsageError for a wrong value, a flag that has no meaning here, or flags that exclude each
    other, naming flag and value.
    """
    environ = os.environ if environ is None else environ
    given = vars(args)
    _refuse(given, environ)
    min_bytes, max_bytes = (_bytes(f"--{name}", given[name]) for name in ("minbytes", "maxbytes"))
    step_factor = 0 if args.stepfactor is None else _integer("-f/--stepfactor", args.stepfactor, 2)
    iterations = _integer("-n/--iters", args.iters, 1)
    per_iteration = _flag("-I/--per_iter_timing", args.per_iter_timing)
    link_gbs = None if args.link_gbs is None else _positive("--link-gbs", args.link_gbs)
    options = Options(
        operation=operation_of(args.operation),
        min_bytes=min_bytes,
        max_bytes=max_bytes,
        step_bytes=_bytes("-i/--stepbytes", args.stepbytes or "1M"),
        step_factor=step_factor,
        iterations=iterations,
        warmup=_integer("-w/--warmup_iters", args.warmup_iters, 0),
        calls=_integer("-m/--agg_iters", args.agg_iters, 1),
        cycles=_integer("-N/--run_cycles", args.run_cycles, 0),
        check=_integer("-c/--check", args.check, 0),
        redops=redops(args.op),
        datatypes=datatypes(args.datatype),
        roots=_ALL_ROOTS if args.root == "all" else _integer("-r/--root", args.root, 0),
        blocking=_integer("-z/--blocking", args.blocking, 0, 3),
        timeout_s=None if args.timeout is None else _positive("-T/--timeout", args.timeout),
        cpu_time=_flag("-C/--report_cputime", args.report_cputime),
        timestamps=_flag("-S/--report_timestamps", args.report_timestamps),
        average=_integer("-a/--average", args.average, 0, 3),
        memory=_flag("-M/--memory", args.memory),
        unalign=_integer("-u/--unalign", args.unalign, 0, 2**20),
        per_iteration=per_iteration,
        skip=_integer("-K/--per_iter_skip", args.per_iter_skip, 0, iterations - 1),
        algorithm=args.algorithm,
        compare=args.compare,
        rounds=_integer("--rounds", args.rounds, 1),
        within_pct=None if args.within is None else _positive("--within", args.within),
        mode=_mode(args),
        reproducible=args.reproducible,
        layout=args.layout,
        device=args.device,
        per_level=args.per_level or link_gbs is not None,
        link_gbs=link_gbs,
        json=args.json,
        min_bandwidth=_min_bandwidth(environ),
        overlap=args.overlap,
    )
    _check_together(args, options)
    if options.on_device:
        _check_on_device(options)
    return options


def _refuse(given: Mapping[str, Any], environ: Mapping[str, str]) -> None:
    for (short, long), why in REFUSED.items():
        if given[long] is not None:
            raise UsageError(f"{short}/{long} has no meaning here: {why}")
    if given["device"] not in DEVICES:
        raise UsageError(f"--device is {given['device']!r}: must be {' or '.join(DEVICES)}")
    if environ.get("NCCL_TESTS_SPLIT") or environ.get("NCCL_TESTS_SPLIT_MASK"):
        raise UsageError("NCCL_TESTS_SPLIT is set, which has no meaning here: all ranks take part; unset it")


def _check_together(args: argparse.Namespace, options: Options) -> None:
    if options.min_bytes > options.max_bytes:
        raise UsageError(f"--minbytes {args.minbytes} is more than --maxbytes {args.maxbytes}")
    if args.stepbytes is not None and args.stepfactor is not None:
        raise UsageError(f"-i {args.stepbytes} and -f {args.stepfactor}: give one of them")
    if options.step_bytes == 0:
        raise UsageError(f"-i/--stepbytes is {args.stepbytes}: must be above 0")
    if options.min_bytes == 0 and options.step_factor and options.max_bytes:
        raise UsageError(f"--minbytes 0 never grows by the factor -f {options.step_factor}: use -i")
    if options.compare and options.algorithm is not None:
        raise UsageError(f"--compare and --algorithm {options.algorithm}: give one of them")
    if options.within_pct is not None and not options.compare:
        raise UsageError(f"--within {args.within} is about the plans that --compare compares")
    if options.within_pct is not None and min(options.rounds, options.iterations) < FEW_ROUNDS:
        raise UsageError(
            f"--within {args.within}: needs at least {FEW_ROUNDS} rounds and iterations, "
            f"--rounds {args.rounds} -n {args.iters} has fewer"
        )
    if options.reproducible and not options.operation.reduces:
        raise UsageError(
            f"--reproducible: {options.operation.name} does no arithmetic, so that it has no price"
        )
    if options.reproducible and options.algorithm == PLAIN:
        raise UsageError(f"--reproducible and --algorithm {PLAIN}: MPI has no such mode")
    if options.cycles == 0 and options.json is not None:
        raise UsageError(f"-N 0 never ends, so that --json {options.json} would never be written")
    if options.skip and not options.per_iteration:
        raise UsageError(f"-K {options.skip} is about the spread of iterations: it needs -I 1")


def _check_on_device(options: Options) -> None:
    if not options.operation.sized:
        raise UsageError(f"--device cuda: {options.operation.name} has no arrays")
    if options.reproducible:
        raise UsageError("--device cuda and --reproducible: that mode is about calls on host memory")
    if options.overlap:
        raise UsageError("--device cuda and --overlap: calls on devices are enqueued, and hosts do not wait")
    if options.per_level:
        raise UsageError("--device cuda and --per-level: what NCCL sends between nodes is not known")


def _mode(args: argparse.Namespace) -> Mode:
    if args.nonblocking and args.persistent:
        raise UsageError("--nonblocking and --persistent: give one of them")
    if args.nonblocking:
        return Mode.NONBLOCKING
    if args.persistent:
        return Mode.PERSISTENT
    return Mode.NONBLOCKING if args.overlap else Mode.BLOCKING


def _min_bandwidth(environ: Mapping[str, str]) -> float | None:
    text = environ.get(MIN_BW_VARIABLE)
    return None if not text else _positive(MIN_BW_VARIABLE, text)


def _bytes(flag: str, text: str) -> int:
    try:
        return parse_bytes(text)
    except UsageError as error:
        raise UsageError(f"{flag}: {error}") from None


def _integer(flag: str, text: str, low: int, high: int = _MOST) -> int:
    try:
        value = int(text)
    except ValueError:
        value = low - 1
    if not low <= value <= high:
        bounds = f"a whole number of at least {low}" if high == _MOST else f"a whole number, {low} to {high}"
        raise UsageError(f"{flag} is {text!r}: must be {bounds}")
    return value


def _flag(flag: str, text: str) -> bool:
    return _integer(flag, text, 0, 1) == 1


def _positive(flag: str, text: str) -> float:
    try:
        value = float(text)
    except ValueError:
        value = 0.0
    if not 0.0 < value < float("inf"):
        raise UsageError(f"{flag} is {text!r}: must be a number above 0")
    return value
