"""Steps between nodes by MPI: `internode="mpi"`."""

from __future__ import annotations

import gc
import sys

import cupy
import numpy as np
import pytest
from mpi4py import MPI

import hpccoll
from tests.collectives.conftest import Make
from tests.gpu.memory import DeviceAttempt, captured, device_plans, make_stream, mirror, perform, perform_all
from tests.support.launch import run_ranks
from tests.support.layouts import layouts
from tests.support.oracle import COLLECTIVES, Job, every_place, every_root, in_line
from tests.support.oracle.elements import NUMBERS, operators

TYPES = ("int32", "uint16", "float16", "bfloat16", "float64", "complex64")
SEVERAL_NODES = {"1+1": (2,), "2+2": (4,), "3+1": (4,)}


@layouts(SEVERAL_NODES)
def test_every_collective_and_plan(communicator: Make, layout: str, stream: int) -> None:
    comm = communicator(layout=layout, internode="mpi")
    for collective in COLLECTIVES:
        jobs = [Job(collective, count) for count in (1, 7, 1003)]
        perform_all(comm, every_root(every_place(jobs), comm.size), stream)
    assert comm.device_path == "nccl, between nodes by mpi"


@layouts(SEVERAL_NODES)
def test_nccl_stays_inside_nodes(
    communicator: Make, layout: str, stream: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    from hpccoll.transports import nccl

    groups = []
    init = nccl.NcclGroup.__init__
    monkeypatch.setattr(
        nccl.NcclGroup, "__init__", lambda self, *args: (groups.append(args[1]), init(self, *args))[1]
    )
    with hpccoll.Communicator(communicator(layout=layout), layout=layout, internode="mpi") as comm:
        for collective in set(COLLECTIVES) - {"scan", "exscan"}:
            perform(comm, Job(collective, 12), stream)
            plans = {plan for kind, plan in comm.tally() if kind == collective}
            assert (plans == {"flat"}) == (comm.node_count == comm.size)
        nodes = comm.machine.layout.nodes
        assert all(any(set(group) <= set(node) for node in nodes) for group in groups)


@layouts({"2+2": (4,), "1+1": (2,)})
@pytest.mark.parametrize("dtype", [one for one in NUMBERS if one.name in TYPES], ids=str)
def test_every_operator(communicator: Make, layout: str, stream: int, dtype: np.dtype) -> None:
    comm = communicator(layout=layout, internode="mpi")
    for op in operators(dtype):
        perform_all(comm, [Job("allreduce", 17, dtype, op), Job("reduce", 17, dtype, op)], stream)


@layouts({"2+2": (4,), "1+1": (2,), "3+1": (4,)})
def test_chunks_and_calls_one_after_the_other(communicator: Make, layout: str, stream: int) -> None:
    """Nobody waits in between, on two streams: steps between nodes keep their order."""
    comm = communicator(layout=layout, internode="mpi", chunk_bytes=4 * 1024 * 1024)
    count, other = 3 * 1024 * 1024 + 13, make_stream()
    for name in device_plans(comm, "allreduce"):
        if name == "flat":
            continue
        with comm.forced(name):
            sends = [mirror(np.full(count, comm.rank + k), stream, "f8") for k in range(3)]
            first = [mirror(np.zeros(count), stream) for _ in sends]
            second = [mirror(np.zeros(5), other) for _ in sends]
            small = mirror(np.full(5, comm.rank), other, "f8")
            for send, one, two in zip(sends, first, second, strict=True):
                comm.Allreduce(send, one)
                comm.Allreduce(small, two)
            request = comm.Iallreduce(small, small)
            for k, (one, two) in enumerate(zip(first, second, strict=True)):
                assert (one.download() == sum(range(comm.size)) + k * comm.size).all()
                assert (two.download() == sum(range(comm.size))).all()
            request.Wait()
            assert (small.download() == sum(range(comm.size))).all()


@layouts({"2+2": (4,), "1+1": (2,)})
def test_persistent_and_repeated_calls(communicator: Make, layout: str, stream: int) -> None:
    comm = communicator(layout=layout, internode="mpi")
    attempt = DeviceAttempt(comm, Job("allreduce", 1003), in_line, stream)
    for salt in range(3):
        attempt.renew(salt)
        attempt.call()
        attempt.check()
    send, receive = mirror(np.ones(64), stream), mirror(np.zeros(64), stream)
    bound = comm.Allreduce_init(send, receive)
    for turn in range(3):
        send.view[...] = turn + comm.rank
        send.upload()
        bound.Start()
        bound.Wait()
        assert (receive.download() == turn * comm.size + sum(range(comm.size))).all()


@layouts({"1+1": (2,)})
def test_a_graph_cannot_have_it(communicator: Make, layout: str, stream: int) -> None:
    comm = communicator(layout=layout, internode="mpi")
    send, receive = mirror(np.ones(8), stream), mirror(np.zeros(8), stream)
    comm.Allreduce(send, receive)
    with captured(stream), pytest.raises(hpccoll.UsageError, match=r"between nodes by MPI.*CUDA graph"):
        comm.Allreduce(send, receive)
    comm.Allreduce(send, receive)
    assert (receive.download() == comm.size).all()


@layouts({"1+1": (2,), "2+2": (4,)})
def test_closed_with_calls_under_way(communicator: Make, layout: str, stream: int) -> None:
    send, receive = mirror(np.ones(1000), stream), mirror(np.zeros(1000), stream)
    with hpccoll.Communicator(communicator(layout=layout), layout=layout, internode="mpi") as comm:
        for _ in range(3):
            comm.Allreduce(send, receive)
    assert (receive.download() == MPI.COMM_WORLD.size).all()
    gc.collect()


@layouts({"1+1": (2,)})
@pytest.mark.parametrize("how", ["blocking", "started", "persistent"])
def test_a_rank_that_never_comes(communicator: Make, layout: str, stream: int, how: str) -> None:
    """Who waits for the device goes on, and learns from the request, or from the next call.

    Without the check of the first calls, in which ranks wait for each other on the host.
    """
    mpi = communicator(layout=layout)
    comm = hpccoll.Communicator(mpi, layout=layout, internode="mpi", timeout_s=2, device_checks_first=0)
    send, receive = mirror(np.ones(8), stream), mirror(np.zeros(8), stream)
    bound = comm.Allreduce_init(send, receive)
    bound.Start()
    bound.Wait()
    MPI.COMM_WORLD.Barrier()
    if comm.rank == 0:
        if how == "blocking":
            comm.Allreduce(send, receive)
            receive.download()
        else:
            request = comm.Iallreduce(send, receive) if how == "started" else bound
            if how == "persistent":
                bound.Start()
            with pytest.raises(hpccoll.HpccollError, match="is not complete after 2 s"):
                request.Wait()
        with pytest.raises(
            hpccoll.AbortedError, match=r"broken since an earlier call.*not complete after 2 s"
        ):
            comm.Allreduce(send, receive)
        assert isinstance(comm.last_error, hpccoll.CollectiveTimeoutError)
    MPI.COMM_WORLD.Barrier()
    comm._let_go()


@layouts({"1+1": (2,)})
def test_an_error_of_the_program(communicator: Make, layout: str, stream: int) -> None:
    """Calls that are under way end; nobody waits for ever."""
    send, receive = mirror(np.ones(1000), stream), mirror(np.zeros(1000), stream)
    mpi = communicator(layout=layout)

    def program() -> None:
        with hpccoll.Communicator(mpi, layout=layout, internode="mpi") as comm:
            comm.Allreduce(send, receive)
            comm.Allreduce(send, receive)
            raise ZeroDivisionError

    with pytest.raises(ZeroDivisionError):
        program()
    receive.download()


@layouts({"1+1": (2,)})
def test_device_memory_is_freed_in_the_midst_of_calls(communicator: Make, layout: str, device: int) -> None:
    """Which waits for the device, wherever garbage is collected."""
    comm, before = communicator(layout=layout, internode="mpi"), gc.get_threshold()
    result = cupy.zeros(2000)
    with cupy.cuda.using_allocator(None):
        gc.set_threshold(20)
        try:
            for turn in range(30):
                array = cupy.full(1000, float(turn))
                comm.Iallreduce(MPI.IN_PLACE, array).Wait()
                comm.Allreduce(array, result[::2])
                assert result[0].get() == 4 * turn
                comm.empty(100, device="cuda")
        finally:
            gc.set_threshold(*before)


@layouts({"1+1": (2,)})
def test_many_calls_under_way(communicator: Make, layout: str, stream: int) -> None:
    """The worker and this thread share what is kept until a stream is through."""
    comm, before = communicator(layout=layout, internode="mpi"), sys.getswitchinterval()
    streams = [stream, make_stream(), make_stream()]
    sys.setswitchinterval(1e-5)
    try:
        for turn in range(8):
            pairs = [
                (mirror(np.full(1000, float(100 * turn + k + comm.rank)), one), mirror(np.zeros(1000), one))
                for k, one in enumerate(8 * streams)
            ]
            requests = [
                comm.Iallreduce(*pair) if k % 2 else comm.Allreduce(*pair) for k, pair in enumerate(pairs)
            ]
            for request in filter(None, requests):
                request.Wait()
            for k, (_, receive) in enumerate(pairs):
                assert (receive.download() == 2 * (100 * turn + k) + 1).all()
    finally:
        sys.setswitchinterval(before)


def test_without_a_worker() -> None:
    code = """
import mpi4py
mpi4py.rc.thread_level = "funneled"
import numpy as np
from mpi4py import MPI
import hpccoll
from tests.gpu.memory import make_stream, mirror, use_device
use_device(MPI.COMM_WORLD.rank)
stream = make_stream()
with hpccoll.Communicator(MPI.COMM_WORLD, layout="1+1", internode="mpi") as comm:
    send, receive = mirror(np.ones(1000), stream), mirror(np.zeros(1000), stream)
    for _ in range(3):
        comm.Allreduce(send, receive)
        assert (receive.download() == 2).all()
    request = comm.Iallreduce(send, send)
    request.block_stream()
    assert (send.download() == 2).all()
    bound = comm.Allreduce_init(send, receive)
    bound.Start()
    assert (receive.download() == 4).all()
    bound.Wait()
"""
    result = run_ranks(2, ["-c", code], timeout_s=60)
    assert result.returncode == 0, result.stderr
