"""A forked child: it is told that it cannot use its parent's communicators, and takes nothing away from it.

As reported in horovod/horovod#2898, pytorch/pytorch#13787 and NVIDIA-NeMo/Megatron-Bridge#5006: children
that load data crashed, or later calls of the parent hung.
"""

from __future__ import annotations

import gc
import multiprocessing
import os
import signal
import time
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from mpi4py import MPI

import hpccoll
from tests.collectives.conftest import Make
from tests.support.layouts import layouts
from tests.support.oracle import COLLECTIVES, Attempt, Job, perform

LAYOUTS = layouts({"": (1, 2), "1+1": (2,), "2+1": (3,)})
LONG = 20_000
LIMIT_S = 20.0
WENT_WELL, NOT_REFUSED, OTHER_ERROR = 0, 1, 2


def in_child(*actions: Callable[[], object]) -> list[int]:
    """What each action comes to in a forked child: whether it was refused with a word of the fork."""
    reader, writer = os.pipe()
    child = os.fork()
    if child == 0:
        try:
            for action in actions:
                os.write(writer, bytes([_outcome(action)]))
            gc.collect()
        finally:
            os._exit(0)
    os.close(writer)
    end = time.monotonic() + LIMIT_S
    while os.waitpid(child, os.WNOHANG) == (0, 0):
        if time.monotonic() > end:
            os.kill(child, signal.SIGKILL)
            os.waitpid(child, 0)
            break
        time.sleep(0.01)
    outcomes = list(os.read(reader, 10_000))
    os.close(reader)
    return outcomes


def _outcome(action: Callable[[], object]) -> int:
    try:
        action()
    except hpccoll.UsageError as error:
        return WENT_WELL if "fork" in str(error) else OTHER_ERROR
    except BaseException:
        return OTHER_ERROR
    return NOT_REFUSED


def parents_calls_are_right(comm: Any) -> None:
    for count in (3, LONG):
        perform(comm, Job("allreduce", count))
    attempt = Attempt(comm, Job("alltoall", 900))
    attempt.start().Wait()
    attempt.check()


@LAYOUTS
def test_every_call_is_refused_in_the_child(communicator: Make, layout: str) -> None:
    comm = communicator(layout=layout)
    parents_calls_are_right(comm)
    actions: list[Callable[[], object]] = []
    for count in (3, LONG):
        for name in COLLECTIVES:
            attempt = Attempt(comm, Job(name, count))
            actions += [attempt.call, attempt.start, attempt.prepare]
    actions += [comm.Barrier, comm.Ibarrier, comm.Barrier_init]
    assert in_child(*actions) == [WENT_WELL] * len(actions)
    parents_calls_are_right(comm)


@LAYOUTS
def test_requests_of_the_parent_are_refused_in_the_child(communicator: Make, layout: str) -> None:
    comm = communicator(layout=layout)
    parents_calls_are_right(comm)
    kept = Attempt(comm, Job("allreduce", 5))
    persistent = kept.prepare()
    attempts = [Attempt(comm, Job("allreduce", count)) for count in (3, LONG)]
    if comm.rank == comm.size - 1:
        time.sleep(0.2)
    requests = [attempt.start() for attempt in attempts]
    # The child is forked while they are under way on all ranks but the last.
    actions = [persistent.Start]
    if comm.size > 1 and comm.rank != comm.size - 1:
        actions += [requests[0].Wait, requests[1].Wait]
    outcomes = in_child(*actions)
    for attempt, request in zip(attempts, requests, strict=True):
        request.Wait()
        attempt.check()
    persistent.Start()
    persistent.Wait()
    kept.check()
    persistent.Free()
    assert outcomes == [WENT_WELL] * len(actions), f"rank {comm.rank}"


@LAYOUTS
def test_the_end_of_a_child_takes_nothing_away(world: MPI.Intracomm, layout: str) -> None:
    comm = hpccoll.Communicator(world, layout=layout)
    parents_calls_are_right(comm)
    assert in_child(comm.close) in ([WENT_WELL], [NOT_REFUSED])  # it may close its copy
    parents_calls_are_right(comm)
    for _ in range(3):
        child = multiprocessing.get_context("fork").Process(target=np.sum, args=(np.ones(1000),))
        child.start()
        parents_calls_are_right(comm)
        child.join(LIMIT_S)
        assert child.exitcode == 0
    parents_calls_are_right(comm)
    comm.close()


@pytest.mark.ranks(2)
def test_a_child_computes_while_the_parent_calls(communicator: Make) -> None:
    """A pool of workers that load data, as training programs have."""
    comm = communicator()
    parents_calls_are_right(comm)
    with multiprocessing.get_context("fork").Pool(2) as pool:
        results = [pool.apply_async(sum, ([k, k],)) for k in range(20)]
        for _ in range(20):
            perform(comm, Job("allreduce", 3000))
        assert [result.get(LIMIT_S) for result in results] == [2 * k for k in range(20)]
        pool.close()
        pool.join()
    parents_calls_are_right(comm)


@pytest.mark.ranks(2)
def test_a_zero_copy_array_of_the_parent_outlives_the_child(communicator: Make) -> None:
    comm = communicator()
    array = comm.full((300,), comm.rank + 1.0)

    def writes_and_ends() -> None:
        array.sum()
        raise hpccoll.UsageError("read after the fork")

    assert in_child(writes_and_ends) == [WENT_WELL]
    total = comm.empty((300,), float)
    comm.Allreduce(array, total)
    assert (total == 3).all()
