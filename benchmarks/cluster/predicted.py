"""Times of all-reduces between virtual hosts, beside what the simulation predicts from measured links.

    python -m benchmarks.cluster.predicted --hosts 1,2,4 --into build/predicted

For each number of hosts and size, links.py runs under mpiexec: it measures the links (latency and bandwidth
of messages in a node and between nodes, hand-overs, copies and sums of arrays of that size, and copies of the
pieces in our segments, with all ranks at it), predicts each plan's time from nothing else
(`hpccoll.scaling.flows`), and measures it: rounds in which the plans take turns, the slowest rank's time, the
median.  Nothing is fitted to the times that are compared.

    taken     selection takes this plan; the others are there to see more of the model
    error     predicted over measured time, less 1

It needs root and iproute2.  Exit status: 0; 1 where a plan that is taken is off by more than --within
percent at 1 MiB or more, a result was wrong or a run failed; 2 where there can be no hosts.
"""

from __future__ import annotations

import argparse
import json
import statistics
import sys
from collections.abc import Sequence
from datetime import date
from pathlib import Path
from typing import Any

from benchmarks.cluster.__main__ import RunError, on_hosts
from hpccoll.cli.sizes import format_bytes, parse_bytes
from hpccoll.scaling.study import MEASURED, Point, Study, write
from tests.support.launch import REPOSITORY
from tests.support.virtual_hosts import available

HEADER = (
    f"# {'hosts':>5} {'ranks':>5} {'size':>6} {'predicted ms':>12} {'measured ms':>11} {'quartiles':>17} "
    f"{'error':>7}  plan"
)
PLANS = "ring,scatter_rail_gather,reduce_ring_broadcast,recursive_doubling"


def line(hosts: int, ranks: int, row: dict[str, Any]) -> str:
    """One row of the table."""
    measured, (low, _, high) = statistics.median(row["times_s"]), statistics.quantiles(row["times_s"], n=4)
    quartiles = f"{low * 1e3:.2f} - {high * 1e3:.2f}"
    what = row["plan"] + (" (taken)" if row["taken"] else "")
    what += f" {row['wrong']} WRONG" if row["wrong"] else ""
    return (
        f"  {hosts:>5} {ranks:>5} {format_bytes(row['bytes']):>6} {row['predicted_s'] * 1e3:>12.2f} "
        f"{measured * 1e3:>11.2f} {quartiles:>17} {100 * error(row):>+6.0f}%  {what}"
    )


def error(row: dict[str, Any]) -> float:
    """Predicted over measured time, less 1."""
    return float(row["predicted_s"] / statistics.median(row["times_s"]) - 1)


def study_of(runs: Sequence[dict[str, Any]], options: argparse.Namespace) -> Study:
    """The plans that are taken, as a study that `hpccoll scale --report` draws."""
    points = []
    for run in runs:
        for row in (one for one in run["rows"] if one["taken"]):
            low, median, high = (value * 1e6 for value in statistics.quantiles(row["times_s"], n=4))
            ranks = run["ranks"]
            points.append(
                Point(
                    run["hosts"], ranks, f"{run['hosts']}x{options.ranks_per_host}", row["bytes"],
                    row["plan"], median, row["bytes"] / median / 1e3 * 2 * (ranks - 1) / ranks,
                    low, high, row["predicted_s"] * 1e6, row["wrong"],
                )
            )  # fmt: skip
    source = f"virtual hosts of {options.ranks_per_host} ranks, {options.rate} each"
    facts = {"MPI": runs[0]["library"], "date": str(date.today()), "rounds": options.rounds}
    command = "python -m benchmarks.cluster.predicted"
    return Study("allreduce", "float", "sum", MEASURED, source, (), command, facts).with_points(points)


def drive(options: argparse.Namespace) -> int:
    """Exit status: see above."""
    reason = available()
    if reason is not None:
        print(f"benchmarks.cluster.predicted is left out: {reason}", file=sys.stderr)
        return 2
    argv = ["--sizes", ",".join(map(str, options.sizes)), "--rounds", str(options.rounds)]
    argv += ["--plans", options.plans]
    runs = []
    print(HEADER, flush=True)
    for hosts in options.hosts:
        try:
            run = on_hosts(hosts, options.ranks_per_host, "links", argv, options)
        except RunError as error_:
            print(f"benchmarks.cluster.predicted: {error_}", file=sys.stderr)
            return 1
        runs.append(run)
        for row in run["rows"]:
            print(line(hosts, run["ranks"], row))
            if row["taken"]:
                print(f"# links: {', '.join(f'{name} {value:.3g}' for name, value in row['links'].items())}")
        sys.stdout.flush()
    options.into.mkdir(parents=True, exist_ok=True)
    (options.into / "predicted.json").write_text(json.dumps(runs, indent=1) + "\n")
    write(options.into / "study.json", study_of(runs, options))
    judged = [row for run in runs for row in run["rows"] if row["taken"] and row["bytes"] >= 1 << 20]
    worst = max((abs(error(row)) for row in judged), default=0.0)
    print(f"# of the plans taken, from 1M on, the worst is off by {100 * worst:.0f} %")
    wrong = any(row["wrong"] for run in runs for row in run["rows"])
    return int(wrong or worst > options.within / 100)


def parse(argv: Sequence[str] | None = None) -> argparse.Namespace:
    """The command line."""
    parser = argparse.ArgumentParser(
        prog="python -m benchmarks.cluster.predicted",
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    add = parser.add_argument
    add("--hosts", type=lambda text: [int(one) for one in text.split(",")], default=[1, 2, 4], help="(1,2,4)")
    add("--ranks-per-host", type=int, default=2)
    add(
        "--sizes",
        type=lambda text: [parse_bytes(one) for one in text.split(",")],
        default=[1 << 20, 4 << 20, 16 << 20],
        help="(1M,4M,16M)",
    )
    add("--rate", default="1gbit", help="egress limit of each host (1gbit)")
    add("--rounds", type=int, default=15, help="timed calls of each plan (15)")
    add("--plans", default=PLANS, help=f"measured besides the one that is taken ({PLANS})")
    add("--within", type=float, default=20.0, help="percent (20)")
    add("--timeout-s", type=float, default=600.0, help="limit of each run under mpiexec (600)")
    add("--into", type=Path, default=REPOSITORY / "build" / "predicted")
    return parser.parse_args(argv)


if __name__ == "__main__":
    sys.exit(drive(parse()))
