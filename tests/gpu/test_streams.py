"""The order of device calls: behind what is on the caller's stream, before what comes after on it."""

from __future__ import annotations

import gc
import threading
import weakref
from typing import Any

import cupy
import numpy as np
import pytest
from mpi4py import MPI

import hpccoll
from hpccoll.arrays.device import LEGACY_STREAM
from tests.collectives.conftest import Make
from tests.gpu.memory import Mirror, captured, device_plans, make_stream, mirror, perform, synchronize
from tests.support.layouts import layouts
from tests.support.oracle import COLLECTIVES, Job

COUNT = 10_000


@layouts({"": (2,), "2+2": (4,), "3+1": (4,)})
def test_a_call_reads_what_the_stream_has_written_by_then(
    communicator: Make, layout: str, stream: int
) -> None:
    comm = communicator(layout=layout)
    send, receive = mirror(np.zeros(COUNT), stream), mirror(np.zeros(COUNT), stream)
    for name in device_plans(comm, "allreduce"):
        with comm.forced(name):
            for turn in range(5):
                send.view[...] = turn + comm.rank
                send.upload_later()
                comm.Allreduce(send, receive)
                assert (receive.download() == turn * comm.size + sum(range(comm.size))).all(), name


@layouts({"": (2,), "2+2": (4,), "3+1": (4,)})
def test_chunks_in_order(communicator: Make, layout: str, stream: int) -> None:
    comm = communicator(layout=layout, chunk_bytes=4 * 1024 * 1024)
    count = 3 * 1024 * 1024
    send, receive = mirror(np.zeros(count, "f4"), stream), mirror(np.zeros(count, "f4"), stream)
    for name in device_plans(comm, "allreduce"):
        with comm.forced(name):
            for turn in range(2):
                send.view[...] = turn + comm.rank
                send.upload_later()
                comm.Allreduce(send, receive)
                comm.Allreduce(MPI.IN_PLACE, receive)
                wanted = comm.size * (turn * comm.size + sum(range(comm.size)))
                assert (receive.download() == wanted).all(), name


@pytest.mark.ranks(2)
@pytest.mark.parametrize("default", [0, 1, 2], ids=["default", "legacy", "per thread"])
def test_the_streams_that_are_always_there(communicator: Make, device: int, default: int) -> None:
    comm = communicator()
    send, receive = mirror(np.zeros(COUNT), default), mirror(np.zeros(COUNT), default)
    for turn in range(20):
        send.view[...] = turn + comm.rank
        send.upload_later()
        comm.Allreduce(send, receive)
        assert (receive.download() == turn * comm.size + sum(range(comm.size))).all()


@layouts({"": (2,), "2+2": (4,)})
@pytest.mark.parametrize("collective", COLLECTIVES)
def test_the_first_call_of_all_is_on_the_stream_when_it_returns(
    communicator: Make, layout: str, stream: int, collective: str
) -> None:
    # NCCL may enqueue it after its own function has returned.
    for name in device_plans(communicator(layout=layout), collective):
        with hpccoll.Communicator(MPI.COMM_WORLD, layout=layout) as fresh, fresh.forced(name):
            perform(fresh, Job(collective, 1003), stream)


@layouts({"": (2,), "2+2": (4,)})
def test_a_stream_given_by_the_caller(communicator: Make, layout: str, stream: int) -> None:
    comm = communicator(layout=layout)
    other = make_stream()
    for _ in range(3):
        send, receive = mirror(np.zeros(COUNT), stream), mirror(np.zeros(COUNT), stream)
        send.view[...] = 1 + comm.rank
        send.upload_later()  # on the arrays' own stream, which the given one must follow
        comm.Allreduce(send, receive, stream=other)
        assert (receive.download(other) == sum(range(1, comm.size + 1))).all()


@layouts({"": (2,), "2+2": (4,)})
def test_a_stream_given_for_known_memory(communicator: Make, layout: str, stream: int) -> None:
    comm = communicator(layout=layout)
    other = make_stream()
    send, receive = mirror(np.zeros(COUNT), stream), mirror(np.zeros(COUNT), stream)
    for turn in range(4):
        send.view[...] = turn + comm.rank
        send.upload_later()
        comm.Allreduce(send, receive, stream=other)
        assert (receive.download(other) == turn * comm.size + sum(range(comm.size))).all()


@layouts({"": (2,), "2+2": (4,), "3+1": (4,)})
def test_a_started_call_is_behind_the_callers_stream(communicator: Make, layout: str, stream: int) -> None:
    comm = communicator(layout=layout)
    send, receive = mirror(np.zeros(COUNT), stream), mirror(np.zeros(COUNT), stream)
    for turn in range(4):
        send.view[...] = turn + comm.rank
        send.upload_later()
        comm.Iallreduce(send, receive).Wait()
        found = receive.download(comm._context.on_devices.side.own_stream)
        assert (found == turn * comm.size + sum(range(comm.size))).all()


@layouts({"": (2,), "2+2": (4,), "3+1": (4,)})
def test_a_stream_waits_for_a_started_call(communicator: Make, layout: str, stream: int) -> None:
    comm = communicator(layout=layout)
    send, receive = mirror(np.zeros(COUNT), stream), mirror(np.zeros(COUNT), stream)
    for turn in range(4):
        send.view[...] = turn + comm.rank
        send.upload()
        request = comm.Iallreduce(send, receive)
        request.block_stream(None if turn % 2 else stream)
        assert (receive.download() == turn * comm.size + sum(range(comm.size))).all()
        request.Wait()
        request.block_stream()  # complete: nothing to wait for


@layouts({"": (2,), "2+2": (4,)})
def test_calls_over_the_host_keep_the_order_too(communicator: Make, layout: str, stream: int) -> None:
    comm = communicator(layout=layout)
    send, receive = mirror(np.zeros(COUNT, "i2"), stream), mirror(np.zeros(COUNT, "i2"), stream)
    for turn in range(4):
        send.view[...] = turn + comm.rank
        send.upload_later()
        comm.Allreduce(send, receive)
        assert (receive.download() == turn * comm.size + sum(range(comm.size))).all()
    request = comm.Iallreduce(send, receive)
    request.block_stream(stream)
    request.Wait()
    assert (receive.download() == 3 * comm.size + sum(range(comm.size))).all()


@layouts({"": (2,), "2+2": (4,)})
def test_packed_arrays_keep_the_order_too(communicator: Make, layout: str, stream: int) -> None:
    comm = communicator(layout=layout)
    whole, result = np.zeros((100, 6)), np.zeros((100, 6))
    send, receive = mirror(whole, stream), mirror(result, stream)
    send.view, receive.view = send.view[:, ::2], receive.view[:, 1::2]
    for turn in range(4):
        send.view[...] = turn + comm.rank
        send.upload_later()
        comm.Allreduce(send, receive)
        assert (receive.download() == turn * comm.size + sum(range(comm.size))).all()


@layouts({"": (2,), "2+2": (4,)})
def test_several_communicators_on_two_streams(world: MPI.Intracomm, layout: str, stream: int) -> None:
    other = make_stream()
    with (
        hpccoll.Communicator(world, layout=layout) as whole,
        hpccoll.Communicator(world.Split(world.rank % 2)) as half,
        hpccoll.Communicator(world.Split(world.rank // 2), layout="") as pair,
    ):
        comms = (whole, half, pair)
        buffers = [(mirror(np.ones(64), where), mirror(np.zeros(64), where)) for where in (stream, other)]
        for turn in range(167):
            for comm in comms:
                send, receive = buffers[turn % 2]
                comm.Allreduce(send, receive)
        for (_, receive), where in zip(buffers, (stream, other), strict=True):
            synchronize(where)
            assert (receive.download() == pair.size).all()


@pytest.mark.ranks(2)
def test_what_a_graph_cannot_have(communicator: Make, stream: int) -> None:
    comm = communicator()
    send, receive = mirror(np.ones(8, "g"), stream), mirror(np.zeros(8, "g"), stream)
    comm.Allreduce(send, receive)
    with captured(stream), pytest.raises(hpccoll.UsageError, match=r"over the host.*CUDA graph"):
        comm.Allreduce(send, receive)
    comm.Allreduce(send, receive)
    assert (receive.download() == comm.size).all()


@layouts({"": (2,), "3+1": (4,), "cyclic:2+2": (4,)})
@pytest.mark.parametrize("dtype", ["i2", "f8", "c16"])
@pytest.mark.parametrize("count", [12, 30_000])
def test_what_takes_memory_in_a_graph(
    communicator: Make, layout: str, stream: int, dtype: str, count: int
) -> None:
    """Kernels, plans that pack elements, arrays with strides: the graph has the memory."""
    comm = communicator(layout=layout)
    op = MPI.MAX if dtype == "f8" else MPI.PROD

    def calls(send: Any, every: Any, scanned: Any, part: Any, moved: Any) -> None:
        for name in device_plans(comm, "allreduce"):
            with comm.forced(name):
                comm.Allreduce(send, every, op)
        comm.Exscan(send, scanned, op)
        comm.Reduce_scatter_block(every, part, op)
        for name in device_plans(comm, "alltoall"):
            with comm.forced(name):
                comm.Alltoall(every, moved)
        comm.Allreduce(MPI.IN_PLACE, every, hpccoll.AVG)

    lengths = (count, count, count // comm.size, count)
    send = Mirror(np.zeros((count, 2), dtype)[:, 0], stream)
    results = [mirror(np.zeros(length), stream, dtype) for length in lengths]
    calls(send, *results)
    synchronize(stream)
    with captured(stream) as graph:
        calls(send, *results)
    for turn in range(3):
        send.view[...] = np.random.default_rng([turn, comm.rank]).integers(1, 4, count)
        send.upload()
        graph.launch(stream)
        wanted = [np.zeros(length, dtype) for length in lengths]
        calls(np.ascontiguousarray(send.view), *wanted)
        for one, other in zip(results, wanted, strict=True):
            if comm.rank or one is not results[1]:  # what Exscan leaves as it is
                assert (one.download() == other).all()


@layouts({"": (2,), "2+2": (4,)})
def test_a_known_call_in_a_graph(communicator: Make, layout: str, stream: int) -> None:
    comm = communicator(layout=layout)
    send, receive = mirror(np.ones(64), stream), mirror(np.zeros(64), stream)
    comm.Allreduce(send, receive)
    synchronize(stream)
    with captured(stream) as graph:
        comm.Allreduce(send, receive)
    for turn in range(3):
        send.view[...] = turn + comm.rank
        send.upload()
        graph.launch(stream)
        assert (receive.download() == turn * comm.size + sum(range(comm.size))).all()


@layouts({"": (2,), "2+2": (4,)})
@pytest.mark.parametrize("dtype", ["f4", "i2"])
def test_a_given_stream_waits_for_both_arrays(
    communicator: Make, layout: str, stream: int, dtype: str
) -> None:
    comm = communicator(layout=layout)
    other, third = make_stream(), make_stream()
    for turn in range(3):
        # In the first turn the call is on a third stream, then on that of one of the arrays.
        theirs = (stream, third) if turn < 2 else (third, stream)
        send, receive = (
            mirror(np.zeros(COUNT, dtype), theirs[0]),
            mirror(np.full(COUNT, -1, dtype), theirs[1]),
        )
        send.view[...] = turn + comm.rank
        send.upload_later()
        receive.upload_later()  # what is still to be written there must not come after the result
        called_on = other if turn == 0 else stream
        comm.Allreduce(send, receive, stream=called_on)
        synchronize(called_on)
        assert (receive.download() == turn * comm.size + sum(range(comm.size))).all()


@layouts({"": (2,), "2+2": (4,)})
def test_results_of_calls_over_the_host_are_kept_until_they_are_there(
    communicator: Make, layout: str, stream: int
) -> None:
    comm = communicator(layout=layout)
    streams = [stream, make_stream(), make_stream()] * 2  # which do not wait for each other
    sends = [mirror(np.full(COUNT, turn + comm.rank, "i2"), one) for turn, one in enumerate(streams)]
    receives = [mirror(np.zeros(COUNT, "i2"), one) for one in streams]
    for send, receive in zip(sends, receives, strict=True):
        comm.Allreduce(send, receive)
    for turn, receive in enumerate(receives):
        assert (receive.download() == turn * comm.size + sum(range(comm.size))).all(), turn


@layouts({"": (2,), "2+2": (4,), "3+1": (4,)})
def test_a_persistent_call_is_enqueued_at_start(communicator: Make, layout: str, stream: int) -> None:
    comm = communicator(layout=layout)
    send, receive = mirror(np.zeros(COUNT), stream), mirror(np.zeros(COUNT), stream)
    for name in device_plans(comm, "allreduce"):
        with comm.forced(name):
            request = comm.Allreduce_init(send, receive)
            for turn in range(3):
                send.view[...] = turn + comm.rank
                send.upload_later()
                request.Start()
                assert (receive.download() == turn * comm.size + sum(range(comm.size))).all(), name
            send.view[...] = 7 + comm.rank
            send.upload_later()
            request.Start()
            request.Start()  # once more, in the order of the stream
            request.Wait()
            found = receive.download(make_stream())  # which does not wait for the other
            assert (found == 7 * comm.size + sum(range(comm.size))).all(), name
            request.Free()
            with pytest.raises(hpccoll.UsageError, match="freed"):
                request.Start()
    with hpccoll.Communicator(MPI.COMM_WORLD) as short:
        request = short.Allreduce_init(send, receive)
    with pytest.raises(hpccoll.UsageError, match="closed"):
        request.Start()


@layouts({"": (2,), "2+2": (4,)})
def test_a_persistent_call_on_a_stream_of_its_own(communicator: Make, layout: str, stream: int) -> None:
    comm = communicator(layout=layout)
    other, third = make_stream(), make_stream()
    send, receive = mirror(np.zeros(COUNT), stream), mirror(np.zeros(COUNT), stream)
    request = comm.Allreduce_init(send, receive, stream=other)
    for turn in range(3):
        send.view[...] = turn + comm.rank
        send.upload_later()
        request.Start()
        request.block_stream(third)
        assert (receive.download(third) == turn * comm.size + sum(range(comm.size))).all()


@layouts({"": (2,), "2+2": (4,)})
def test_a_persistent_call_follows_the_current_stream(communicator: Make, layout: str, stream: int) -> None:
    comm = communicator(layout=layout)
    whole, result = cupy.zeros((100, 6)), cupy.zeros(300)
    cupy.cuda.get_current_stream().synchronize()
    request = comm.Allreduce_init(whole[:, ::2], result)
    for turn in range(3):
        with cupy.cuda.Stream(non_blocking=True) as later:
            whole.fill(turn + comm.rank)
            request.Start()
            found = result.get(later)
        assert (found == turn * comm.size + sum(range(comm.size))).all()


@layouts({"": (2,), "2+2": (4,)})
def test_a_persistent_call_in_a_graph(communicator: Make, layout: str, stream: int) -> None:
    comm = communicator(layout=layout)
    send, receive = mirror(np.ones(64), stream), mirror(np.zeros(64), stream)
    for name in device_plans(comm, "allreduce"):
        with comm.forced(name):
            request = comm.Allreduce_init(send, receive)
            request.Start()  # NCCL connects at the first use
            request.Wait()
            with captured(stream) as graph:
                request.Start()
                with pytest.raises(hpccoll.UsageError, match="captured"):
                    request.Wait()
            for turn in range(3):
                send.view[...] = turn + comm.rank
                send.upload()
                graph.launch(stream)
                found = receive.download()
                assert (found == turn * comm.size + sum(range(comm.size))).all(), name


@layouts({"": (2,)})
@pytest.mark.parametrize("wait", ["all", "any", "some", "test"])
def test_waits_for_several_requests(communicator: Make, layout: str, stream: int, wait: str) -> None:
    comm, requests, other = communicator(layout=layout), hpccoll.Request, make_stream()
    send, first, second = mirror(np.ones(COUNT), stream), mirror(np.zeros(COUNT), stream), np.zeros(3)
    bound = comm.Allreduce_init(send, first)
    for _ in range(3):
        bound.Start()
        both = [bound, comm.Iallreduce(np.ones(3), second)]
        if wait == "all":
            requests.Waitall(both)
        elif wait == "any":
            assert sorted(requests.Waitany(both) for _ in both) == [0, 1]
            assert requests.Waitany(both) == MPI.UNDEFINED
        elif wait == "some":
            found: list[int] = []
            while len(found) < 2:
                found += requests.Waitsome(both) or []
            assert sorted(found) == [0, 1]
        else:
            while not requests.Testall(both):
                pass
        assert (first.download(other) == comm.size).all()
        assert (second == comm.size).all()


@layouts({"": (2,)})
@pytest.mark.parametrize("dtype", ["f8", "g"])
def test_a_request_that_is_over_keeps_nothing(
    communicator: Make, layout: str, device: int, dtype: str
) -> None:
    comm = communicator(layout=layout)
    gc.disable()
    try:
        array = mirror(np.ones(9, dtype), LEGACY_STREAM)
        request = comm.Iallreduce(MPI.IN_PLACE, array)
        request.Wait()
        comm.Iallreduce(MPI.IN_PLACE, mirror(np.ones(9), LEGACY_STREAM)).Wait()
        gone = weakref.ref(array)
        del array, request
        assert gone() is None
    finally:
        gc.enable()


@layouts({"": (2,)})
def test_started_calls_of_a_thread_that_has_no_device(communicator: Make, layout: str, stream: int) -> None:
    comm, failed = communicator(layout=layout), []
    send, receive = mirror(np.ones(9), stream), mirror(np.zeros(9), stream)

    def start() -> None:
        try:
            for request in [comm.Iallreduce(send, receive) for _ in range(4)]:
                request.Wait()
        except BaseException as error:
            failed.append(error)

    thread = threading.Thread(target=start)
    thread.start()
    thread.join()
    assert not failed
    assert (receive.download() == comm.size).all()


@layouts({"": (2,)})
def test_what_is_sent_and_what_is_received_on_two_streams(
    communicator: Make, layout: str, stream: int
) -> None:
    """The packed copy of the one goes when the stream of the other is through."""
    comm, other = communicator(layout=layout), make_stream()
    for turn in range(5):
        send = Mirror(np.full((50_000, 2), float(turn))[:, 0], stream)
        receive = mirror(np.zeros(50_000), other)
        comm.Allreduce(send, receive)
        Mirror(np.full((50_000, 2), -1.0)[:, 0], stream).upload_later()
        synchronize(stream)
        assert (receive.download() == comm.size * turn).all()


@layouts({"": (2,)})
def test_captures_that_are_refused_do_no_harm(communicator: Make, layout: str, stream: int) -> None:
    comm, other = communicator(layout=layout), make_stream()
    send, receive = mirror(np.ones(9), stream), mirror(np.zeros(9), stream)
    comm.Allreduce(send, receive)
    with captured(stream), pytest.raises(hpccoll.UsageError, match=r"is a started one.*CUDA graph"):
        comm.Iallreduce(send, receive)
    with captured(stream) as graph:
        device = comm._context.on_devices.side.device
        device.behind(other, stream)
        comm.Allreduce(send, receive, stream=other)
        device.behind(stream, other)
    graph.launch(stream)
    assert (receive.download() == comm.size).all()
    for _ in range(3):
        comm.Allreduce(send, receive, stream=other)
    assert (receive.download(other) == comm.size).all()


@layouts({"": (2,)})
def test_derived_datatypes_are_not_for_graphs(communicator: Make, layout: str, stream: int) -> None:
    comm = communicator(layout=layout)
    items = MPI.DOUBLE.Create_vector(3, 1, 2).Commit()
    send, receive = mirror(np.ones(6), stream), mirror(np.zeros(6), stream)
    bound = comm.Allreduce_init([send, 1, items], [receive, 1, items])
    bound.Start()
    bound.Wait()
    with captured(stream), pytest.raises(hpccoll.UsageError, match=r"derived datatypes.*CUDA graph"):
        bound.Start()
    bound.Start()
    bound.Wait()
    assert (receive.download() == [2, 0, 2, 0, 2, 0]).all()
    bound.Free()
    items.Free()
