"""Unique ids of NCCL communicators: bytes or chars of either sign, a fresh one each time, all or nobody.

As reported in cupy/cupy#9430 (packing that fails where chars have no sign), NVIDIA/nccl#1038 (an id used
twice) and cupy/cupy PR#6658 (the first rank lost its own copy).
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import pytest

from hpccoll.errors import HpccollError, ResourceError, UsageError, UsageTypeError
from hpccoll.unique_id import ID_BYTES, accept, offer, pack, signed

ALL_BYTES = bytes(range(256))
HALVES = (ALL_BYTES[:ID_BYTES], ALL_BYTES[ID_BYTES:])


class Nccl:
    """Stands in for NCCL: numbered ids, and a count of how often it was asked."""

    def __init__(self) -> None:
        self.made = 0

    def get_unique_id(self) -> tuple[int, ...]:
        self.made += 1
        return signed(bytes([self.made, *range(1, ID_BYTES)]))


def exchange(
    size: int, make: Callable[[], Any], checks: Sequence[Callable[[], object] | None] | None = None
) -> list[bytes]:
    """What each rank of a group accepts when all have made their offers."""
    checks = checks or [None] * size
    messages = [offer(rank, make, checks[rank]) for rank in range(size)]
    return [accept(messages) for _ in range(size)]


@pytest.mark.parametrize("half", HALVES)
@pytest.mark.parametrize("kind", [bytes, bytearray, memoryview, tuple, list])
def test_every_byte_comes_back(half: bytes, kind: Callable[[bytes], Any]) -> None:
    assert pack(kind(half)) == half


@pytest.mark.parametrize("half", HALVES)
def test_chars_with_a_sign_come_back(half: bytes) -> None:
    numbers = signed(half)
    assert all(-128 <= number <= 127 for number in numbers)
    assert [number % 256 for number in numbers] == list(half)
    assert pack(numbers) == half
    assert type(pack(numbers)) is bytes


def test_all_the_signed_chars() -> None:
    low, high = tuple(range(-128, 0)), tuple(range(128))
    assert signed(pack(low)) == low
    assert signed(pack(high)) == high
    assert pack(low) == HALVES[1]


@pytest.mark.parametrize(
    ("wrong", "kind", "says"),
    [
        (b"short", UsageError, "5 bytes: must be 128"),
        (bytes(129), UsageError, "129 bytes"),
        ((0,) * 127, UsageError, "127 bytes"),
        ((256,) * 128, UsageError, "holds 256: must be a char"),
        ((-129,) * 128, UsageError, "holds -129"),
        ("x" * 128, UsageTypeError, "not str"),
        (None, UsageTypeError, "not NoneType"),
        (7, UsageTypeError, "not int"),
    ],
)
def test_what_is_no_id(wrong: Any, kind: type[Exception], says: str) -> None:
    with pytest.raises(kind, match=says):
        pack(wrong)


@pytest.mark.parametrize("size", [1, 2, 5])
def test_the_first_rank_makes_it_and_all_have_it(size: int) -> None:
    nccl = Nccl()
    ids = exchange(size, nccl.get_unique_id)
    assert nccl.made == 1
    assert ids == [bytes([1, *range(1, ID_BYTES)])] * size


def test_every_communicator_has_a_fresh_one() -> None:
    nccl = Nccl()
    ids = [exchange(3, nccl.get_unique_id)[2] for _ in range(4)]
    assert nccl.made == 4
    assert len(set(ids)) == 4


def test_a_failure_of_the_first_rank_is_raised_by_all() -> None:
    def broken() -> bytes:
        raise RuntimeError("NCCL_ERROR_SYSTEM_ERROR: no interface")

    messages = [offer(rank, broken) for rank in range(3)]
    said = []
    for _ in range(3):
        with pytest.raises(ResourceError, match=r"rank 0: RuntimeError: .*no interface") as caught:
            accept(messages)
        assert caught.value.suspects == (0,)
        said.append(str(caught.value))
    assert len(set(said)) == 1


def test_a_failure_of_any_rank_is_raised_by_all() -> None:
    def unloadable() -> None:
        raise OSError("libnccl.so.2: cannot open shared object file")

    nccl = Nccl()
    with pytest.raises(HpccollError, match=r"rank 1: OSError: libnccl.so.2.*; rank 2: OSError") as caught:
        exchange(4, nccl.get_unique_id, [None, unloadable, unloadable, None])
    assert caught.value.suspects == (1, 2)


@pytest.mark.parametrize("wrong", [b"short", "text", None, (1000,) * ID_BYTES])
def test_an_id_that_is_none_is_a_failure_too(wrong: Any) -> None:
    with pytest.raises(ResourceError, match="rank 0: Usage"):
        exchange(2, lambda: wrong)


@pytest.mark.parametrize("messages", [[], [b""], [b"n"], [b"n", b"i" + bytes(ID_BYTES)]])
def test_without_an_offer_of_the_first_rank_there_is_none(messages: list[bytes]) -> None:
    with pytest.raises(ResourceError, match="rank 0 of the group offered no unique id"):
        accept(messages)


@pytest.mark.ranks(4)
def test_in_parts_of_a_world_the_first_rank_of_each_part_makes_it(world: Any) -> None:
    import time

    from hpccoll.topology.agreement import gather

    part = world.Split(world.rank % 2, -world.rank)
    asked: list[int] = []

    def make() -> bytes:
        asked.append(world.rank)
        return bytes([world.rank] * ID_BYTES)

    messages = gather(part, offer(part.rank, make), time.monotonic() + 20, "unique id")
    assert accept(messages) == bytes([world.rank % 2 + 2] * ID_BYTES), f"rank {world.rank}"
    assert asked == ([world.rank] if world.rank >= 2 else []), f"rank {world.rank}"
    part.Free()
