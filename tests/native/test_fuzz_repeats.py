"""Calls made again, in random order and more than are kept; and what no caller would hand over."""

from __future__ import annotations

import random
from array import array
from functools import partial
from typing import Any

import numpy as np
import pytest
from mpi4py import MPI

from hpccoll import _native
from hpccoll.ops.table import arithmetic, operator_of
from hpccoll.runtime import engine
from tests.support.fuzzing import EDGES, TIMES, rounds
from tests.support.staging import together

if not _native.available():
    pytest.skip(_native.reason(), allow_module_level=True)

from tests.unit.test_native_repeats import HEAD, LINE, ROOM, SLOTS, Member, segment

pytestmark = pytest.mark.timeout(60 * TIMES)

OPERATORS = {"sum": (MPI.SUM, sum), "max": (MPI.MAX, max), "min": (MPI.MIN, min)}
DTYPES = [np.dtype(name) for name in ("int64", "float64", "int32")]
LABELS = [("allreduce", "one_shot"), ("allreduce", "ring"), ("reduce", "tree")]
GUARD = 0xA5
CALLS = 1500


def kernel_of(operator: MPI.Op, dtype: np.dtype[Any]) -> Any:
    how = arithmetic(operator_of(operator), dtype)
    return engine.kernel(how.combine, how.working, how.kernel)


def guarded(count: int, dtype: np.dtype[Any]) -> tuple[Any, Any]:
    """Zeros, and the memory that they lie in."""
    memory = np.full(count * dtype.itemsize + 128, GUARD, np.uint8)
    inside = memory[64:-64].view(dtype)
    inside[:] = 0
    return inside, memory


def play(members: int, me: int, member: Member, seed: str) -> None:
    """The same calls on every member; what they may know and what must come out is kept here too."""
    chance = random.Random(seed)
    kept: set[Any] = set()
    made = dict.fromkeys(LABELS, 0)
    labels: dict[Any, Any] = {}
    for _ in range(CALLS * TIMES // members):
        name, dtype = chance.choice(list(OPERATORS)), chance.choice(DTYPES)
        operator, function = OPERATORS[name]
        count, root = (
            chance.randrange(1, ROOM // dtype.itemsize + 1),
            chance.choice((0, chance.randrange(40))),
        )
        key, label, base = (name, dtype, count, root), chance.choice(LABELS), chance.randrange(100)
        if chance.random() < 0.002:
            member.repeats.forget()
            kept.clear()
        gives = [np.arange(base + 7 * one, base + 7 * one + count).astype(dtype) for one in range(members)]
        take, memory = guarded(count, dtype)
        given = (gives[me].copy(), take, operator, root)
        found = member.repeats.again("allreduce", given)
        if found is not True:
            assert found is False, f"{key} was begun, and the others have not come"
            assert not take.any()
            nbytes = take.nbytes
            assert member.keep(
                given, label=label, itemsize=dtype.itemsize, kernel=kernel_of(operator, dtype), last=members,
                payload=nbytes, piece=nbytes,
            )  # fmt: skip
            kept.add(key)
            labels[key] = label
            assert member.repeats.again("allreduce", given) is True
        assert key in kept
        made[labels[key]] += 1
        assert take.tolist() == [function(column) for column in zip(*gives, strict=True)]
        assert (memory[:64] == GUARD).all()
        assert (memory[-64:] == GUARD).all()
        assert not member.lock.locked()
    counted = dict.fromkeys(LABELS, 0)
    for counted_as, calls in member.repeats.calls():
        counted[counted_as] += calls
    assert counted == made


@pytest.mark.parametrize("members", [1, 2, 3])
def test_calls_in_random_order(members: int) -> None:
    memory = segment(members)
    parts = [Member(memory, me, members) for me in range(members)]
    together([partial(play, members, me, part, f"order {members}") for me, part in enumerate(parts)])


class Starter:
    """One member that starts calls which it knows, and looks after them now and then."""

    def __init__(self, member: Member, me: int, members: int, counts: list[int]) -> None:
        self.member, self.me, self.members, self.counts = member, me, members, counts
        self.calls: list[tuple[Any, Any, Any]] = []  # what was returned, its results, the memory around them
        self.told: list[int] = []
        for count in set(counts):
            given = (np.zeros(count, np.int64), np.zeros(count, np.int64), MPI.SUM, 0)
            nbytes = 8 * count
            assert member.keep(given, last=members, payload=nbytes, piece=nbytes)

    def start(self) -> None:
        number = len(self.calls)
        count = self.counts[number]
        take, memory = guarded(count, np.dtype(np.int64))
        given = (np.arange(count) + 100 * number + self.me, take, MPI.SUM, 0)
        begun = self.member.repeats.start("allreduce", given, print)
        assert begun is not False
        assert begun.sequence == number
        begun.tell(partial(self.told.append, number))
        self.calls.append((begun, take, memory))

    def check(self, others: list[Starter]) -> None:
        """What is over was started by all, is right, and was told, in order."""
        over = [number for number, call in enumerate(self.calls) if call[0].done]
        assert over == list(range(len(over)))
        assert self.told == over
        assert all(len(other.calls) >= len(over) for other in others)
        for number, (begun, take, memory) in enumerate(self.calls):
            base = self.members * (np.arange(take.size) + 100 * number) + sum(range(self.members))
            assert (take == (base if begun.done else 0)).all()
            assert (memory[:64] == GUARD).all()
            assert (memory[-64:] == GUARD).all()
        assert list(self.member.numbers)[:2] == [len(self.calls), len(over)]
        assert not self.member.lock.locked()


@pytest.mark.parametrize("members", [1, 2, 3])
def test_started_in_random_order(members: int) -> None:
    for _, chance in rounds(60, f"started {members}"):
        counts = [chance.randrange(1, ROOM // 8 + 1) for _ in range(chance.randrange(1, 60))]
        memory = segment(members)
        all_members = [
            Starter(Member(memory, me, members, patience_s=1e-5), me, members, counts)
            for me in range(members)
        ]
        for _ in range(chance.randrange(10, 300)):
            one = chance.choice(all_members)
            match chance.choice(("start", "start", "move", "test", "wait", "keep")):
                case "start" if len(one.calls) < len(counts):
                    one.start()
                case "test" | "wait" as way if one.calls:
                    begun = chance.choice(one.calls)[0]
                    assert getattr(begun, way)() == begun.done
                case "keep":  # not while there are any to which it could matter
                    queued = any(not call[0].done for call in one.calls)
                    assert one.member.keep(last=members) is not queued
                case _:
                    one.member.repeats.move()
            one.check(all_members)
        for one in all_members:
            left = [call[0] for call in one.calls]
            taken = one.member.repeats.take_over()
            assert taken == [begun for begun in left if not begun.done]
            assert [begun.arrived for begun in taken] == [1] * bool(taken) + [0] * (len(taken) - 1)
            for begun in taken:
                begun.go_on_as(Told())
                assert begun.running.actions
                assert begun.wait() is begun.test() is False


class Told:
    """Keeps what it is to tell."""

    def __init__(self) -> None:
        self.actions: list[Any] = []

    def tell(self, action: Any) -> None:
        self.actions.append(action)


def test_random_numbers_of_a_call() -> None:
    """They are refused, or the call stays inside its slot and its array."""
    refused = made = 0
    names = (
        "reads",
        "writes",
        "itemsize",
        "payload",
        "piece",
        "offset",
        "first",
        "last",
        "agrees",
        "travel",
        "each",
    )
    small = (-1, 0, 1, 2, 3, 8, 16, 31, 32, 33, ROOM - 32, ROOM, ROOM + 1)
    for number, chance in rounds(2500, "numbers"):
        control = np.full((SLOTS + 2 * (HEAD + ROOM) + 64) // 8, GUARD, np.int64)
        control[: -64 // 8] = 0
        member = Member(control[: -64 // 8], 0, 1)
        take, memory = guarded(4, np.dtype(np.int64))
        given = (np.arange(4), take, MPI.SUM, 0)
        changed: dict[str, Any] = {
            name: chance.choice(small if chance.random() < 0.7 else EDGES)
            for name in chance.sample(names, chance.randrange(1, 4))
        }
        if chance.random() < 0.4:
            changed["kernel"] = None
        try:
            assert member.keep(given, **changed)
        except (ValueError, OverflowError):
            refused += 1
            continue
        assert member.repeats.again("allreduce", given) is True
        made += 1
        assert (memory[:64] == GUARD).all(), f"round {number}: {changed}"
        assert (memory[-64:] == GUARD).all(), f"round {number}: {changed}"
        assert (control[-64 // 8 :] == GUARD).all(), f"round {number}: {changed}"
    assert refused > 100
    assert made > 100


def test_random_geometry_of_a_member() -> None:
    """A segment that has not what is said of it is refused."""
    names = ("me", "members", "arrived", "stride", "slots", "slot_bytes", "head_bytes", "channel", "channels")
    made = 0
    for _, chance in rounds(2500, "geometry"):
        members = chance.randrange(1, 4)
        control = segment(members)
        geometry: dict[str, Any] = {
            name: chance.choice((*EDGES, 3, 4, LINE, 16, HEAD, SLOTS // 8 - 1, SLOTS - 8, 2**62 - 1))
            for name in chance.sample(names, chance.randrange(1, 4))
        }
        given = (np.arange(4), np.zeros(4, np.int64), MPI.SUM, 0)
        try:
            member = Member(control, geometry.pop("me", 0), geometry.pop("members", members), **geometry,
                            patience_s=1e-4)  # fmt: skip
            member.keep(given, last=members)
        except (ValueError, OverflowError):
            continue
        made += 1
        assert member.repeats.again("allreduce", given) in (True, None)
    assert made > 100


@pytest.mark.parametrize(
    ("members", "stride"),
    [(3, 2**62), (3, 2**62 + 4), (2, 2**63 - 1), (3, SLOTS // 16), (2, SLOTS // 8 - LINE)],
)
def test_a_word_for_each_member_is_inside_the_segment(members: int, stride: int) -> None:
    """Where the distance of two of them is so large that a product of 64 bits is small again, too."""
    with pytest.raises(ValueError, match="a word for each member"):
        Member(segment(members), 0, members, stride=stride)
    Member(segment(members), 0, members, stride=(SLOTS // 8 - 1 - LINE) // (members - 1))


def test_objects_that_are_no_arguments() -> None:
    member = Member(segment(1), 0, 1)
    assert member.keep()
    things: tuple[Any, ...] = (
        None, 0, "x", MPI.IN_PLACE, [], array("q", [1]), np.zeros((2, 2))[:, 0], np.zeros((3, 0, 2**40)),
        np.array(None), np.zeros(3, "V9"), np.broadcast_to(np.zeros(1), (2**20, 2**20)), np.zeros(0),
        np.array("text"), np.zeros(3, [("a", "i4"), ("b", "f8")]),
    )  # fmt: skip
    for _, chance in rounds(2000, "objects"):
        given = tuple(chance.choice((*things, MPI.SUM, 0)) for _ in range(chance.choice((4, 4, 4, 3, 5))))
        assert member.repeats.again(chance.choice(("allreduce", "bcast", None)), given) is False
