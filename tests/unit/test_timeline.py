"""Timelines without MPI: events as written and read back, clocks, rows, computation, and the figure."""

from __future__ import annotations

import json
import os
import random
import struct
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from hpccoll import _native
from hpccoll.errors import UsageError
from hpccoll.memory.segments import pid_space, process_start
from hpccoll.observe import chrome, figure, files, form
from hpccoll.observe.clocks import JobClocks
from hpccoll.observe.events import Part, note_step
from hpccoll.observe.parts import of_job
from hpccoll.observe.reading import Event, Measurement, RankTrace, parse
from hpccoll.observe.recorder import Recorder, Writer
from hpccoll.observe.tracks import Process, Slice, job_of
from hpccoll.plans.program import CODE
from tests.support.timeline import shown

ROOM = 1 << 17
MS = 1_000_000
NATIVE = [False, pytest.param(True, marks=pytest.mark.skipif(not _native.available(), reason="no extension"))]


def recorder(directory: Path, native: bool, total: int = ROOM) -> Recorder:
    segment = files.new_file(str(directory), total, "00c0ffee", 1)
    writer = Writer("00c0ffee", 1, 2, 0, "world", 1)
    return Recorder(segment, writer, keep=False, native=native, timeline=True)


def whole(one: Recorder) -> bytes:
    assert one.path is not None
    return Path(one.path).read_bytes()


def read(data: bytes) -> RankTrace:
    return parse(data, data, "here")


# --- events -------------------------------------------------------------------------------------------


@pytest.mark.parametrize("native", NATIVE)
def test_events_are_read_as_they_were_written(tmp_path: Path, native: bool) -> None:
    one = recorder(tmp_path, native)
    assert one.events is not None
    with Part(one.events.put, one.text("forward")):
        pass
    one.events.put(CODE["send"], 5, 9, 3, one.text("steps"), 2, 7, 4096)
    note_step(one, 4, {0: (1.0, 2.0), 1: (1.5, 9.0)}, (1.75, 3.0), "bucket {}".format)
    one.measured((1, 2, 30, 4))
    one.measured((11, 12, 31, 5))
    one.measured((21, 22, 32, 6))
    trace = read(whole(one))
    assert trace.world_rank == 1
    part, send, *rest = trace.events
    assert (part.kind, part.text, part.thread) == (form.SPAN, "forward", part.thread)
    assert send == Event(CODE["send"], 5, 9, 3, "steps", 2, 7, 4096, part.thread)
    second = 10**9
    assert [(one.kind, one.begin_ns, one.end_ns, one.text) for one in rest] == [
        (form.BUCKET, second, 2 * second, "bucket 0"),
        (form.BUCKET, 3 * second // 2, 3 * second, "bucket 1"),
        (form.STEP_WAITED, 7 * second // 4, 3 * second, "wait for buckets"),
    ]
    assert trace.measurements == [Measurement(1, 2, 30, 4), Measurement(21, 22, 32, 6)]  # first and last


@pytest.mark.parametrize("native", NATIVE)
@pytest.mark.parametrize("times", [10, 1500, 5000])
def test_a_part_for_rank_0_has_the_last_events(tmp_path: Path, native: bool, times: int) -> None:
    """In whatever ring they lie, with their words, and not more bytes than asked for."""
    one = recorder(tmp_path, native)
    assert one.events is not None
    for number in range(times):
        one.events.put(form.SPAN, number + 1, number + 2, number, one.text(f"part {number % 3}"), -1, -1, 0)
    one.enter("barrier", 0)
    one.end(0)
    room = form.shares(ROOM, True)[1]
    full = read(whole(one))
    assert [event.sequence for event in full.events] == list(range(max(0, times - room), times))
    assert full.lost_events == max(0, times - room)
    data = one.finished(ROOM)
    assert len(data) <= ROOM
    part = read(data)
    assert part.state == form.OVER
    assert part.events == full.events
    assert part.calls.keys() == {0}
    assert part.calls[0].place == full.calls[0].place is not None
    less = one.finished(30_000)
    assert len(less) <= 30_000
    kept = read(less)
    assert kept.events == full.events[-len(kept.events) :]
    assert all(event.text == f"part {event.sequence % 3}" for event in kept.events)
    assert len(kept.events) == min(times, len(kept.events))
    assert kept.lost_events == times - len(kept.events)


def test_torn_events_are_left_out(tmp_path: Path) -> None:
    one = recorder(tmp_path, False)
    assert one.events is not None
    for number in range(5):
        one.events.put(form.SPAN, number + 1, number + 2, number, 0, -1, -1, 0)
    data = bytearray(whole(one))
    data[form.events_at(form.shares(ROOM, True)[0]) + 2 * form.EVENT_BYTES] += 1
    trace = read(bytes(data))
    assert ([event.sequence for event in trace.events], trace.torn) == ([0, 1, 3, 4], 1)


def test_any_bytes_become_a_timeline_or_are_refused(tmp_path: Path) -> None:
    one = recorder(tmp_path, False)
    assert one.events is not None
    one.measured((1, 2, 30, 4))
    steps = one.text(json.dumps(["ring", [["allreduce", "WORLD", 0]]]))
    for number in range(40):
        one.enter("allreduce", number)
        one.events.put(number % 16, number * 10 + 1, number * 10 + 9, number, steps, 0, 0, 8)
        one.events.put(form.SPAN + number % 8, number * 10 + 1, number * 10 + 9, number, steps, 0, 0, 8)
        one.end(number)
    good = bytearray(one.finished(ROOM))
    chance = random.Random(3)
    read_well = 0
    for _ in range(300):
        data = bytearray(good)
        for _ in range(chance.randrange(1, 30)):
            at = chance.choice([chance.randrange(16, 200), chance.randrange(form.PAGE, len(good))])
            data[at : at + 8] = chance.choice([b"\xff" * 8, bytes(8), chance.randbytes(8)])
        del data[len(good) :]
        try:
            trace = read(bytes(data))
        except ValueError:
            continue
        read_well += 1
        json.loads("".join(chrome.lines([trace])))
    assert read_well > 20


# --- clocks -------------------------------------------------------------------------------------------


def trace_of(
    communicator: str, rank: int, host: str, measured: Sequence[tuple[int, ...]] = (), **other: Any
) -> RankTrace:
    about: dict[str, Any] = {
        "path": "", "communicator": communicator, "rank": rank, "size": 4, "node": 0, "name": "world",
        "host": host, "pid": os.getpid() + rank, "start": process_start(os.getpid()),
        "pid_space": pid_space(), "program": "program.py", "state": form.OVER, "state_ns": 0, "error": "",
        "monotonic_ns": 0, "wall_ns": 0, "world_rank": rank,
    }  # fmt: skip
    return RankTrace(**(about | other), measurements=[Measurement(*one) for one in measured])


def test_a_clock_that_drifts_is_followed() -> None:
    """Offset 1 s, 20 us a second faster, measured at 100 s and 200 s."""
    second = 10**9
    there = [(100 * second, 100 * second, second, 300), (200 * second, 200 * second, second + 2_000_000, 700)]
    traces = [trace_of("a", 0, "here"), trace_of("a", 1, "there", there)]
    clocks = JobClocks(traces)
    assert clocks.reference == traces[0].clock
    assert clocks.of(traces[0], 17) == 17
    for at_s in (100, 150, 200, 300):
        assert clocks.of(traces[1], at_s * second) == (at_s + 1) * second + (at_s - 100) * 20_000
    offset = clocks.offsets[traces[1].clock]
    assert offset.drift_ppm == pytest.approx(20)
    assert offset.error_ns == 700


def test_clocks_are_reached_over_several_communicators() -> None:
    """Rank 0 knows the second host; another communicator, whose rank 0 is there, knows the third."""
    traces = [
        trace_of("a", 0, "one"),
        trace_of("a", 1, "two", [(0, 10, 1000, 5)]),
        trace_of("b", 0, "two", wall_ns=1),
        trace_of("b", 1, "three", [(0, 10, 200, 7)], wall_ns=1),
        trace_of("c", 0, "three", wall_ns=2),
        trace_of("c", 1, "four", [(0, 10, 30, 2)], wall_ns=2),
        trace_of("d", 0, "five", wall_ns=3),  # whose clock is known by one that it is measured for
        trace_of("d", 1, "four", [(0, 10, -40, 1)], wall_ns=3),
    ]
    clocks = JobClocks(traces)
    assert [clocks.of(one, 50) for one in traces] == [50, 1050, 1050, 1250, 1250, 1280, 1320, 1280]
    errors = [clocks.offsets[one.clock].error_ns for one in traces]
    assert errors == [0, 5, 5, 12, 12, 14, 15, 14]


def test_a_clock_that_nobody_has_measured_is_guessed() -> None:
    traces = [
        trace_of("a", 0, "one", wall_ns=5000, monotonic_ns=1000, pid_space="x.1"),
        trace_of("a", 1, "two", wall_ns=7000, monotonic_ns=0, pid_space="y.1"),
    ]
    clocks = JobClocks(traces)
    assert clocks.of(traces[1], 0) == 3000
    assert clocks.offsets[traces[1].clock].error_ns is None
    about = json.loads("".join(chrome.lines(traces)))["otherData"]
    assert about["alignment_error_us"] is None


def test_parts_of_a_job_have_processes_in_common() -> None:
    mine = trace_of("a", 0, "one"), trace_of("a", 1, "one")
    others = trace_of("b", 0, "one", pid=mine[1].pid), trace_of("b", 1, "one", pid=4)
    far = trace_of("c", 0, "one", pid=4)
    strange = trace_of("d", 0, "one", pid=5)
    assert of_job([*mine, *others, far, strange], "a") == [*mine, *others, far]


# --- rows ---------------------------------------------------------------------------------------------

spans = st.lists(st.tuples(st.integers(0, 60), st.integers(0, 20)), max_size=30)


@given(spans=spans, track=st.sampled_from(["program", "level NODE"]))
def test_every_row_is_a_nesting(spans: list[tuple[int, int]], track: str) -> None:
    slices = [Slice(track, "a", "a", begin, begin + length) for begin, length in spans]
    rows = Process(0, "here", 1, slices).rows
    assert sorted(id(one) for row in rows for one in row.slices) == sorted(map(id, slices))
    for row in rows:
        open_: list[int] = []
        for one in row.slices:
            while open_ and open_[-1] <= one.begin_ns:
                open_.pop()
            assert not open_ or (track == "program" and one.end_ns <= open_[-1])
            open_.append(one.end_ns)


def events(*found: tuple[int, int, int, int, str]) -> list[Event]:
    """Of kind, begin and end in ms, sequence, text."""
    return [
        Event(kind, begin * MS, end * MS, sequence, text, -1, -1, 0, 0)
        for kind, begin, end, sequence, text in found
    ]


def steps_of(rank: int) -> RankTrace:
    """Two steps of 100 ms each: a forward and a backward pass with a bucket that is exposed for 20 ms."""
    found = []
    for step in (1, 2):
        at = 100 * step
        found += events(
            (form.SPAN, at, at + 30, -1, "forward"),
            (form.SPAN, at + 30, at + 70, -1, "backward"),
            (form.BUCKET, at + 40, at + 90, step, "bucket 0: 1 MiB of float32, copied: 'w'"),
            (form.STEP_WAITED, at + 70, at + 95, step, "wait for buckets"),
        )
    one = trace_of("a", rank, "here")
    one.events = found
    return one


def test_computation_is_what_is_left_and_buckets_show_what_is_exposed() -> None:
    (process,) = job_of([steps_of(0)]).processes
    pieces = [one for one in process.slices if one.track == "computation"]
    assert [(one.name, one.begin_ns // MS, one.end_ns // MS) for one in pieces] == [
        ("forward", 100, 130),
        ("backward", 130, 170),
        ("between calls", 195, 200),
        ("forward", 200, 230),
        ("backward", 230, 270),
    ]
    buckets = [one for one in process.slices if one.kind == "bucket"]
    exposed = [(part.begin_ns // MS, part.end_ns // MS) for one in buckets for part in one.inside]
    assert exposed == [(170, 190), (270, 290)]


# --- the figure ---------------------------------------------------------------------------------------


@pytest.fixture
def timeline(tmp_path: Path) -> Path:
    path = tmp_path / "timeline-1.json"
    path.write_text("\n".join(chrome.lines([steps_of(0), steps_of(1)])))
    assert len(shown(path).processes) == 2
    return path


def test_a_step_is_from_one_wait_to_the_next(timeline: Path) -> None:
    ranks = figure.read(str(timeline))
    assert [one.name for one in ranks] == ["rank 0 on here", "rank 1 on here"]
    assert [[round(time) for time in step] for step in ranks[0].steps()] == [
        [30_000, 95_000],
        [95_000, 195_000],
    ]
    assert figure.typical(ranks) == 2


@pytest.mark.parametrize("name", ["step.png", "step.svg"])
def test_a_step_is_drawn(timeline: Path, tmp_path: Path, name: str) -> None:
    pytest.importorskip("matplotlib")
    ranks = figure.read(str(timeline))
    drawn = figure.draw(ranks, 2)
    (axes,) = drawn.axes
    assert axes.get_title(loc="left").startswith(
        "Step 2: 100 ms; communication under way for 50 ms, 60% of it"
    )
    assert [one.get_text() for one in axes.get_yticklabels()] == 2 * ["program", "buckets"]
    figure.save(drawn, str(tmp_path / name))
    data = (tmp_path / name).read_bytes()
    assert data.startswith(b"\x89PNG") or b"<svg" in data


def test_what_cannot_be_drawn_is_refused(timeline: Path, tmp_path: Path) -> None:
    pytest.importorskip("matplotlib")
    ranks = figure.read(str(timeline))
    with pytest.raises(UsageError, match="there are steps 1 to 2"):
        figure.draw(ranks, 3)
    with pytest.raises(UsageError, match="must end in"):
        figure.save(figure.draw(ranks, 1), str(tmp_path / "step.gif"))
    (tmp_path / "empty.json").write_text('{"traceEvents": []}')
    with pytest.raises(UsageError, match="there is no step"):
        figure.typical(figure.read(str(tmp_path / "empty.json")))
    for text in ("", "[]", '{"traceEvents": [{"ph": "X"}]}'):
        (tmp_path / "other.json").write_text(text)
        with pytest.raises(UsageError, match="is no timeline"):
            figure.read(str(tmp_path / "other.json"))


def test_structures_are_those_of_c() -> None:
    assert form.EVENT.size == form.EVENT_BYTES
    assert form.RECORD.size == form.RECORD_BYTES
    assert struct.calcsize("<7q") + 16 == form.STATE
