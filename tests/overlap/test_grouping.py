"""Which arrays share a bucket, how large buckets are, and what is counted as hidden: pure functions."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from hpccoll.overlap.agreement import Description, difference
from hpccoll.overlap.grouping import SIZES, Member, group, last_size, smallest_efficient
from hpccoll.overlap.times import Times, times_of

F4, F8 = np.dtype("f4"), np.dtype("f8")


def test_the_last_arrays_come_first_and_lie_in_their_own_order() -> None:
    members = [Member((10,), F4), Member((20,), F4), Member((30,), F4)]
    first, second = group(members, 200)
    assert first.members == (1, 2)
    assert first.starts == (0, 20)
    assert first.count == 50
    assert second.members == (0,)


def test_a_bucket_is_closed_before_it_would_be_too_large() -> None:
    members = [Member((30,), F4), Member((20,), F4), Member((30,), F4)]
    assert [one.members for one in group(members, 120)] == [(2,), (1,), (0,)]


def test_dtypes_do_not_mix_and_do_not_wait_for_each_other() -> None:
    members = [Member((10,), F8), Member((10,), F4), Member((10,), F8), Member((10,), F4)]
    found = group(members, 80)
    assert [(one.members, one.dtype) for one in found] == [((2,), F8), ((1, 3), F4), ((0,), F8)]


@given(
    st.lists(st.tuples(st.integers(0, 300), st.sampled_from(["f4", "f8", "i4"])), min_size=1, max_size=40),
    st.integers(1, 2000),
    st.sampled_from([0, 1, 8]),
)
def test_every_array_is_in_one_bucket(arrays: list[tuple[int, str]], bucket_bytes: int, share: int) -> None:
    members = [Member((count,), np.dtype(name)) for count, name in arrays]
    groups = group(members, bucket_bytes, bucket_bytes // share if share else 0)
    assert sorted(number for one in groups for number in one.members) == list(range(len(members)))
    for one in groups:
        assert {members[number].dtype for number in one.members} == {one.dtype}
        assert list(one.members) == sorted(one.members)
        counts = [members[number].count for number in one.members]
        assert one.count == sum(counts)
        assert list(one.starts) == [sum(counts[:place]) for place in range(len(counts))]
        assert one.count * one.dtype.itemsize <= bucket_bytes or len(one.members) == 1


def test_the_last_buckets_are_smaller() -> None:
    found = group([Member((10,), F4)] * 16, 160, 40)
    assert [one.count * 4 for one in found] == [160, 160, 160, 80, 40, 40]
    assert [one.count for one in group([Member((10,), F4)] * 4, 160, 40)] == [40], "they fit in one"
    # What is left of a dtype counts, not what is left of all.
    found = group([Member((10,), F4), *[Member((10,), F8)] * 8, *[Member((10,), F4)] * 7], 160, 40)
    assert [(one.dtype, one.count * one.dtype.itemsize) for one in found] == [
        (F4, 160), (F4, 80), (F4, 40), (F8, 160), (F8, 160), (F8, 160), (F8, 80), (F8, 80), (F4, 40),
    ]  # fmt: skip
    assert last_size(1 << 20) == 128 << 10
    assert last_size(100 << 10) == 64 << 10
    assert last_size(999) == 999


@pytest.mark.parametrize(
    ("latency_s", "bytes_per_s", "size"),
    [(0.0, 1e9, 64 << 10), (1e-4, 1e9, 1 << 20), (1e-3, 1e9, 8 << 20), (1.0, 1e9, 64 << 20)],
)
def test_the_smallest_size_with_nine_tenths_of_the_rate(
    latency_s: float, bytes_per_s: float, size: int
) -> None:
    found = smallest_efficient(lambda nbytes: latency_s + nbytes / bytes_per_s)
    rates = {one: one / (latency_s + one / bytes_per_s) for one in SIZES}
    assert rates[found] >= 0.9 * rates[SIZES[-1]]
    assert all(rates[one] < 0.9 * rates[SIZES[-1]] for one in SIZES if one < found)
    assert found == size


def test_hidden_is_what_was_under_way_outside_of_the_wait() -> None:
    # Two that overlap, a gap, and one that ends in the wait from 10 to 13.
    times = times_of([(1.0, 4.0), (2.0, 5.0), (8.0, 12.0)], (10.0, 13.0))
    assert times == Times(steps=1, in_flight_s=8.0, exposed_s=2.0, wait_s=3.0)
    assert times.hidden_s == 6.0
    assert times.hidden_percent == 75.0
    assert times + times == Times(2, 16.0, 4.0, 6.0)
    assert Times().hidden_percent == 0.0


def described(**arrays: tuple[list[int], str]) -> Description:
    words = {key: {"shape": s, "dtype": d, "place": "the host"} for key, (s, d) in arrays.items()}
    return Description({"average": True}, words)


def test_differences_are_named() -> None:
    three = described(a=([3], "float32"))
    assert difference([three, described(a=([4], "float32")), three]) == (
        "array a differs in shape: (3,) on ranks 0, 2; (4,) on rank 1"
    )
    assert difference([three, described(b=([3], "float32")), three]) == (
        "the arrays differ between ranks: array a only on ranks 0, 2; array b only on rank 1"
    )
    assert difference([three, described(a=([3], "float64")), three]).startswith("array a differs in dtype")
    assert difference([three, Description({"average": False}, three.arrays)]) == (
        "average differs between ranks: True on rank 0; False on rank 1"
    )
    many = described(**{f"x{k}": ([k], "float32") for k in range(9)})
    assert "and 5 more" in difference([many, three])
