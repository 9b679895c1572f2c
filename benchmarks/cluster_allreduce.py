"""All-reduce between virtual hosts with limited links: MPI's own against each algorithm of hpccoll.

    python benchmarks/cluster_allreduce.py --hosts 2,4 --ranks-per-host 2 --sizes 4M,16M --json FILE

Needs root and iproute2 (tests/support/virtual_hosts.py makes the hosts). For each number of hosts N it runs
itself under mpiexec on them and prints a row per size and algorithm:

    time       median over the rounds of the slowest rank's time. All algorithms are called in turn in every
               round, in one process, so that a slow moment of the machine falls on all of them alike.
    mpi/this   the median of MPI's own Allreduce divided by this one's: above 1, this one is faster.
    wire       the share of the time that the links alone need for 2(N-1)/N * S bytes a node, the least an
               all-reduce of S bytes can send. The rate is the configured one; headers are not taken off.
               An idle link passes its first 512 kB unlimited, which flatters sizes below some MB.
    sent       what the busiest node's eth0 sent per call, by its byte counter over --calls calls after a
               warm-up, headers included, in percent of 2(N-1)/N * S.
    model      the bytes that the cost model says, in the same percent.

All hosts share this machine's cores: what a collective computes shows more than on a real cluster. The plan
`flat` is MPI's own call too, but waits as hpccoll does, by giving up the core between tests: with more ranks
than cores that alone makes it faster than `mpi`, whose waiting ranks keep theirs. So compare with both.
"""

from __future__ import annotations

import argparse
import json
import re
import statistics
import sys
import tempfile
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

if TYPE_CHECKING:
    from mpi4py import MPI
    from numpy.typing import NDArray

    import hpccoll

    Vector = NDArray[np.float32]

REPOSITORY = Path(__file__).resolve().parents[1]
SENT_BYTES = Path("/sys/class/net/eth0/statistics/tx_bytes")
MPI_ALONE = "mpi"
AUTOMATIC = "auto"


@dataclass(frozen=True)
class Candidate:
    """One way to all-reduce a message: its plan with all details, and the bytes the busiest node sends."""

    name: str
    call: Callable[[Vector, Vector], object]
    plan: str = ""
    modelled_bytes: int | None = None


# The worker: what each rank on the hosts runs.


def work(options: argparse.Namespace) -> None:
    """Measure every size and algorithm on COMM_WORLD; rank 0 writes the rows to `options.output` as JSON."""
    from mpi4py import MPI

    world = MPI.COMM_WORLD
    node = world.Split_type(MPI.COMM_TYPE_SHARED)
    comm = None
    if options.algorithms != [MPI_ALONE]:
        import hpccoll

        comm = hpccoll.Communicator(world)
    rows = []
    for nbytes in options.sizes:
        chosen = candidates(world, comm, nbytes, options.algorithms)
        rows += measure(world, node, chosen, nbytes, options)
    if comm is not None:
        comm.close()
    node.Free()
    if world.rank == 0:
        library = MPI.Get_library_version().splitlines()[0].strip("\0 \t")
        Path(options.output).write_text(json.dumps({"library": library, "ranks": world.size, "rows": rows}))


def candidates(
    world: MPI.Intracomm, comm: hpccoll.Communicator | None, nbytes: int, wanted: Sequence[str] | None
) -> list[Candidate]:
    """MPI's own call, each plan for this layout and size, the automatic choice; of these the wanted ones."""
    found = [Candidate(MPI_ALONE, world.Allreduce)]
    if comm is not None:
        plans = comm.explain("allreduce", nbytes).candidates
        for each in sorted(plans, key=lambda each: comm.algorithms("allreduce").index(each.name)):
            found.append(Candidate(each.name, _forced(comm, each.name), each.plan, each.bytes_between_nodes))
        best = plans[0]
        found.append(Candidate(AUTOMATIC, comm.Allreduce, best.plan, best.bytes_between_nodes))
    unknown = set(wanted or ()) - {candidate.name for candidate in found}
    if unknown:
        names = ", ".join(candidate.name for candidate in found)
        raise SystemExit(
            f"no algorithm {', '.join(sorted(unknown))} for {nbytes} bytes here; there are {names}"
        )
    return [candidate for candidate in found if not wanted or candidate.name in wanted]


def _forced(comm: hpccoll.Communicator, name: str) -> Callable[[Vector, Vector], None]:
    def call(send: Vector, receive: Vector) -> None:
        with comm.forced(name):
            comm.Allreduce(send, receive)

    return call


def measure(
    world: MPI.Intracomm,
    node: MPI.Comm,
    chosen: Sequence[Candidate],
    nbytes: int,
    options: argparse.Namespace,
) -> list[dict[str, Any]]:
    """Check and time each candidate on float32 arrays of `nbytes`, and count its bytes; a row for each."""
    count = nbytes // 4
    pattern = np.arange(count, dtype=np.float32) % 61
    send = pattern + world.rank
    expected = pattern * world.size + world.size * (world.size - 1) // 2
    receive = np.empty_like(send)
    wrong = []
    for candidate in chosen:
        receive.fill(-1)
        candidate.call(send, receive)
        wrong.append(world.allreduce(int(np.count_nonzero(receive != expected))))
    times = _times(world, chosen, send, receive, options.rounds)
    rows = []
    for index, candidate in enumerate(chosen):
        sent = _bytes_sent(world, node, candidate, send, receive, options.calls) if options.calls else []
        rows.append(
            {
                "bytes": nbytes,
                "algorithm": candidate.name,
                "plan": candidate.plan,
                "wrong": wrong[index],
                "times_s": times[:, index].tolist(),
                "sent_bytes_per_call": sent,
                "modelled_bytes": candidate.modelled_bytes,
            }
        )
    return rows


def _times(
    world: MPI.Intracomm,
    chosen: Sequence[Candidate],
    send: Vector,
    receive: Vector,
    rounds: int,
) -> NDArray[np.float64]:
    """Seconds of each call by (round, candidate), the slowest rank's. Round -1 warms up and is not kept."""
    from mpi4py import MPI

    mine = np.zeros((rounds, len(chosen)))
    for turn in range(-1, rounds):
        # Another order in every round, the same on all ranks: nobody always follows the same neighbour.
        for index in np.random.default_rng(turn + 1).permutation(len(chosen)):
            world.Barrier()
            start = time.perf_counter()
            chosen[index].call(send, receive)
            if turn >= 0:
                mine[turn, index] = time.perf_counter() - start
    slowest = np.empty_like(mine)
    world.Allreduce(mine, slowest, op=MPI.MAX)
    return slowest


def _bytes_sent(
    world: MPI.Intracomm,
    node: MPI.Comm,
    candidate: Candidate,
    send: Vector,
    receive: Vector,
    calls: int,
) -> list[float]:
    """Bytes per call that each node's eth0 sends. The candidate has run before: its connections are made."""
    before = _read_counter(world, node)
    for _ in range(calls):
        candidate.call(send, receive)
    after = _read_counter(world, node)
    each = world.allgather((after - before) / calls if node.rank == 0 else None)
    return [value for value in each if value is not None]


def _read_counter(world: MPI.Intracomm, node: MPI.Comm) -> int:
    # Between barriers: no rank still sends the call before, none starts the next one. The barriers' own bytes
    # are some hundred a reading.
    world.Barrier()
    value = int(SENT_BYTES.read_text()) if node.rank == 0 else 0
    world.Barrier()
    return value


# The driver: makes the hosts, runs the worker on them, prints and stores what it found.


def drive(options: argparse.Namespace) -> int:
    """Exit status: 0, or 1 when a result was wrong or a run failed."""
    sys.path.insert(0, str(REPOSITORY))
    from tests.support.virtual_hosts import available

    reason = available()
    if reason is not None:
        print(f"cluster_allreduce: {reason}", file=sys.stderr)
        return 2
    runs = []
    print(f"# {options.ranks_per_host} ranks a host, {options.rate} a host, {options.rounds} rounds, float32")
    print(HEADER)
    for hosts in options.hosts:
        run = run_on_hosts(hosts, options)
        if run is None:
            return 1
        runs.append(run)
        print("\n".join(format_row(hosts, row) for row in run["rows"]), flush=True)
    settings = {name: getattr(options, name) for name in ("rate", "rounds", "calls", "ranks_per_host")}
    if options.json:
        Path(options.json).write_text(json.dumps({**settings, "runs": runs}, indent=1) + "\n")
    return int(any(row["wrong"] for run in runs for row in run["rows"]))


def run_on_hosts(hosts: int, options: argparse.Namespace) -> dict[str, Any] | None:
    """The worker's rows for this number of hosts, completed with medians and ratios; None if it failed."""
    from tests.support.virtual_hosts import VirtualHosts

    with VirtualHosts(hosts, options.rate) as cluster, tempfile.TemporaryDirectory() as directory:
        output = Path(directory) / "rows.json"
        sizes = ",".join(map(str, options.sizes))
        argv = ["--worker", "--sizes", sizes, "--rounds", str(options.rounds), "--calls", str(options.calls)]
        argv += ["--output", str(output)]
        if options.algorithms:
            argv += ["--algorithms", ",".join(options.algorithms)]
        program = [sys.executable, str(Path(__file__).resolve()), *argv]
        done = cluster.mpiexec(program, options.ranks_per_host, timeout_s=options.timeout_s)
        if done.returncode or not output.exists():
            print(f"cluster_allreduce: mpiexec ended with {done.returncode}", file=sys.stderr)
            print(done.stdout, done.stderr, sep="\n", file=sys.stderr)
            return None
        run: dict[str, Any] = {"hosts": hosts, **json.loads(output.read_text())}
    for row in run["rows"]:
        complete_row(row, run["rows"], hosts, bytes_per_second(options.rate))
    return run


def complete_row(
    row: dict[str, Any], rows: Sequence[dict[str, Any]], hosts: int, link_bytes_per_s: float
) -> None:
    """Add the median, the ratio to MPI's own, the share of the wire limit and the percentages of bytes."""
    least_bytes = 2 * (hosts - 1) / hosts * row["bytes"]
    row["median_s"] = statistics.median(row["times_s"]) if row["times_s"] else None
    for other in rows:
        if other["algorithm"] == MPI_ALONE and other["bytes"] == row["bytes"] and row["median_s"]:
            row["mpi_over_this"] = statistics.median(other["times_s"]) / row["median_s"]
    if row["median_s"]:
        row["wire_fraction"] = least_bytes / link_bytes_per_s / row["median_s"]
    if row["sent_bytes_per_call"] and least_bytes:
        row["sent_percent"] = 100 * max(row["sent_bytes_per_call"]) / least_bytes
    if row["modelled_bytes"] is not None and least_bytes:
        row["modelled_percent"] = 100 * row["modelled_bytes"] / least_bytes


HEADER = (
    f"# {'hosts':>5} {'bytes':>10} {'algorithm':<28} {'time ms':>9} {'mpi/this':>8} {'wire':>6}"
    f" {'sent %':>7} {'model %':>7} {'#wrong':>6}"
)


def format_row(hosts: int, row: dict[str, Any]) -> str:
    """One line of the table; '-' where a number does not exist."""

    def cell(key: str, width: int, digits: int, factor: float = 1) -> str:
        value = row.get(key)
        return f"{'-' if value is None else f'{value * factor:.{digits}f}':>{width}}"

    # Of the automatic choice the name is enough here: the row of that name has the rest.
    choice = row["plan"].split("(")[0]
    name = f"auto: {choice}" if row["algorithm"] == AUTOMATIC else row["algorithm"]
    return (
        f"  {hosts:>5} {row['bytes']:>10} {name:<28} {cell('median_s', 9, 1, 1e3)}"
        f" {cell('mpi_over_this', 8, 2)} {cell('wire_fraction', 6, 2)} {cell('sent_percent', 7, 1)}"
        f" {cell('modelled_percent', 7, 1)} {row['wrong']:>6}"
    )


def bytes_per_second(rate: str) -> float:
    """Of a rate in tc's words: bit, kbit, mbit, gbit (powers of 1000)."""
    match = re.fullmatch(r"([\d.]+)([kmg]?)bit", rate)
    if match is None:
        raise argparse.ArgumentTypeError(f"rate {rate!r} is not a number followed by bit, kbit, mbit or gbit")
    return float(match[1]) * {"": 1, "k": 1e3, "m": 1e6, "g": 1e9}[match[2]] / 8


def byte_count(text: str) -> int:
    """Of a size with an optional K, M or G (powers of 1024)."""
    match = re.fullmatch(r"(\d+)([KMG]?)", text.strip().upper())
    if match is None or int(match[1]) == 0:
        raise argparse.ArgumentTypeError(f"size {text!r} is not a positive number with an optional K, M or G")
    return int(match[1]) << 10 * " KMG".index(match[2] or " ")


def parse(argv: Sequence[str] | None = None) -> argparse.Namespace:
    """The command line of driver and worker."""

    def rate(text: str) -> str:
        bytes_per_second(text)
        return text

    def sizes(text: str) -> list[int]:
        return [byte_count(part) for part in text.split(",")]

    def numbers(text: str) -> list[int]:
        return [int(part) for part in text.split(",")]

    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--hosts", type=numbers, default=[2, 4], help="numbers of hosts (2,4)")
    parser.add_argument("--ranks-per-host", type=int, default=2)
    parser.add_argument(
        "--sizes", type=sizes, default=[4 << 20, 16 << 20], help="bytes, with K, M or G (4M,16M)"
    )
    parser.add_argument("--rate", type=rate, default="1gbit", help="egress limit of each host (1gbit)")
    parser.add_argument("--rounds", type=int, default=7, help="timed calls of each algorithm (7)")
    parser.add_argument(
        "--calls", type=int, default=10, help="calls for the byte counters, 0: do not count (10)"
    )
    parser.add_argument(
        "--algorithms",
        type=lambda text: text.split(","),
        help=f"names of plans, {MPI_ALONE!r} for MPI's own, {AUTOMATIC!r} for the automatic choice (all)",
    )
    parser.add_argument(
        "--timeout-s", type=float, default=600.0, help="limit of each run under mpiexec (600)"
    )
    parser.add_argument("--json", help="write all numbers to this file")
    parser.add_argument("--worker", action="store_true", help="run as a rank under mpiexec")
    parser.add_argument("--output", help="the worker's result file")
    return parser.parse_args(argv)


if __name__ == "__main__":
    settings = parse()
    if settings.worker:
        work(settings)
    else:
        sys.exit(drive(settings))
