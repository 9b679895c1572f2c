"""Is the automatic choice a good one after `hpccoll tune`?  On virtual hosts, or on virtual nodes.

    python -m benchmarks.cluster.tuned --hosts 2 --ranks-per-host 2 --collectives allreduce,broadcast
    python -m benchmarks.cluster.tuned --layout 2+2

It runs `hpccoll tune`, then `hpccoll bench OP --compare --within 5` for every collective, which says how
often the choice is within 5 % of the best plan and of flat, by medians of the rounds or their ratio's 95 %
interval.  In a round a plan is called --calls times below 1 MiB, a tenth as often from there on: as in tune,
calls follow one another for some milliseconds, longer than the slices in which ranks that share a core take
turns.  Table and output go into --into.  Exit status 0: all choices are; 1: not, or a run failed; 2: there
are no hosts.
"""

from __future__ import annotations

import argparse
import subprocess
import sys
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Protocol

from hpccoll.cli.sizes import parse_bytes
from hpccoll.cli.tune.options import COLLECTIVES
from tests.support.launch import REPOSITORY, Result, run_ranks
from tests.support.virtual_hosts import VirtualHosts, available

LONG_BYTES = 1 << 20
SAID = ("# Choice", "#  slower", "# Wrong", "# error")


class Run(Protocol):
    """Runs a command of hpccoll on all ranks: its exit status and what it printed."""

    def __call__(self, arguments: Sequence[str], env: Mapping[str, str]) -> Result: ...


@contextmanager
def where(options: argparse.Namespace) -> Iterator[Run]:
    """On virtual hosts, or with virtual nodes."""
    module = ["-m", "hpccoll.cli"]
    if options.layout:
        ranks = options.ranks

        def here(arguments: Sequence[str], env: Mapping[str, str]) -> Result:
            env = {**env, "HPCCOLL_LAYOUT": options.layout}
            return run_ranks(ranks, [*module, *arguments], timeout_s=options.timeout_s, env=env)

        yield here
        return
    with VirtualHosts(options.hosts, options.rate) as hosts:

        def there(arguments: Sequence[str], env: Mapping[str, str]) -> Result:
            command = [sys.executable, *module, *arguments]
            done = hosts.mpiexec(command, options.ranks_per_host, env, timeout_s=options.timeout_s)
            return Result(done.returncode, done.stdout, done.stderr, 0.0, False)

        yield there


def drive(options: argparse.Namespace) -> int:
    reason = None if options.layout else available()
    if reason is not None:
        print(f"benchmarks.cluster.tuned is left out: {reason}", file=sys.stderr)
        return 2
    sizes = ["-b", str(options.min_bytes), "-e", str(options.max_bytes), "-f", str(options.factor)]
    options.into.mkdir(parents=True, exist_ok=True)
    log = options.into / "tuned.txt"
    bad = 0
    with where(options) as run, tempfile.TemporaryDirectory() as folder, log.open("w") as file:
        table = Path(folder) / "table.toml"
        flags = ["--collectives", ",".join(options.collectives), "--rounds", str(options.rounds)]
        done = run(["tune", *flags, *sizes, "-o", str(table)], {"HPCCOLL_TUNING": ""})
        file.write(done.stdout + done.stderr)
        if done.returncode or not table.exists():
            print(done.stdout, done.stderr, file=sys.stderr)
            return 1
        print(done.stderr, end="", flush=True)
        (options.into / "tuned.toml").write_text(table.read_text())
        for name in options.collectives:
            for first, last, calls in series(options):
                ends = ["-b", str(first), "-e", str(last), "-f", str(options.factor)]
                rounds = ["--rounds", str(options.rounds), "-n", str(options.rounds * calls)]
                compared = ["--compare", "--within", str(options.within), "-w", "3", *rounds]
                done = run(["bench", name, *ends, *compared], {"HPCCOLL_TUNING": str(table)})
                file.write(done.stdout + done.stderr)
                file.flush()
                bad += done.returncode != 0
                said = [line for line in done.stdout.splitlines() if line.startswith(SAID)]
                print(*(f"{name:15s}{line}" for line in said or [done.stderr]), sep="\n", flush=True)
    print(f"{log} has all rows, {options.into / 'tuned.toml'} the table")
    return int(bad > 0)


def series(options: argparse.Namespace) -> Iterator[tuple[int, int, int]]:
    """The first and the last of the sizes that are called so often in a round, and how often."""
    sizes = [options.min_bytes]
    while sizes[-1] * options.factor <= options.max_bytes:
        sizes.append(sizes[-1] * options.factor)
    short = [size for size in sizes if size < LONG_BYTES]
    for some, calls in ((short, options.calls), (sizes[len(short) :], max(1, options.calls // 10))):
        if some:
            yield some[0], some[-1], calls


def parse(argv: Sequence[str] | None = None) -> argparse.Namespace:
    """The command line."""
    parser = argparse.ArgumentParser(
        prog="python -m benchmarks.cluster.tuned",
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    add = parser.add_argument
    add("--hosts", type=int, default=2, help="virtual hosts (2)")
    add("--ranks-per-host", type=int, default=2)
    add("--rate", default="1gbit", help="egress limit of each host (1gbit)")
    add("--layout", default="", help="virtual nodes on this host instead, as in HPCCOLL_LAYOUT")
    add("--ranks", type=int, default=4, help="with --layout (4)")
    add(
        "--collectives", type=lambda text: text.split(","), default=["allreduce"], help=", ".join(COLLECTIVES)
    )
    add("-b", "--min-bytes", type=parse_bytes, default=8, help="smallest size (8)")
    add("-e", "--max-bytes", type=parse_bytes, default=16 << 20, help="largest (16M)")
    add("-f", "--factor", type=int, default=8, help="from size to size (8)")
    add("--rounds", type=int, default=15, help="interleaved, of tune and of bench (15)")
    add("--calls", type=int, default=20, help="of each plan in a round of bench, below 1 MiB (20)")
    add("--within", type=float, default=5.0, help="percent (5)")
    add("--timeout-s", type=float, default=1800.0, help="of each run (1800)")
    add("--into", type=Path, default=REPOSITORY / "build" / "bench")
    return parser.parse_args(argv)


if __name__ == "__main__":
    try:
        sys.exit(drive(parse()))
    except subprocess.TimeoutExpired as late:
        print(late.stdout, late.stderr, file=sys.stderr)
        sys.exit(1)
