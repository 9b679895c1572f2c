"""Groups, streams, graphs: what runs when."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
from cuda.bindings import driver
from cuda.core import Device
from nccl import core

from tests.emulation.nccl_programs.support import (
    RANK,
    SIZE,
    WORLD,
    Array,
    checked,
    communicator,
    open_device,
    opened,
    pending,
    program,
    ramp,
    same,
    total,
)


@program
def groups() -> None:
    """Messages larger than a FIFO, collectives in another order on each rank, nested groups."""
    count = 50000
    with opened() as (comm, stream):
        after, before = (RANK + 1) % SIZE, (RANK - 1) % SIZE
        send, recv = Array(ramp(count, RANK)), Array(np.zeros(count))
        summed = Array(np.zeros(count))
        with core.group():
            calls: list[Callable[[], None]] = [
                lambda: comm.send(send, after, stream=stream),
                lambda: comm.recv(recv, before, stream=stream),
                lambda: comm.allreduce(send, summed, core.SUM, stream=stream),
            ]
            for call in calls[RANK % 3 :] + calls[: RANK % 3]:
                with core.group():
                    call()
        stream.sync()
        same(recv.get(), ramp(count, before), "ring")
        same(summed.get(), total(count), "all-reduce in the group")

        sizes = [[1 + 3 * source + target for target in range(SIZE)] for source in range(SIZE)]
        out = [Array(np.full(sizes[RANK][peer], 10 * RANK + peer, "u1")) for peer in range(SIZE)]
        back = [Array(np.zeros(sizes[peer][RANK], "u1")) for peer in range(SIZE)]
        with core.group():
            for peer in range(SIZE):
                comm.recv(back[peer], peer, stream=stream)
                comm.send(out[peer], peer, stream=stream)
        stream.sync()
        for peer in range(SIZE):
            same(back[peer].get(), np.full(sizes[peer][RANK], 10 * peer + RANK), "messages of odd lengths")

        first, second = Array(np.zeros(3)), Array(np.zeros(3))
        with core.group():
            for value, into in ((1.0, first), (2.0, second)):
                comm.send(Array(np.full(3, value + RANK)), after, stream=stream)
                comm.recv(into, before, stream=stream)
        stream.sync()
        same(first.get(), np.full(3, 1.0 + before), "two messages to one rank keep their order")
        same(second.get(), np.full(3, 2.0 + before))


@program
def several_streams() -> None:
    """A communicator's operations keep their order across streams, and a group joins its streams."""
    with opened() as (comm, stream):
        other = Device(RANK).create_stream()
        a, b, c = (Array(ramp(1000, RANK)) for _ in range(3))
        for _ in range(5):
            comm.allreduce(a, b, core.SUM, stream=stream)
            comm.allreduce(b, c, core.MAX, stream=other)  # sees b only if it comes after
            comm.allreduce(c, a, core.MIN, stream=stream)
        other.sync()
        stream.sync()
        same(c.get(), total(1000) * SIZE**4, "streams of one communicator")
        fresh = Array(5 * ramp(1000, RANK))
        checked(driver.cuMemcpyDtoDAsync(a.address, fresh.address, 8000, int(other.handle)))
        for waited in (stream, other):  # two operations on two streams, but one group: either stream has both
            b.put(np.zeros(1000))
            c.put(np.zeros(1000))
            with core.group():
                comm.allreduce(a, b, core.MAX, stream=stream)
                comm.allreduce(a, c, core.MAX, stream=other)
            waited.sync()
            same(b.get(), 5 * ramp(1000, SIZE - 1))
            same(c.get(), 5 * ramp(1000, SIZE - 1))
        stream.sync()


@program
def lone_send() -> None:
    """Every rank sends before it receives, outside a group: it hangs, with the connections made as well."""
    with opened() as (comm, stream):
        peer = 1 - RANK
        a, b = Array(np.zeros(100000)), Array(np.zeros(100000))
        with core.group():
            comm.send(a, peer, stream=stream)
            comm.recv(b, peer, stream=stream)
        stream.sync()
        comm.send(a, peer, stream=stream)
        comm.recv(b, peer, stream=stream)
        assert pending(stream, 1.0)
        WORLD.Barrier()
        comm.abort()
        stream.sync()


@program
def capture() -> None:
    """An all-reduce in a graph: nothing runs at the capture, and each launch works on what is there then."""
    with opened() as (comm, stream):
        handle = int(stream.handle)
        send, recv = Array(ramp(1000, RANK)), Array(np.zeros(1000))
        comm.allreduce(send, recv, core.SUM, stream=stream)
        stream.sync()
        recv.put(np.zeros(1000))
        checked(
            driver.cuStreamBeginCapture(
                handle, driver.CUstreamCaptureMode.CU_STREAM_CAPTURE_MODE_THREAD_LOCAL
            )
        )
        comm.allreduce(send, recv, core.SUM, stream=stream)
        comm.allreduce(recv, recv, core.MAX, stream=stream)
        graph = checked(driver.cuStreamEndCapture(handle))
        stream.sync()
        same(recv.get(), np.zeros(1000), "nothing ran")
        run = checked(driver.cuGraphInstantiate(graph, 0))
        for factor in (1, 2, 3):
            send.put(factor * ramp(1000, RANK))
            checked(driver.cuGraphLaunch(run, handle))
            stream.sync()
            same(recv.get(), factor * total(1000), "a launch")
        comm.allreduce(send, recv, core.MAX, stream=stream)
        stream.sync()
        same(recv.get(), 3 * ramp(1000, SIZE - 1), "and without the graph")
        checked(driver.cuGraphExecDestroy(run))
        checked(driver.cuGraphDestroy(graph))


@program
def several_in_turn() -> None:
    """Many operations, no waiting between them; communicators come and go."""
    stream = open_device()
    for _ in range(3):
        comm = communicator()
        values = Array(np.full(100, 1.0))
        for _ in range(20):
            comm.allreduce(values, values, core.MAX, stream=stream)
        comm.allreduce(values, values, core.SUM, stream=stream)
        comm.destroy()  # waits for what is in the stream
        same(values.get(), np.full(100, SIZE))
