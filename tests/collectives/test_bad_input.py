"""Wrong arguments, on one rank or on all: the same error on every rank, nothing moved, all as before."""

from __future__ import annotations

import os
import re
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from mpi4py import MPI

import hpccoll
from hpccoll.errors import HpccollError, UsageError, UsageTypeError
from tests.collectives.conftest import Make
from tests.support.layouts import layouts
from tests.support.oracle import COLLECTIVES, Array

UNTOUCHED = -55.0
N = 6
LAYOUTS = layouts({"": (1, 2, 3), "2+1": (3,), "1+1": (2,), "2+2": (4,), "3+1": (4,)})


class Unreadable:
    """Fails when it is asked for its memory, with an error of its own."""

    @property
    def __array_interface__(self) -> dict[str, Any]:
        raise RuntimeError("out of reach")


@dataclass(frozen=True)
class Fault:
    """One wrong argument: what is put in the place of which, which error comes, and what it says."""

    name: str
    argument: str
    value: Callable[[int], Any]
    kind: type[UsageError]
    says: str
    collectives: tuple[str, ...] = COLLECTIVES


def read_only() -> Array:
    fixed = np.full(N, UNTOUCHED)
    fixed.flags.writeable = False
    return fixed


SEND = ("allreduce", "reduce", "allgather", "reduce_scatter")
RECEIVE = ("allreduce", "allgather", "reduce_scatter")
REDUCTIONS = ("allreduce", "reduce", "reduce_scatter")
FAULTS = (
    Fault("nothing", "receive", lambda size: None, UsageTypeError, "buf is None", RECEIVE),
    Fault("nothing", "buffer", lambda size: None, UsageTypeError, "buf is None", ("broadcast",)),
    Fault("text", "send", lambda size: "numbers", UsageTypeError, "sendbuf is 'numbers'", SEND),
    Fault("text", "receive", lambda size: "numbers", UsageTypeError, "recvbuf is 'numbers'", RECEIVE),
    Fault(
        "number",
        "receive",
        lambda size: 1.5,
        UsageTypeError,
        "recvbuf is 1.5, which cannot be written",
        RECEIVE,
    ),
    Fault("bytes", "receive", lambda size: b"123456", UsageTypeError, "recvbuf is b'123456'", RECEIVE),
    Fault(
        "lists",
        "send",
        lambda size: [[1.0, 2.0], [3.0]],
        UsageTypeError,
        r"sendbuf is \[\[1.0, 2.0\], \[3.0\]\]: must be",
        SEND,
    ),
    Fault("numbers", "receive", lambda size: [0.0, 1], UsageTypeError, r"recvbuf is \[0.0, 1\]", RECEIVE),
    Fault("iterator", "send", lambda size: iter([1.0]), UsageTypeError, "sendbuf is a list_iterator", SEND),
    Fault(
        "objects", "send", lambda size: np.array([None] * N), UsageTypeError, "sendbuf has dtype object", SEND
    ),
    Fault("unreadable", "send", lambda size: Unreadable(), UsageError, "RuntimeError: out of reach", SEND),
    Fault(
        "empty type", "send", lambda size: np.zeros(N, "V0"), UsageTypeError, r"sendbuf has dtype \|V0", SEND
    ),
    Fault("read-only", "receive", lambda size: read_only(), UsageError, "recvbuf is read-only", RECEIVE),
    Fault(
        "overlap in itself",
        "receive",
        lambda size: np.lib.stride_tricks.as_strided(np.full(1, UNTOUCHED), (N * size,), (0,)),
        UsageError,
        r"recvbuf has elements that share memory: .*strides \(0,\)",
        RECEIVE,
    ),
    Fault(
        "dtype", "receive", lambda size: np.zeros(N * size, "f4"), UsageTypeError, "float64.*float32", RECEIVE
    ),
    Fault(
        "count",
        "receive",
        lambda size: np.zeros(N * size + 1),
        UsageError,
        r"buf holds \d+ elements.*must be",
        RECEIVE,
    ),
    Fault(
        "list count",
        "send",
        lambda size: [np.zeros(N), N + 1],
        UsageError,
        f"count {N + 1}.*holds {N}",
        ("reduce",),
    ),
    Fault("list count", "send", lambda size: [np.zeros(N), -1], UsageError, "count -1", SEND),
    Fault("list count", "send", lambda size: [np.zeros(N), "f8", 2], UsageTypeError, "count 'f8'", SEND),
    Fault(
        "list type", "send", lambda size: [np.zeros(N), MPI.DATATYPE_NULL], UsageTypeError, "has type", SEND
    ),
    Fault(
        "list type", "send", lambda size: [np.zeros(9, "u1"), MPI.DOUBLE], UsageError, "9 bytes", ("reduce",)
    ),
    Fault("operator", "op", lambda size: "sum", UsageTypeError, "op is 'sum'", REDUCTIONS),
    Fault("operator", "op", lambda size: None, UsageTypeError, "op is None", REDUCTIONS),
    Fault("operator", "op", lambda size: np.add, UsageTypeError, "op is <ufunc 'add'>", REDUCTIONS),
    Fault("operator", "op", lambda size: MPI.OP_NULL, UsageTypeError, "op is MPI.OP_NULL", REDUCTIONS),
    Fault("operator", "op", lambda size: MPI.REPLACE, UsageTypeError, "op is MPI.REPLACE", REDUCTIONS),
    Fault(
        "operator",
        "op",
        lambda size: MPI.BAND,
        UsageTypeError,
        "MPI.BAND is not defined.*float64",
        REDUCTIONS,
    ),
    Fault("root", "root", lambda size: True, UsageTypeError, "root is True", ("reduce", "broadcast")),
    Fault("root", "root", lambda size: 1.0, UsageTypeError, "root is 1.0", ("reduce", "broadcast")),
    Fault("root", "root", lambda size: None, UsageTypeError, "root is None", ("reduce", "broadcast")),
    Fault("root", "root", lambda size: -1, UsageError, "root is -1", ("reduce", "broadcast")),
    Fault("root", "root", lambda size: size, UsageError, "root is [1-6]: must be", ("reduce", "broadcast")),
    Fault("root", "root", lambda size: 2**70, UsageError, f"root is {2**70}", ("reduce", "broadcast")),
)


def call(comm: hpccoll.Communicator, collective: str, fault: Fault | None) -> Array:
    """The call, with the fault in it if there is one; returns the receive buffer."""
    size = comm.size
    sends = {"reduce_scatter": N * size}.get(collective, N)
    takes = {"allgather": N * size}.get(collective, N)
    arguments: dict[str, Any] = {
        "send": np.full(sends, float(comm.rank)),
        "receive": np.full(takes, UNTOUCHED),
        "buffer": np.full(N, UNTOUCHED),
        "op": MPI.SUM,
        "root": 0,
    }
    if fault is not None:
        arguments[fault.argument] = fault.value(size)
    send, receive, buffer, op, root = arguments.values()
    if collective == "allreduce":
        comm.Allreduce(send, receive, op=op)
    elif collective == "reduce":
        comm.Reduce(send, receive, op=op, root=root)
    elif collective == "broadcast":
        comm.Bcast(buffer, root=root)
    elif collective == "allgather":
        comm.Allgather(send, receive)
    else:
        comm.Reduce_scatter_block(send, receive, op=op)
    return receive


def still_works(comm: hpccoll.Communicator) -> None:
    assert (call(comm, "allreduce", None) == sum(range(comm.size))).all()


@pytest.mark.parametrize("collective", COLLECTIVES)
@LAYOUTS
def test_wrong_arguments_on_one_rank(communicator: Make, layout: str, collective: str) -> None:
    comm = communicator(layout=layout)
    for k, fault in enumerate(one for one in FAULTS if collective in one.collectives):
        culprit = k % comm.size
        with pytest.raises(UsageError) as caught:
            call(comm, collective, fault if comm.rank == culprit else None)
        error = caught.value
        about = f"rank {comm.rank}: {fault.name} in {collective}: {error!r}"
        assert isinstance(error, fault.kind), about
        assert isinstance(error, ValueError), about
        assert isinstance(error, TypeError) == (fault.kind is UsageTypeError), about
        assert re.search(fault.says, str(error)), about
        assert f"rank {culprit}: " in str(error), about
        assert (error.collective, error.rank) == (collective, comm.rank), about
        assert error.suspects == (culprit,), about
    still_works(comm)


@pytest.mark.parametrize("collective", COLLECTIVES)
@layouts({"": (3,), "3+1": (4,)})
def test_wrong_arguments_on_all_ranks(communicator: Make, layout: str, collective: str) -> None:
    comm = communicator(layout=layout)
    for fault in (one for one in FAULTS if collective in one.collectives):
        with pytest.raises(fault.kind, match=fault.says) as caught:
            call(comm, collective, fault)
        assert caught.value.suspects == tuple(range(comm.size)), fault.name
    still_works(comm)


@layouts({"": (2,), "2+1": (3,)})
def test_two_ranks_with_different_faults_are_both_named(communicator: Make, layout: str) -> None:
    comm = communicator(layout=layout)
    root = -1 if comm.rank == 0 else True if comm.rank == 1 else 0
    with pytest.raises(UsageError, match=r"rank 0: root is -1.*rank 1: root is True"):
        comm.Bcast(np.zeros(3), root=root)
    still_works(comm)


@layouts({"": (2, 3), "2+1": (3,), "1+1": (2,), "2+2": (4,), "3+1": (4,)})
def test_outputs_are_untouched_after_an_error(communicator: Make, layout: str) -> None:
    comm = communicator(layout=layout)
    for count in (3, 5000):
        receive, buffer = np.full(count * comm.size, UNTOUCHED), np.full(count, UNTOUCHED)
        send, full = np.ones(count), np.ones(count * comm.size)
        wrong_root = comm.size if comm.rank == comm.size - 1 else 0
        wrong_op: Any = None if comm.rank == comm.size - 1 else MPI.SUM
        for attempt in (
            lambda: comm.Bcast(buffer, root=wrong_root),  # noqa: B023  called in this turn
            lambda: comm.Reduce(send, buffer, root=wrong_root),  # noqa: B023
            lambda: comm.Allreduce(send, buffer, op=wrong_op),  # noqa: B023
            lambda: comm.Reduce_scatter_block(full, buffer, op=wrong_op),  # noqa: B023
            lambda: comm.Allgather(send if wrong_root == 0 else None, receive[: -comm.size]),  # noqa: B023
        ):
            with pytest.raises(UsageError):
                attempt()
        assert (buffer == UNTOUCHED).all()
        assert (receive == UNTOUCHED).all()
        assert (send == 1).all()
    still_works(comm)


@layouts({"": (1, 2), "2+1": (3,)})
def test_buffers_that_overlap_in_part(communicator: Make, layout: str) -> None:
    comm = communicator(layout=layout)
    size, both = comm.size, np.full(10 * comm.size, UNTOUCHED)
    whole = 8 * size
    attempts: list[Callable[[], None]] = [
        lambda: comm.Allreduce(both[:5], both[2:7]),
        lambda: comm.Allreduce(both[:6], both[:12:2] if size > 1 else both[5::-1]),
        lambda: comm.Allreduce(both[:6].reshape(2, 3), both[:6]),
        lambda: comm.Allgather(both[1 : 1 + 8], both[:whole]),
        lambda: comm.Reduce_scatter_block(both[:whole], both[4:12] if size > 1 else both[1:9]),
    ]
    for attempt in attempts:
        with pytest.raises(UsageError, match="overlap in part"):
            attempt()
    assert (both == UNTOUCHED).all()
    if size > 1:
        with pytest.raises(UsageError, match=r"same memory; pass MPI.IN_PLACE|overlap in part"):
            comm.Reduce_scatter_block(both[:whole], both[:8])
        with pytest.raises(UsageError, match=r"rank 1: sendbuf is MPI.IN_PLACE.*only the root \(0\)"):
            comm.Reduce(MPI.IN_PLACE, both, root=0)
    still_works(comm)


@layouts({"": (1, 2), "2+1": (3,)})
@pytest.mark.parametrize(
    ("number", "dtype", "kind"),
    [
        (1.5, "i4", UsageTypeError),
        (1j, "f8", UsageTypeError),
        (2, "?", UsageTypeError),
        (300, "i1", UsageError),
        (-1, "u4", UsageError),
        (10**400, "f8", UsageError),
        (np.float64(1.5), "f4", UsageTypeError),
    ],
    ids=repr,
)
def test_numbers_that_the_receive_buffer_cannot_hold(
    communicator: Make, layout: str, number: Any, dtype: str, kind: type[Exception]
) -> None:
    comm = communicator(layout=layout)
    receive = np.ones((), dtype)
    culprit = comm.size - 1
    plain = np.ones((), dtype)
    op = MPI.LOR if dtype == "?" else MPI.SUM
    with pytest.raises(kind, match=f"rank {culprit}: sendbuf"):
        comm.Allreduce(number if comm.rank == culprit else plain, receive, op=op)
    assert receive == 1
    still_works(comm)


@layouts({"": (2,), "2+1": (3,)})
def test_blocks_that_do_not_fit(communicator: Make, layout: str) -> None:
    """As reported in pytorch/pytorch#56112 and Lightning-AI/pytorch-lightning#7773: everything froze."""
    comm = communicator(layout=layout)
    size = comm.size
    with pytest.raises(UsageError, match=f"recvbuf holds {2 * size + 1} .* {size} ranks x 2.*Allgatherv"):
        comm.Allgather(np.zeros(2), np.zeros(2 * size + 1))
    with pytest.raises(UsageError, match=f"recvbuf holds {2 * size + 1} elements: must be a multiple of"):
        comm.Allgather(MPI.IN_PLACE, np.zeros(2 * size + 1))
    with pytest.raises(UsageError, match=f"recvbuf holds {2 * size + 1} elements: must be a multiple of"):
        comm.Reduce_scatter_block(MPI.IN_PLACE, np.zeros(2 * size + 1))
    with pytest.raises(UsageError, match=f"sendbuf holds {2 * size} elements: must be {size} ranks x 3"):
        comm.Reduce_scatter_block(np.zeros(2 * size), np.zeros(3))
    still_works(comm)


@pytest.mark.ranks(1, 2)
@pytest.mark.parametrize(
    ("options", "says"),
    [
        ({"chunks": 3}, "unknown option chunks; there are .*timeout_s"),
        ({"timeout_s": "soon"}, "timeout_s is 'soon': not a float"),
        ({"timeout_s": 0}, "timeout_s is 0.0: must be from"),
        ({"small_bytes": 70000}, "small_bytes is 70000: must be from 0 to 65536"),
        ({"segment_bytes": 1}, "segment_bytes is 1"),
        ({"checks": "maybe"}, "checks is 'maybe': must be one of on, off"),
        ({"native": "perhaps"}, "native is 'perhaps': not a bool"),
    ],
)
def test_wrong_options_when_it_is_made(world: MPI.Intracomm, options: dict[str, Any], says: str) -> None:
    with pytest.raises(UsageError, match=says):
        hpccoll.Communicator(world, **options)


@pytest.mark.ranks(1, 2, 3)
@pytest.mark.parametrize(
    ("options", "says"),
    [
        ({"algorithm": "nope"}, "algorithm is 'nope'.*ring"),
        ({"algorithm": "allreduce:chain"}, "allreduce has no 'chain' on layout .*; there are flat"),
        ({"algorithm": "alltoall:ring"}, "no collective 'alltoall'; there are allreduce"),
        ({"layout": "2+x"}, r'layout "2\+x"'),
        ({"layout": "7+2"}, r'layout "7\+2" has 9 ranks, but MPI.COMM_WORLD has [123]'),
    ],
)
def test_wrong_options_at_first_use(world: MPI.Intracomm, options: dict[str, Any], says: str) -> None:
    comm = hpccoll.Communicator(world, **options)
    for _ in range(2):
        with pytest.raises(HpccollError, match=says):
            comm.Barrier()
    comm.close()


@pytest.mark.ranks(2, 3)
@pytest.mark.parametrize(
    ("name", "one", "other"),
    [("timeout_s", 20, 30), ("small_bytes", 0, 64), ("algorithm", "", "ring"), ("checks", "on", "off")],
)
def test_options_that_differ_between_ranks(world: MPI.Intracomm, name: str, one: Any, other: Any) -> None:
    comm = hpccoll.Communicator(world, **{name: other if world.rank == world.size - 1 else one})
    with pytest.raises(hpccoll.MismatchError, match=f"different settings.*rank {world.size - 1}.*{name}"):
        comm.Barrier()
    comm.close()


@pytest.mark.ranks(2, 3)
def test_layouts_that_differ_between_ranks(world: MPI.Intracomm) -> None:
    comm = hpccoll.Communicator(world, layout="" if world.rank else f"{world.size - 1}+1")
    with pytest.raises(HpccollError, match="layout"):
        comm.Barrier()
    comm.close()


@pytest.mark.ranks(1, 3)
def test_names_that_do_not_exist(communicator: Make) -> None:
    comm = communicator()
    with pytest.raises(UsageError, match=r"algorithm 'fast' is not one of .*ring"), comm.forced("fast"):
        pass
    with pytest.raises(UsageError, match="no collective 'alltoall'; there are allreduce"):
        comm.algorithms("alltoall")
    with pytest.raises(UsageError, match="no collective 'alltoall'; there are allreduce"):
        comm.explain("alltoall", 100)
    with pytest.raises(TypeError, match="op is 'sum'"):
        comm.explain("allreduce", 100, op="sum")  # type: ignore[arg-type]
    still_works(comm)


@pytest.mark.ranks(2, 4)
def test_nothing_is_left_in_shared_memory(communicator: Make, world: MPI.Intracomm) -> None:
    """While communicators are open, too: whoever is killed leaves nothing."""
    for layout in ("", "1+1" if world.size == 2 else "3+1"):
        comm = communicator(layout=layout)
        still_works(comm)
        comm.Allreduce(np.ones(200_000), np.empty(200_000))
        with pytest.raises(UsageError):
            call(comm, "allreduce", FAULTS[0])
    world.Barrier()
    assert [path.name for path in Path("/dev/shm").glob(f"hpccoll-*-{os.getpid()}-*")] == []
