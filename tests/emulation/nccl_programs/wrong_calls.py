"""What a caller can do wrong: NCCL's codes and texts."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
from cuda.core import Device
from nccl import core
from nccl.bindings import nccl as low
from nccl.core import Communicator, NCCLConfig

from tests.emulation.nccl_programs.support import (
    ARGUMENT,
    CUDA_ERROR,
    RANK,
    SIZE,
    SUCCESS,
    SUM,
    SYSTEM_ERROR,
    USAGE,
    Array,
    opened,
    program,
    settled,
    status,
    stream_done,
)


@program
def wrong_calls() -> None:
    """NCCL's codes and texts for what a caller can do wrong."""
    with opened() as (comm, stream):
        handle, c = int(stream.handle), comm._comm
        a, b = Array(np.zeros(8)), Array(np.zeros(8))
        Device((RANK + 1) % 4).set_current()
        elsewhere = Array(np.zeros(8))
        other_stream = int(Device((RANK + 1) % 4).create_stream().handle)
        Device(RANK).set_current()

        def refused(code: int, text: str, call: Callable[[], Any]) -> None:
            found = status(call)
            assert found[0] == code, (found, code, text)
            assert text in found[1], (found, code, text)

        refused(ARGUMENT, "invalid root 99", lambda: low.broadcast(a.address, b.address, 8, 8, 99, c, handle))
        refused(
            ARGUMENT, "invalid root -1", lambda: low.reduce(a.address, b.address, 8, 8, SUM, -1, c, handle)
        )
        refused(ARGUMENT, "Send : invalid root", lambda: low.send(a.address, 8, 8, SIZE, c, handle))
        refused(
            ARGUMENT, "invalid type 12", lambda: low.all_reduce(a.address, b.address, 8, 12, SUM, c, handle)
        )
        refused(
            ARGUMENT, "unknown to this", lambda: low.all_reduce(a.address, b.address, 8, 8, 77, c, handle)
        )
        refused(ARGUMENT, "sendbuff", lambda: low.all_reduce(0, b.address, 8, 8, SUM, c, handle))
        refused(ARGUMENT, "recvbuff", lambda: low.all_reduce(a.address, 0, 8, 8, SUM, c, handle))
        refused(
            ARGUMENT, "valid pointer", lambda: low.all_reduce(a.address, b.address, 10**9, 8, SUM, c, handle)
        )
        host = np.zeros(8)
        refused(
            ARGUMENT,
            "valid pointer",
            lambda: low.all_reduce(host.ctypes.data, b.address, 8, 8, SUM, c, handle),
        )
        refused(
            ARGUMENT,
            f"mismatchs with NCCL device {RANK}",
            lambda: low.all_reduce(elsewhere.address, b.address, 8, 8, SUM, c, handle),
        )
        refused(CUDA_ERROR, "400", lambda: low.all_reduce(a.address, b.address, 8, 8, SUM, c, other_stream))
        refused(USAGE, "not in a group", core.group_end)
        core.group_start()
        refused(ARGUMENT, "invalid type", lambda: low.all_reduce(a.address, b.address, 8, 50, SUM, c, handle))
        low.all_reduce(a.address, b.address, 8, 8, SUM, c, handle)
        refused(ARGUMENT, "", core.group_end)  # and nothing of the group is done
        assert stream_done(stream)
        refused(USAGE, "send to self", lambda: low.send(a.address, 8, 8, RANK, c, handle))
        refused(ARGUMENT, "Invalid rank", lambda: Communicator.init(2, 2, core.get_unique_id()))
        refused(ARGUMENT, "min/max channels", lambda: communicator_of_one(min_ctas=4, max_ctas=2))
        used = core.get_unique_id()
        Communicator.init(1, 0, used).destroy()
        refused(SYSTEM_ERROR, "second time", lambda: Communicator.init(1, 0, used))
        nonblocking = communicator_of_one(blocking=False)
        assert settled(nonblocking) == SUCCESS
        core.group_start()
        low.all_reduce(a.address, b.address, 8, 8, SUM, c, handle)
        refused(
            ARGUMENT,
            "Blocking and nonblocking",
            lambda: low.all_reduce(a.address, b.address, 8, 8, SUM, nonblocking._comm, handle),
        )
        refused(ARGUMENT, "", core.group_end)
        nonblocking.abort()
        refused(USAGE, "does not have this", lambda: comm.suspend())
        comm.allreduce(a, b, core.SUM, stream=stream)  # it still works


def communicator_of_one(**config: Any) -> Communicator:
    return Communicator.init(1, 0, core.get_unique_id(), NCCLConfig(**config))


@program
def overlapping_buffers() -> None:
    """Not in place, but not apart: visibly wrong."""
    with opened() as (comm, stream):
        whole = Array(np.ones(16))
        low.all_reduce(whole.address, whole.at(4), 8, 8, SUM, comm._comm, int(stream.handle))
        stream.sync()
        assert (whole.get().view("u1")[32:96] == 0xA5).all()
        whole.put(np.ones(16))
        per_rank = 16 // SIZE
        low.reduce_scatter(whole.address, whole.address, per_rank, 8, SUM, comm._comm, int(stream.handle))
        stream.sync()
        bad = (whole.get().view("u1")[: 8 * per_rank] == 0xA5).all()
        assert bad == (RANK != 0), whole.get()
        low.allto_all(whole.address, whole.address, per_rank, 8, comm._comm, int(stream.handle))
        stream.sync()
        assert (whole.get().view("u1") == 0xA5).any()


@program
def overlapping_buffers_checked() -> None:
    with opened() as (comm, stream):
        whole = Array(np.ones(16))
        call = lambda: low.all_reduce(whole.address, whole.at(4), 8, 8, SUM, comm._comm, int(stream.handle))  # noqa: E731
        assert status(call)[0] == ARGUMENT
