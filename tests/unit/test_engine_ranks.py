"""The engine between ranks: every plan, beside the Python executor; messages, MPI's errors, progress."""

from __future__ import annotations

import threading
import time
from collections.abc import Generator, Iterator

import numpy as np
import pytest
from mpi4py import MPI

from hpccoll import _native
from hpccoll.memory.areas import Areas
from hpccoll.memory.flags import open_flags
from hpccoll.memory.segments import Segment
from hpccoll.memory.shared import open_shared
from hpccoll.ops.table import arithmetic, operator_of
from hpccoll.plans.lower import lower
from hpccoll.plans.program import Memory, Place, Program, Receive, Send
from hpccoll.plans.spans import length
from hpccoll.plans.steps import Plan
from hpccoll.runtime import engine
from hpccoll.runtime.executor import Execution, Schedule
from hpccoll.topology.layout import Layout
from hpccoll.transports.base import Array
from hpccoll.transports.mpi import MpiNetwork
from hpccoll.transports.shm import ShmGroup
from hpccoll.transports.slots import Slots, staging_layout
from tests.plans.cases import COLLECTIVES, plans, text_of
from tests.support.layouts import layouts

pytestmark = pytest.mark.skipif(not _native.available(), reason=f"no extension: {_native.reason()}")

LIMIT_S = 20.0
SLOT_BYTES = 320
SUM = arithmetic(operator_of(MPI.SUM), np.dtype(np.float32))
KERNEL = (SUM.combine, SUM.working, SUM.kernel)


class Transports:
    """One rank's transports on a layout: by the engine or by Python."""

    def __init__(self, comm: MPI.Intracomm, layout: Layout, by_engine: bool) -> None:
        self.layout, self.rank, self.by_engine = layout, comm.rank, by_engine
        members = layout.local_size(comm.rank)
        head, total = staging_layout(members, SLOT_BYTES)
        self.segment = finished(open_shared(comm, layout, total, "/dev/shm", "test"))
        memory = np.zeros(total // 8, np.uint64).view(np.uint8)
        if self.segment is not None:
            memory = self.segment.array(np.uint8, 0, total)
        data, me = memory[head:].reshape(2, members, SLOT_BYTES), layout.local_rank(comm.rank)
        self.network = engine.open_network(comm, 2) if by_engine else MpiNetwork(comm)
        self.group = (
            engine.NodeGroup(me, members, memory[:head], data)
            if by_engine
            else ShmGroup(Slots(me, members, open_flags(memory[:head]), memory[:head], data, Areas(me)))
        )
        self.calls = 0

    def run(self, plan: Plan, given: Array) -> Array:
        """The rank's results; `given`: what it puts in."""
        schedule = Schedule(lower(plan, self.rank))
        result = np.full(length(plan.collective.output(self.rank)), -77, given.dtype)
        memory = (given, result, np.empty(schedule.program.scratch, given.dtype))
        base = 64 + self.calls % 64 * 64
        self.calls += 1
        if self.by_engine:
            execution: Execution | engine.NativeExecution = engine.NativeExecution(
                schedule, memory, self.network, self.group, engine.kernel(*KERNEL), base, 64
            )
        else:
            execution = Execution(
                schedule, memory, self.network, lambda call: self.group, SUM.combine, lambda s: base + s % 64
            )
        walk(execution)
        return result

    def close(self) -> None:
        del self.group
        if self.segment is not None:
            self.segment.close()


def finished(stages: Generator[None, None, Segment | None]) -> Segment | None:
    while True:
        try:
            next(stages)
        except StopIteration as end:
            return end.value


def walk(execution: Execution | engine.NativeExecution) -> None:
    if isinstance(execution, engine.NativeExecution):
        assert execution.run(LIMIT_S), execution.waiting_for()
    end = time.monotonic() + LIMIT_S
    while not execution.advance():
        assert time.monotonic() < end, execution.waiting_for()
        time.sleep(0)


@pytest.fixture
def private(world: MPI.Intracomm) -> Iterator[MPI.Intracomm]:
    comm = world.Dup()
    yield comm
    comm.Free()


# Plans


@layouts({"": (2, 3), "1+1": (2,), "2+1": (3,), "3+1": (4,), "cyclic:2+2": (4,)})
def test_every_plan_gives_what_the_python_executor_gives(private: MPI.Intracomm, layout: str) -> None:
    """Bit by bit; also where every other rank is on the Python executor."""
    where = Layout.parse(layout or str(private.size))
    ways = [Transports(private, where, by_engine) for by_engine in (True, private.rank % 2 == 0, False)]
    seen = 0
    for collective in COLLECTIVES:
        for number, plan in enumerate(plans(collective, where, (11,), (private.size - 1,), (3,))):
            if not engine.usable(Schedule(lower(plan, private.rank)), where.node_count == 1):
                assert plan.name == "flat"
                continue
            chance = np.random.default_rng((number, private.rank))
            given = chance.normal(size=length(plan.collective.input(private.rank))).astype(np.float32)
            results = [way.run(plan, given) for way in ways]
            for result in results[:2]:
                assert result.tobytes() == results[2].tobytes(), f"rank {private.rank}: {text_of(plan)}"
            seen += 1
    assert seen > 20
    for way in ways:
        way.close()


# Messages


class Messages:
    """Programs of messages between ranks of one communicator."""

    def __init__(self, comm: MPI.Intracomm) -> None:
        self.network = engine.open_network(comm, 2)

    def execution(
        self, memory: tuple[Array, Array], *operations: Send | Receive, channel: int = 64
    ) -> engine.NativeExecution:
        schedule = Schedule(Program(0, operations, 0))
        given, taken = memory
        return engine.NativeExecution(
            schedule, (given, taken, taken[:0]), self.network, None, None, channel, 64
        )


def send(peer: int, start: int, stop: int, previous: int = -1) -> Send:
    return Send(0, (), peer, Place(Memory.INPUT, start, stop), previous)


def receive(peer: int, start: int, stop: int, previous: int = -1) -> Receive:
    return Receive(0, (), peer, Place(Memory.OUTPUT, start, stop), previous)


@pytest.mark.ranks(2)
def test_messages_of_one_channel_keep_their_order(private: MPI.Intracomm) -> None:
    count, peer = 500, 1 - private.rank
    given = np.arange(count, dtype=np.int64) + 1000 * private.rank
    got = np.full(count, -1)
    sends = [send(peer, i, i + 1, i - 1 if i else -1) for i in range(count)]
    receives = [receive(peer, i, i + 1, count + i - 1 if i else -1) for i in range(count)]
    walk(Messages(private).execution((given, got), *sends, *receives))
    assert got.tolist() == (np.arange(count) + 1000 * peer).tolist()


@pytest.mark.ranks(2)
@pytest.mark.parametrize("nbytes", [0, 1, 1000, 3_000_001])
def test_messages_of_any_length(private: MPI.Intracomm, nbytes: int) -> None:
    peer = 1 - private.rank
    given = (np.arange(nbytes) * 7 % 251 + private.rank).astype(np.uint8)
    got = np.zeros(nbytes, np.uint8)
    walk(Messages(private).execution((given, got), send(peer, 0, nbytes), receive(peer, 0, nbytes)))
    assert (got == np.arange(nbytes) * 7 % 251 + peer).all()


@pytest.mark.ranks(2)
def test_a_message_that_is_too_long_raises_what_mpi_says(private: MPI.Intracomm) -> None:
    memory = np.zeros(64, np.uint8), np.zeros(64, np.uint8)
    messages = Messages(private)
    if private.rank == 0:
        walk(messages.execution(memory, send(1, 0, 64)))
        return
    execution = messages.execution(memory, receive(0, 0, 8))
    for call in (lambda: execution.run(LIMIT_S), execution.advance):
        with pytest.raises(MPI.Exception) as caught:
            call()
        assert caught.value.Get_error_class() == MPI.ERR_TRUNCATE
    assert execution.left == 1


@pytest.mark.ranks(1)
def test_a_rank_that_is_not_there_raises_what_mpi_says(private: MPI.Intracomm) -> None:
    memory = np.zeros(8, np.uint8), np.zeros(8, np.uint8)
    with pytest.raises(MPI.Exception) as caught:
        Messages(private).execution(memory, send(5, 0, 8)).advance()
    assert caught.value.Get_error_class() == MPI.ERR_RANK


@pytest.mark.ranks(1)
def test_a_message_longer_than_mpi_counts_is_refused(private: MPI.Intracomm) -> None:
    memory = np.zeros(1, np.uint8)
    with pytest.raises(ValueError, match="longer than 2 GiB"):
        Messages(private).execution((memory, memory), send(0, 0, 2**31))


@pytest.mark.ranks(2)
def test_a_call_that_was_given_up_keeps_its_memory(private: MPI.Intracomm) -> None:
    """MPI may write it at any time."""
    got = np.zeros(1000, np.uint8)
    if private.rank == 1:
        execution = Messages(private).execution((got[:0], got), receive(0, 0, 1000))
        assert not execution.run(0.01)
        del execution
    private.Barrier()
    if private.rank == 0:
        private.Send([np.full(1000, 7, np.uint8), MPI.BYTE], 1, 64)
    else:
        end = time.monotonic() + LIMIT_S
        while not (got == 7).all():
            assert time.monotonic() < end
            private.Iprobe(0, 3)


# Progress


@pytest.mark.ranks(2)
def test_messages_move_on_while_python_computes(private: MPI.Intracomm) -> None:
    """A ring of long messages in many steps, driven by a thread, while no other line of Python calls MPI."""
    if MPI.Query_thread() < MPI.THREAD_MULTIPLE:
        pytest.skip("MPI was not started for several threads")
    peer, parts, size = 1 - private.rank, 20, 300_000
    operations: list[Send | Receive] = []
    for part in range(parts):  # what is sent is what was received just before
        before, begin = (Memory.OUTPUT, (part - 1) * size) if part else (Memory.INPUT, 0)
        after = (2 * part - 1,) if part else ()
        target = Place(Memory.OUTPUT, part * size, (part + 1) * size)
        operations.append(Send(part, after, peer, Place(before, begin, begin + size), -1))
        operations.append(Receive(part, after, peer, target, -1))
    given = np.full(size, private.rank, np.uint8)
    got = np.full(parts * size, 9, np.uint8)
    execution = Messages(private).execution((given, got), *operations)
    worker = threading.Thread(target=execution.run, args=(LIMIT_S,))
    private.Barrier()
    worker.start()
    turns, end = 0, time.monotonic() + LIMIT_S
    while not execution.complete and time.monotonic() < end:
        turns += sum(range(1000)) > 0
    complete = execution.complete
    worker.join()
    assert complete, execution.waiting_for()
    assert turns
    for part in range(parts):
        wanted = peer if part % 2 == 0 else private.rank
        assert (got[part * size : (part + 1) * size] == wanted).all(), part


@pytest.mark.ranks(2)
def test_a_wait_in_shared_memory_gives_mpi_a_turn(private: MPI.Intracomm) -> None:
    """Rank 0 first ends a long send of its own, for which rank 1, waiting in a call, must let MPI move on."""
    layout = Layout.parse("2")
    way = Transports(private, layout, by_engine=True)
    sent, got = np.ones(4_000_000, np.uint8), np.zeros(4_000_000, np.uint8)
    plan = next(plans("allreduce", layout, (23,)))
    assert plan.name == "flat"
    if private.rank == 0:
        private.Send([sent, MPI.BYTE], 1, 5)
        result = way.run(plan, np.ones(23, np.float32))
    else:
        request = private.Irecv([got, MPI.BYTE], 0, 5)
        result = way.run(plan, np.ones(23, np.float32))
        request.Wait()
        assert (got == 1).all()
    assert (result == 2).all()
    way.close()
