"""Training steps between virtual hosts: computation, then all-reduce; or both at once, in buckets.

    python -m benchmarks.cluster.buckets --bytes 64M --layers 128 --buckets 1M,4M

Needs root and iproute2.  A step computes a gradient for each layer, the last first (sums and products of
NumPy), and averages all of them over the ranks.  The computation takes each of `--compute` times as long as
the one all-reduce of all gradients, with a table for each.  The ways of a step take turns:

    compute    the computation alone
    allreduce  one all-reduce of all gradients alone: no step can be shorter than the longer of these two
    mpi        the computation, then MPI's own Allreduce of all gradients
    hpccoll    the computation, then hpccoll's
    BYTES      GradientBuckets of this size; `default` of the size that the cost model gives

and where torch is installed (`make .venv-torch`):

    gloo       the computation, then gloo's all-reduce
    ddp        the same computation as the backward pass of a module in torch's DDP over gloo, with its
               buckets of 25 MiB; `ddp 1M` of 1 MiB
    module     that module in hpccoll.torch's, with buckets of 1 MiB

    step       median over the rounds of the slowest rank's time
    of longer  that by the longer of computation and communication alone: 1 where all is hidden and free
    gain       the step of `hpccoll` by this one
    hidden     of the time that buckets were under way: what the program did not wait for (`buckets.times`);
               the rest of what a step takes longer than the computation is the computation slowed down, as
               communication needs cores
"""

from __future__ import annotations

import argparse
import json
import statistics
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
from mpi4py import MPI

import hpccoll
from benchmarks.cluster.modules import MIB, WITHOUT_TORCH, Modules
from hpccoll.cli.bench.overlap import numpy_work, units_for
from hpccoll.cli.sizes import parse_bytes

HOSTS = 2
WARM_STEPS = 2
CORRECTIONS, TRIALS = 3, 3
MOST_OFF = 0.15  # by which the computation may miss the length that it is to have
INTERFACE = "eth0"  # of a virtual host
ALONE = ("compute", "allreduce")
DEFAULT = "default"

Step = Callable[[], object]


class Training:
    """One rank's gradients, in one array, and the computation of each."""

    def __init__(self, world: MPI.Intracomm, nbytes: int, layers: int) -> None:
        self.world = world
        self.flat = np.zeros(nbytes // 4, np.float32)
        self.gradients = np.array_split(self.flat, layers)
        self.units = 0
        self._unit = numpy_work()

    def calibrate(self, seconds: float) -> None:
        """The computation of all layers is to take so long."""
        self.units = max(1, units_for(self.world, self._unit, seconds) // len(self.gradients))
        for _ in range(CORRECTIONS):
            found = statistics.median(slowest(self.world, self.compute) for _ in range(TRIALS))
            self.units = max(1, round(self.units * seconds / found))

    def layer(self, number: int) -> float:
        """The computation of a layer; what all elements of its gradient are on this rank."""
        self.compute_layer()
        return float(self.world.rank + number)

    def compute_layer(self) -> None:
        """The work of one layer."""
        for _ in range(self.units):
            self._unit()

    def compute(self, done: Callable[[int], object] = id) -> None:
        """The gradients of this rank."""
        for number in reversed(range(len(self.gradients))):
            self.gradients[number][...] = self.layer(number)
            done(number)

    def wrong(self, averages: Sequence[Any] | None = None) -> int:
        """Wrong elements on all ranks, of averages: by default those in `gradients`."""
        mean = (self.world.size - 1) / 2
        parts = self.gradients if averages is None else averages
        mine = sum(int((part != mean + number).sum()) for number, part in enumerate(parts))
        return self.world.allreduce(mine)


def slowest(world: MPI.Intracomm, step: Step) -> float:
    """Seconds of the slowest rank."""
    world.Barrier()
    begin = time.perf_counter()
    step()
    return world.allreduce(time.perf_counter() - begin, MPI.MAX)


def measure(comm: hpccoll.Communicator, options: argparse.Namespace) -> list[list[dict[str, Any]]]:
    """For each length of the computation a row for each way; all take turns in every round."""
    world = MPI.COMM_WORLD
    training = Training(world, options.bytes, options.layers)
    flat = training.flat

    def by_mpi() -> None:
        training.compute()
        world.Allreduce(MPI.IN_PLACE, flat)
        np.divide(flat, world.size, out=flat)

    def by_hpccoll() -> None:
        training.compute()
        comm.Allreduce(MPI.IN_PLACE, flat, hpccoll.AVG)

    def allreduce() -> None:
        comm.Allreduce(MPI.IN_PLACE, flat, hpccoll.AVG)

    ways: dict[str, Step] = {
        "compute": training.compute,
        "allreduce": allreduce,
        "mpi": by_mpi,
        "hpccoll": by_hpccoll,
    }
    made: dict[str, hpccoll.GradientBuckets] = {}
    for name in (DEFAULT, *options.buckets):
        size = None if name == DEFAULT else parse_bytes(name)
        buckets = made[name] = hpccoll.GradientBuckets(comm, training.gradients, bucket_bytes=size)

        def step(buckets: hpccoll.GradientBuckets = buckets) -> None:
            training.compute(buckets.ready)
            buckets.wait()

        ways[name] = step
    modules = None
    if WITHOUT_TORCH is None:
        modules = Modules(training, comm, options.output.parent, INTERFACE, MIB)
        ways |= modules.ways
        made |= modules.buckets
    wrong = (lambda name: training.wrong()) if modules is None else modules.wrong
    alone = statistics.median(slowest(world, allreduce) for _ in range(TRIALS))
    found = []
    for compute in options.compute:
        training.calibrate(compute * alone)
        found.append(_in_turn(world, ways, made, wrong, options.rounds))
    for buckets in made.values():
        buckets.close()
    if modules is not None:
        modules.close()
    return found


def _in_turn(
    world: MPI.Intracomm,
    ways: Mapping[str, Step],
    made: Mapping[str, hpccoll.GradientBuckets],
    wrong: Callable[[str], int],
    rounds: int,
) -> list[dict[str, Any]]:
    rows: dict[str, dict[str, Any]] = {
        name: {"way": name, "steps_s": [], "hidden_percent": [], "wrong": 0, "buckets": None} for name in ways
    }
    for turn in range(WARM_STEPS + rounds):
        for name, way in ways.items():
            seconds = slowest(world, way)
            row, buckets = rows[name], made.get(name)
            if name not in ALONE:
                row["wrong"] += wrong(name)
            if turn < WARM_STEPS:
                continue
            row["steps_s"].append(seconds)
            if buckets is not None:
                row["hidden_percent"].append(buckets.times.hidden_percent)
                row["buckets"], row["bucket_bytes"] = len(buckets), buckets.bucket_bytes
    return list(rows.values())


def complete(rows: Sequence[dict[str, Any]]) -> None:
    """Medians, and what they are compared with."""
    for row in rows:
        row["step_s"] = statistics.median(row["steps_s"])
    by_way = {row["way"]: row for row in rows}
    for row in rows:
        row["of_longer"] = row["step_s"] / max(by_way[name]["step_s"] for name in ALONE)
        row["gain"] = by_way["hpccoll"]["step_s"] / row["step_s"]
        row["hidden"] = statistics.median(row["hidden_percent"]) if row["hidden_percent"] else None


def table(rows: Sequence[dict[str, Any]]) -> str:
    """Lines for people."""
    lines = ["# way       buckets   step ms  of longer   gain  hidden %  #wrong"]
    for row in rows:
        count = "" if row["buckets"] is None else str(row["buckets"])
        hidden = "" if row["hidden"] is None else f"{row['hidden']:.0f}"
        ratio, gain = ("", "") if row["way"] in ALONE else (f"{row['of_longer']:.2f}", f"{row['gain']:.2f}")
        lines.append(
            f"  {row['way']:<9} {count:>7} {row['step_s'] * 1e3:9.1f} {ratio:>10}"
            f" {gain:>6} {hidden:>9} {row['wrong']:7d}"
        )
    return "\n".join(lines)


def miscalibrated(rows: Sequence[dict[str, Any]], wanted: float) -> str:
    """Empty, or why a run says nothing: its computation does not have the length that was asked for."""
    compute_s, allreduce_s = (row["step_s"] for name in ALONE for row in rows if row["way"] == name)
    found = compute_s / allreduce_s
    if abs(found / wanted - 1) <= MOST_OFF:
        return ""
    return f"the computation took {found:.2f} times as long as the all-reduce, not {wanted:g}: run again"


def drive(options: argparse.Namespace, argv: Sequence[str]) -> int:
    """Run on virtual hosts.

    Exit status: 0; 1 when a result was wrong, the run failed or was disturbed; 2 without hosts.
    """
    from benchmarks.cluster.__main__ import RunError, on_hosts
    from tests.support.virtual_hosts import available

    if (reason := available()) is not None:
        print(f"benchmarks.cluster.buckets: {reason}", file=sys.stderr)
        return 2
    try:
        found = on_hosts(HOSTS, options.ranks_per_host, "buckets", argv, options)
    except RunError as error:
        print(f"benchmarks.cluster.buckets: {error}", file=sys.stderr)
        return 1
    print(
        f"# {HOSTS} hosts of {options.ranks_per_host} ranks, {options.rate} a host; {options.bytes} bytes in "
        f"{options.layers} layers, {options.rounds} rounds; default buckets: {found['default_bytes']} bytes"
    )
    failed = False
    for compute, rows in zip(options.compute, found["tables"], strict=True):
        print(f"# computation: {compute:g} of the all-reduce")
        print(table(rows))
        if reason := miscalibrated(rows, compute):
            print(f"benchmarks.cluster.buckets: {reason}", file=sys.stderr)
        failed |= bool(reason) or any(row["wrong"] for row in rows)
    if WITHOUT_TORCH is not None:
        print(f"# gloo and DDP are left out: {WITHOUT_TORCH}")
    return int(failed)


def _ratios(text: str) -> list[float]:
    return [float(one) for one in text.split(",")]


def main(argv: Sequence[str]) -> int:
    parser = argparse.ArgumentParser(
        prog="python -m benchmarks.cluster.buckets",
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    add = parser.add_argument
    add("--bytes", type=parse_bytes, default=64 << 20, help="of all gradients of a rank (64M)")
    add("--layers", type=int, default=128, help="(128)")
    add("--buckets", type=lambda text: text.split(","), default=["1M", "4M"], help="sizes (1M,4M)")
    add(
        "--compute",
        type=_ratios,
        default=[0.8, 0.9, 1.0, 1.25],
        help="times of the computation by that of the all-reduce (0.8,0.9,1,1.25)",
    )
    add("--rounds", type=int, default=5, help="of each (5)")
    add("--rate", default="1gbit", help="egress limit of each host (1gbit)")
    add("--ranks-per-host", type=int, default=1, help="(1: computing ranks need a core each)")
    add("--timeout-s", type=float, default=600.0, help="limit of the run (600)")
    add("--output", type=Path, help="measure on COMM_WORLD and write there, as on each of the hosts")
    options = parser.parse_args(argv)
    if options.output is None:
        return drive(options, argv)
    with hpccoll.Communicator(MPI.COMM_WORLD) as comm:
        tables = measure(comm, options)
    for rows in tables:
        complete(rows)
    if MPI.COMM_WORLD.rank == 0:
        default = next(row["bucket_bytes"] for row in tables[0] if row["way"] == DEFAULT)
        options.output.write_text(json.dumps({"default_bytes": default, "tables": tables}))
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
