"""How fast the hosts' links are in fact: each sends to one other at a time, and receives from one."""

from __future__ import annotations

import time
from collections.abc import Iterator, Sequence
from statistics import median

import numpy as np
from mpi4py import MPI

from hpccoll.doctor.finding import ABSENT, WRONG, Finding
from hpccoll.topology.agreement import gather, wait_all
from hpccoll.topology.layout import Layout
from hpccoll.topology.notation import format_ranks

NBYTES = 4 << 20
MESSAGES = 3  # the best counts
MOST_ROUNDS = 15  # every pair of up to 16 hosts; of more hosts, some partners of each
SLOW = 0.5  # a rate below so much of the usual one is wrong

Rates = dict[tuple[int, int], float]  # by sending and receiving host: bytes a second


def rounds(hosts: int) -> list[list[tuple[int, int]]]:
    """Pairs of hosts, each host at most once in a round, until every two have met or MOST_ROUNDS are full."""
    seats = [*range(hosts), *([-1] if hosts % 2 else [])]
    found = []
    for _ in range(min(len(seats) - 1, MOST_ROUNDS)):
        half = len(seats) // 2
        pairs = zip(seats[:half], reversed(seats[half:]), strict=True)
        found.append([(min(pair), max(pair)) for pair in pairs if -1 not in pair])
        seats = [seats[0], seats[-1], *seats[1:-1]]
    return found


def measure(comm: MPI.Intracomm, hosts: Layout, deadline: float) -> Rates:
    """The rates between the first ranks of the hosts.  Collective; the same on all ranks.

    `comm`: one on which nothing else is going on.  Raises: CollectiveTimeoutError.
    """
    here = hosts.node(comm.rank)
    leads = hosts.leader(here) == comm.rank
    own: list[tuple[int, int, float]] = []
    for pairs in rounds(hosts.node_count):
        for turned in (False, True):
            for pair in pairs if leads else ():
                sender, receiver = pair[::-1] if turned else pair
                if here in pair:
                    peer = hosts.leader(receiver if here == sender else sender)
                    seconds = _one_way(comm, peer, here == sender, deadline)
                    if here == sender:
                        own.append((sender, receiver, NBYTES / seconds))
            # The rest of the hosts is silent until all are through.
            wait_all([comm.Ibarrier()], deadline, "measuring links", comm.rank)
    table = np.array(own, np.float64).tobytes()
    found = [np.frombuffer(one).reshape(-1, 3) for one in gather(comm, table, deadline, "rates of links")]
    return {(int(a), int(b)): float(rate) for one in found for a, b, rate in one}


def _one_way(comm: MPI.Intracomm, peer: int, sends: bool, deadline: float) -> float:
    """Seconds of the fastest of some messages, with an empty answer to each."""
    data, answer = np.zeros(NBYTES, np.uint8), np.zeros(1, np.uint8)
    best = float("inf")
    for _ in range(MESSAGES):
        began = time.perf_counter()
        if sends:
            wait_all(
                [comm.Isend(data, peer, 1), comm.Irecv(answer, peer, 2)],
                deadline,
                "measuring links",
                comm.rank,
            )
        else:
            wait_all([comm.Irecv(data, peer, 1)], deadline, "measuring links", comm.rank)
            wait_all([comm.Isend(answer, peer, 2)], deadline, "measuring links", comm.rank)
        best = min(best, time.perf_counter() - began)
    return best


def slow_links(rates: Rates, names: Sequence[str]) -> Iterator[Finding]:
    """Hosts that send or receive at much less than the others, and pairs between which alone it is slow."""
    if not rates:
        yield Finding(ABSENT, "one host")
        return
    count = len(names)
    out = {
        host: max((rate for (a, _), rate in rates.items() if a == host), default=0.0) for host in range(count)
    }
    into = {
        host: max((rate for (_, b), rate in rates.items() if b == host), default=0.0) for host in range(count)
    }
    slow_out = _below(out)
    # Who receives from slow hosts only is not slow itself.
    fair = {(a, b): rate for (a, b), rate in rates.items() if a not in slow_out}
    into_fair = {
        host: max((rate for (_, b), rate in fair.items() if b == host), default=float("inf")) for host in into
    }
    slow_in = _below(into_fair)
    for host in sorted(slow_out | slow_in):
        ways = [
            f"{word} at {_rate(table[host])}, the others at {_rate(_usual(table, host))}"
            for word, table, slow in (("sends", out, slow_out), ("receives", into, slow_in))
            if host in slow
        ]
        yield Finding(
            WRONG,
            f"the link of {names[host]} is slow: it {' and '.join(ways)}",
            f"messages of {NBYTES >> 20} MiB between the first ranks of the hosts",
            "rate and errors of its port (ethtool, ibstat), cable, switch port; or MPI uses another "
            f"interface there than elsewhere. Until then: #SBATCH --exclude={names[host]}",
        )
    for (a, b), rate in sorted(rates.items()):
        usual = min(out[a], into[b])
        if a not in slow_out and b not in slow_in and rate < SLOW * usual:
            yield Finding(
                WRONG,
                f"from {names[a]} to {names[b]} it is slow: {_rate(rate)}, though both reach {_rate(usual)} "
                "with others",
                f"messages of {NBYTES >> 20} MiB between the first ranks of the hosts",
                "the way between them: switches, routes, an uplink with errors or too many users",
            )


def _below(table: dict[int, float]) -> set[int]:
    """Those that are much below the usual."""
    return {host for host, rate in table.items() if rate < SLOW * _usual(table, host)}


def _usual(table: dict[int, float], host: int) -> float:
    others = [rate for one, rate in table.items() if one != host and rate != float("inf")]
    return median(others) if others else 0.0


def _rate(bytes_s: float) -> str:
    return f"{bytes_s / 1e6:.0f} MB/s" if bytes_s < 1e9 else f"{bytes_s / 1e9:.1f} GB/s"


def fine(rates: Rates, hosts: Layout) -> str:
    """What was measured, in words."""
    values = sorted(rates.values())
    leaders = format_ranks([hosts.leader(node) for node in range(hosts.node_count)])
    return f"{_rate(values[0])} to {_rate(values[-1])} each way between {leaders}" if values else "one host"
