"""The recorder's ring and table as written, and read back; files that are hostile or torn."""

from __future__ import annotations

import os
import random
import stat
import struct
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from hpccoll import _native
from hpccoll.errors import CollectiveTimeoutError, ResourceError, UsageError
from hpccoll.memory.segments import create_segment
from hpccoll.observe import files, form
from hpccoll.observe.place import Where
from hpccoll.observe.reading import RankTrace, parse, read_directory, read_file
from hpccoll.observe.recorder import PACKAGE, Recorder, Silent, Writer
from hpccoll.runtime.fingerprint import Fingerprint

SMALL = 16384
WRITER = Writer("00c0ffee", 1, 4, 0, "world")
Make = Callable[..., Recorder]


@pytest.fixture
def make(tmp_path: Path) -> Make:
    def recorder(total: int = SMALL, keep: bool = False, native: bool = False) -> Recorder:
        segment = files.new_file(str(tmp_path), total, WRITER.communicator, WRITER.rank)
        return Recorder(segment, WRITER, keep=keep, native=native)

    return recorder


def path_of(recorder: Recorder) -> str:
    assert recorder.path is not None
    return recorder.path


def fingerprint(sequence: int, count: int = 7) -> bytes:
    return Fingerprint(sequence, b"float64", count, 2, "allreduce", 1).pack()


def make_calls(recorder: Recorder, count: int) -> None:
    for sequence in range(count):
        recorder.enter("allreduce", sequence)
        recorder.called(sequence, fingerprint(sequence))
        recorder.end(sequence)


def contents(recorder: Recorder) -> bytearray:
    return bytearray(Path(path_of(recorder)).read_bytes())


def parsed(data: bytes) -> RankTrace:
    return parse(bytes(data), bytes(data), "here")


def test_a_call_is_read_as_it_was_written(make: Make) -> None:
    recorder = make()
    recorder.enter("allreduce", 3)
    line = sys._getframe().f_lineno - 1
    recorder.called(3, fingerprint(3))
    recorder.look(3, lambda sequence, planned: pytest.fail("it has not waited for long"))
    error = CollectiveTimeoutError("nobody came", suspects=[3])
    recorder.end(3, error, lambda sequence, planned: Where(2, 5, 1, "LEADERS", 10, 40))
    recorder.broken("the end")
    trace = read_file(path_of(recorder))
    assert (trace.rank, trace.size, trace.node, trace.pid) == (1, 4, 0, os.getpid())
    assert (trace.communicator, trace.name, trace.error) == ("00c0ffee", "world", "the end")
    assert trace.process() == "alive"
    call = trace.calls[3]
    assert call.called is not None
    assert (call.collective, call.called.count, call.called.root) == ("allreduce", 7, 2)
    assert (call.state, call.step, call.chunk, call.family) == (form.FAILED, 2, 5, "LEADERS")
    assert (call.peer, call.bytes_done, call.bytes_total) == (3, 10, 40)
    assert call.error == "CollectiveTimeoutError: nobody came"
    assert 0 < call.entered_ns <= call.ended_ns
    assert call.place is not None
    assert (call.place.file, call.place.line) == (__file__, line)
    assert call.place.function.endswith("test_a_call_is_read_as_it_was_written") or sys.version_info < (3, 11)


def test_the_last_calls_are_kept(make: Make) -> None:
    recorder = make()
    kept = form.shares(SMALL, False)[0]
    make_calls(recorder, 3 * kept + 5)
    trace = read_file(path_of(recorder))
    assert list(trace.calls) == list(range(2 * kept + 5, 3 * kept + 5))
    assert {call.state for call in trace.calls.values()} == {form.DONE}


def test_a_call_that_outlasts_the_ring_writes_over_no_other(make: Make) -> None:
    recorder = make()
    recorder.enter("allreduce", 0)
    for sequence in range(1, form.shares(SMALL, False)[0] + 1):
        recorder.enter("barrier", sequence)
        recorder.end(sequence)
    recorder.called(0, fingerprint(0))
    recorder.end(0, RuntimeError("late"))
    trace = read_file(path_of(recorder))
    assert {call.collective for call in trace.calls.values()} == {"barrier"}


@pytest.mark.skipif(not _native.available(), reason="without the extension")
def test_the_extension_writes_the_same(make: Make) -> None:
    one, other = make(), make(native=True)
    assert other.ring is not None
    calls: list[Any] = []
    for recorder in (one, other):
        if recorder.ring is None:
            recorder.enter("allreduce", 8), recorder.called(8, fingerprint(8)), recorder.end(8)  # fmt: skip
        else:
            recorder.ring.end(recorder.ring.enter(fingerprint(8), 8))
        calls.append(read_file(path_of(recorder)).calls[8])
    for name in ("sequence", "collective", "called", "state", "thread", "place", "peer", "chunk", "step"):
        if name != "place":
            assert getattr(calls[0], name) == getattr(calls[1], name), name
    assert calls[1].place.file == __file__
    if sys.version_info >= (3, 11):
        assert calls[1].place.line == calls[0].place.line + 2


@pytest.mark.skipif(not _native.available(), reason="without the extension")
def test_a_ring_outside_its_memory_is_refused(make: Make) -> None:
    from hpccoll._native._core import Ring

    memory = memoryview(bytearray(4096))
    good: dict[str, Any] = {
        "memory": memory, "written": 0, "records": 64, "count": 2, "number_of": hash, "inside": PACKAGE
    }  # fmt: skip
    Ring(**good)
    for wrong in (
        {"count": 26},
        {"count": 0},
        {"records": 4096},
        {"records": -8},
        {"written": 4090},
        {"written": 1},
    ):
        with pytest.raises(ValueError, match="inside the memory"):
            Ring(**good | wrong)
    ring = Ring(**good)
    for offset in (0, 65, 64 + 2 * 160, -96):
        with pytest.raises(ValueError, match="no record begins there"):
            ring.end(offset)
    with pytest.raises(ValueError, match="48 bytes"):
        ring.enter(b"", 1)


@pytest.mark.skipif(not _native.available(), reason="without the extension")
def test_the_extension_asks_once_for_code_and_not_when_there_is_no_room() -> None:
    from hpccoll._native._core import Ring

    asked: list[Any] = []
    numbers = [8, 0, 16]

    def number_of(code: Any) -> int:
        asked.append(code)
        return numbers[len(asked) - 1]

    ring = Ring(memoryview(bytearray(4096)), 0, 64, 2, number_of, PACKAGE)
    callers: list[Any] = [eval(f"lambda: ring.enter(bytes(48), {k})", {"ring": ring}) for k in range(3)]
    for _ in range(3):
        for caller in callers:
            caller()
    assert asked == [callers[0].__code__, callers[1].__code__]


def test_the_table_is_full(make: Make) -> None:
    recorder = make()
    for number in range(2000):
        recorder.text(f"words {number} " + 40 * "-")
    exec("recorder.enter('barrier', 0)", {"recorder": recorder})
    trace = read_file(path_of(recorder))
    assert recorder.text("words 0 " + 40 * "-") > 0
    assert recorder.text("others") == 0
    assert trace.calls[0].place is None
    assert trace.calls[0].waits


def test_code_of_many_lines_has_at_least_its_first(make: Make) -> None:
    recorder = make()
    body = "x = 0\n" * 6000 + "recorder.enter('barrier', 0)\n"
    exec(compile(body, "long.py", "exec"), {"recorder": recorder})
    call = read_file(path_of(recorder)).calls[0]
    assert call.place is not None
    assert (call.place.file, call.place.line) == ("long.py", 1)


def test_a_torn_record_is_left_out(make: Make) -> None:
    recorder = make()
    make_calls(recorder, 5)
    data = contents(recorder)
    at = form.PAGE + 2 * form.RECORD_BYTES
    data[at] += 1
    trace = parsed(data)
    assert (trace.torn, list(trace.calls)) == (1, [0, 1, 3, 4])
    again = bytes(data)
    data[at] -= 1  # whole when read first, being written when read again
    assert list(parse(bytes(data), again, "here").calls) == [0, 1, 3, 4]


@pytest.mark.parametrize(
    ("at", "value", "said"),
    [
        (0, b"something else \n", "not a trace file"),
        (16, struct.pack("<q", 2**40), "sizes do not fit"),
        (24, struct.pack("<q", -8), "sizes do not fit"),
        (32, struct.pack("<q", 2**62), "sizes do not fit"),
        (40, struct.pack("<q", -1), "sizes do not fit"),
        (form.ABOUT, struct.pack("<I", 2**31), "who wrote it"),
        (form.ABOUT + 4, b"[", "who wrote it"),
        (form.ABOUT + 4, b"\xff\xff", "who wrote it"),
    ],
)
def test_a_hostile_header_is_refused(make: Make, at: int, value: bytes, said: str) -> None:
    recorder = make()
    make_calls(recorder, 3)
    data = contents(recorder)
    data[at : at + len(value)] = value
    with pytest.raises(ValueError, match=said):
        parsed(data)


def test_any_bytes_are_read_or_refused(make: Make) -> None:
    """Whatever is in a file: a trace, or ValueError; never another error, and no memory by its numbers."""
    recorder = make()
    make_calls(recorder, 40)
    good = contents(recorder)
    chance = random.Random(7)
    read = 0
    for _ in range(400):
        data = bytearray(good)
        for _ in range(chance.randrange(1, 40)):
            region = chance.choice(
                [(40, 128), (form.ABOUT, form.PAGE), (form.PAGE, SMALL), (form.PAGE, SMALL)]
            )
            at = chance.randrange(*region)
            data[at : at + 8] = chance.choice(
                [b"\xff" * 8, bytes(8), struct.pack("<q", chance.randrange(2**63)), chance.randbytes(8)]
            )
        del data[SMALL:]
        try:
            trace = parsed(data)
        except ValueError:
            continue
        read += 1
        assert len(trace.calls) <= form.shares(SMALL, False)[0]
        assert all(len(call.plan) <= SMALL for call in trace.calls.values())
    assert read > 50
    for length in (0, 1, 4095, 4096, 8192, SMALL - 1):
        with pytest.raises(ValueError, match="not a"):
            parsed(good[:length])


def test_only_regular_files_are_read(make: Make, tmp_path: Path) -> None:
    recorder = make(keep=True)
    make_calls(recorder, 2)
    name = f"hpccoll-0-x-1-1-00-trace.{WRITER.communicator}.0"
    os.mkfifo(tmp_path / name)  # to open one for reading waits for a writer
    (tmp_path / f"{name}1").symlink_to(path_of(recorder))
    (tmp_path / f"{name}2").write_bytes(b"")
    (tmp_path / "hpccoll-notes").write_text("no trace")
    (tmp_path / "host1").mkdir()
    traces, problems = read_directory(str(tmp_path))
    assert [trace.path for trace in traces] == [recorder.path]
    assert len(problems) == 3


def test_files_are_their_owners_alone(make: Make, tmp_path: Path) -> None:
    one, other = make(), make()
    for recorder in (one, other):
        assert stat.S_IMODE(os.stat(path_of(recorder)).st_mode) == 0o600
    assert one.path != other.path
    copy = one.dump(tmp_path / "copies")
    assert stat.S_IMODE(copy.stat().st_mode) == 0o600
    assert stat.S_IMODE(copy.parent.stat().st_mode) == 0o700
    assert copy.read_bytes() == contents(one)
    assert one.dump(tmp_path / "copies") == copy
    with pytest.raises(ResourceError, match="cannot be copied"):
        one.dump(path_of(other))


def test_when_a_file_goes(make: Make) -> None:
    dropped, removed, broken, kept, closed = (make(keep=k == 3) for k in range(5))
    paths = [path_of(one) for one in (dropped, removed, broken, kept, closed)]
    del dropped
    removed.remove(), removed.close()  # fmt: skip
    broken.broken("why"), broken.remove(), broken.close()  # fmt: skip
    kept.remove(), kept.close()  # fmt: skip
    closed.close()
    del removed, broken, kept, closed
    assert [os.path.exists(path) for path in paths] == [False, False, True, True, True]
    assert [read_file(path).state for path in paths[2:]] == [form.CLOSED] * 3


def test_a_default_directory_of_others_is_not_used(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(files.tempfile, "gettempdir", lambda: str(tmp_path))
    files._open_directory.cache_clear()
    try:
        place = Path(files.default_directory())
        place.mkdir(0o777)
        place.chmod(0o777)
        with pytest.raises(ResourceError, match="this user alone"):
            files.new_file("", SMALL, "0", 0)
        place.rmdir()
        place.symlink_to(tmp_path)
        with pytest.raises(ResourceError, match="this user alone"):
            files.new_file("", SMALL, "0", 0)
        place.unlink()
        segment = files.new_file("", SMALL, "0", 0)
        assert os.path.dirname(segment.path) == str(place)
        assert stat.S_IMODE(place.stat().st_mode) == 0o700
    finally:
        files._open_directory.cache_clear()


def test_a_silent_recorder_has_nothing_to_copy(tmp_path: Path) -> None:
    silent = Silent("it is off")
    silent.enter("barrier", 0)
    silent.end(0, UsageError("x"))
    with pytest.raises(ResourceError, match="it is off"):
        silent.dump(tmp_path)


def test_where_there_is_no_room_nothing_is_left(tmp_path: Path) -> None:
    with pytest.raises(ResourceError):
        create_segment(2**62, directory=str(tmp_path), purpose="trace.0.0")
    assert list(tmp_path.iterdir()) == []
