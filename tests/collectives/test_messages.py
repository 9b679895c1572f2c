"""Messages and neighbour calls on the host go to MPI as they are."""

from __future__ import annotations

import array
from typing import Any

import numpy as np
import pytest
from mpi4py import MPI

import hpccoll
from hpccoll.collectives import neighbours, point_to_point
from tests.collectives.conftest import Make

NAMES = (
    "Send", "Ssend", "Bsend", "Rsend", "Isend", "Issend", "Ibsend", "Irsend", "Recv", "Irecv", "Sendrecv",
    "Sendrecv_replace", "Isendrecv", "Isendrecv_replace", "Mprobe", "Improbe", "Send_init", "Ssend_init",
    "Bsend_init", "Rsend_init", "Recv_init", "Psend_init", "Precv_init",
)  # fmt: skip
NEIGHBOURS = tuple(
    name
    for call in ("allgather", "allgatherv", "alltoall", "alltoallv", "alltoallw")
    for name in (f"Neighbor_{call}", f"Ineighbor_{call}", f"Neighbor_{call}_init")
)
HOST_BUFFERS: dict[str, Any] = {
    "array": lambda: np.zeros(8),
    "matrix": lambda: np.zeros((2, 4)).view(np.matrix),
    "array.array": lambda: array.array("d", [0] * 8),
    "bytearray": lambda: bytearray(64),
    "list": lambda: [np.zeros(10), 8, MPI.DOUBLE],
    "derived": lambda: [np.zeros(8), 1, MPI.DOUBLE.Create_contiguous(8).Commit()],
}


def test_no_method_that_takes_a_buffer_is_left_to_mpi() -> None:
    """Each would hand MPI an address of a device."""
    taking = {
        name
        for kind in (MPI.Intracomm, MPI.Cartcomm, MPI.Graphcomm, MPI.Distgraphcomm)
        for name in dir(kind)
        if name[0].isupper() and "buf: BufSpec" in (getattr(kind, name).__doc__ or "").splitlines()[0]
    }
    assert {*NAMES, *NEIGHBOURS} - {"Mprobe", "Improbe"} <= taking
    for kind in (hpccoll.CartCommunicator, hpccoll.GraphCommunicator, hpccoll.DistgraphCommunicator):
        theirs = {name for name in taking if getattr(kind, name) is getattr(MPI.Cartcomm, name, None)}
        assert theirs == set()
        assert all(getattr(kind, name) is not getattr(MPI.Cartcomm, name) for name in NAMES)


@pytest.mark.ranks(1, 2)
@pytest.mark.parametrize("kind", HOST_BUFFERS)
def test_host_buffers_are_not_touched(communicator: Make, monkeypatch: pytest.MonkeyPatch, kind: str) -> None:
    comm = communicator()
    monkeypatch.setattr(
        point_to_point.PointToPoint, "_messages", property(lambda self: pytest.fail("staged"))
    )
    peer = (comm.rank + 1) % comm.size
    take, status = HOST_BUFFERS[kind](), MPI.Status()
    before = comm.Irecv(take, tag=5)
    assert not isinstance(before, hpccoll.Request)
    comm.Send(np.arange(8.0), peer, 5)
    before.Wait(status)
    memory = take[0] if isinstance(take, list) else take
    assert np.frombuffer(memory).reshape(-1)[:8].tolist() == list(range(8))
    comm.Sendrecv(take, peer, 0, np.zeros(8), MPI.ANY_SOURCE, 0, status)
    assert status.Get_count(MPI.DOUBLE) == 8
    comm.Sendrecv_replace(take, peer, source=MPI.ANY_SOURCE)
    sent = comm.Isend(take, peer, 6)
    message = comm.Mprobe(tag=6)
    message.Recv(HOST_BUFFERS[kind]())
    assert message == MPI.MESSAGE_NULL
    sent.Wait()
    assert comm.Improbe(tag=77) is None
    assert comm.message_path == ""


@pytest.mark.ranks(2)
def test_neighbours_on_the_host(communicator: Make, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(neighbours.Neighbours, "_messages", property(lambda self: pytest.fail("staged")))
    cart = communicator().Create_cart([2], [True])
    take = np.zeros(8)
    cart.Neighbor_allgather(np.full(4, float(cart.rank)), take)
    assert (take == 1 - cart.rank).all()
    request = cart.Ineighbor_alltoall(np.full(8, cart.rank + 5.0), take)
    assert not isinstance(request, hpccoll.Request)
    request.Wait()
    assert (take == 6 - cart.rank).all()
    cart.Free()
