"""Collectives carried out in one process, from the calls that all ranks' arguments became.

Nothing but the contract of `Call` is used: where a rank's elements are, for whom, and where its results go.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from itertools import accumulate
from typing import Any

import numpy as np

from hpccoll.calls import Call, Where

Array = np.ndarray[Any, np.dtype[Any]]


def prepared(collective: Callable[..., Call], *arguments: Any) -> list[Call]:
    """The call of every rank, with what the contract says of all of them checked.

    An argument that is a list has one entry for each rank; anything else is the same on all.
    """
    size = len(next(one for one in arguments if isinstance(one, list)))
    calls = [
        collective(Where(rank, size), *(one[rank] if isinstance(one, list) else one for one in arguments))
        for rank in range(size)
    ]
    for call in calls:
        assert call.collective == calls[0].collective
        assert call.dtype == calls[0].dtype
        assert (call.count, call.ragged, call.root) == (calls[0].count, calls[0].ragged, calls[0].root)
        for run in (call.give, *([call.take.flat] if call.take is not None else [])):
            assert run.ndim == 1
            assert run.flags.c_contiguous
            assert run.flags.aligned
        assert call.take is None or call.take.dtype == call.dtype
        assert call.arithmetic is not None or call.give.dtype == call.dtype
    return calls


def together(collective: Callable[..., Call], *arguments: Any) -> list[Call]:
    """The same, carried out."""
    calls = prepared(collective, *arguments)
    carry(calls)
    return calls


def only(rank: int, size: int, value: Any, otherwise: Any = None) -> list[Any]:
    """An argument that one rank passes."""
    return [value if one == rank else otherwise for one in range(size)]


def carry(calls: Sequence[Call]) -> None:
    """Move and combine the elements, and bring the results to the callers' memory."""
    size = len(calls)
    given = [
        call.arithmetic.start(call.give).copy() if call.arithmetic else call.give.copy() for call in calls
    ]
    results = _RESULTS[calls[0].collective](calls, given)
    for call, result in zip(calls, results, strict=True):
        if call.take is None:
            continue
        assert result is not None
        assert result.size == call.take.count
        if call.arithmetic is not None:
            call.arithmetic.finish(result.copy(), size, call.take.flat)
        elif call.take.count:
            call.take.flat[...] = result
        call.take.unpack()


def cut(elements: Array, counts: Sequence[int]) -> list[Array]:
    """Elements in blocks."""
    assert elements.size == sum(counts)
    ends = list(accumulate(counts))
    return [elements[end - count : end] for end, count in zip(ends, counts, strict=True)]


def _blocks(call: Call, given: Array, size: int) -> list[Array]:
    return cut(given, call.gives if call.ragged and call.gives is not None else [call.count] * size)


def _combined(calls: Sequence[Call], given: Sequence[Array]) -> list[Array]:
    """The result of the ranks up to each."""
    arithmetic = calls[0].arithmetic
    assert arithmetic is not None
    partial = [given[0]]
    for one in given[1:]:
        both = np.empty_like(one)
        arithmetic.combine(partial[-1], one, both)
        partial.append(both)
    return partial


def _to_root(calls: Sequence[Call], given: Sequence[Array], result: Array) -> list[Array | None]:
    return [result if rank == calls[0].root else None for rank in range(len(calls))]


def _gather(calls: Sequence[Call], given: Sequence[Array]) -> list[Array | None]:
    _check_takes(calls[calls[0].root], given)
    return _to_root(calls, given, np.concatenate(given))


def _allgather(calls: Sequence[Call], given: Sequence[Array]) -> list[Array]:
    for call in calls:
        _check_takes(call, given)
    return [np.concatenate(given)] * len(calls)


def _check_takes(call: Call, given: Sequence[Array]) -> None:
    lengths = tuple(one.size for one in given)
    assert lengths == (call.takes if call.ragged else (call.count,) * len(given))


def _alltoall(calls: Sequence[Call], given: Sequence[Array]) -> list[Array]:
    size = len(calls)
    table = [_blocks(call, one, size) for call, one in zip(calls, given, strict=True)]
    for rank, call in enumerate(calls):
        lengths = tuple(table[other][rank].size for other in range(size))
        assert lengths == (call.takes if call.ragged else (call.count,) * size)
    return [np.concatenate([table[other][rank] for other in range(size)]) for rank in range(size)]


_RESULTS: dict[str, Callable[[Sequence[Call], Sequence[Array]], Sequence[Array | None]]] = {
    "allreduce": lambda calls, given: [_combined(calls, given)[-1]] * len(calls),
    "reduce": lambda calls, given: _to_root(calls, given, _combined(calls, given)[-1]),
    "scan": _combined,
    "exscan": lambda calls, given: [None, *_combined(calls, given)[:-1]],
    "broadcast": lambda calls, given: [given[calls[0].root]] * len(calls),
    "gather": _gather,
    "allgather": _allgather,
    "scatter": lambda calls, given: _blocks(calls[calls[0].root], given[calls[0].root], len(calls)),
    "alltoall": _alltoall,
    "reduce_scatter": lambda calls, given: _blocks(calls[0], _combined(calls, given)[-1], len(calls)),
}
