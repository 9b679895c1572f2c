"""Messages of arrays on devices: what arrives, in the order of their streams, and what MPI's status says."""

from __future__ import annotations

import ctypes
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import numpy as np
import pytest
from mpi4py import MPI

import hpccoll
from tests.collectives.conftest import Make
from tests.gpu.memory import Mirror, captured, checked, device_count, driver, make_stream, mirror, use_device

COUNT = 10_000
TAG = 3
pytestmark = pytest.mark.ranks(2)

MODES = ("Send", "Ssend", "Bsend", "Rsend", "Isend", "Issend", "Ibsend", "Irsend")
BUFFERED = ("Bsend", "Ibsend", "Bsend_init")


@contextmanager
def room_for(mode: str) -> Iterator[None]:
    """Memory that MPI keeps buffered messages in."""
    if mode in BUFFERED:
        MPI.Attach_buffer(np.empty(100 * COUNT, np.uint8))
    yield
    if mode in BUFFERED:
        MPI.Detach_buffer()


def other(comm: hpccoll.Communicator) -> int:
    return 1 - comm.rank


def pending(stream: int, value: float, count: int = COUNT, dtype: str = "f8") -> Mirror:
    """An array of one value that the stream has yet to write."""
    made = mirror(np.full(count, -2, dtype), stream)
    made.view[...] = value
    made.upload_later()
    return made


@pytest.mark.parametrize("mode", MODES)
def test_what_the_stream_writes_is_sent(communicator: Make, stream: int, mode: str) -> None:
    comm = communicator()
    with room_for(mode):
        for turn in range(3):
            receive = pending(stream, -1)
            request = comm.Irecv(receive, other(comm), TAG)
            comm.Barrier()  # Rsend finds its receive
            sent = getattr(comm, mode)(pending(stream, turn + comm.rank), other(comm), TAG)
            if sent is not None:
                assert sent.Wait()
            assert request.Wait()
            # Complete for all streams.
            assert (receive.download(make_stream()) == turn + other(comm)).all()


def test_a_blocking_receive_is_in_the_order_of_the_stream(communicator: Make, stream: int) -> None:
    comm = communicator()
    for turn in range(3):
        receive = pending(stream, -1)  # what is still to be written there must not come after what arrives
        request = comm.Isend(pending(stream, turn + comm.rank), other(comm))
        status = MPI.Status()
        comm.Recv(receive, status=status)
        request.Wait()
        assert (receive.download() == turn + other(comm)).all()
        assert (status.source, status.tag) == (other(comm), 0)
        assert status.Get_count(MPI.DOUBLE) == COUNT


def test_messages_keep_their_order(communicator: Make, stream: int) -> None:
    comm = communicator()
    requests = []
    for turn in range(4):
        give: Any = pending(stream, turn, 100) if turn % 2 == 0 else np.full(100, float(turn))
        requests.append(comm.Isend(give, other(comm), TAG))
    for turn in range(4):
        take: Any = mirror(np.zeros(100), stream) if turn < 2 else np.zeros(100)
        comm.Recv(take, other(comm), TAG)
        assert ((take.download() if turn < 2 else take) == turn).all()
    hpccoll.Request.Waitall(requests)


def held_up(stream: int) -> Callable[[], None]:
    """Nothing more happens on a stream until what is returned is called."""
    address = checked(driver.cuMemHostAlloc(4, 0))
    word = ctypes.c_uint32.from_address(address)
    word.value = 0
    checked(driver.cuStreamWaitValue32(stream, address, 1, 0))

    def go_on() -> None:
        word.value = 1

    return go_on


LAYOUTS: dict[str, Callable[[np.ndarray[Any, Any]], Any]] = {
    "contiguous": lambda whole: whole[2:4],
    "strided": lambda whole: whole[:, 1::2],
    "reversed": lambda whole: whole[::-1, ::-1],
    "Fortran": lambda whole: np.asfortranarray(whole)[:, 1:3],
    "a column": lambda whole: whole[:, 3],
    "one": lambda whole: whole[3, 3, None],
    "none": lambda whole: whole[:0],
}


@pytest.mark.parametrize("dtype", ["f8", "i2", "?", "c16", "f2", "V3", ">i4"])
@pytest.mark.parametrize("layout", LAYOUTS)
def test_layouts_and_types(communicator: Make, stream: int, layout: str, dtype: str) -> None:
    comm = communicator()
    cut = LAYOUTS[layout]
    elements = np.arange(60 * np.dtype(dtype).itemsize, dtype=np.uint8)
    whole = (elements % 2 if dtype == "?" else elements).view(dtype).reshape(6, 10)
    blank = np.zeros_like(whole)
    send, receive = mirror(whole, stream), mirror(blank, stream)
    # As np.array makes them: in the order of the memory, of which the others are views.
    send.view, receive.view = cut(send.view), cut(receive.view)
    if layout == "Fortran":
        send, receive = (Mirror(cut(one), stream) for one in (whole, blank))
    expected = send.view.copy()
    around = receive.download().copy() if layout != "Fortran" else None
    comm.Sendrecv(send, other(comm), TAG, receive, other(comm), TAG)
    assert receive.download().tobytes() == expected.tobytes()
    if around is not None:  # nothing else was written
        assert receive._root.tobytes().count(b"\0") >= whole.nbytes - expected.nbytes


def test_host_and_device_on_either_side(communicator: Make, stream: int) -> None:
    comm = communicator()
    for turn in range(4):
        give: Any = pending(stream, turn + comm.rank) if turn & 1 else np.full(COUNT, float(turn + comm.rank))
        take: Any = mirror(np.zeros(COUNT), stream) if turn & 2 else np.zeros(COUNT)
        status = MPI.Status()
        comm.Sendrecv(give, other(comm), TAG, take, other(comm), TAG, status)
        assert ((take.download() if turn & 2 else take) == turn + other(comm)).all()
        assert status.Get_count(MPI.DOUBLE) == COUNT
        status, request = MPI.Status(), comm.Isendrecv(give, other(comm), TAG, take, other(comm), TAG)
        request.Wait(status)
        assert ((take.download() if turn & 2 else take) == turn + other(comm)).all()
        if turn:  # MPICH's own has no status
            assert (status.source, status.Get_count(MPI.DOUBLE)) == (other(comm), COUNT)


@pytest.mark.parametrize("strided", [False, True])
@pytest.mark.parametrize("started", [False, True])
def test_a_short_message_leaves_the_rest_alone(
    communicator: Make, stream: int, started: bool, strided: bool
) -> None:
    comm = communicator()
    receive = mirror(np.zeros((8, 6)), stream)
    receive.view[...] = 7
    receive.upload_later()
    receive.view = receive.view[:, ::2] if strided else receive.view[:4]
    comm.Isend(pending(stream, comm.rank + 1, 10), other(comm), TAG)
    status = MPI.Status()
    if started:
        comm.Irecv(receive, other(comm), TAG).Wait(status)
    else:
        comm.Recv(receive, other(comm), TAG, status)
    found = receive.download().reshape(-1)
    assert (found[:10] == other(comm) + 1).all()
    assert (found[10:] == 7).all()
    assert (receive._root.sum() - found.sum()) == 7 * (48 - receive.view.size)
    assert (status.source, status.tag, status.Get_count(MPI.DOUBLE)) == (other(comm), TAG, 10)
    assert status.Get_elements(MPI.BYTE) == 80
    comm.Barrier()


def test_lists_of_mpi4py(communicator: Make, stream: int) -> None:
    comm = communicator()
    for spec in (
        lambda array: [array, 5],
        lambda array: [array, 5, MPI.INT],
        lambda array: [array, (5, 0), MPI.INT],
        lambda array: [array, 5, 0, "i"],
        lambda array: (array, 20, MPI.BYTE),
    ):
        send, receive = pending(stream, comm.rank + 1, 8, "i4"), pending(stream, -1, 8, "i4")
        comm.Sendrecv(spec(send), other(comm), 0, spec(receive), other(comm), 0)
        assert receive.download().tolist() == [other(comm) + 1] * 5 + [-1] * 3
    send, receive = pending(stream, comm.rank + 1, 8, "i4"), pending(stream, -1, 8, "i4")
    comm.Sendrecv([send, (2, 1), MPI.INT], other(comm), 0, [receive, (2, 3), MPI.INT], other(comm), 0)
    assert receive.download().tolist() == [-1] * 3 + [other(comm) + 1] * 2 + [-1] * 3
    pairs = np.zeros(6, np.dtype([("value", "f8"), ("index", "i4")], align=True))
    pairs["value"], pairs["index"] = 1.5 + comm.rank, range(6)
    send, receive = mirror(pairs, stream), mirror(np.zeros_like(pairs), stream)
    status, kind = MPI.Status(), MPI.DOUBLE_INT
    comm.Sendrecv([send, 4, kind], other(comm), 0, [receive, 6, kind], other(comm), 0, status)
    assert status.Get_count(kind) == 4
    assert receive.download()["value"].tolist() == [1.5 + other(comm)] * 4 + [0] * 2
    assert receive.view["index"].tolist() == [0, 1, 2, 3, 0, 0]


@pytest.mark.parametrize("started", [False, True])
def test_a_message_that_is_too_long(communicator: Make, stream: int, started: bool) -> None:
    comm = communicator()
    receive = pending(stream, -1, 10)
    sent = comm.Isend(pending(stream, 1, 11), other(comm), TAG)
    take = (
        comm.Irecv(receive, other(comm), TAG).Wait
        if started
        else lambda: comm.Recv(receive, other(comm), TAG)
    )
    with pytest.raises(MPI.Exception) as caught:
        take()
    assert caught.value.Get_error_class() == MPI.ERR_TRUNCATE
    sent.Wait()
    assert (receive.download() == -1).all()
    comm.Sendrecv(pending(stream, 5, 10), other(comm), 0, receive, other(comm), 0)
    assert (receive.download() == 5).all()


WAITS: dict[str, Callable[[list[MPI.Request], list[MPI.Status]], object]] = {
    "MPI's": MPI.Request.Waitall,
    "ours": hpccoll.Request.Waitall,
    "one by one": lambda requests, statuses: [
        request.Wait(status) for request, status in zip(requests, statuses, strict=True)
    ],
    "tests": lambda requests, statuses: list(map(by_tests, requests, statuses)),
}


def by_tests(request: MPI.Request, status: MPI.Status) -> None:
    while not request.Test(status):
        pass


@pytest.mark.parametrize("wait", WAITS)
def test_waits_for_many(communicator: Make, stream: int, wait: str) -> None:
    comm = communicator()
    takes = [pending(stream, -1, 50 + tag) for tag in range(4)]
    host = np.zeros(5)
    requests = [comm.Irecv(take, other(comm), tag) for tag, take in enumerate(takes)]
    requests += [comm.Irecv(host, other(comm), 4)]
    requests += [comm.Isend(pending(stream, tag + comm.rank, 40 + tag), other(comm), tag) for tag in range(4)]
    requests += [comm.Isend(np.full(5, 9.0), other(comm), 4)]
    statuses = [MPI.Status() for _ in requests]
    WAITS[wait](requests, statuses)
    assert all(request == MPI.REQUEST_NULL for request in requests)
    away = make_stream()
    for tag, take in enumerate(takes):
        found = take.download(away)
        assert (found[: 40 + tag] == tag + other(comm)).all()
        assert (found[40 + tag :] == -1).all()
        assert (statuses[tag].source, statuses[tag].tag) == (other(comm), tag)
        assert statuses[tag].Get_count(MPI.DOUBLE) == 40 + tag
    assert (host == 9).all()


def test_a_receive_that_is_cancelled(communicator: Make, stream: int) -> None:
    comm = communicator()
    receive = pending(stream, 4)
    request = comm.Irecv(receive, other(comm), 99)
    request.Cancel()
    status = MPI.Status()
    request.Wait(status)
    assert status.Is_cancelled()
    assert (receive.download() == 4).all()


@pytest.mark.parametrize("mode", ["Send_init", "Ssend_init", "Bsend_init", "Rsend_init"])
@pytest.mark.parametrize("strided", [False, True])
def test_persistent_messages(communicator: Make, stream: int, mode: str, strided: bool) -> None:
    comm = communicator()
    send, receive = pending(stream, 0), pending(stream, -1)
    if strided:
        send.view, receive.view = send.view[::2], receive.view[1::2]
    with room_for(mode):
        sending = getattr(comm, mode)(send, other(comm), TAG)
        receiving = comm.Recv_init(receive, other(comm), TAG)
        for turn in range(3):
            send.view[...] = turn + comm.rank
            send.upload_later()
            status = MPI.Status()
            receiving.Start()
            comm.Barrier()
            sending.Start()
            sending.Wait()
            receiving.Wait(status)
            assert (receive.download(make_stream()) == turn + other(comm)).all()
            assert status.Get_count(MPI.DOUBLE) == send.view.size
        sending.Free()
        receiving.Free()
    with pytest.raises(hpccoll.UsageError, match="freed"):
        sending.Start()


@pytest.mark.parametrize("strided", [False, True])
def test_replace(communicator: Make, stream: int, strided: bool) -> None:
    comm = communicator()
    for turn in range(3):
        both = pending(stream, turn + comm.rank)
        both.view = both.view[::2] if strided else both.view
        status = MPI.Status()
        comm.Sendrecv_replace(both, other(comm), TAG, other(comm), TAG, status)
        assert (both.download() == turn + other(comm)).all()
        assert status.Get_count(MPI.DOUBLE) == both.view.size
        comm.Isendrecv_replace(both, other(comm), TAG, other(comm), TAG).Wait(status)
        assert (both.download(make_stream()) == turn + comm.rank).all()
        assert (status.source, status.Get_count(MPI.DOUBLE)) == (other(comm), both.view.size)


def test_nobody(communicator: Make, stream: int) -> None:
    comm = communicator()
    mine, status = pending(stream, 3), MPI.Status()
    comm.Send(mine, MPI.PROC_NULL)
    comm.Recv(mine, MPI.PROC_NULL, status=status)
    assert (status.source, status.Get_count(MPI.DOUBLE)) == (MPI.PROC_NULL, 0)
    comm.Sendrecv_replace(mine, MPI.PROC_NULL, source=MPI.PROC_NULL)
    comm.Irecv(mine, MPI.PROC_NULL).Wait(status)
    assert status.Get_count(MPI.DOUBLE) == 0
    assert (mine.download() == 3).all()


def test_probed_messages(communicator: Make, stream: int) -> None:
    comm = communicator()
    for turn in range(4):
        sent = comm.Isend(pending(stream, turn), other(comm), TAG)
        receive: Any = pending(stream, -1) if turn < 3 else np.zeros(COUNT)
        message = comm.Mprobe(other(comm), TAG) if turn & 1 else None
        while message is None:
            message = comm.Improbe(other(comm), TAG)
        if turn & 2:
            message.Recv(receive)
        else:
            message.Irecv(receive).Wait()
        assert message == MPI.MESSAGE_NULL
        sent.Wait()
        assert ((receive.download() if turn < 3 else receive) == turn).all()


def test_long_messages_on_several_streams(communicator: Make, stream: int) -> None:
    comm, count = communicator(), 1 << 20
    streams = (stream, make_stream(), 0, 2)
    takes = [pending(one, -1, count) for one in streams]
    requests = [comm.Irecv(take, other(comm), tag) for tag, take in enumerate(takes)]
    requests += [comm.Isend(pending(one, tag, count), other(comm), tag) for tag, one in enumerate(streams)]
    hpccoll.Request.Waitall(requests)
    for tag, take in enumerate(takes):
        assert (take.download() == tag).all()


def test_a_stream_that_waits_does_not_hold_up_another(communicator: Make, stream: int) -> None:
    """A receive for an array whose stream waits for a message that is sent later."""
    comm, late = communicator(), make_stream()
    receive, answer = pending(late, -1), mirror(np.zeros(COUNT), stream)
    gives = [pending(stream, 1), pending(stream, 5)]  # kept: to free memory waits for the whole device
    go_on = held_up(late)
    request = comm.Irecv(receive, other(comm), TAG)
    sent = comm.Isend(gives[0], other(comm), TAG)
    comm.Sendrecv(gives[1], other(comm), 0, answer, other(comm), 0)
    assert (answer.download() == 5).all()
    go_on()
    request.Wait()
    sent.Wait()
    assert (receive.download() == 1).all()


def test_an_array_on_another_device_than_the_current_one(
    communicator: Make, device: int, stream: int, own_devices: None
) -> None:
    comm, elsewhere = communicator(), (device + 2) % device_count()
    use_device(elsewhere)
    theirs = make_stream()
    send, receive = pending(theirs, comm.rank + 1), pending(theirs, -1)
    send.view, receive.view = send.view[::2], receive.view[::2]
    use_device(device)
    comm.Sendrecv(send, other(comm), 0, receive, other(comm), 0)
    assert int(checked(driver.cuCtxGetDevice())) == device
    use_device(elsewhere)
    assert (receive.download() == other(comm) + 1).all()
    use_device(device)


def test_what_is_refused(communicator: Make, stream: int) -> None:
    comm = communicator()
    mine = mirror(np.zeros(10), stream)
    with pytest.raises(hpccoll.UsageTypeError, match="partitioned"):
        comm.Psend_init(mine, 2, other(comm))
    with pytest.raises(hpccoll.UsageTypeError, match="partitioned"):
        comm.Precv_init([mine, 10, MPI.DOUBLE], 2, other(comm))
    with pytest.raises(hpccoll.UsageError, match="count 11"):
        comm.Isend([mine, 11, MPI.DOUBLE], other(comm))
    for call in (comm.Send, comm.Isend, comm.Send_init):
        with pytest.raises(MPI.Exception) as caught:
            call(mine, 2)
        assert caught.value.Get_error_class() == MPI.ERR_RANK
    mine.view.flags.writeable = False
    with pytest.raises(hpccoll.UsageError, match="read-only"):
        comm.Recv(mine, other(comm))
    with captured(stream), pytest.raises(hpccoll.UsageError, match="CUDA graph"):
        comm.Send(mine, other(comm))


def test_a_stream_that_does_not_go_on(stream: int) -> None:
    comm, stuck = hpccoll.Communicator(MPI.COMM_WORLD, timeout_s=0.5), make_stream()
    mine = mirror(np.zeros(10), stuck)
    go_on = held_up(stuck)
    with pytest.raises(hpccoll.CollectiveTimeoutError, match="is not sent after"):
        comm.Send(mine, other(comm))
    go_on()
    mine.download()


def test_messages_need_no_collective_call(stream: int) -> None:
    """One rank alone sends to itself, on a communicator that nobody has used."""
    comm = hpccoll.Communicator(MPI.COMM_WORLD)
    if comm.rank == 0:
        assert comm.message_path == ""
        receive = pending(stream, -1)
        request = comm.Isend(pending(stream, 6), 0)
        comm.Recv(receive, 0)
        request.Wait()
        assert (receive.download() == 6).all()
        assert comm.message_path == "host: MPI does not say that it is CUDA-aware"


def test_arrays_of_cupy(communicator: Make, device: int) -> None:
    cupy = pytest.importorskip("cupy")
    comm = communicator()
    cupy.cuda.Device(device).use()
    with cupy.cuda.Stream(non_blocking=True):
        for turn in range(3):
            mine = cupy.arange(24, dtype="f8").reshape(4, 6) + turn + comm.rank
            halo = cupy.full((4, 6), -1.0)
            comm.Sendrecv(mine[:, 2], other(comm), 0, halo[:, 5], other(comm), 0)
            request = comm.Irecv(halo[1, :4], other(comm), 1)
            comm.Send(2 * mine[1, :4], other(comm), 1)
            request.Wait()
            expected = np.full((4, 6), -1.0)
            theirs = np.arange(24.0).reshape(4, 6) + turn + other(comm)
            expected[:, 5], expected[1, :4] = theirs[:, 2], 2 * theirs[1, :4]
            assert (cupy.asnumpy(halo) == expected).all()
