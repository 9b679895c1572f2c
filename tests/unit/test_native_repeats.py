"""The extension's repeated calls: two members in one process, calls that are not made, what is refused."""

from __future__ import annotations

import threading
from array import array
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from mpi4py import MPI

from hpccoll import _native
from hpccoll.ops.table import arithmetic, operator_of
from hpccoll.runtime import engine
from hpccoll.runtime.counts import AGREED, NEXT
from hpccoll.runtime.repeats import TRAVEL
from tests.support.staging import together

if not _native.available():
    pytest.skip(_native.reason(), allow_module_level=True)

from hpccoll._native._core import Meter, Repeats

INT64 = np.dtype(np.int64)
HEAD, ROOM = 512, 64
SLOTS = 4096
LINE = 8  # words
LABEL = ("allreduce", "one_shot")
GIVEN = (np.arange(4), np.zeros(4, np.int64), MPI.SUM, 0)


class Member:
    """One member of a node of `members`, on memory that they share."""

    def __init__(self, control: np.ndarray[Any, Any], me: int, members: int, **changed: Any) -> None:
        self.numbers = array("q", [0] * 3)
        self.pending = array("q", [0])
        self.lock = threading.Lock()
        arguments: dict[str, Any] = {
            "control": control, "me": me, "members": members, "arrived": LINE, "stride": LINE, "slots": SLOTS,
            "slot_bytes": HEAD + ROOM, "head_bytes": HEAD, "numbers": self.numbers, "pending": self.pending,
            "lock": self.lock, "spin_s": 0.0, "patience_s": 10.0,
            "network": engine.open_network(MPI.COMM_SELF, 2), "channel": 64, "channels": 64,
            "calls_in_flight": 64, "in_place": MPI.IN_PLACE, "sample": np.zeros((2, 3)),
            "nodes": (tuple(range(min(max(members, 1), 9))),), "node": 0, "verdict": 0, "results": 0,
            "result_bytes": 0, "agreement_channel": 1,
        }  # fmt: skip
        self.repeats = Repeats(**arguments | changed)

    def keep(self, given: tuple[Any, ...] = GIVEN, **changed: Any) -> bool:
        """Make a sum of int64 in `given` known."""
        how = arithmetic(operator_of(MPI.SUM), INT64)
        nbytes = given[0].nbytes
        arguments: dict[str, Any] = {
            "collective": "allreduce", "given": given, "label": LABEL, "fingerprint": bytes(48),
            "agrees": True, "reads": 0, "writes": 1, "itemsize": 8,
            "kernel": engine.kernel(how.combine, how.working, how.kernel), "finish": None, "payload": nbytes,
            "piece": nbytes, "offset": 0, "first": 0, "last": 1, "program": None,
            "travel": TRAVEL.index("reduce"), "each": changed.get("payload", nbytes), "wire": "",
        }  # fmt: skip
        return self.repeats.keep(**arguments | changed)


def segment(members: int) -> np.ndarray[Any, Any]:
    return np.zeros((SLOTS + 2 * members * (HEAD + ROOM)) // 8, np.int64)


# The results lie where the slots do, which no call is made to see.
TWO_NODES: dict[str, Any] = {"nodes": ((0,), (1,)), "results": SLOTS, "result_bytes": HEAD}


def alone() -> Member:
    """The only member of a node, which knows `GIVEN`."""
    member = Member(segment(1), 0, 1)
    assert member.keep()
    return member


def both(call: Callable[[int], None]) -> None:
    together([lambda me=me: call(me) for me in range(2)])


def test_two_members() -> None:
    memory = segment(2)
    members = [Member(memory, me, 2) for me in range(2)]
    for member in members:
        assert member.keep(last=2)

    def call(me: int) -> None:
        for turn in range(50):
            give, take = np.arange(4) + 10 * me + turn, np.zeros(4, np.int64)
            while (found := members[me].repeats.again("allreduce", (give, take, MPI.SUM, 0))) is None:
                raise AssertionError("the other has not come")
            assert found is True
            assert (take == 2 * np.arange(4) + 10 + 2 * turn).all()

    both(call)
    for member in members:
        assert list(member.numbers) == [50, 50, 50]
        assert member.repeats.calls() == [(LABEL, 50)]
        assert not member.lock.locked()


def test_known_calls_are_measured() -> None:
    member = Member(segment(1), 0, 1)
    blocking, started = Meter(), Meter()
    given = (np.arange(4), np.zeros(4, np.int64), MPI.SUM, 0)
    assert member.keep(blocking=blocking, started=started, counted=(32, 5, 3))
    for _ in range(3):
        assert member.repeats.again("allreduce", given) is True
    for _ in range(2):
        assert member.repeats.start("allreduce", given, lambda: None).wait()  # type: ignore[union-attr]
    for meter, calls in ((blocking, 3), (started, 2)):
        sums, bins = meter.read(False)
        assert sums[:4] == (calls, 32 * calls, 5 * calls, 3 * calls)
        assert sum(bins) == calls
        assert sums[4] >= calls * sums[7] >= 0  # of all, and the shortest
    member.repeats.forget()
    del member
    assert blocking.read(True)[0][0] == 3  # it outlives what is known


@pytest.mark.parametrize(
    "bad",
    [{"blocking": 3}, {"started": "meter"}, {"counted": (1, 2)}, {"counted": ("a", 2, 3)}, {"counted": None}],
)
def test_what_measures_no_call(bad: dict[str, Any]) -> None:
    with pytest.raises(TypeError):
        Member(segment(1), 0, 1).keep(**bad)


def test_members_that_call_different_things() -> None:
    memory = segment(2)
    members = [Member(memory, me, 2) for me in range(2)]
    for me, member in enumerate(members):
        assert member.keep(last=2, fingerprint=bytes(40) + bytes([0, me, 0, 0, 0, 0, 0, 0]))

    def call(me: int) -> None:
        assert members[me].repeats.again("allreduce", GIVEN) is None

    both(call)
    for member in members:
        assert member.lock.locked()  # Python goes on
        assert list(member.numbers) == [1, 0, 1]
    assert not GIVEN[1].any()


def test_a_member_that_does_not_come() -> None:
    member = Member(segment(2), 0, 2, patience_s=0.01)
    assert member.keep(last=2)
    assert member.repeats.again("allreduce", GIVEN) is None
    assert member.lock.locked()
    assert member.numbers[NEXT] == 1
    assert member.numbers[AGREED] == 0


@pytest.mark.parametrize("state", ["locked", "pending", "not agreed", "aborted"])
def test_while_the_communicator_is_busy(state: str) -> None:
    memory = segment(1)
    member = Member(memory, 0, 1)
    assert member.keep()
    changes: dict[str, Callable[[int], object]] = {
        "locked": lambda on: member.lock.acquire() if on else member.lock.release(),
        "pending": lambda on: member.pending.__setitem__(0, on),
        "not agreed": lambda on: member.numbers.__setitem__(AGREED, -on),
        "aborted": lambda on: memory.__setitem__(0, on),
    }
    changes[state](1)
    assert member.repeats.again("allreduce", GIVEN) is False
    assert member.numbers[NEXT] == 0
    changes[state](0)
    assert member.repeats.again("allreduce", GIVEN) is True
    assert not member.lock.locked()


def unaligned() -> np.ndarray[Any, Any]:
    return np.zeros(33, np.uint8)[1:].view(np.int64)


def frozen() -> np.ndarray[Any, Any]:
    array = np.zeros(4, np.int64)
    array.setflags(write=False)
    return array


class Special(np.ndarray[Any, Any]):
    """A subclass of arrays."""


OVERLAPPING = np.zeros(6, np.int64)


@pytest.mark.parametrize(
    ("collective", "given"),
    [
        ("reduce", GIVEN),
        ("allreduce", GIVEN[:3]),
        ("allreduce", list(GIVEN)),
        ("allreduce", (*GIVEN[:3], 1)),
        ("allreduce", (*GIVEN[:3], 2**70)),
        ("allreduce", (*GIVEN[:3], 0.0)),
        ("allreduce", (*GIVEN[:2], MPI.MAX, 0)),
        ("allreduce", (GIVEN[0][:3], *GIVEN[1:])),
        ("allreduce", (GIVEN[0].astype(np.uint64), *GIVEN[1:])),
        ("allreduce", (None, *GIVEN[1:])),
        ("allreduce", (GIVEN[0].tolist(), *GIVEN[1:])),
        ("allreduce", (np.zeros(8, np.int64)[::2], *GIVEN[1:])),
        ("allreduce", (unaligned(), *GIVEN[1:])),
        ("allreduce", (np.zeros(4, np.int64).view(Special), *GIVEN[1:])),
        ("allreduce", (GIVEN[0], frozen(), MPI.SUM, 0)),
        ("allreduce", (OVERLAPPING[:4], OVERLAPPING[2:], MPI.SUM, 0)),
        ("allreduce", (OVERLAPPING[:4], OVERLAPPING[:4], MPI.SUM, 0)),
    ],
)
def test_calls_that_are_not_known(collective: str, given: Any) -> None:
    member = alone()
    assert member.repeats.again(collective, given) is False
    assert list(member.numbers) == [0] * 3
    assert member.repeats.again("allreduce", (np.arange(4).reshape(2, 2), *GIVEN[1:])) is True
    assert (GIVEN[1] == np.arange(4)).all()


def test_more_calls_than_are_kept() -> None:
    """Some are forgotten; none is counted twice or lost."""
    member = Member(segment(1), 0, 1)
    made = 0
    for turn in range(2000):
        give, take = np.zeros(1 + turn % 8, np.int64), np.zeros(1 + turn % 8, np.int64)
        given = (give, take, (MPI.SUM, MPI.MAX, MPI.MIN)[turn % 3], turn % 250)
        assert member.keep(given)
        assert member.repeats.again("allreduce", given) is True
        made += 1
        assert sum(count for _, count in member.repeats.calls()) == made
    member.repeats.forget()
    assert member.repeats.calls() == [(LABEL, made)]
    assert member.repeats.again("allreduce", given) is False


def test_calls_that_are_made_stay_known() -> None:
    """Also while many others come that are made once."""
    member = Member(segment(1), 0, 1)
    often = [(np.zeros(1 + n % 8, np.int64), np.zeros(1 + n % 8, np.int64), MPI.SUM, n) for n in range(24)]
    for given in often:
        assert member.keep(given)
    found = 0
    for turn in range(400):
        for given in often:
            found += member.repeats.again("allreduce", given) is True
        once = (np.zeros(3, np.int64), np.zeros(3, np.int64), MPI.MAX, turn)
        assert member.keep(once)
    assert found > 0.9 * 400 * len(often)


def test_finishing() -> None:
    member = Member(segment(1), 0, 1)
    finished: list[Any] = []
    assert member.keep(finish=finished.append)
    assert member.repeats.again("allreduce", GIVEN) is True
    assert len(finished) == 1
    assert finished[0] is GIVEN[1]

    def fails(taken: object) -> None:
        raise FloatingPointError("too large")

    assert member.keep(finish=fails)
    with pytest.raises(FloatingPointError, match="too large"):
        member.repeats.again("allreduce", GIVEN)
    assert member.lock.locked()  # the communicator is to be given up before anybody calls


@pytest.mark.parametrize(
    ("changed", "error"),
    [
        ({"fingerprint": bytes(47)}, ValueError),
        ({"reads": 2}, ValueError),
        ({"writes": -2}, ValueError),
        ({"given": (GIVEN[0], None, MPI.SUM, 0)}, ValueError),
        ({"itemsize": 0}, ValueError),
        ({"itemsize": 4}, ValueError),
        ({"kernel": engine.core().python_kernel(print, 8)}, ValueError),
        ({"kernel": 1}, TypeError),
        ({"program": 1}, TypeError),
        ({"writes": -1, "finish": print}, ValueError),
        ({"payload": ROOM + 1}, ValueError),
        ({"payload": 33}, ValueError),
        ({"payload": -1}, ValueError),
        ({"reads": -1}, ValueError),
        ({"piece": 33}, ValueError),
        ({"piece": -1}, ValueError),
        ({"offset": ROOM - 31}, ValueError),
        ({"offset": -1}, ValueError),
        ({"offset": 2**63 - 1}, ValueError),
        ({"first": -1}, ValueError),
        ({"first": 1}, ValueError),
        ({"last": 2}, ValueError),
        ({"kernel": None, "last": 1, "piece": 40}, ValueError),
    ],
    ids=str,
)
def test_what_cannot_be_kept(changed: dict[str, Any], error: type[Exception]) -> None:
    member = Member(segment(1), 0, 1)
    with pytest.raises(error):
        member.keep(**changed)
    assert member.repeats.calls() == []


@pytest.mark.parametrize(
    ("changed", "error"),
    [
        ({"me": 1}, ValueError),
        ({"me": -1}, ValueError),
        ({"members": 0}, ValueError),
        ({"members": 2}, ValueError),
        ({"members": 2**62}, ValueError),
        ({"arrived": -1}, ValueError),
        ({"arrived": SLOTS // 8}, ValueError),
        ({"stride": 0}, ValueError),
        ({"slots": -1}, ValueError),
        ({"slots": SLOTS + 8}, ValueError),
        ({"head_bytes": 40}, ValueError),
        ({"slot_bytes": 500}, ValueError),
        ({"numbers": array("q", [0] * 2)}, ValueError),
        ({"pending": array("i", [0])}, ValueError),
        ({"channels": 0}, ValueError),
        ({"channel": -1}, ValueError),
        ({"calls_in_flight": 2**30}, ValueError),
        ({"network": None}, TypeError),
        ({"lock": None}, AttributeError),
        ({"control": bytes(20_000)}, BufferError),
        ({"sample": np.zeros(6)}, ValueError),
        ({"sample": [[0, 0, 0], [0, 0, 0]]}, AttributeError),
        ({"nodes": ()}, ValueError),
        ({"nodes": [(0,)]}, ValueError),
        ({"node": 1}, ValueError),
        ({"node": -1}, ValueError),
        (TWO_NODES | {"nodes": ((0,), ())}, ValueError),
        (TWO_NODES | {"nodes": ((0,), [1])}, ValueError),
        (TWO_NODES | {"nodes": ((0,), (2,))}, ValueError),
        (TWO_NODES | {"nodes": ((0,), (-1,))}, ValueError),
        (TWO_NODES | {"nodes": ((0,), ("x",))}, TypeError),
        (TWO_NODES | {"verdict": -1}, ValueError),
        (TWO_NODES | {"verdict": 2**40}, ValueError),
        (TWO_NODES | {"results": -1}, ValueError),
        (TWO_NODES | {"results": SLOTS + 2 * ROOM + 8}, ValueError),
        (TWO_NODES | {"result_bytes": HEAD - 1}, ValueError),
        (TWO_NODES | {"result_bytes": 2**62}, ValueError),
        (TWO_NODES | {"agreement_channel": -1}, ValueError),
    ],
    ids=str,
)
def test_what_no_member_can_be(changed: dict[str, Any], error: type[Exception]) -> None:
    arguments = {"control": segment(1), "me": 0, "members": 1} | changed
    with pytest.raises(error):
        Member(**arguments)


def test_started_while_the_others_call_something_else() -> None:
    """It stays where it is, for Python to find the words."""
    memory = segment(2)
    members = [Member(memory, me, 2, patience_s=0.01) for me in range(2)]
    for me, member in enumerate(members):
        assert member.keep(last=2, fingerprint=bytes(40) + bytes([0, me, 0, 0, 0, 0, 0, 0]))
    given = (np.arange(4), np.zeros(4, np.int64), MPI.SUM, 0)
    begun = [member.repeats.start("allreduce", given, print) for member in members]
    assert all(begun)
    assert [one.wait() for one in begun if one] == [False, False]
    assert [member.repeats.move() >= 0 for member in members] == [True, True]
    assert [len(member.repeats.take_over()) for member in members] == [1, 1]
    assert not given[1].any()


def test_started_after_another_has_given_up() -> None:
    memory = segment(1)
    member = Member(memory, 0, 1)
    assert member.keep()
    memory[0] = 1
    assert member.repeats.start("allreduce", GIVEN, print) is False
    assert list(member.numbers) == [0, 0, 0]


def test_started_while_another_thread_calls() -> None:
    member = alone()
    with member.lock:
        assert member.repeats.start("allreduce", GIVEN, print) is False
    assert member.repeats.start("allreduce", GIVEN, print) is not False
    assert not member.lock.locked()


def test_started_and_forgotten() -> None:
    member = Member(segment(2), 0, 2)
    assert member.keep(last=2)
    begun = member.repeats.start("allreduce", GIVEN, print)
    assert begun is not False
    member.repeats.forget()
    assert begun.wait() is begun.test() is False
    assert begun.running is None
    assert member.repeats.move() == -1


def test_no_more_are_started_than_there_is_room_for() -> None:
    member = Member(segment(2), 0, 2)
    assert member.keep(last=2)
    begun = [member.repeats.start("allreduce", GIVEN, print) for _ in range(65)]
    assert [one is not False for one in begun] == [True] * 64 + [False]
    assert member.numbers[NEXT] == 64


def test_waiting_for_what_was_started_without_the_gil() -> None:
    memory = segment(2)
    members = [Member(memory, me, 2) for me in range(2)]
    for member in members:
        assert member.keep(last=2)
    given = (np.arange(4), np.zeros(4, np.int64), MPI.SUM, 0)
    first, other = (member.repeats for member in members)
    assert first.await_started(0.01) is False
    assert first.start("allreduce", given, print) is not False
    assert first.await_started(0.01) is False
    threading.Timer(0.05, other.start, ("allreduce", given, print)).start()
    assert first.await_started(20.0) is True
    assert first.move() == -1
    assert first.await_started(0.0) is False
    with pytest.raises(TypeError, match="real number"):
        first.await_started("soon")  # type: ignore[arg-type]
