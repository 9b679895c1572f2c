"""Scaling efficiency of a training step on 1, 2, 4 virtual hosts, with and without overlap.

    python -m benchmarks.cluster.scaling --hosts 1,2,4 --into build/bench

Needs root and iproute2.  One rank a host.  Every rank computes the same on every number of hosts
(weak scaling): gradients of `--bytes` in `--layers`, the last layer first, in `--compute-ms`.  They are
averaged over the ranks after that, by one Allreduce (`after`), or meanwhile, by GradientBuckets (`buckets`).

    cores      the computation is NumPy's, on a core.  All hosts share this machine's cores: with more hosts
               than cores, ranks wait for a core, and lose what no network could have saved.  `compute` shows
               it: the step without any communication on as many hosts
    device     the computation is a timed wait for each layer, as the host of a GPU waits for its kernels: no
               core is needed, and none is short.  It stands for a kernel, and is none

    step       median over the rounds of the slowest rank's time
    compute    the same of the computation alone
    efficiency the computation of one host by the step: 100 % where communication and more hosts cost nothing
    of compute the computation of as many hosts by the step: what communication alone costs
    hidden     of the time that buckets were under way: what the program did not wait for
"""

from __future__ import annotations

import argparse
import json
import statistics
import sys
import time
from collections.abc import Sequence
from datetime import date
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
from mpi4py import MPI

import hpccoll
from benchmarks.cluster.buckets import Step, Training, slowest
from hpccoll.cli.sizes import parse_bytes
from tests.support.launch import REPOSITORY

WARM_STEPS = 2
CORES, DEVICE = "cores", "device"
COMPUTE, AFTER, BUCKETS = "compute", "after", "buckets"
LABELS = {CORES: "computation on cores", DEVICE: "computation waits, as for a GPU"}


class Waiting(Training):
    """A computation that is a wait: each layer's for its part of the time."""

    layer_s = 0.0

    def compute_layer(self) -> None:
        time.sleep(self.layer_s)


def work_of(kind: str, options: argparse.Namespace) -> Training:
    """A rank's gradients with a computation of one kind."""
    world = MPI.COMM_WORLD
    seconds = options.compute_ms / 1e3
    if kind == DEVICE:
        waiting = Waiting(world, options.bytes, options.layers)
        waiting.layer_s = seconds / options.layers
        return waiting
    training = Training(world, options.bytes, options.layers)
    training.units = options.units
    if not training.units:
        training.calibrate(seconds)
    return training


def measure(comm: hpccoll.Communicator, options: argparse.Namespace) -> dict[str, Any]:
    """A row for each computation and way of a step; all take turns in every round."""
    world = MPI.COMM_WORLD
    rows: list[dict[str, Any]] = []
    steps: list[Step] = []
    made: list[hpccoll.GradientBuckets] = []
    units = 0
    for kind in (CORES, DEVICE):
        work = work_of(kind, options)
        units = units or work.units
        buckets = hpccoll.GradientBuckets(comm, work.gradients, bucket_bytes=options.bucket_bytes)
        made.append(buckets)

        def after(work: Training = work) -> None:
            with comm.annotate("backward"):
                work.compute()
            comm.Allreduce(MPI.IN_PLACE, work.flat, hpccoll.AVG)

        def overlapped(work: Training = work, buckets: hpccoll.GradientBuckets = buckets) -> None:
            with comm.annotate("backward"):
                work.compute(buckets.ready)
            buckets.wait()

        for way, step in ((COMPUTE, work.compute), (AFTER, after), (BUCKETS, overlapped)):
            found = {"kind": kind, "way": way, "hosts": world.size, "steps_s": [], "hidden": [], "wrong": 0}
            rows.append(found | {"work": work, "buckets": buckets if way == BUCKETS else None})
            steps.append(step)
    for turn in range(WARM_STEPS + options.rounds):
        for row, step in zip(rows, steps, strict=True):
            seconds = slowest(world, step)
            row["wrong"] += 0 if row["way"] == COMPUTE else row["work"].wrong()
            if turn >= WARM_STEPS:
                row["steps_s"].append(seconds)
                if row["buckets"] is not None:
                    row["hidden"].append(row["buckets"].times.hidden_percent)
    bucket_bytes = made[0].bucket_bytes
    for buckets in made:
        buckets.close()
    kept = ("kind", "way", "hosts", "steps_s", "hidden", "wrong")
    return {
        "units": units,
        "bucket_bytes": bucket_bytes,
        "rows": [{name: row[name] for name in kept} for row in rows],
    }


# --- what was found ---------------------------------------------------------------------------------


def complete(rows: Sequence[dict[str, Any]]) -> None:
    """Add medians, and what they are compared with."""
    for row in rows:
        row["step_s"] = statistics.median(row["steps_s"])
    alone = {(row["kind"], row["hosts"]): row["step_s"] for row in rows if row["way"] == COMPUTE}
    fewest = min(row["hosts"] for row in rows)
    for row in rows:
        row["compute_s"] = alone[row["kind"], row["hosts"]]
        row["efficiency"] = alone[row["kind"], fewest] / row["step_s"]
        row["of_compute"] = row["compute_s"] / row["step_s"]
        row["hidden_percent"] = statistics.median(row["hidden"]) if row["hidden"] else None


HEADINGS = ("computation", "hosts", "averaged", "step ms", "compute ms", "efficiency", "of compute", "hidden")


def cells(row: dict[str, Any]) -> tuple[str, ...]:
    """A row of the table."""
    hidden = row["hidden_percent"]
    return (
        row["kind"],
        str(row["hosts"]),
        row["way"],
        f"{row['step_s'] * 1e3:.0f}",
        f"{row['compute_s'] * 1e3:.0f}",
        f"{row['efficiency']:.0%}",
        f"{row['of_compute']:.0%}",
        "" if hidden is None else f"{hidden:.0f} %",
    )


def shown(rows: Sequence[dict[str, Any]]) -> list[dict[str, Any]]:
    """Those that average, by computation and hosts."""
    return [row for kind in (CORES, DEVICE) for row in rows if row["kind"] == kind and row["way"] != COMPUTE]


def table(rows: Sequence[dict[str, Any]]) -> str:
    """Lines for people."""
    lines = [HEADINGS, *map(cells, shown(rows))]
    widths = [max(map(len, column)) for column in zip(*lines, strict=True)]
    return "\n".join(
        "  ".join(f"{cell:>{width}}" for cell, width in zip(line, widths, strict=True)) for line in lines
    )


def markdown(found: dict[str, Any]) -> str:
    """The same as a table of Markdown, with what it is of."""
    head = (
        f"# A training step on more and more hosts, {found['date']}\n\n"
        f"One rank a host, {found['rate']} a host, gradients of {found['bytes'] >> 20} MiB in "
        f"{found['layers']} layers, buckets of {found['bucket_bytes'] >> 10} KiB, medians of "
        f"{found['rounds']} rounds of the slowest rank; `python -m benchmarks.cluster.scaling --help` says "
        "what the columns are.\n"
    )
    lines = [f"| {' | '.join(HEADINGS)} |", "|" + "---|" * 3 + "---:|" * 5]
    lines += [f"| {' | '.join(cells(row))} |" for row in shown(found["rows"])]
    return "\n".join([head, *lines]) + "\n"


def draw(found: dict[str, Any], into: Path) -> None:
    """Efficiency over hosts; nothing without matplotlib."""
    try:
        from matplotlib.figure import Figure
    except ImportError:
        print("no figure: matplotlib is not installed (pip install 'hpccoll[plot]')")
        return
    figure = Figure(figsize=(7.2, 2.9), layout="constrained")
    for axes, kind in zip(figure.subplots(1, 2, sharey=True), (CORES, DEVICE), strict=True):
        hosts = sorted({row["hosts"] for row in found["rows"]})
        styles = {
            AFTER: ("#CC3311", "s", "after the computation"),
            BUCKETS: ("#4477AA", "o", "meanwhile, in buckets"),
        }
        for way, (colour, marker, label) in styles.items():
            rows = [row for row in found["rows"] if (row["kind"], row["way"]) == (kind, way)]
            values = [100 * row["efficiency"] for row in rows]
            axes.plot(
                [row["hosts"] for row in rows], values, color=colour, marker=marker, markersize=4, label=label
            )
        alone = [row for row in found["rows"] if (row["kind"], row["way"]) == (kind, COMPUTE)]
        values = [100 * row["efficiency"] for row in alone]
        axes.plot(
            [row["hosts"] for row in alone], values, color="#888888", linestyle=":", label="computation alone"
        )
        axes.set_title(LABELS[kind], fontsize=8.5)
        axes.set_xticks(hosts)
        axes.set_xlabel("hosts (one rank each)", fontsize=8)
        axes.set_ylim(0, 108)
        axes.tick_params(labelsize=7.5)
        axes.grid(alpha=0.3, linewidth=0.5)
        for side in ("top", "right"):
            axes.spines[side].set_visible(False)
        if kind == CORES:
            axes.set_ylabel("scaling efficiency (%)", fontsize=8)
            axes.legend(
                fontsize=7, frameon=False, loc="lower left", title="gradients averaged", title_fontsize=7
            )
    for form in ("png", "svg"):
        metadata = {"Date": None} if form == "svg" else {}
        figure.savefig(into / f"scaling-overlap.{form}", dpi=200, metadata=metadata)


# --- the command ------------------------------------------------------------------------------------


def drive(options: argparse.Namespace) -> int:
    """Exit status: 0, 1 when a result was wrong or a run failed, 2 where there can be no hosts."""
    from benchmarks.cluster.__main__ import RunError, on_hosts
    from tests.support.virtual_hosts import available

    reason = available()
    if reason is not None:
        print(f"benchmarks.cluster.scaling is left out: {reason}", file=sys.stderr)
        return 2
    rows: list[dict[str, Any]] = []
    units, bucket_bytes = 0, options.bucket_bytes
    common = ["--bytes", str(options.bytes), "--layers", str(options.layers), "--rounds", str(options.rounds)]
    common += ["--compute-ms", str(options.compute_ms)]
    limits = SimpleNamespace(rate=options.rate, timeout_s=options.timeout_s)
    # The most hosts first but for one: the cost model's size of a bucket is that of several.
    order = [min(options.hosts), *sorted(set(options.hosts) - {min(options.hosts)}, reverse=True)]
    for hosts in order:
        argv = [*common, "--units", str(units)]
        if bucket_bytes is not None:
            argv += ["--bucket-bytes", str(bucket_bytes)]
        try:
            found = on_hosts(hosts, 1, "scaling", argv, limits)
        except RunError as error:
            print(f"benchmarks.cluster.scaling: {error}", file=sys.stderr)
            return 1
        units = found["units"]
        if hosts > 1:
            bucket_bytes = found["bucket_bytes"]
        rows += found["rows"]
    rows.sort(key=lambda row: row["hosts"])
    complete(rows)
    names = ("rate", "rounds", "layers", "bytes", "compute_ms")
    about = {name: getattr(options, name) for name in names}
    whole = {
        "date": str(date.today()), "hpccoll": hpccoll.__version__, "numpy": np.__version__, **about,
        "bucket_bytes": bucket_bytes, "units": units, "rows": rows,
    }  # fmt: skip
    print(f"# one rank a host, {options.rate} a host, {options.bytes >> 20} MiB, {options.rounds} rounds")
    print(table(rows))
    options.into.mkdir(parents=True, exist_ok=True)
    (options.into / "scaling-overlap.json").write_text(json.dumps(whole, indent=1) + "\n")
    (options.into / "scaling-overlap.md").write_text(markdown(whole))
    draw(whole, options.into)
    return int(any(row["wrong"] for row in rows))


def main(argv: Sequence[str]) -> int:
    """Measure, or with --output be a rank."""
    parser = argparse.ArgumentParser(
        prog="python -m benchmarks.cluster.scaling",
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    add = parser.add_argument
    add("--hosts", type=lambda text: [int(one) for one in text.split(",")], default=[1, 2, 4], help="(1,2,4)")
    add("--bytes", type=parse_bytes, default=16 << 20, help="of all gradients, with K or M (16M)")
    add("--layers", type=int, default=16)
    add("--compute-ms", type=float, default=300.0, help="of a rank that has a core to itself (300)")
    add("--bucket-bytes", type=parse_bytes, help="(that of the cost model for the most hosts)")
    add("--rounds", type=int, default=9, help="timed steps of each way (9)")
    add("--rate", default="1gbit", help="egress limit of each host (1gbit)")
    add("--units", type=int, default=0, help=argparse.SUPPRESS)
    add("--timeout-s", type=float, default=300.0, help="limit of each run (300)")
    add("--into", type=Path, default=REPOSITORY / "build" / "bench")
    add("--output", type=Path, help="measure on COMM_WORLD and write there, as on each of the hosts")
    options = parser.parse_args(argv)
    if options.output is None:
        return drive(options)
    with hpccoll.Communicator(MPI.COMM_WORLD) as comm:
        found = measure(comm, options)
    if MPI.COMM_WORLD.rank == 0:
        options.output.write_text(json.dumps(found))
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
