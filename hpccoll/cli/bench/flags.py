"""The flags of `hpccoll bench`: nccl-tests' where the thing exists here, and ours.

Values stay text until `options.read`, so that a wrong one is told once, by rank 0, and not by the parser of
every rank.
"""

from __future__ import annotations

import argparse

from hpccoll.cli.bench.elements import DATATYPES, REDOPS
from hpccoll.cli.bench.operations import OPERATIONS

# Flags of nccl-tests that have no meaning here, and why.
_PER_PROCESS = "a process is one rank here: start as many as you want with mpirun -n"
_CUDA = "calls are made here as hpccoll makes them"
REFUSED = {
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

Flag = tuple[tuple[str, ...], str, str | None, str]  # names, value in the help, default, help

_SIZES: tuple[Flag, ...] = (
    (("-b", "--minbytes"), "SIZE", "32M", "smallest"),
    (("-e", "--maxbytes"), "SIZE", "32M", "largest"),
    (("-i", "--stepbytes"), "SIZE", None, "step to the next size (default: 1M)"),
    (("-f", "--stepfactor"), "N", None, "or the factor to it"),
)
_WHAT: tuple[Flag, ...] = (
    (("-d", "--datatype"), "TYPE", "float", f"{', '.join(DATATYPES)}, all"),
    (("-o", "--op"), "OP", "sum", f"{', '.join(REDOPS)}, all"),
    (("-r", "--root"), "RANK", "0", "the root, or all"),
    (("-u", "--unalign"), "N", "0", "index of the first element"),
    (
        ("--algorithm",),
        "NAME",
        None,
        "the plan to take, or what ours are compared with: mpi, MPI's own call; with --device cuda nccl, a "
        "plain call of nccl4py (default: by selection)",
    ),
    (("--layout",), "TEXT", None, 'virtual nodes, such as "3+1" (default: HPCCOLL_LAYOUT)'),
    (("--device",), "KIND", "cpu", "cpu: arrays in host memory; cuda: in the memory of each rank's GPU"),
)
_HOW: tuple[Flag, ...] = (
    (("-n", "--iters"), "N", "20", "timed iterations"),
    (("-w", "--warmup_iters"), "N", "1", "calls before them, at every size"),
    (("-m", "--agg_iters"), "N", "1", "calls in an iteration"),
    (("-N", "--run_cycles"), "N", "1", "runs over all sizes; 0: without end"),
    (
        ("-c", "--check"),
        "N",
        "1",
        "calls, apart from the timed ones, with data that changes each time, whose results are checked",
    ),
    (
        ("-a", "--average"),
        "0-3",
        "3",
        "the time of 0: rank 0, 1: all ranks on average, 2: the fastest rank, 3: the slowest rank",
    ),
    (
        ("-z", "--blocking"),
        "0-3",
        "0",
        "1: a barrier after each call, inside the time; 3: after each iteration, outside the time; "
        "0 and 2: none.  Calls on host memory always wait for their end; those on devices are enqueued, and "
        "waited for with 1 and 2 each, with 3 in each iteration, with 0 at the end",
    ),
    (
        ("-T", "--timeout"),
        "SECONDS",
        None,
        "most that a call may take; MPI's own has no limit (default: HPCCOLL_TIMEOUT_S)",
    ),
)
_COMPARED: tuple[Flag, ...] = (
    (
        ("--rounds",),
        "N",
        "5",
        "rounds of --compare, in each of which all take their turn with a part of the iterations",
    ),
    (
        ("--within",),
        "PERCENT",
        None,
        "with --compare, exit status 1 where the plan that selection takes is slower than the best one, or "
        "than flat, by more than that, and so is the lower end of the ratio's 95 %% interval",
    ),
)
_SHOWN: tuple[Flag, ...] = (
    (
        ("-C", "--report_cputime"),
        "0/1",
        "0",
        "processor time of the process in the time columns; with --device cuda the time to enqueue a call",
    ),
    (("-S", "--report_timestamps"), "0/1", "0", "a column with the time of day"),
    (("-I", "--per_iter_timing"), "0/1", "0", "columns with the spread of the iterations"),
    (("-K", "--per_iter_skip"), "N", "0", "iterations left out of the spread, the first ones"),
    (("-M", "--memory"), "0/1", "0", "a line with the memory used"),
    (
        ("--link-gbs",),
        "GBS",
        None,
        "what a node's network gives, in 1e9 bytes/s; adds its use to --per-level",
    ),
    (
        ("-J", "--output_file", "--json"),
        "FILE",
        None,
        "write everything to FILE as JSON, version 3 of nccl-tests' layout; -: to standard output, and the "
        "table to standard error",
    ),
)
_COMPARE = (
    "a row for every plan, and for MPI's own call (with --device cuda: a plain call of nccl4py), called in "
    "turn in one run"
)
_NONBLOCKING = "the I... call and Wait, as one"
_PERSISTENT = "the ..._init call once; what is timed is Start and Wait"
_OVERLAP = (
    "columns with the part of a started call that is hidden behind a computation of the same length, by the "
    "definition of the OSU Micro-Benchmarks; of the I... call, or with --persistent"
)
_REPRODUCIBLE = (
    "the price of reproducible mode: rows in default mode and in reproducible mode, called in turn, with the "
    "ratio of their times"
)
_PER_LEVEL = (
    "columns with the bytes that the plan moves inside a node and that leave a node (by its cost model, the "
    "most of any node), and with the bandwidth of the latter"
)


def configure(parser: argparse.ArgumentParser) -> None:
    """Adds the arguments of `hpccoll bench`."""
    parser.add_argument("operation", metavar="OP", help=", ".join(OPERATIONS))
    _add(parser, "sizes", _SIZES)
    called = _add(parser, "what is called", _WHAT)
    for name, text in (
        ("--compare", _COMPARE),
        ("--nonblocking", _NONBLOCKING),
        ("--persistent", _PERSISTENT),
        ("--overlap", _OVERLAP),
        ("--reproducible", _REPRODUCIBLE),
    ):
        called.add_argument(name, action="store_true", help=text)
    _add(parser, "how it is measured", _HOW)
    _add(parser, "the choice among plans", _COMPARED)
    _add(parser, "what is shown", _SHOWN).add_argument("--per-level", action="store_true", help=_PER_LEVEL)
    for names in REFUSED:
        parser.add_argument(*names, nargs="?", const="", dest=names[1], help=argparse.SUPPRESS)


def _add(parser: argparse.ArgumentParser, title: str, flags: tuple[Flag, ...]) -> argparse._ArgumentGroup:
    group = parser.add_argument_group(title)
    for names, metavar, default, text in flags:
        shown = text if default is None else f"{text} (default: {default})"
        dest = names[-1].lstrip("-").replace("-", "_")
        group.add_argument(*names, metavar=metavar, default=default, dest=dest, help=shown)
    return group
