"""The flags of `hpccoll bench`: nccl-tests' where the thing exists here, and ours.

Values stay text until `read`, so that a wrong one is told once, by rank 0, and not by every rank's parser.
"""

from __future__ import annotations

import argparse
import os
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from hpccoll.cli.bench.elements import DATATYPES, REDOPS, datatypes, redops
from hpccoll.cli.bench.operations import OPERATIONS, Operation, operation_of
from hpccoll.cli.sizes import parse_bytes
from hpccoll.errors import UsageError

AVERAGES = ("rank 0's", "the average of all ranks'", "the fastest rank's", "the slowest rank's")
MIN_BW_VARIABLE = "NCCL_TESTS_MIN_BW"
_ALL_ROOTS = -1
_MOST = 2**31 - 1

# Flags of nccl-tests that have no meaning here.
_PER_PROCESS = "a process is one rank here: start as many as you want with mpirun -n"
_CUDA = "it is about CUDA, and this measures host memory"
_REFUSED = {
    ("-t", "--nthreads"): _PER_PROCESS,
    ("-g", "--ngpus"): _PER_PROCESS,
    ("-p", "--parallel_init"): _PER_PROCESS,
    ("-y", "--stream_null"): _CUDA,
    ("-G", "--cudagraph"): _CUDA,
    ("-R", "--local_register"): "memory is not registered here",
    ("-x", "--cta_policy"): _CUDA,
    ("-D", "--device_implementation"): _CUDA,
    ("-V", "--device_cta_count"): _CUDA,
}


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
    layout: str | None
    per_level: bool
    link_gbs: float | None
    json: str | None
    min_bandwidth: float | None

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


def configure(parser: argparse.ArgumentParser) -> None:
    """Adds the arguments of `hpccoll bench`."""
    parser.add_argument("operation", metavar="OP", help=f"one of {', '.join(OPERATIONS)}")
    _sizes(parser.add_argument_group("sizes"))
    _what(parser.add_argument_group("what is called"))
    _how(parser.add_argument_group("how it is measured"))
    _output(parser.add_argument_group("what is shown"))
    for short, long in _REFUSED:
        parser.add_argument(short, long, nargs="?", const="", dest=long, help=argparse.SUPPRESS)


def _sizes(group: argparse._ArgumentGroup) -> None:
    group.add_argument("-b", "--minbytes", default="32M", metavar="SIZE", help="smallest (default: 32M)")
    group.add_argument("-e", "--maxbytes", default="32M", metavar="SIZE", help="largest (default: 32M)")
    group.add_argument("-i", "--stepbytes", metavar="SIZE", help="step to the next one (default: 1M)")
    group.add_argument("-f", "--stepfactor", metavar="N", help="or factor to the next one (default: none)")


def _what(group: argparse._ArgumentGroup) -> None:
    add = group.add_argument
    add("-d", "--datatype", default="float", metavar="TYPE", help=f"{', '.join(DATATYPES)}, all (default: float)")
    add("-o", "--op", default="sum", metavar="OP", help=f"{', '.join(REDOPS)}, all (default: sum)")
    add("-r", "--root", default="0", metavar="RANK", help="root, or all (default: 0)")
    add("-u", "--unalign", default="0", metavar="N", help="index of the first element (default: 0)")
    add("--algorithm", metavar="NAME", help='the plan to take, or "mpi": MPI\'s own call (default: selection)')
    add("--compare", action="store_true", help="a row for every plan, and for MPI's own call, called in turn")
    add("--layout", metavar="TEXT", help='virtual nodes, such as "3+1" (default: HPCCOLL_LAYOUT)')
    add("--device", default="cpu", metavar="KIND", help="cpu: arrays in host memory (default, and the only one)")


def _how(group: argparse._ArgumentGroup) -> None:
    add = group.add_argument
    add("-n", "--iters", default="20", metavar="N", help="timed iterations (default: 20)")
    add("-w", "--warmup_iters", default="1", metavar="N", help="calls before, at every size (default: 1)")
    add("-m", "--agg_iters", default="1", metavar="N", help="calls in an iteration (default: 1)")
    add("-N", "--run_cycles", default="1", metavar="N", help="runs over all sizes; 0: without end (default: 1)")
    add("-c", "--check", default="1", metavar="N", help="calls with changing data whose results are checked, "
        "apart from the timed ones (default: 1)")  # fmt: skip
    add("-a", "--average", default="3", metavar="0-3", help="time of: 0 rank 0, 1 the average rank, 2 the fastest, "
        "3 the slowest (default: 3)")  # fmt: skip
    add("-z", "--blocking", default="0", metavar="0-3", help="calls always wait for their end; 1: barrier after each "
        "call, inside the time; 3: after each iteration, outside it (default: 0, the same as 2: none)")  # fmt: skip
    add("-T", "--timeout", metavar="SECONDS", help="most that a call may take; MPI's own has no limit "
        "(default: HPCCOLL_TIMEOUT_S)")  # fmt: skip


def _output(group: argparse._ArgumentGroup) -> None:
    add = group.add_argument
    add("-C", "--report_cputime", default="0", metavar="0/1", help="time column: processor time of the process")
    add("-S", "--report_timestamps", default="0", metavar="0/1", help="a column with the time of day")
    add("-I", "--per_iter_timing", default="0", metavar="0/1", help="columns with the spread of iterations")
    add("-K", "--per_iter_skip", default="0", metavar="N", help="leave the first N out of the spread (default: 0)")
    add("-M", "--memory", default="0", metavar="0/1", help="a line with the memory used")
    add("--per-level", action="store_true", help="columns with the bytes that the plan moves inside a node and sends "
        "out of one (the most of any node), and the bandwidth of the latter")  # fmt: skip
    add("--link-gbs", metavar="GBS", help="what a node's network gives, in 1e9 bytes/s: adds its utilisation")
    add("-J", "--output_file", "--json", dest="json", metavar="FILE", help="write everything to FILE as JSON "
        '(version 3 of nccl-tests); "-": to standard output, and the table to standard error')  # fmt: skip


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
        layout=args.layout,
        per_level=args.per_level or link_gbs is not None,
        link_gbs=link_gbs,
        json=args.json,
        min_bandwidth=_min_bandwidth(environ),
    )
    _check_together(args, options)
    return options


def _refuse(given: Mapping[str, Any], environ: Mapping[str, str]) -> None:
    for (short, long), why in _REFUSED.items():
        if given[long] is not None:
            raise UsageError(f"{short}/{long} has no meaning here: {why}")
    if given["device"] != "cpu":
        raise UsageError(f"--device is {given['device']!r}: must be cpu; only host memory can be measured")
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
        raise UsageError(f"--minbytes 0 never grows by the factor -f {options.step_factor}: use -i, or begin above 0")
    if options.compare and options.algorithm is not None:
        raise UsageError(f"--compare and --algorithm {options.algorithm}: give one of them")
    if options.cycles == 0 and options.json is not None:
        raise UsageError(f"-N 0 never ends, so that --json {options.json} would never be written")
    if options.skip and not options.per_iteration:
        raise UsageError(f"-K {options.skip} is about the spread of iterations: it needs -I 1")


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
