"""How far the clocks of several hosts are apart, by messages that go to rank 0 and come back.

::

    rank    begin ───────┐              ┌──── end
                          ╲            ╱
    rank 0                 └── time ──┘        time - (begin + end) / 2: rank 0's clock is so far ahead,
                                               within (end - begin) / 2, whatever the ways there and back take

Of several rounds the shortest counts.  Ranks of one host share their clock: one of each host measures.
Source: F. Cristian (1989), Probabilistic clock synchronization.
"""

from __future__ import annotations

import os
import time
from collections.abc import Generator
from typing import TypeVar

import numpy as np
from mpi4py import MPI

from hpccoll.memory.shared import gathered
from hpccoll.observe.reading import Measurement
from hpccoll.topology.layout import Layout

CHANNEL = 3  # an MPI tag of the private communicator, beside those of runtime/
ROUNDS = 40
PATIENCE_S = 2e-3  # so long a message is looked for without doing anything else

T = TypeVar("T")


def measured(private: MPI.Intracomm, hosts: Layout) -> Generator[None, None, Measurement]:
    """The clock of this rank against rank 0's.  Collective; yields where it waits longer.

    `hosts`: the ranks of each host.  `ROUNDS` messages there and back for each host but rank 0's.
    """
    rank, node = private.rank, hosts.node(private.rank)
    own = Measurement(time.monotonic_ns(), time.monotonic_ns(), 0, 0)
    if rank == 0:
        for other in range(hosts.node_count):
            if other != hosts.node(0):
                yield from _answer(private, hosts.leader(other))
    elif node != hosts.node(0) and rank == hosts.leader(node):
        own = yield from _ask(private)
    table = yield from gathered(private, np.array(own, np.int64))
    return Measurement(*table[hosts.leader(node)].tolist())


def _ask(private: MPI.Intracomm) -> Generator[None, None, Measurement]:
    word, answer = np.zeros(1, np.int64), np.zeros(1, np.int64)
    begun, best = time.monotonic_ns(), (2**62, 0)
    for _ in range(ROUNDS):
        receive = private.Irecv(answer, 0, CHANNEL)
        begin = time.monotonic_ns()
        send = private.Isend(word, 0, CHANNEL)
        yield from _until(receive)
        end = time.monotonic_ns()
        yield from _until(send)
        best = min(best, (end - begin, int(answer[0]) - (begin + end) // 2))
    return Measurement(begun, time.monotonic_ns(), best[1], -(-best[0] // 2))


def _answer(private: MPI.Intracomm, leader: int) -> Generator[None, None, None]:
    word, now = np.zeros(1, np.int64), np.zeros(1, np.int64)
    for _ in range(ROUNDS):
        yield from _until(private.Irecv(word, leader, CHANNEL))
        now[0] = time.monotonic_ns()
        yield from _until(private.Isend(now, leader, CHANNEL))


def _until(request: MPI.Request) -> Generator[None, None, None]:
    begin = time.monotonic()
    while not request.Test():
        if time.monotonic() - begin < PATIENCE_S:
            os.sched_yield()
        else:
            yield None
