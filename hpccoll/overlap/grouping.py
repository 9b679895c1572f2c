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
# The last buckets: a part of the others, and not below.
LAST_SHARE = 8
LEAST_LAST_BYTES = 64 << 10


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


def group(members: Sequence[Member], bucket_bytes: int, last_bytes: int = 0) -> tuple[Group, ...]:
    """Deal arrays to buckets, the last array first, since backward passes end with the first.

    A bucket has one dtype, and is full once it has `bucket_bytes`; a longer array has one for itself, and the
    arrays before it are not held up by it.  Buckets are in the order in which they become full, those that
    never do last.  Inside a bucket arrays lie in their own order, as they do where a program has cut them
    from one piece of memory.

    `last_bytes`: if not 0, towards the end a bucket has no more than half of what is left of its dtype, down
    to so many: nothing is computed any more while the last one travels.  Arrays that fit in one bucket share
    it.
    """
    left: dict[np.dtype[Any], int] = {}
    for one in members:
        left[one.dtype] = left.get(one.dtype, 0) + one.nbytes
    tapering = {dtype for dtype, nbytes in left.items() if last_bytes and nbytes > bucket_bytes}
    limits = dict.fromkeys(left, bucket_bytes)
    groups: list[Group] = []
    open_: dict[np.dtype[Any], list[int]] = {}
    filled: dict[np.dtype[Any], int] = {}
    for number in reversed(range(len(members))):
        one = members[number]
        begun = open_.setdefault(one.dtype, [])
        if begun and filled[one.dtype] + one.nbytes > limits[one.dtype]:
            groups.append(_closed(members, open_.pop(one.dtype)))
            begun = open_[one.dtype] = []
        if not begun and one.dtype in tapering:
            limits[one.dtype] = min(bucket_bytes, max(last_bytes, left[one.dtype] // 2))
        begun.append(number)
        left[one.dtype] -= one.nbytes
        filled[one.dtype] = one.nbytes + (filled[one.dtype] if len(begun) > 1 else 0)
        if filled[one.dtype] >= limits[one.dtype]:
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


def last_size(bucket_bytes: int) -> int:
    """`last_bytes` for buckets of this size: smaller ones would be latency for the most part."""
    return max(bucket_bytes // LAST_SHARE, min(bucket_bytes, LEAST_LAST_BYTES))


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
