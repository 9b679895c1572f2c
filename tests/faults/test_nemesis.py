"""Random faults: the promises of docs/reliability.md are kept; and the judge sees where one is not."""

from __future__ import annotations

import copy
from collections.abc import Callable
from typing import Any

import pytest

from tests.faults.nemesis import CALLS, DEAD_S, FAULTS, HARMLESS, Lines, broken_promises, judged, schedule

SEED = 20


@pytest.mark.timeout(120)
@pytest.mark.parametrize("number", range(8))
def test_a_random_fault(number: int) -> None:
    assert judged(schedule(SEED, number)) == []


@pytest.mark.slow
@pytest.mark.timeout(1800)
def test_a_hundred_random_faults() -> None:
    wrong = {number: judged(schedule(SEED + 1, number)) for number in range(100)}
    assert {number: words for number, words in wrong.items() if words} == {}


def test_schedules_come_again_and_have_every_fault() -> None:
    assert [schedule(3, number) for number in range(9)] == [schedule(3, number) for number in range(9)]
    assert {schedule(3, number)["fault"] for number in range(200)} == set(FAULTS)


PLAN = {**schedule(1, 1), "fault": "SIGKILL", "rank": 1, "ranks": 3, "layout": "3", "call": 5}
LOST = {"error": "PeerLostError", "text": "rank 1 died", "suspects": [1]}


def well() -> Lines:
    """What three ranks write when rank 1 is killed in call 5."""
    lines: Lines = {
        rank: [{"call": call, "right": True, "at": 10.0 + call} for call in range(5)] for rank in range(3)
    }
    lines[1].append({"struck": True, "at": 15.0})
    for rank in (0, 2):
        lines[rank] += [{"call": 5, "at": 15.3, **LOST}, {"end": True, "at": 15.4}]
    return lines


def test_the_judge_lets_a_kept_promise_pass() -> None:
    assert broken_promises(PLAN, well()) == []
    one_was_through = well()
    one_was_through[0][5:] = [{"call": 5, "right": True, "at": 15.0}, {"call": 6, "at": 15.3, **LOST}]
    assert broken_promises(PLAN, one_was_through) == []


def test_the_judge_looks_at_cut_links() -> None:
    plan = {**PLAN, "fault": "link cut", "calls": CALLS}
    late = {"error": "CollectiveTimeoutError", "text": "node 1 sends nothing", "suspects": [1], "at": 16.5}
    lines = well()
    for rank in range(3):
        lines[rank] = [*lines[rank][:5], {"struck": True, "at": 15.0}, {"call": 5, **late}]
    assert broken_promises(plan, lines) == []
    lines[1][-1]["error"] = "AbortedError"  # which is told that it does not answer
    assert broken_promises(plan, lines) == []
    lines[0][-1]["error"] = "AbortedError"
    assert any("AbortedError after link cut" in words for words in broken_promises(plan, lines))
    del lines[1][-1]
    assert any("rank 1 has learned nothing" in words for words in broken_promises(plan, lines))
    assert any(
        "though link comes back" in one for one in broken_promises({**plan, "fault": HARMLESS[-1]}, lines)
    )


@pytest.mark.parametrize(
    ("spoil", "words"),
    [
        (lambda lines: lines[0][3].update(right=False), "rank 0: call 3 has a wrong result"),
        (lambda lines: lines[2][5].update(at=15.0 + DEAD_S + 0.1), "at most 2 s were promised"),
        (lambda lines: lines[2][5].update(error="CollectiveTimeoutError"), "TimeoutError after"),
        (lambda lines: lines[2][5].update(text="rank 0 died"), "the rank at fault, 1, is not named"),
        (lambda lines: lines[2].__delitem__(5), "rank 2 has learned nothing of SIGKILL"),
        (lambda lines: lines[2].append({"call": 7, "right": True, "at": 16.0}), "call 7 ended well"),
        (lambda lines: lines[1].pop(), "before anything has happened"),
        (lambda lines: [lines[rank].__delitem__(5) for rank in (0, 2)], "nobody has learned of SIGKILL"),
    ],
)  # fmt: skip
def test_the_judge_sees_a_broken_promise(spoil: Callable[[Lines], Any], words: str) -> None:
    lines = copy.deepcopy(well())
    spoil(lines)
    assert any(words in one for one in broken_promises(PLAN, lines))


def test_the_judge_sees_ranks_that_end_a_call_differently() -> None:
    plan = {**PLAN, "fault": "another count"}
    lines: Lines = {
        rank: [{"call": call, "right": True, "at": 1.0} for call in range(CALLS)] for rank in range(3)
    }
    assert broken_promises(plan, lines) == []
    lines[0][4] = {"call": 4, "error": "MismatchError", "text": "", "at": 1.1}
    lines[1].insert(4, {"struck": True, "at": 1.0})
    assert any("call 4" in words and "ended differently" in words for words in broken_promises(plan, lines))
    del lines[2][-1]
    assert any("'not made'" in words.replace('"', "'") for words in broken_promises(plan, lines))
