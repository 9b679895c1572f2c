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
from tests.support.oracle import COLLECTIVES, REDUCTIONS, ROOTED, Array
from tests.support.oracle.jobs import GIVES_TO_EACH, METHODS, TAKES_OF_EACH

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


# Calls with a root are made to the rank whose argument is wrong: only there both buffers count.
SEND = tuple(name for name in COLLECTIVES if name != "broadcast")
RECEIVE = tuple(name for name in SEND if name != "reduce")
# Which have a block for each rank where the others have one, so that N elements are no whole number of them.
ONE_BLOCK = tuple(name for name in SEND if name not in GIVES_TO_EACH)
FAULTS = (
    Fault(
        "nothing",
        "receive",
        lambda size: None,
        UsageTypeError,
        "buf is None",
        tuple(name for name in RECEIVE if name != "scatter"),
    ),
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
        ONE_BLOCK,
    ),
    Fault("list count", "send", lambda size: [np.zeros(N), -1], UsageError, "count -1", SEND),
    Fault("list count", "send", lambda size: [np.zeros(N), "f8", 2], UsageTypeError, "count 'f8'", SEND),
    Fault(
        "list type", "send", lambda size: [np.zeros(N), MPI.DATATYPE_NULL], UsageTypeError, "has type", SEND
    ),
    Fault(
        "list type", "send", lambda size: [np.zeros(9, "u1"), MPI.DOUBLE], UsageError, "9 bytes", ONE_BLOCK
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
    Fault("root", "root", lambda size: True, UsageTypeError, "root is True", ROOTED),
    Fault("root", "root", lambda size: 1.0, UsageTypeError, "root is 1.0", ROOTED),
    Fault("root", "root", lambda size: None, UsageTypeError, "root is None", ROOTED),
    Fault("root", "root", lambda size: -1, UsageError, "root is -1", ROOTED),
    Fault("root", "root", lambda size: size, UsageError, "root is [1-6]: must be", ROOTED),
    Fault("root", "root", lambda size: 2**70, UsageError, f"root is {2**70}", ROOTED),
)


def call(comm: hpccoll.Communicator, collective: str, fault: Fault | None, root: int = 0) -> Array:
    """The call, with the fault in it if there is one; returns the receive buffer."""
    size = comm.size
    arguments: dict[str, Any] = {
        "send": np.full(N * size if collective in GIVES_TO_EACH else N, float(comm.rank)),
        "receive": np.full(N * size if collective in TAKES_OF_EACH else N, UNTOUCHED),
        "buffer": np.full(N, UNTOUCHED),
        "op": MPI.SUM,
        "root": root,
    }
    if fault is not None:
        arguments[fault.argument] = fault.value(size)
    send, receive, buffer, op, root = arguments.values()
    buffers = (buffer,) if collective == "broadcast" else (send, receive)
    operator = (op,) if collective in REDUCTIONS else ()
    where = (root,) if collective in ROOTED else ()
    getattr(comm, METHODS[collective])(*buffers, *operator, *where)
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
            call(comm, collective, fault if comm.rank == culprit else None, root=culprit)
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
        # Of some arguments only the root's counts; and only the root of a scatter has two buffers to compare.
        at_root = {"gather": "receive", "scatter": "send"}.get(collective) == fault.argument or (
            collective == "scatter" and fault.name in ("dtype", "count")
        )
        wrong = (0,) if at_root else tuple(range(comm.size))
        assert caught.value.suspects == wrong, fault.name
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
        twos = [2] * comm.size
        wrong_counts = [2, -2, *twos][: comm.size] if comm.rank == comm.size - 1 else twos
        for attempt in (
            lambda: comm.Bcast(buffer, root=wrong_root),  # noqa: B023  called in this turn
            lambda: comm.Reduce(send, buffer, root=wrong_root),  # noqa: B023
            lambda: comm.Gather(send, receive, root=wrong_root),  # noqa: B023
            lambda: comm.Scatter(full, buffer, root=wrong_root),  # noqa: B023
            lambda: comm.Allreduce(send, buffer, op=wrong_op),  # noqa: B023
            lambda: comm.Scan(send, buffer, op=wrong_op),  # noqa: B023
            lambda: comm.Exscan(send, buffer, op=wrong_op),  # noqa: B023
            lambda: comm.Reduce_scatter_block(full, buffer, op=wrong_op),  # noqa: B023
            lambda: comm.Allgather(send if wrong_root == 0 else None, receive[: -comm.size]),  # noqa: B023
            lambda: comm.Alltoall(full, receive if wrong_root == 0 else receive[:-1]),  # noqa: B023
            lambda: comm.Allgatherv(send[:2], [receive, wrong_counts]),  # noqa: B023
            lambda: comm.Alltoallv([full, twos], [receive, wrong_counts]),  # noqa: B023
            lambda: comm.Gatherv(send[:2], [receive, wrong_counts], root=comm.size - 1),  # noqa: B023
            lambda: comm.Scatterv([full, wrong_counts], buffer[:2], root=comm.size - 1),  # noqa: B023
            lambda: comm.Reduce_scatter(full[: sum(twos)], buffer[:2], wrong_counts),  # noqa: B023
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
        lambda: comm.Alltoall(both[:whole], both[1 : whole + 1]),
        lambda: comm.Scan(both[:5], both[2:7]),
        lambda: comm.Exscan(both[:5], both[2:7]),
        lambda: comm.Reduce_scatter(both[:whole], both[4:12] if size > 1 else both[1:9], [8] * size),
        lambda: comm.Allgatherv(both[1 : 1 + 8], [both, [8] * size]),
        lambda: comm.Alltoallv([both, [8] * size], [both[1:], [8] * size]),
    ]
    for attempt in attempts:
        with pytest.raises(UsageError, match="overlap in part"):
            attempt()
    assert (both == UNTOUCHED).all()
    if size > 1:
        with pytest.raises(UsageError, match=r"same memory; pass MPI.IN_PLACE|overlap in part"):
            comm.Reduce_scatter_block(both[:whole], both[:8])
        with pytest.raises(UsageError, match=r"same memory; pass MPI.IN_PLACE|overlap in part"):
            comm.Alltoall(both[:whole], both[:whole])
    # At the root; the others' one buffer cannot overlap anything.
    for root in range(size):
        with pytest.raises(UsageError, match=f"rank {root}: .*overlap in part"):
            comm.Gather(both[1:9], both[:whole], root=root)
        with pytest.raises(UsageError, match=f"rank {root}: .*overlap in part"):
            comm.Scatter(both[:whole], both[1:9], root=root)
    assert (both == UNTOUCHED).all()
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


@dataclass(frozen=True)
class CountFault:
    """Wrong counts or displacements in a list for blocks of `size` ranks, each of two elements."""

    name: str
    spec: Callable[[int, Array], Any]
    kind: type[UsageError]
    says: str
    to_write: bool = False  # wrong in a receive buffer only


COUNT_FAULTS = (
    CountFault("too few counts", lambda size, buf: [buf, [2] * (size - 1)], UsageError, "counts"),
    CountFault("too many counts", lambda size, buf: [buf, [2] * (size + 1)], UsageError, "counts"),
    CountFault("negative count", lambda size, buf: [buf, [2] * (size - 1) + [-2]], UsageError, "-2"),
    CountFault("count of text", lambda size, buf: [buf, [2] * (size - 1) + ["2"]], UsageTypeError, "count"),
    CountFault("count of float", lambda size, buf: [buf, [2.0] * size], UsageTypeError, "count"),
    CountFault("counts are text", lambda size, buf: [buf, "two"], UsageTypeError, "two"),
    CountFault("beyond the end", lambda size, buf: [buf, [2] * (size - 1) + [99]], UsageError, "99"),
    CountFault(
        "displacement beyond the end", lambda size, buf: [buf, ([2] * size, [99] * size)], UsageError, "99"
    ),
    CountFault(
        "negative displacement",
        lambda size, buf: [buf, ([2] * size, [-1, *range(2, 2 * size, 2)])],
        UsageError,
        "-1",
    ),
    CountFault(
        "too few displacements", lambda size, buf: [buf, ([2] * size, [0] * (size - 1))], UsageError, "displ"
    ),
    CountFault(
        "displacement of float",
        lambda size, buf: [buf, ([2] * size, [0.5] * size)],
        UsageTypeError,
        "displ",
    ),
    CountFault("no list", lambda size, buf: [buf, [2] * size, None, None, None], UsageTypeError, "buf is"),
    CountFault("type of text", lambda size, buf: [buf, [2] * size, "no such"], UsageTypeError, "no such"),
    CountFault("type", lambda size, buf: [buf, [2] * size, 7], UsageTypeError, "7"),
    CountFault(
        "strided", lambda size, buf: [np.repeat(buf, 2)[::2], [2] * size], UsageError, "not contiguous"
    ),
    CountFault("no memory", lambda size, buf: [object(), [2] * size], UsageTypeError, "object"),
    CountFault(
        "blocks overlap",
        lambda size, buf: [buf, ([2] * size, [0] * size)],
        UsageError,
        "apart",
        to_write=True,
    ),
)
COUNTED = ("Gatherv", "Scatterv", "Allgatherv", "Alltoallv")


def counted(comm: hpccoll.Communicator, method: str, spec: Any, root: int) -> None:
    """A ragged call with `spec` for a list of blocks, right everywhere else."""
    size = comm.size
    right: list[Any] = [np.full(2 * size, UNTOUCHED), [2] * size]
    if method == "Scatterv":
        comm.Scatterv(right if spec is None else spec, np.zeros(2), root)
    elif method == "Gatherv":
        comm.Gatherv(np.zeros(2), right if spec is None else spec, root)
    elif method == "Allgatherv":
        comm.Allgatherv(np.zeros(2), right if spec is None else spec)
    else:
        comm.Alltoallv([np.zeros(2 * size), [2] * size], right if spec is None else spec)


@pytest.mark.parametrize("method", COUNTED)
@layouts({"": (2, 3), "1+1": (2,), "2+1": (3,)})
def test_wrong_counts_on_one_rank(communicator: Make, layout: str, method: str) -> None:
    comm = communicator(layout=layout)
    for k, fault in enumerate(one for one in COUNT_FAULTS if method != "Scatterv" or not one.to_write):
        culprit = k % comm.size
        buf = np.full(2 * comm.size, UNTOUCHED)
        spec = fault.spec(comm.size, buf) if comm.rank == culprit else None
        with pytest.raises(fault.kind) as caught:
            counted(comm, method, spec, culprit)
        about = f"rank {comm.rank}: {fault.name} in {method}: {caught.value!r}"
        assert re.search(fault.says, str(caught.value)), about
        assert f"rank {culprit}: " in str(caught.value), about
        assert caught.value.suspects == (culprit,), about
        assert (buf == UNTOUCHED).all(), about
    still_works(comm)


@layouts({"": (2, 3), "2+1": (3,)})
def test_wrong_counts_of_a_reduce_scatter(communicator: Make, layout: str) -> None:
    comm = communicator(layout=layout)
    size = comm.size
    culprit = size - 1
    for wrong, says in (
        ([2] * (size + 1), "counts"),
        ([2] * (size - 1), "counts"),
        ([3] * size, "must be as many"),
        ([*[2] * (size - 2), 1, 3], "must be as many"),
        ([*[2] * (size - 1), -2], "-2"),
        ("text", "text"),
        (2.5, "2.5"),
    ):
        receive = np.full(2, UNTOUCHED)
        with pytest.raises(UsageError, match=f"rank {culprit}: .*{says}"):
            comm.Reduce_scatter(np.ones(2 * size), receive, wrong if comm.rank == culprit else [2] * size)
        assert (receive == UNTOUCHED).all()
    # Without counts they are those of the receive buffers, whose sum every rank must send.
    receive = np.full(2 + (comm.rank == culprit), UNTOUCHED)
    with pytest.raises(UsageError, match="must be as many"):
        comm.Reduce_scatter(np.ones(2 * size), receive)
    assert (receive == UNTOUCHED).all()
    still_works(comm)


WIDE_FAULTS: dict[str, tuple[Callable[[int, Array], Any], str]] = {
    "too few types": (lambda size, buf: [buf, [MPI.DOUBLE] * (size - 1)], "types"),
    "no types": (lambda size, buf: [buf, [2] * size, [0] * size, ["d"] * size], "types"),
    "too few counts": (lambda size, buf: [buf, [1], [0] * size, [MPI.DOUBLE] * size], "count"),
    "beyond the end": (lambda size, buf: [buf, [1] * size, [999] * size, [MPI.DOUBLE] * size], "999"),
    "null": (lambda size, buf: [buf, [1] * size, [0] * size, [MPI.DATATYPE_NULL] * size], "NULL"),
    "blocks overlap": (lambda size, buf: [buf, [1] * size, [4] * size, [MPI.DOUBLE] * size], "apart|overlap"),
    "an array": (lambda size, buf: buf, "types"),
}


@pytest.mark.parametrize("fault", WIDE_FAULTS)
@layouts({"": (2, 3), "2+1": (3,)})
def test_wrong_types_of_an_alltoallw(communicator: Make, layout: str, fault: str) -> None:
    comm = communicator(layout=layout)
    size = comm.size
    make, says = WIDE_FAULTS[fault]
    displacements, types = [8 * peer for peer in range(size)], [MPI.DOUBLE] * size
    for culprit in range(size):
        buf = np.full(size, UNTOUCHED)
        right = [buf, [1] * size, displacements, types]
        with pytest.raises(UsageError, match=f"rank {culprit}: .*({says})"):
            comm.Alltoallw(
                [np.zeros(size), [1] * size, displacements, types],
                make(size, buf) if comm.rank == culprit else right,
            )
        assert (buf == UNTOUCHED).all()
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
    with pytest.raises(UsageError, match=f"sendbuf holds {2 * size}.*recvbuf {2 * size + 1}.*Alltoallv"):
        comm.Alltoall(np.zeros(2 * size), np.zeros(2 * size + 1))
    with pytest.raises(UsageError, match=f"recvbuf holds {2 * size + 1} elements: must be a multiple of"):
        comm.Alltoall(MPI.IN_PLACE, np.zeros(2 * size + 1))
    for root in range(size):
        with pytest.raises(UsageError, match=f"rank {root}: recvbuf holds {2 * size + 1} .*Gatherv"):
            comm.Gather(np.zeros(2), np.zeros(2 * size + 1), root)
        with pytest.raises(UsageError, match=f"rank {root}: sendbuf holds {2 * size + 1} .*multiple of"):
            comm.Scatter(np.zeros(2 * size + 1), np.zeros(2), root)
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
        ({"algorithm": "neighbour:ring"}, "no collective 'neighbour'; there are allreduce"),
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
    with pytest.raises(hpccoll.MismatchError, match=f"different settings: {name} is .*rank {world.size - 1}"):
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
    with pytest.raises(UsageError, match="no collective 'neighbour'; there are allreduce"):
        comm.algorithms("neighbour")
    with pytest.raises(UsageError, match="no collective 'neighbour'; there are allreduce"):
        comm.explain("neighbour", 100)
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
