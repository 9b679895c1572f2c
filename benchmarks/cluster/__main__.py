"""All-reduce between virtual hosts with limited links: MPI's own against each algorithm of hpccoll.

    python -m benchmarks.cluster --hosts 2,4 --ranks-per-host 2 --sizes 4M,16M --into build/bench

Needs root and iproute2 (tests/support/virtual_hosts.py makes the hosts). For each number of hosts N it runs
allreduce.py under mpiexec on them and prints a row per size and algorithm; on two hosts also overlap.py,
whose text says what its columns are. It writes numbers to cluster.json, tables to cluster.md, and figures.

    algorithm  `mpi` is MPI's own, `auto` what hpccoll takes by itself, the others its plans; with name=value
               behind it, what it takes with this setting
    time       median over the rounds of the slowest rank's time
    mpi/this   the median of MPI's own Allreduce divided by this one's: above 1, this one is faster
    auto/this  the same with hpccoll's own choice in the default settings
    wire       the share of the time that the links alone need for 2(N-1)/N * S bytes a node, the least an
               all-reduce of S bytes can send. The rate is the configured one; headers are not taken off.
               An idle link passes its first 512 kB unlimited, which flatters sizes below some MB
    link       the same with the rate at which MPI's messages went over the links in this run
    sent       what the busiest node's eth0 sent per call, by its byte counter over at most --calls
               calls after a warm-up, headers included, in percent of 2(N-1)/N * S
    model      the bytes that the cost model says, in the same percent

All hosts share this machine's cores: what a collective computes shows more than on a real cluster. The plan
`flat` is MPI's own call too, but waits as hpccoll does, by giving up the core between tests: with more ranks
than cores that alone makes it faster than `mpi`, whose waiting ranks keep theirs. So compare with both.
"""

from __future__ import annotations

import argparse
import json
import platform
import subprocess
import sys
import tempfile
from collections.abc import Sequence
from datetime import date
from pathlib import Path
from typing import Any

import numpy as np

import hpccoll
from benchmarks.cluster import report
from benchmarks.cluster.candidates import AUTOMATIC, MPI_ALONE, SETTINGS, parse_settings
from hpccoll.cli.sizes import parse_bytes
from hpccoll.config import load
from tests.support.launch import REPOSITORY
from tests.support.virtual_hosts import VirtualHosts, available

OVERLAP_HOSTS = 2


class RunError(Exception):
    """A run under mpiexec failed or took too long; the text is what it said."""


def on_hosts(
    hosts: int, ranks_per_host: int, module: str, argv: Sequence[str], options: Any
) -> dict[str, Any]:
    """What a program of this package writes, run on that many hosts.

    Raises: RunError.
    """
    with VirtualHosts(hosts, options.rate) as cluster, tempfile.TemporaryDirectory() as directory:
        output = Path(directory) / "found.json"
        program = [sys.executable, "-m", f"benchmarks.cluster.{module}", *argv, "--output", str(output)]
        try:
            done = cluster.mpiexec(program, ranks_per_host, timeout_s=options.timeout_s)
        except subprocess.TimeoutExpired as late:
            raise RunError(f"{module} was not done after {options.timeout_s:g} s\n{late.stderr}") from None
        if done.returncode or not output.exists():
            raise RunError(f"mpiexec ended with {done.returncode}\n{done.stdout}\n{done.stderr}")
        found: dict[str, Any] = {"hosts": hosts, **json.loads(output.read_text())}
    return found


def compare(hosts: int, options: argparse.Namespace) -> dict[str, Any]:
    """Every size and algorithm on so many hosts, printed."""
    argv = ["--sizes", ",".join(map(str, options.sizes)), "--rounds", str(options.rounds)]
    argv += ["--calls", str(options.calls)]
    for settings in (*SETTINGS, *options.settings):
        argv += ["--with", settings]
    if options.algorithms:
        argv += ["--algorithms", ",".join(options.algorithms)]
    run = on_hosts(hosts, options.ranks_per_host, "allreduce", argv, options)
    for row in run["rows"]:
        wire = report.bytes_per_second(options.rate)
        report.complete_row(row, run["rows"], hosts, wire, run["link_bytes_per_s"])
        print(report.format_row(hosts, row))
    for name, reason in run["left_out"].items():
        print(f"# left out: {name}: {reason}")
    sys.stdout.flush()
    return run


def overlap(options: argparse.Namespace) -> dict[str, Any] | None:
    """The overlap between two hosts, printed; None where it is not wanted."""
    if not options.overlap:
        return None
    argv = ["--bytes", str(options.overlap), "--rounds", str(options.rounds)]
    found = on_hosts(OVERLAP_HOSTS, options.overlap_ranks_per_host, "overlap", argv, options)
    print(f"# Iallreduce of {options.overlap} bytes, {OVERLAP_HOSTS} hosts, {found['ranks']} ranks")
    print(report.OVERLAP_HEADER)
    for row in found["rows"]:
        print(report.format_overlap(row))
    return found


def drive(options: argparse.Namespace) -> int:
    """Exit status: 0, 1 when a result was wrong or a run failed, 2 where there can be no hosts."""
    reason = available()
    if reason is not None:
        print(f"benchmarks.cluster is left out: {reason}", file=sys.stderr)
        return 0 if options.where_possible else 2
    print(f"# {options.ranks_per_host} ranks a host, {options.rate} a host, {options.rounds} rounds, float32")
    print(report.HEADER, flush=True)
    try:
        runs = [compare(hosts, options) for hosts in options.hosts]
        overlapped = overlap(options)
    except RunError as error:
        print(f"benchmarks.cluster: {error}", file=sys.stderr)
        return 1
    names = ("rate", "rounds", "calls", "ranks_per_host")
    found = {
        "date": str(date.today()),
        "machine": platform.processor() or platform.machine(),
        "python": platform.python_version(),
        "numpy": np.__version__,
        "hpccoll": hpccoll.__version__,
        **{name: getattr(options, name) for name in names},
        "runs": runs,
        "overlap": overlapped,
    }
    options.into.mkdir(parents=True, exist_ok=True)
    (options.into / "cluster.json").write_text(json.dumps(found, indent=1) + "\n")
    (options.into / "cluster.md").write_text(report.markdown(found))
    report.figures(found, options.into)
    print(f"{options.into / 'cluster.md'}, cluster.json and the figures beside it")
    every = [row for run in runs for row in run["rows"]] + (overlapped["rows"] if overlapped else [])
    return int(any(row["wrong"] for row in every))


def parse(argv: Sequence[str] | None = None) -> argparse.Namespace:
    """The command line."""

    def rate(text: str) -> str:
        report.bytes_per_second(text)
        return text

    def sizes(text: str) -> list[int]:
        return [parse_bytes(part) for part in text.split(",")]

    def numbers(text: str) -> list[int]:
        return [int(part) for part in text.split(",")]

    def settings(text: str) -> str:
        load(parse_settings(text))
        return text

    parser = argparse.ArgumentParser(
        prog="python -m benchmarks.cluster",
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    add = parser.add_argument
    add("--hosts", type=numbers, default=[2, 4], help="numbers of hosts (2,4)")
    add("--ranks-per-host", type=int, default=2)
    add("--sizes", type=sizes, default=[4 << 20, 16 << 20, 64 << 20], help="with K, M or G (4M,16M,64M)")
    add("--rate", type=rate, default="1gbit", help="egress limit of each host (1gbit)")
    add("--rounds", type=int, default=7, help="timed calls of each algorithm (7)")
    add("--calls", type=int, default=10, help="most calls for the byte counters, 0: do not count (10)")
    add(
        "--algorithms",
        type=lambda text: text.split(","),
        help=f"names of plans, {MPI_ALONE!r} for MPI's own, {AUTOMATIC!r} for the automatic choice (all)",
    )
    add(
        "--with",
        dest="settings",
        type=settings,
        action="append",
        default=[],
        metavar="NAME=VALUE,...",
        help=f"settings of hpccoll to compare as well, beside {', '.join(SETTINGS)}; may be repeated",
    )
    add("--overlap", type=parse_bytes, default=16 << 20, help="size of the Iallreduce, 0: none (16M)")
    add("--overlap-ranks-per-host", type=int, default=1, help="(1: computing ranks need a core each)")
    add("--timeout-s", type=float, default=1800.0, help="limit of each run under mpiexec (1800)")
    add("--into", type=Path, default=REPOSITORY / "build" / "bench")
    add("--where-possible", action="store_true", help="where there can be no hosts, say why and exit with 0")
    return parser.parse_args(argv)


if __name__ == "__main__":
    sys.exit(drive(parse()))
