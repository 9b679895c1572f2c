"""Which arrays travel together: pure functions of what all ranks share."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from itertools import accumulate
from math import prod
from typing import Any

import numpy as np

SIZES = tuple(1 << power for power in range(16, 27))  # 64 KiB to 64 MiB
SHARE = 0.9


@dataclass(frozen=True)
class Member:
    """An array as every rank knows it."""

    shape: tuple[int, ...]
    dtype: np.dtype[Any]

    @property
    def count(self) -> int:
        return prod(self.shape)

    @property
    def nbytes(self) -> int:
        return self.count * self.dtype.itemsize


@dataclass(frozen=True)
class Group:
    """The arrays of one bucket: their numbers, ascending, and where each begins, in elements."""

    members: tuple[int, ...]
    starts: tuple[int, ...]
    count: int
    dtype: np.dtype[Any]


def group(members: Sequence[Member], bucket_bytes: int) -> tuple[Group, ...]:
    """Deal arrays to buckets, the last array first, since backward passes end with the first.

    A bucket has one dtype, and is full once it has `bucket_bytes`; a longer array has one for itself, and the
    arrays before it are not held up by it.  Buckets are in the order in which they become full, those that
    never do last.  Inside a bucket arrays lie in their own order, as they do where a program has cut them
    from one piece of memory.
    """
    groups: list[Group] = []
    open_: dict[np.dtype[Any], list[int]] = {}
    filled: dict[np.dtype[Any], int] = {}
    for number in reversed(range(len(members))):
        one = members[number]
        begun = open_.setdefault(one.dtype, [])
        if begun and filled[one.dtype] + one.nbytes > bucket_bytes:
            groups.append(_closed(members, open_.pop(one.dtype)))
            begun = open_[one.dtype] = []
        begun.append(number)
        filled[one.dtype] = one.nbytes + (filled[one.dtype] if len(begun) > 1 else 0)
        if filled[one.dtype] >= bucket_bytes:
            groups.append(_closed(members, open_.pop(one.dtype)))
    # By the array that each of them waits for: the first of its arrays, which is the last to be ready.
    groups += (_closed(members, rest) for rest in sorted(open_.values(), key=lambda rest: -rest[-1]))
    return tuple(groups)


def _closed(members: Sequence[Member], numbers: Sequence[int]) -> Group:
    ascending = tuple(reversed(numbers))
    ends = tuple(accumulate(members[number].count for number in ascending))
    return Group(ascending, (0, *ends[:-1]), ends[-1], members[numbers[0]].dtype)


def smallest_efficient(time_s: Callable[[int], float], sizes: Sequence[int] = SIZES) -> int:
    """The smallest of `sizes` (bytes, ascending) that has SHARE of the rate of the largest.

    `time_s`: seconds of an all-reduce of so many bytes.  Smaller buckets would pay latency, larger ones leave
    more for the end, when nothing is left to hide the last bucket behind.
    """
    fast = SHARE * sizes[-1] / time_s(sizes[-1])
    return next(size for size in sizes if size / time_s(size) >= fast)


def runs(intervals: Sequence[tuple[float, float]]) -> Iterator[tuple[float, float]]:
    """The union of intervals as intervals that lie apart, ascending."""
    begin = end = None
    for one, other in sorted(intervals):
        if begin is None or end is None:
            begin, end = one, other
        elif one > end:
            yield begin, end
            begin, end = one, other
        else:
            end = max(end, other)
    if begin is not None and end is not None:
        yield begin, end
