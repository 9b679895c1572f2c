"""What is said of traces: who is at fault in calls that do not end, also where clocks or files are wrong."""

from __future__ import annotations

import os
from typing import Any

import pytest

from hpccoll.memory.segments import pid_space, process_start
from hpccoll.observe import form
from hpccoll.observe.reading import Call, Place, RankTrace
from hpccoll.observe.timeline import page
from hpccoll.observe.verdict import Finding, Job
from hpccoll.runtime.fingerprint import Fingerprint

SECOND = 10**9
NOW = 1000 * SECOND  # on the wall clock; the monotonic one is at 100 s
PLACE = Place("solver.py", "step", 88)


def call(sequence: int, state: int = form.DONE, **changed: Any) -> Call:
    """A call that began `sequence` seconds after the program, at 10 s, and took 1 ms."""
    entered = (10 + sequence) * SECOND
    collective = changed.get("collective", "allreduce")
    what = Fingerprint(sequence, b"float64", changed.pop("count", 4), 0, collective, 1)
    fields: dict[str, Any] = {
        "sequence": sequence, "collective": "allreduce", "called": what, "state": state,
        "entered_ns": entered, "agreed_ns": 0,
        "ended_ns": 0 if state in (form.ENTERED, form.MOVING) else entered + 10**6,
        "step": -1, "steps": 0, "chunk": -1, "chunks": 0, "peer": -1, "family": "", "bytes_done": 0,
        "bytes_total": 0, "place": PLACE, "thread": 1, "plan": "", "error": "",
    }  # fmt: skip
    return Call(**fields | changed)


def rank(number: int, calls: list[Call], size: int = 4, **changed: Any) -> RankTrace:
    """A rank of two nodes, whose process is this one."""
    fields: dict[str, Any] = {
        "path": "", "communicator": "c", "rank": number, "size": size, "node": 2 * number // size,
        "name": "world", "host": f"host{2 * number // size}", "pid": os.getpid(),
        "start": process_start(os.getpid()),
        "pid_space": pid_space(), "program": "", "state": form.AT_WORK, "state_ns": 0, "error": "",
        "monotonic_ns": 0, "wall_ns": NOW - 100 * SECOND,
    }  # fmt: skip
    return RankTrace(**fields | changed, calls={one.sequence: one for one in calls})


def findings(traces: list[RankTrace], stuck_after_s: float = 5.0) -> list[Finding]:
    return Job(traces, NOW, stuck_after_s).findings()


def done(count: int) -> list[Call]:
    return [call(sequence) for sequence in range(count)]


def waiting(**changed: Any) -> list[Call]:
    """Five calls, and a sixth that does not end."""
    return [*done(5), call(5, form.ENTERED, **changed)]


def test_nothing_is_wrong() -> None:
    assert findings([rank(k, done(6)) for k in range(4)]) == []


def test_a_call_is_not_stuck_before_its_time() -> None:
    young = [rank(k, [*done(5), call(5, form.ENTERED, entered_ns=96 * SECOND)]) for k in range(3)]
    traces = [*young, rank(3, done(5))]
    assert findings(traces, 5.0) == []
    assert [one.kind for one in findings(traces, 3.0)] == ["missing"]


def test_one_rank_is_missing() -> None:
    (found,) = findings([rank(0, waiting()), rank(1, waiting()), rank(2, done(5)), rank(3, waiting())])
    assert (found.kind, found.ranks, found.wrong) == ("missing", (2,), True)
    assert (
        "ranks 0, 1, 3 have waited 85.0 s in allreduce (4 x float64, SUM) at solver.py:88 in step"
        in found.text
    )
    assert "Rank 2 has not made call #5: its last call was allreduce (4 x float64, SUM) #4" in found.text


def test_a_rank_without_a_file() -> None:
    (found,) = findings([rank(0, waiting()), rank(1, waiting()), rank(3, waiting())])
    assert (found.kind, found.ranks) == ("absent", (2,))


def test_a_process_that_is_gone() -> None:
    gone = {"pid": 2**31 - 1, "start": 5}
    inside = [*(rank(k, waiting()) for k in range(3)), rank(3, waiting(), **gone)]
    before = [*(rank(k, waiting()) for k in range(3)), rank(3, done(5), **gone)]
    idle = [*(rank(k, done(5)) for k in range(3)), rank(3, done(5), **gone)]
    for traces, words in ((inside, "ended in this call"), (before, "is gone"), (idle, "were in no call")):
        (found,) = findings(traces)
        assert (found.kind, found.ranks) == ("dead", (3,))
        assert words in found.text


def test_a_rank_that_has_left_and_one_that_is_slow() -> None:
    (found,) = findings([*(rank(k, waiting()) for k in range(3)), rank(3, done(5), state=form.LEFT)])
    assert (found.kind, found.ranks) == ("left", (3,))
    late = [call(k, entered_ns=(10 + k) * SECOND + SECOND // 2) for k in range(5)]
    (found,) = findings([*(rank(k, waiting()) for k in range(3)), rank(3, late)])
    assert (found.kind, found.ranks) == ("slow", (3,))
    assert "rank 3 was the last in 5 of the last 5 calls; the others waited 2.5 s for it" in found.text
    (remark,) = findings([*(rank(k, done(5)) for k in range(3)), rank(3, late)])
    assert (remark.kind, remark.ranks, remark.wrong) == ("skew", (3,), False)


def test_calls_that_differ() -> None:
    def last(count: int) -> list[Call]:
        return [*done(5), call(5, form.FAILED, count=count)]

    (found,) = findings([rank(k, last(3 if k == 1 else 4)) for k in range(4)])
    assert (found.kind, found.ranks) == ("mismatch", (1,))
    assert "They differ in count (4 on ranks 0, 2, 3, 3 on rank 1)" in found.text
    (found,) = findings([rank(k, last(3 if k < 2 else 4)) for k in range(4)])
    assert found.ranks == (0, 1, 2, 3)


@pytest.mark.parametrize("through", [True, False])
def test_a_link_that_is_cut(through: bool) -> None:
    """Leaders that wait for each other; or one waits, and the other has had its answer."""
    inside = rank(1, waiting(peer=0, family="NODE"))
    one = rank(0, waiting(peer=2, family="LEADERS"))
    other = rank(2, done(6) if through else waiting(peer=0, family="LEADERS"))
    last = rank(3, done(6) if through else waiting(peer=2, family="NODE"))
    (found,) = findings([one, inside, other, last])
    assert (found.kind, found.ranks) == ("link", (0, 2))
    assert "the link between node 0 (host0) and node 1 (host1) does not bring messages" in found.text


def test_ranks_of_one_node_in_a_circle_are_no_link() -> None:
    calls = {0: 1, 1: 0, 2: 3, 3: 2}
    (found,) = findings(
        [rank(k, waiting(peer=peer, step=1, steps=3, plan="ring")) for k, peer in calls.items()]
    )
    assert found.kind == "stuck"
    assert "rank 0: entered, step 2 of 3 of plan ring, waiting for rank 1" in found.text


def test_clocks_of_two_hosts_are_brought_together() -> None:
    """The other host's wall clock is 40 s ahead, and its monotonic clock began at another time."""
    shift = 7 * SECOND
    there = [
        call(k, entered_ns=(10 + k) * SECOND + shift, ended_ns=(10 + k) * SECOND + shift + 10**6)
        for k in range(5)
    ]
    host = {"pid_space": "other", "wall_ns": NOW - 100 * SECOND + 40 * SECOND - shift}
    job = Job([rank(0, done(5), size=2), rank(1, there, size=2, **host)], NOW, 5.0)
    times = [job.clocks.of(trace, trace.calls[3].entered_ns) for trace in job.ranks.values()]
    assert abs(times[0] - times[1]) <= 10**6
    assert job.processes[1] == "unknown"


def test_what_files_say_is_quoted_in_the_page() -> None:
    evil = Place("<script>alert(1)</script>", '"><img src=x>', 1)
    job = Job([rank(k, waiting(place=evil), name="<b>", error="<i>") for k in range(4)], NOW, 5.0)
    text = page([(job, job.findings())])
    for tag in ("<script", "<img", "<b>&", "<i>"):
        assert tag not in text
    assert text.count("<rect") == 24
