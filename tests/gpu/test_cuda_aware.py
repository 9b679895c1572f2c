"""Which MPI gets addresses of a device: one that says it takes them, and that a child has tried."""

from __future__ import annotations

import ctypes
import mmap
import os
import signal
import sys

import numpy as np
import pytest
from mpi4py import MPI

import hpccoll
from hpccoll.runtime import cuda_aware
from tests.gpu.memory import Mirror, mirror
from tests.support.launch import run_program

pytestmark = pytest.mark.skipif(
    "STANDIN_FOLDER" not in os.environ, reason="MPI may be CUDA-aware on a real GPU"
)

# Opens a device's memory to the host: for MPI that is as if it took addresses of a device.
OPENED = """
import ctypes, mmap
from cuda.bindings import driver
allocate = driver.cuMemAlloc
def opened(nbytes):
    status, address = allocate(max(nbytes, mmap.PAGESIZE))
    assert ctypes.CDLL(None).mprotect(ctypes.c_void_p(int(address)), ctypes.c_size_t(nbytes), 3) == 0
    return status, address
driver.cuMemAlloc = opened
"""


def open_to_the_host(array: Mirror) -> None:
    length = -(-array._root.nbytes // mmap.PAGESIZE) * mmap.PAGESIZE
    assert ctypes.CDLL(None).mprotect(ctypes.c_void_p(array._address), ctypes.c_size_t(length), 3) == 0


@pytest.fixture(autouse=True)
def forget() -> None:
    cuda_aware.why_not.cache_clear()


@pytest.mark.ranks(1)
def test_a_child_that_dies_is_a_no(device: int, stream: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(cuda_aware, "says_so", lambda: True)
    comm = hpccoll.Communicator(MPI.COMM_WORLD)
    send, receive = mirror(np.ones(9), stream), mirror(np.zeros(9), stream)
    comm.Sendrecv(send, 0, 0, receive, 0, 0)
    assert (receive.download() == 1).all()
    assert comm.message_path == "host: a child process that tried died of SIGSEGV"
    tried = []
    monkeypatch.setattr(cuda_aware, "trial", tried.append)
    comm.Sendrecv(send, 0, 0, receive, 0, 0)
    assert tried == []  # once for the process


@pytest.mark.ranks(1)
def test_a_child_that_hangs_or_cannot_start_is_a_no(monkeypatch: pytest.MonkeyPatch) -> None:
    assert "timed out after 0.01" in cuda_aware.trial(0, limit_s=0.01)
    monkeypatch.setattr(sys, "executable", "/nowhere/python")
    assert cuda_aware.trial(0).startswith("no child process could try: ")


@pytest.mark.ranks(1)
def test_no_such_device_is_a_no(device: int) -> None:
    assert "cuDeviceGet(99) failed" in cuda_aware.trial(99)


def test_a_child_that_gets_all_bytes_is_a_yes() -> None:
    code = f"{OPENED}\nfrom hpccoll.runtime.cuda_aware import send_to_itself\nsend_to_itself(0)\nprint('all')"
    result = run_program([sys.executable, "-c", code], timeout_s=60)
    assert (result.returncode, result.stdout) == (0, "all\n"), result
    nothing = "hpccoll.runtime.cuda_aware.MPI.COMM_WORLD = type('', (), {'Sendrecv': lambda *given: None})"
    broken = code.replace("\nsend_to_itself", f"\nimport hpccoll\n{nothing}\nsend_to_itself")
    result = run_program([sys.executable, "-c", broken], timeout_s=60)
    assert result.returncode == 1
    assert "8 bytes arrived otherwise than they were sent" in result.stderr


@pytest.mark.ranks(2)
def test_arrays_as_they_are(stream: int) -> None:
    comm = hpccoll.Communicator(MPI.COMM_WORLD, device_messages="mpi")
    other = 1 - comm.rank
    for count in (10, 100_000):
        send, receive = mirror(np.zeros(count), stream), mirror(np.full(count, -1.0), stream)
        open_to_the_host(send)
        open_to_the_host(receive)
        for turn in range(3):
            send.view[...] = turn + comm.rank
            send.upload_later()
            receive.upload_later()
            comm.Sendrecv(send, other, 0, receive, other, 0)
            assert (receive.download() == turn + other).all()
            requests = [comm.Irecv(receive, other, 1), comm.Isend([send, 5, MPI.DOUBLE], other, 1)]
            send.view[...] = 0
            hpccoll.Request.Waitall(requests)
            assert (receive.download() == turn + other).all()
    send.view[...] = comm.rank
    send.upload_later()
    comm.Isendrecv_replace(send, other, 0, other, 0).Wait()
    assert (send.download() == other).all()
    assert comm.message_path == "mpi"
    persistent = comm.Send_init(send, other), comm.Recv_init(receive, other)
    for turn in range(2):
        send.view[...] = 7 + turn
        send.upload_later()
        hpccoll.PersistentRequest.Startall(persistent)
        hpccoll.Request.Waitall(persistent)
        assert (receive.download() == 7 + turn).all()
    for request in persistent:
        request.Free()
    # Strided ones are packed: that memory comes from a pool, which an MPI need not know.
    send.view, receive.view = send.view[::2], receive.view[1::2]
    send.view[...] = 3
    send.upload_later()
    comm.Sendrecv(send, other, 0, receive, other, 0)
    assert (receive.download() == 3).all()


@pytest.mark.ranks(2)
def test_memory_of_a_pool_goes_over_the_host(
    device: int, stream: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Though MPI has been proved to take what cuMemAlloc gives: the process would die."""
    from hpccoll.arrays.device import Home
    from hpccoll.memory import device as memory

    monkeypatch.setattr(cuda_aware, "why_not", lambda ordinal: "")
    comm = hpccoll.Communicator(MPI.COMM_WORLD)
    values = memory.empty(8, np.dtype("f8"), Home(device, stream, None))
    pooled = type(
        "Pooled",
        (),
        {
            "__cuda_array_interface__": {
                "version": 3,
                "shape": (8,),
                "typestr": "<f8",
                "data": (values.ctypes.data, False),
                "stream": stream,
            }
        },
    )()
    whole = mirror(np.full(8, 4.0), stream)
    open_to_the_host(whole)
    comm.Sendrecv(whole, 1 - comm.rank, 0, pooled, 1 - comm.rank, 0)
    whole.view[...] = 0
    comm.Sendrecv(pooled, 1 - comm.rank, 0, whole, 1 - comm.rank, 0)
    assert (whole.download() == 4).all()
    assert comm.message_path == "mpi"


def test_the_callers_word_is_taken() -> None:
    """With device_messages="mpi" MPI gets the address, and here it dies of it."""
    code = (
        "import numpy, hpccoll\nfrom mpi4py import MPI\n"
        "from tests.gpu.memory import make_stream, mirror, use_device\nuse_device(0)\n"
        "comm = hpccoll.Communicator(MPI.COMM_WORLD)\n"
        "comm.Sendrecv(mirror(numpy.ones(4), make_stream()), 0, 0, numpy.zeros(4), 0, 0)\n"
    )
    for way, ends in (("mpi", False), ("host", True), ("auto", True)):
        result = run_program([sys.executable, "-c", code], timeout_s=60, env={"HPCCOLL_DEVICE_MESSAGES": way})
        assert (result.returncode == 0) is ends, result
        if not ends:
            assert -result.returncode == signal.SIGSEGV or "SIGSEGV" in result.stderr
    with pytest.raises(hpccoll.UsageError, match="device_messages is 'gpu'"):
        hpccoll.Communicator(MPI.COMM_SELF, device_messages="gpu")
