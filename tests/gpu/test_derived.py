"""Derived MPI datatypes on devices: the host's answer, and what lies between the items stays as it is."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
import pytest
from mpi4py import MPI

import hpccoll
from tests.collectives.conftest import Make
from tests.gpu.memory import make_stream, mirror, synchronize
from tests.support.layouts import layouts

COUNT = 64
MAKERS: dict[str, Callable[[], MPI.Datatype]] = {
    "vector": lambda: MPI.DOUBLE.Create_vector(3, 2, 4),
    "backwards": lambda: MPI.DOUBLE.Create_indexed_block(1, [9, 4, 0]),
    "unequal": lambda: MPI.DOUBLE.Create_indexed([2, 1, 3], [0, 5, 7]),
    "bytes apart": lambda: MPI.DOUBLE.Create_hindexed_block(1, [0, 20, 41]),
    "dense": lambda: MPI.DOUBLE.Create_contiguous(5),
    "a number and its place": lambda: MPI.DOUBLE_INT.Create_vector(2, 1, 2),
}


@pytest.fixture(params=MAKERS, ids=lambda name: name.replace(" ", "_"))
def items(request: pytest.FixtureRequest) -> Iterator[MPI.Datatype]:
    datatype = MAKERS[request.param]().Commit()
    yield datatype
    datatype.Free()


def numbers(comm: hpccoll.Communicator, turn: int = 0) -> np.ndarray:
    return np.arange(1.0, COUNT + 1) + 100 * comm.rank + turn


def typed(array: Any, datatype: MPI.Datatype, size: int) -> list[Any]:
    """A list for Alltoallw: an item for each rank, one behind the other."""
    return [array, [1] * size, [rank * datatype.extent for rank in range(size)], [datatype] * size]


Call = Callable[[hpccoll.Communicator, Any, Any, MPI.Datatype], Any]
CALLS: dict[str, Call] = {
    "Bcast": lambda comm, a, b, t: comm.Bcast([b, 1, t], root=1),
    "Allgather": lambda comm, a, b, t: comm.Allgather([a, 1, t], [b, 1, t]),
    "Allgatherv": lambda comm, a, b, t: comm.Allgatherv([a, 1, t], [b, [1] * comm.size, t]),
    "Alltoallv": lambda comm, a, b, t: comm.Alltoallv([a, [1] * comm.size, t], [b, [1] * comm.size, t]),
    "Alltoallw": lambda comm, a, b, t: comm.Alltoallw(typed(a, t, comm.size), typed(b, t, comm.size)),
    "Iallgather": lambda comm, a, b, t: comm.Iallgather([a, 1, t], [b, 1, t]).Wait(),
}


@pytest.mark.ranks(2, 3)
@pytest.mark.parametrize("name", CALLS)
def test_items_are_moved(communicator: Make, stream: int, items: MPI.Datatype, name: str) -> None:
    comm = communicator()
    give, wanted = numbers(comm), np.full(COUNT, -1.0)
    CALLS[name](comm, give, wanted, items)
    receive = mirror(np.full(COUNT, -1.0), stream)
    CALLS[name](comm, mirror(give, stream), receive, items)
    assert receive.download().tobytes() == wanted.tobytes()


@layouts({"": (2,), "2+2": (4,)})
@pytest.mark.parametrize("how", ["blocking", "in place", "started", "persistent", "on another stream"])
def test_items_are_combined(communicator: Make, layout: str, stream: int, how: str) -> None:
    comm = communicator(layout=layout)
    other = make_stream()
    datatype = MPI.DOUBLE.Create_vector(3, 2, 4).Commit()
    send, receive = mirror(np.zeros(COUNT), stream), mirror(np.full(COUNT, -1.0), stream)
    give, take = [send, 2, datatype], [receive, 2, datatype]
    persistent = comm.Allreduce_init(give, take)
    for turn in range(3):
        send.view[...] = numbers(comm, turn)
        if how == "in place":
            receive.view[...] = send.view
            receive.upload()
        send.upload_later()
        match how:
            case "blocking":
                comm.Allreduce(give, take)
            case "in place":
                comm.Allreduce(MPI.IN_PLACE, take)
            case "started":
                comm.Iallreduce(give, take).Wait()
            case "persistent":
                persistent.Start()
                persistent.Wait()
            case "on another stream":
                comm.Allreduce(give, take, stream=other)
                synchronize(other)
        wanted = send.view.copy() if how == "in place" else np.full(COUNT, -1.0)
        comm.Allreduce([numbers(comm, turn), 2, datatype], [wanted, 2, datatype])
        assert (receive.download() == wanted).all()
    persistent.Free()
    datatype.Free()


@pytest.mark.ranks(2)
def test_addresses_of_a_device(communicator: Make, device: int) -> None:
    comm = communicator()
    memory = mirror(np.full(4, comm.rank + 1.0), 0)
    datatype = MPI.DOUBLE.Create_hindexed_block(1, [memory.address, memory.address + 16]).Commit()
    comm.Allreduce(MPI.IN_PLACE, [MPI.BOTTOM, 1, datatype])
    assert memory.download().tolist() == [3, comm.rank + 1, 3, comm.rank + 1]
    here = MPI.Get_address(np.zeros(1))
    torn = MPI.DOUBLE.Create_hindexed_block(1, [memory.address, here]).Commit()
    with pytest.raises(hpccoll.UsageError, match="on a device and elsewhere"):
        comm.Bcast([MPI.BOTTOM, 1, torn])
    for one in (datatype, torn):
        one.Free()


@layouts({"": (2,), "2+2": (4,)})
def test_strided_arrays_are_written_where_the_call_is(communicator: Make, layout: str, stream: int) -> None:
    comm = communicator(layout=layout)
    other = make_stream()
    send, receive = mirror(np.zeros((100, 6)), stream), mirror(np.zeros((100, 6)), stream)
    send.view, receive.view = send.view[:, ::2], receive.view[:, 1::2]
    for turn in range(6):
        send.view[...] = turn + comm.rank
        send.upload_later()
        if turn % 2:
            comm.Allreduce(send, receive, stream=other)
            synchronize(other)
        else:
            comm.Iallreduce(send, receive).Wait()
        assert (receive.download(other) == turn * comm.size + sum(range(comm.size))).all()
