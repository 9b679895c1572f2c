"""What each rank on the hosts runs: every size by every candidate, checked, timed, and its bytes counted.

    mpiexec -hosts ... python -m benchmarks.cluster.allreduce --sizes 4194304 --output FILE

Candidates are called in turn in every round, in one process, so that a slow moment of the machine falls on
all of them alike. In the same run the links are measured: what a host sends to the next one while as much
comes from the one before, by MPI's own messages.
"""

from __future__ import annotations

import argparse
import json
import statistics
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
from mpi4py import MPI
from numpy.typing import NDArray

from benchmarks.cluster.candidates import MPI_ALONE, Candidate, Communicators

Vector = NDArray[np.float32]

SENT_BYTES = Path("/sys/class/net/eth0/statistics/tx_bytes")
# After so many bytes of calls the counters' own error, some hundred bytes, is nothing.
COUNTED_BYTES = 160 << 20
LINK_BYTES = 8 << 20
LINK_ROUNDS = 7
# Whole numbers up to here are exact in bfloat16, so that sums are wherever they are rounded.
LARGEST_SUM = 256
PERIODS = (61, 31, 17, 13, 11, 7, 5, 3, 2)


def given(nbytes: int, rank: int, ranks: int) -> Vector:
    """What a rank gives: whole numbers, whose sum over all ranks every candidate must get exactly.

    Their period is a prime, so that a block in another's place is seen.
    """
    period = next((one for one in PERIODS if ranks * (one - 1) <= LARGEST_SUM), PERIODS[-1])
    return ((np.arange(nbytes // 4) + rank) % period).astype(np.float32)


def expected(nbytes: int, ranks: int) -> Vector:
    """The sum of what all ranks give."""
    total = given(nbytes, 0, ranks)
    for rank in range(1, ranks):
        total += given(nbytes, rank, ranks)
    return total


def measure(
    world: MPI.Intracomm,
    node: MPI.Comm,
    chosen: Sequence[Candidate],
    nbytes: int,
    options: argparse.Namespace,
) -> list[dict[str, Any]]:
    """Check and time each candidate on float32 arrays of `nbytes`, and count its bytes; a row for each."""
    send, wanted = given(nbytes, world.rank, world.size), expected(nbytes, world.size)
    receive = np.empty_like(send)
    wrong = []
    for candidate in chosen:
        receive.fill(-1)
        candidate.call(send, receive)
        wrong.append(world.allreduce(int(np.count_nonzero(receive != wanted))))
    times = _times(world, chosen, send, receive, options.rounds)
    calls = min(options.calls, max(2, COUNTED_BYTES // nbytes))
    rows = []
    for index, candidate in enumerate(chosen):
        sent = _bytes_sent(world, node, candidate, send, receive, calls) if calls else []
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


def link_bytes_per_s(world: MPI.Intracomm, node: MPI.Comm) -> float | None:
    """What every host can send at the same time, each to the next in a ring; None for one host."""
    leaders: Any = world.Split(0 if node.rank == 0 else MPI.UNDEFINED, world.rank)
    rate = None
    if leaders != MPI.COMM_NULL:
        if leaders.size > 1:
            rate = LINK_BYTES / _link_s(leaders)
        leaders.Free()
    world.Barrier()
    return world.bcast(rate)


def _link_s(leaders: MPI.Intracomm) -> float:
    send, receive = np.ones(LINK_BYTES, np.uint8), np.empty(LINK_BYTES, np.uint8)
    following, before = (leaders.rank + 1) % leaders.size, (leaders.rank - 1) % leaders.size
    times = []
    for turn in range(-1, LINK_ROUNDS):
        leaders.Barrier()
        start = time.perf_counter()
        leaders.Sendrecv(send, following, recvbuf=receive, source=before)
        slowest = leaders.allreduce(time.perf_counter() - start, MPI.MAX)
        times += [slowest] if turn >= 0 else []
    return statistics.median(times)


def main(arguments: Sequence[str] | None = None) -> None:
    """Measure every size and candidate on COMM_WORLD; rank 0 writes the rows to --output as JSON."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--sizes", type=lambda text: [int(one) for one in text.split(",")], required=True)
    parser.add_argument("--rounds", type=int, default=7)
    parser.add_argument("--calls", type=int, default=10)
    parser.add_argument("--algorithms", type=lambda text: text.split(","))
    parser.add_argument("--with", dest="settings", action="append", default=[])
    parser.add_argument("--output", type=Path, required=True)
    options = parser.parse_args(arguments)
    world = MPI.COMM_WORLD
    node = world.Split_type(MPI.COMM_TYPE_SHARED)
    comms = Communicators(world, options.settings, with_hpccoll=options.algorithms != [MPI_ALONE])
    rows = []
    for nbytes in options.sizes:
        rows += measure(world, node, comms.candidates(nbytes, options.algorithms), nbytes, options)
    rate = link_bytes_per_s(world, node)
    comms.close()
    node.Free()
    if world.rank == 0:
        library = MPI.Get_library_version().splitlines()[0].strip("\0 \t")
        found = {
            "library": library,
            "ranks": world.size,
            "link_bytes_per_s": rate,
            "left_out": comms.left_out,
            "rows": rows,
        }
        options.output.write_text(json.dumps(found))


if __name__ == "__main__":
    main()
