"""Ragged calls whose counts do not fit each other: an error on every rank names them, before data moves."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from typing import Any

import numpy as np
import pytest

from hpccoll.errors import MismatchError, UsageError
from tests.collectives.conftest import Make
from tests.support.layouts import layouts
from tests.support.oracle import Array, Job, perform

TWO_TO_FOUR = layouts(
    {"": (2, 3, 4), "1+1": (2,), "2+1": (3,), "1+1+1": (3,), "3+1": (4,), "cyclic:2+2": (4,)}
)
THREE_AND_FOUR = layouts({"": (3, 4), "2+1": (3,), "1+2": (3,), "2+2": (4,), "cyclic:2+2": (4,)})
Lengths = Mapping[tuple[int, int], int]


def call(comm: Any, name: str, usual: int, gives: Lengths, takes: Lengths, root: int = 0) -> Array:
    """A ragged call in which rank i gives `gives[i, j]` elements to j, and j takes `takes[i, j]` from i.

    `usual` is the length of all other blocks.  Returns the receive buffer, whose elements were -1.
    """
    size, rank = comm.size, comm.rank
    given = [gives.get((rank, other), usual) for other in range(size)]
    taken = [takes.get((other, rank), usual) for other in range(size)]
    if name == "Gatherv":
        receive = np.full(sum(taken), -1.0)
        buffers: tuple[Any, ...] = (np.ones(given[root]), [receive, taken], root)
    elif name == "Scatterv":
        receive = np.full(taken[root], -1.0)
        buffers = ([np.ones(sum(given)), given], receive, root)
    elif name == "Reduce_scatter":
        receive = np.full(taken[rank], -1.0)
        buffers = (np.ones(sum(taken)), receive, taken)
    else:
        receive = np.full(sum(taken), -1.0)
        send: Any = np.ones(given[rank]) if name == "Allgatherv" else [np.ones(sum(given)), given]
        buffers = (send, [receive, taken])
    untouched.append(receive)
    getattr(comm, name)(*buffers)
    return receive


# The receive buffers of calls, to be looked at when the call has raised.
untouched: list[Array] = []


def refused(work: Callable[[], object], *words: str) -> str:
    """What all ranks are told, in bounded time, with these words and no data moved."""
    del untouched[:]
    begin = time.monotonic()
    with pytest.raises(MismatchError) as caught:
        work()
    assert time.monotonic() - begin < 10
    text = str(caught.value)
    for word in words:
        assert word in text, text
    assert all((receive == -1).all() for receive in untouched), f"data moved: {text}"
    return text


@pytest.mark.parametrize("factor", [1, 700])
@pytest.mark.parametrize("name", ["Gatherv", "Alltoallv"])
@THREE_AND_FOUR
def test_a_rank_sends_more_or_less_than_expected(
    communicator: Make, layout: str, name: str, factor: int
) -> None:
    """Rank 2 sends 5 elements to rank 0, which expects 4 (NVIDIA/nccl#1417: some such calls hang)."""
    comm = communicator(layout=layout)
    for sent in (5, 3, 0):
        text = refused(
            lambda: call(comm, name, 4 * factor, {(2, 0): sent * factor}, {}),  # noqa: B023  called in this turn
            f"rank 2 gives {sent * factor} elements to rank 0",
            str(4 * factor),
        )
        assert "rank 1" not in text, text
    assert call(comm, name, 4, {}, {}).max() == (1 if name == "Alltoallv" or comm.rank == 0 else -1)


@pytest.mark.parametrize("root", [0, 2])
@THREE_AND_FOUR
def test_a_rank_takes_another_length_of_a_scatter(communicator: Make, layout: str, root: int) -> None:
    comm = communicator(layout=layout)
    for taken in (0, 9, 4000):
        refused(
            lambda: call(comm, "Scatterv", 4, {}, {(root, 1): taken}, root),  # noqa: B023
            f"rank {root} gives 4 elements to rank 1",
            f"takes {taken}",
        )
    perform(comm, Job("scatter", 4))


@pytest.mark.parametrize("factor", [1, 900])
@pytest.mark.parametrize("name", ["Allgatherv", "Reduce_scatter"])
@TWO_TO_FOUR
def test_counts_that_all_share_differ_on_one_rank(
    communicator: Make, layout: str, name: str, factor: int
) -> None:
    comm = communicator(layout=layout)
    for odd in (0, comm.size - 1):
        for other in (0, comm.size - 1):
            # One rank believes that a block has another length, its own block or another's.
            lengths = {(other, odd): 3 * factor}
            own = {(odd, target): 3 * factor for target in range(comm.size)} if other == odd else {}
            words = (f"rank {odd}", str(2 * factor), str(3 * factor))
            refused(lambda: call(comm, name, 2 * factor, own, lengths), *words)  # noqa: B023
    perform(comm, Job("allreduce", 3))


@pytest.mark.parametrize("name", ["Gatherv", "Scatterv", "Allgatherv", "Alltoallv"])
@THREE_AND_FOUR
def test_nothing_long_moves_either(communicator: Make, layout: str, name: str) -> None:
    comm = communicator(layout=layout)
    for rank in (0, 2):
        wrong = {(1, rank): 3001} if name == "Scatterv" else {(rank, 1): 3001}
        refused(lambda: call(comm, name, 3000, {}, wrong, root=1), "3001", "3000")  # noqa: B023
    perform(comm, Job("allreduce", 3))


@TWO_TO_FOUR
def test_two_wrong_lengths_that_make_up_for_each_other(communicator: Make, layout: str) -> None:
    """One rank sends one more, another one less: the total is right."""
    comm = communicator(layout=layout)
    last = comm.size - 1
    for gives, takes in (
        ({(0, last): 5, (last, 0): 3}, {}),
        ({(0, last): 5}, {(last, 0): 5}),
        ({(0, last): 3, (last, 0): 5}, {(0, last): 5, (last, 0): 3}),
    ):
        refused(
            lambda: call(comm, "Alltoallv", 4, gives, takes),  # noqa: B023
            f"rank 0 gives {gives[0, last]} elements to rank {last}",
            f"rank {last} gives {gives.get((last, 0), 4)} elements to rank 0",
        )
    perform(comm, Job("alltoall", 3))


@THREE_AND_FOUR
def test_many_wrong_pairs_are_counted(communicator: Make, layout: str) -> None:
    comm = communicator(layout=layout)
    size = comm.size
    gives = {(i, j): 5 + i + j for i in range(size) for j in range(size) if i != j}
    text = refused(lambda: call(comm, "Alltoallv", 4, gives, {}), "rank 0 gives 6 elements to rank 1")
    assert len(text) < 1000
    assert ("more" in text) == (size > 3)


@pytest.mark.parametrize("name", ["Gatherv", "Scatterv", "Allgatherv", "Alltoallv"])
@TWO_TO_FOUR
def test_what_a_rank_gives_itself_it_must_take(communicator: Make, layout: str, name: str) -> None:
    """It can see that alone: it is an error of its arguments, on all ranks."""
    comm = communicator(layout=layout)
    for rank in range(comm.size):
        del untouched[:]
        with pytest.raises(UsageError, match=rf"rank {rank}: .*\b4\b") as caught:
            call(comm, name, 4, {}, {(rank, rank): 5}, root=rank)
        assert caught.value.suspects == (rank,)
        assert all((receive == -1).all() for receive in untouched)
    perform(comm, Job("allreduce", 3))


@TWO_TO_FOUR
def test_a_rank_that_makes_the_call_with_equal_blocks(communicator: Make, layout: str) -> None:
    """Either it is what both mean, or it is an error on all: never a hang, never nonsense."""
    comm = communicator(layout=layout)
    size, odd = comm.size, comm.rank == comm.size - 1
    send, receive, twos = np.ones(2 * size), np.full(2 * size, -1.0), [2] * size
    pairs: list[tuple[Callable[[], None], Callable[[], None]]] = [
        (lambda: comm.Alltoall(send, receive), lambda: comm.Alltoallv([send, twos], [receive, twos])),
        (lambda: comm.Allgather(send[:2], receive), lambda: comm.Allgatherv(send[:2], [receive, twos])),
        (lambda: comm.Gather(send[:2], receive), lambda: comm.Gatherv(send[:2], [receive, twos])),
    ]
    for equal, ragged in pairs:
        receive[:] = -1
        try:
            (ragged if odd else equal)()
        except MismatchError:
            assert (receive == -1).all()
        else:
            assert (receive == 1).all() or comm.rank
    perform(comm, Job("allreduce", 3))


@TWO_TO_FOUR
def test_dtypes_that_differ(communicator: Make, layout: str) -> None:
    comm = communicator(layout=layout)
    size = comm.size
    kind = "i8" if comm.rank == size - 1 else "f8"
    for count in (2, 900):
        counts = [count] * size
        send, receive = np.ones(count * size, kind), np.full(count * size, -1, kind)
        for work in (
            lambda: comm.Allgatherv(send[:count], [receive, counts]),  # noqa: B023
            lambda: comm.Alltoallv([send, counts], [receive, counts]),  # noqa: B023
            lambda: comm.Gatherv(send[:count], [receive, counts], 0),  # noqa: B023
            lambda: comm.Scatterv([send, counts], receive[:count], 0),  # noqa: B023
            lambda: comm.Reduce_scatter(send, receive[:count], counts),  # noqa: B023
        ):
            refused(work, "dtype", "int64 on rank")
            assert (receive == -1).all()
    perform(comm, Job("allreduce", 3))


@pytest.mark.parametrize("name", ["Gatherv", "Scatterv", "Alltoallv"])
@TWO_TO_FOUR
def test_roots_and_calls_that_differ(communicator: Make, layout: str, name: str) -> None:
    comm = communicator(layout=layout)
    odd = comm.rank == comm.size - 1
    if name != "Alltoallv":
        refused(lambda: call(comm, name, 4, {}, {}, root=int(odd)), "root: 0 on rank")
    refused(lambda: comm.Barrier() if odd else call(comm, name, 4, {}, {}), "barrier on rank")
    perform(comm, Job("allreduce", 3))


@THREE_AND_FOUR
def test_requests_and_persistent_calls(communicator: Make, layout: str) -> None:
    comm = communicator(layout=layout)
    size, rank = comm.size, comm.rank
    counts = [5 if rank == 2 and peer == 0 else 4 for peer in range(size)]
    send, receive = np.ones(sum(counts)), np.full(4 * size, -1.0)
    request = comm.Ialltoallv([send, counts], [receive, [4] * size])
    refused(request.Wait, "rank 2 gives 5 elements to rank 0")

    def whole() -> None:
        persistent = comm.Alltoallv_init([send, counts], [receive, [4] * size])
        persistent.Start()
        persistent.Wait()

    refused(whole, "rank 2 gives 5 elements to rank 0")
    assert (receive == -1).all()
    perform(comm, Job("allreduce", 3))
