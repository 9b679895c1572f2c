"""Calls that are made again without Python: the same results, errors and counts as before, at little cost."""

from __future__ import annotations

import gc
import os
import sys
import time
from collections.abc import Callable
from types import FrameType
from typing import Any

import numpy as np
import pytest
from mpi4py import MPI

import hpccoll
from hpccoll import _native
from hpccoll.errors import AbortedError, CollectiveTimeoutError, MismatchError, UsageError
from tests.collectives.conftest import Make
from tests.support.layouts import layouts, on_layouts
from tests.support.oracle import BOOL, COLLECTIVES, NUMBERS, Attempt, Job, operators

needs_engine = pytest.mark.skipif(bool(_native.reason()), reason=_native.reason())
COUNTS = (1, 400, 70_000)  # by one slot, by one part, by several
SEVERAL = layouts({"": (2, 3), "1+1": (2,), "2+1": (3,), "1+1+1": (3,), "2+2": (4,), "cyclic:2+2": (4,)})


def made_in_python(comm: hpccoll.Communicator, call: Callable[[], object]) -> bool:
    """Whether a call went the long way, which counts it in the context."""
    context = comm._used()
    before = sum(context.tally.values())
    call()
    return sum(context.tally.values()) > before


def again(comm: hpccoll.Communicator, job: Job, times: int = 4) -> Attempt:
    """Make a call several times in the same buffers, each with other data."""
    attempt = Attempt(comm, job)
    for salt in range(times):
        attempt.renew(salt)
        attempt.call()
        attempt.check()
    return attempt


@layouts({"": (1, 2, 3), "1+1": (2,), "2+1": (3,), "2+2": (4,)})
@pytest.mark.parametrize("collective", COLLECTIVES)
def test_every_collective_again(communicator: Make, layout: str, collective: str) -> None:
    comm = communicator(layout=layout)
    before = comm.tally()
    for count in COUNTS:
        for root in {0, comm.size - 1}:
            again(comm, Job(collective, count, root=root))
            again(comm, Job(collective, count, root=root, in_place=True))
    made = comm.tally() - before
    roots = len({0, comm.size - 1})
    assert sum(made.values()) == len(COUNTS) * roots * 8
    assert {name for name, _ in made} == {collective}


@on_layouts(1, 2, 3)
def test_barriers(communicator: Make, layout: str) -> None:
    comm = communicator(layout=layout)
    before = comm.tally()
    for _ in range(10):
        comm.Barrier()
    assert comm.tally() - before == {("barrier", "one_shot"): 10}


@needs_engine
@layouts({"": (1, 2, 3), "1+1": (2,), "2+1": (3,), "1+3": (4,)})
@pytest.mark.parametrize("count", [1, 7, 400, 5000, 70_000])
@pytest.mark.parametrize("collective", COLLECTIVES)
def test_the_second_call_is_known(communicator: Make, layout: str, collective: str, count: int) -> None:
    comm = communicator(layout=layout, small_bytes=1024)
    if {"flat"} == {comm.explain(collective, 8 * count * comm.size).plan} and comm.node_count > 1:
        pytest.skip("MPI's own call is the plan")
    attempt = again(comm, Job(collective, count, root=comm.size - 1), 2)
    MPI.COMM_WORLD.Barrier()
    # A rank that has to wait for long goes on in Python; not in each of several calls.
    long_ways = sum(made_in_python(comm, attempt.call) for _ in range(20))
    assert long_ways < 20 or comm.size > 2  # more ranks may have to wait for cores
    attempt.check()


@layouts({"": (2, 3), "1+1": (2,), "2+2": (4,)})
@pytest.mark.parametrize("dtype", [BOOL, *NUMBERS], ids=str)
def test_every_operator_and_dtype_again(communicator: Make, layout: str, dtype: np.dtype[Any]) -> None:
    comm = communicator(layout=layout)
    for op in operators(dtype):
        for count in (1, 5, 3000):
            again(comm, Job("allreduce", count, dtype, op), 3)
            again(comm, Job("scan", count, dtype, op), 3)


@needs_engine
@SEVERAL
def test_plans_that_are_asked_for(communicator: Make, layout: str) -> None:
    """Each is known for itself, inside its block only."""
    comm = communicator(layout=layout)
    count = 3000
    plans = [name for name in comm.algorithms("allreduce") if name not in ("one_shot", "flat")]
    attempt = again(comm, Job("allreduce", count))
    for turn in range(3):
        for name in plans:
            before = comm.tally()
            with comm.forced(name):
                for salt in range(3):
                    attempt.renew(salt + turn)
                    attempt.call()
                    attempt.check()
            assert comm.tally() - before == {("allreduce", name): 3}
        before = comm.tally()
        attempt.call()
        chosen = comm.explain("allreduce", 8 * count, dtype="int64").plan
        assert comm.tally() - before == {("allreduce", chosen): 1}
    if comm.size == 2:  # more would wait for cores, and go on in Python
        MPI.COMM_WORLD.Barrier()
        with comm.forced(plans[0]):
            assert sum(made_in_python(comm, attempt.call) for _ in range(20)) < 20


@layouts({"": (2, 3), "2+1": (3,), "cyclic:2+2": (4,)})
@pytest.mark.parametrize("collective", COLLECTIVES)
def test_every_plan_again_in_place(communicator: Make, layout: str, collective: str) -> None:
    """Plans that are not made to read and write the same array do not get it."""
    comm = communicator(layout=layout)
    for name in comm.algorithms(collective):
        with comm.forced(name):
            for count in (3, 2000):
                again(comm, Job(collective, count, in_place=True))
                again(comm, Job(collective, count))


@SEVERAL
def test_ranks_that_come_another_way(communicator: Make, layout: str) -> None:
    """One rank's arrays are strided, so that it never takes the short way: both ways are one protocol."""
    comm = communicator(layout=layout)
    for count in (3, 3000, 70_000):
        for turn in range(5):
            wide = np.full((count, 2), comm.rank + turn, np.int64)
            give = wide[:, 0] if turn % comm.size == comm.rank else wide[:, 0].copy()
            take = np.zeros_like(give)
            comm.Allreduce(give, take)
            assert (take == sum(rank + turn for rank in range(comm.size))).all()


@SEVERAL
@pytest.mark.parametrize("count", [3, 70_000])
def test_a_rank_that_comes_late(communicator: Make, layout: str, count: int) -> None:
    """Who waits for longer than a moment goes on in Python."""
    comm = communicator(layout=layout)
    attempt = again(comm, Job("allreduce", count), 2)
    for late in range(comm.size):
        if comm.rank == late:
            time.sleep(0.03)
        attempt.call()
        attempt.check()


@SEVERAL
@pytest.mark.parametrize("count", [3, 5000])
def test_ranks_that_call_different_things(communicator: Make, layout: str, count: int) -> None:
    comm = communicator(layout=layout)
    again(comm, Job("allreduce", count))
    again(comm, Job("allreduce", count + 1))
    again(comm, Job("allreduce", count, op="MAX"))
    mine = count + (comm.rank == comm.size - 1)
    give, take = np.ones(mine, np.int64), np.zeros(mine, np.int64)
    with pytest.raises(MismatchError, match=rf"count: {count} on rank.*{count + 1} on rank {comm.size - 1}"):
        comm.Allreduce(give, take)
    assert not take.any()
    with pytest.raises(MismatchError, match="operator: "):
        comm.Allreduce(np.ones(count, np.int64), take[:count], MPI.SUM if comm.rank else MPI.MAX)
    again(comm, Job("allreduce", count))


@SEVERAL
@pytest.mark.parametrize("count", [3, 5000])
def test_wrong_arguments_on_one_rank(communicator: Make, layout: str, count: int) -> None:
    """Known calls meet a refused one; what the key of a call does not say is looked at each time."""
    comm = communicator(layout=layout)
    attempt = again(comm, Job("allreduce", count))
    give, take = (array.copy() for array in attempt.arguments[:2])
    last = comm.rank == comm.size - 1
    frozen = take.copy()
    frozen.setflags(write=False)
    with pytest.raises(UsageError, match="recvbuf is read-only"):
        comm.Allreduce(give, frozen if last else take)
    both = np.ones(count + 1, np.int64)
    with pytest.raises(UsageError, match="overlap in part"):
        comm.Allreduce(*((both[:-1], both[1:]) if last else (give, take)))
    comm.Allreduce(*((both[:-1], both[:-1]) if last else (give, take)))  # the same memory: in place
    attempt.call()
    attempt.check()


@pytest.mark.ranks(2)
@pytest.mark.parametrize("count", [3, 70_000])
def test_a_rank_that_does_not_come(world: MPI.Intracomm, count: int) -> None:
    comm = hpccoll.Communicator(world, timeout_s=0.5)
    again(comm, Job("allreduce", count))
    attempt = Attempt(comm, Job("allreduce", count))
    if comm.rank == 0:
        with pytest.raises(CollectiveTimeoutError, match="rank 1 did not call it"):
            attempt.call()
    world.Barrier()
    for _ in range(2):
        with pytest.raises(AbortedError, match=r"rank 0 gave up|is broken since"):
            attempt.call()
    comm.close()


@layouts({"": (2,), "1+1": (2,), "2+1": (3,)})
def test_beside_started_calls(communicator: Make, layout: str) -> None:
    """While a started call is under way, calls agree in their order."""
    comm = communicator(layout=layout)
    known = again(comm, Job("allreduce", 5))
    started = Attempt(comm, Job("allreduce", 70_000, salt=3))
    for salt in range(20):
        request = started.start()
        known.renew(salt)
        known.call()
        known.check()
        request.Wait()
        started.check()


@pytest.mark.ranks(2)
def test_a_forked_child_knows_no_call(communicator: Make) -> None:
    comm = communicator()
    attempt = again(comm, Job("allreduce", 5))
    child = os.fork()
    if child == 0:
        try:
            attempt.call()
        except UsageError as error:
            os._exit(0 if "forked child" in str(error) else 1)
        os._exit(2)
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0
    attempt.call()
    attempt.check()


@pytest.mark.ranks(2)
def test_after_close(world: MPI.Intracomm) -> None:
    comm = hpccoll.Communicator(world)
    attempt = again(comm, Job("allreduce", 5))
    comm.close()
    with pytest.raises(UsageError, match="is closed"):
        attempt.call()


@layouts({"": (2,), "1+1": (2,), "2+1": (3,)})
def test_shared_arrays_come_and_go(communicator: Make, layout: str) -> None:
    """Calls known from before see memory that is made later, and not what is gone."""
    comm = communicator(layout=layout)
    count = 50_000
    again(comm, Job("allreduce", count))
    for turn in range(6):
        give, take = comm.empty(count, np.int64), comm.empty(count, np.int64)
        give[...] = comm.rank + turn
        for one, other in ((give, take), (give.copy(), take), (give, take.copy())):
            comm.Allreduce(one, other)
            assert (other == sum(rank + turn for rank in range(comm.size))).all()
        del give, take, one, other


def bytecodes(call: Callable[[], object]) -> int:
    """How many instructions of Python a call takes, its own frame left out."""
    count = 0

    def local(frame: FrameType, event: str, argument: object) -> Any:
        nonlocal count
        count += event == "opcode"
        return local

    def enter(frame: FrameType, event: str, argument: object) -> Any:
        frame.f_trace_opcodes = True
        return local

    before = sys.gettrace()
    sys.settrace(enter)
    try:
        call()
    finally:
        sys.settrace(before)
    return count


@layouts({"1+1": (2,), "2+1": (3,)})
def test_a_rank_of_another_node_that_does_not_come(world: MPI.Intracomm, layout: str) -> None:
    comm = hpccoll.Communicator(world, timeout_s=0.5, layout=layout)
    last = comm.size - 1
    again(comm, Job("allreduce", 3))
    attempt = Attempt(comm, Job("allreduce", 3))
    if comm.rank != last:
        with pytest.raises((CollectiveTimeoutError, AbortedError), match=r"is not complete|gave up"):
            attempt.call()
    world.Barrier()
    comm._let_go()


@needs_engine
@layouts({"1+1": (2,), "2+2": (4,)})
@pytest.mark.parametrize("wire", ["", "bfloat16"])
def test_long_calls_between_nodes(communicator: Make, layout: str, wire: str) -> None:
    """With scratch memory; some are handed on to Python in the middle."""
    comm = communicator(layout=layout, wire_dtype=wire)
    for turn in range(12):
        for count in (9000, 40_000, 300_000):
            give = np.full(count, comm.rank + turn, np.float32)
            take = np.zeros_like(give)
            if turn % 4 == 3 and comm.rank == turn % comm.size:
                time.sleep(0.01)
            comm.Allreduce(give, take)
            assert (take == sum(rank + turn for rank in range(comm.size))).all()


@needs_engine
@pytest.mark.ranks(1)
@pytest.mark.parametrize("count", [2, 100_000])
def test_what_a_known_call_costs_in_python(communicator: Make, count: int) -> None:
    """Instructions and memory of a repeated call, so that they do not creep back."""
    comm = communicator()
    give, take = np.ones(count, np.float32), np.zeros(count, np.float32)
    allreduce = comm.Allreduce
    for _ in range(3):
        allreduce(give, take)

    def call() -> None:
        allreduce(give, take)

    call()  # the recorder notes code that calls when it sees it first
    assert 0 < bytecodes(call) <= 90
    gc.collect()
    gc.disable()
    try:
        allreduce(give, take)
        before = sys.getallocatedblocks()
        for _ in range(1000):
            allreduce(give, take)
        assert sys.getallocatedblocks() - before < 10
        assert gc.get_count()[0] < 700  # no objects that it would have to look at
    finally:
        gc.enable()
