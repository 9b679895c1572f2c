"""Calls on device arrays are counted when they are enqueued; their times nobody on the host knows."""

from __future__ import annotations

import numpy as np
import pytest

from hpccoll.observe.snapshot import NCCL, STAGED
from tests.collectives.conftest import Make
from tests.gpu.memory import captured, mirror, synchronize
from tests.support.layouts import layouts

COUNT = 10_000
NBYTES = 8 * COUNT


@layouts({"": (2,), "2+2": (4,)})
def test_calls_by_nccl(communicator: Make, layout: str, stream: int) -> None:
    comm = communicator(layout=layout, metrics="count")
    send, receive = mirror(np.full(COUNT, 3.0), stream), mirror(np.zeros(COUNT), stream)
    before = comm.tally()
    for _ in range(5):  # from the second on as a tape
        comm.Allreduce(send, receive)
    for _ in range(3):
        comm.Iallreduce(send, receive).Wait()
    request = comm.Allreduce_init(send, receive)
    for _ in range(4):
        request.Start()
    request.Wait()
    request.Free()
    assert (receive.download() == 3 * comm.size).all()
    found = comm.metrics(reset=True)
    rows = {row.form: row for row in found.rows if row.collective == "allreduce"}
    assert {form: (row.calls, row.nbytes) for form, row in rows.items()} == {
        "blocking": (5, 5 * NBYTES),
        "started": (7, 7 * NBYTES),
    }
    assert found.calls() == sum((comm.tally() - before).values())
    for row in rows.values():
        assert (row.memory, row.seconds, row.busbw, row.levels) == (NCCL, None, None, ())


@layouts({"": (2,), "3+1": (4,)})
def test_a_graph_is_counted_when_it_is_captured(communicator: Make, layout: str, stream: int) -> None:
    comm = communicator(layout=layout, metrics="count")
    send, receive = mirror(np.full(COUNT, 3.0), stream), mirror(np.zeros(COUNT), stream)
    comm.Allreduce(send, receive)
    synchronize(stream)
    comm.metrics(reset=True)
    with captured(stream) as graph:
        comm.Allreduce(send, receive)
    for _ in range(3):
        graph.launch(stream)
    assert (receive.download() == 3 * comm.size).all()
    assert comm.metrics().calls() == 1


@layouts({"": (2,), "2+2": (4,)})
@pytest.mark.parametrize("started", [False, True])
def test_calls_over_the_host(communicator: Make, layout: str, stream: int, started: bool) -> None:
    comm = communicator(layout=layout, metrics="count", device_path="host")
    send, receive = mirror(np.full(COUNT, 3.0), stream), mirror(np.zeros(COUNT), stream)
    comm.Allreduce(send, receive)
    comm.metrics(reset=True)
    for _ in range(4):
        if started:
            comm.Iallreduce(send, receive).Wait()
        else:
            comm.Allreduce(send, receive)
    assert (receive.download() == 3 * comm.size).all()
    (row,) = comm.metrics().rows
    assert (row.memory, row.calls, row.nbytes) == (STAGED, 4, 4 * NBYTES)
    assert row.form == ("started" if started else "blocking")
    assert row.seconds is not None
    assert row.seconds > 0
