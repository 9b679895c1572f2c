"""Flags in one process and between two: order, bounds, waits, signals; with and without the extension."""

from __future__ import annotations

import importlib.machinery
import math
import mmap
import os
import shutil
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Sequence
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

import hpccoll
from hpccoll import _native
from hpccoll.errors import ResourceError
from hpccoll.memory.flags import Flags, open_flags, spin_time_us
from hpccoll.memory.segments import Segment, attach_segment, create_segment

PACKAGE = Path(hpccoll.__path__[0])
NATIVE = pytest.param(
    True,
    id="native",
    marks=pytest.mark.skipif(not _native.available(), reason=f"no extension: {_native.reason()}"),
)
KINDS = [NATIVE, pytest.param(False, id="fallback")]
LARGEST = 2**64 - 1

each_kind = pytest.mark.parametrize("native", KINDS)


def new_flags(native: bool, words: int = 64) -> Flags:
    return open_flags(np.zeros(words, np.uint64), native=native)


def start_python(*arguments: str, root: Path = PACKAGE.parent, **environment: str) -> subprocess.Popen[str]:
    """A child that is an MPI process of its own, not a second one of the rank that started it."""
    launcher = ("PMI", "MPI", "OMPI", "HYDRA", "PRTE")
    inherited = {name: value for name, value in os.environ.items() if not name.startswith(launcher)}
    inherited["PYTHONPATH"] = os.pathsep.join([str(root), os.environ.get("PYTHONPATH", "")])
    return subprocess.Popen(
        [sys.executable, *arguments],
        cwd=root,
        env=inherited | environment,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )


def finish(child: subprocess.Popen[str], timeout_s: float = 60) -> tuple[int, str, str]:
    try:
        out, err = child.communicate(timeout=timeout_s)
    finally:
        child.kill()
    return child.returncode, out, err


# One process


@each_kind
def test_stored_values_are_loaded(native: bool) -> None:
    flags = new_flags(native, words=3)
    assert isinstance(flags, Flags)
    assert flags.native is native
    assert len(flags) == 3
    assert [flags.load(i) for i in range(3)] == [0, 0, 0]
    for value in (1, 2**63, LARGEST, 0):
        flags.store(1, value)
        assert [flags.load(i) for i in range(3)] == [0, value, 0]


@each_kind
def test_words_are_native_64_bit_integers_at_their_index(native: bool) -> None:
    words = np.zeros(8, np.uint64)
    open_flags(words, native=native).store(5, 2**40 + 3)
    assert words.tolist() == [0, 0, 0, 0, 0, 2**40 + 3, 0, 0]
    assert len(open_flags(memoryview(bytearray(23)), native=native)) == 2
    assert len(open_flags(memoryview(bytearray()), native=native)) == 0


@each_kind
@pytest.mark.parametrize("index", [-1, 4, 2**70])
def test_a_flag_outside_is_refused(native: bool, index: int) -> None:
    flags = new_flags(native, words=4)
    for call in (
        lambda: flags.load(index),
        lambda: flags.store(index, 1),
        lambda: flags.store_first(index, 1),
    ):
        with pytest.raises(IndexError):
            call()
    assert [flags.load(i) for i in range(4)] == [0] * 4


@each_kind
@pytest.mark.parametrize("value", [-1, 2**64])
def test_a_value_outside_64_bits_is_refused(native: bool, value: int) -> None:
    flags = new_flags(native)
    calls = (
        lambda: flags.store(0, value),
        lambda: flags.store_first(0, value),
        lambda: flags.reached(0, 1, 1, value),
        lambda: flags.first_below(0, 1, 1, value),
        lambda: flags.wait_reached(0, 1, 1, value, 0),
    )
    for call in calls:
        with pytest.raises(OverflowError):
            call()
    assert flags.load(0) == 0


@each_kind
@given(
    values=st.lists(st.sampled_from([0, 1, 2, 3, 2**63, LARGEST]), min_size=1, max_size=12),
    first=st.integers(-2, 14),
    count=st.integers(-1, 14),
    stride=st.integers(-1, 5),
    value=st.sampled_from([0, 1, 2, 2**63, LARGEST]),
)
def test_rows_against_plain_python(
    native: bool, values: Sequence[int], first: int, count: int, stride: int, value: int
) -> None:
    flags = open_flags(np.array(values, np.uint64), native=native)
    indices = [first + i * stride for i in range(count)]
    inside = (
        count >= 0 and stride >= 1 and 0 <= first <= len(values) and all(i < len(values) for i in indices)
    )
    if not inside:
        for call in (flags.reached, flags.first_below):
            with pytest.raises(IndexError):
                call(first, count, stride, value)
        with pytest.raises(IndexError):
            flags.wait_reached(first, count, stride, value, 0)
        return
    below = [position for position, i in enumerate(indices) if values[i] < value]
    assert flags.first_below(first, count, stride, value) == (below[0] if below else -1)
    assert flags.reached(first, count, stride, value) is (not below)
    assert flags.wait_reached(first, count, stride, value, 0) is (not below)


@each_kind
@pytest.mark.parametrize("row", [(0, 2**62, 4), (1, 2, 2**63 - 1), (0, 2**70, 1)])
def test_rows_that_overflow_an_index_are_refused(native: bool, row: tuple[int, int, int]) -> None:
    with pytest.raises(IndexError):
        new_flags(native).reached(*row, 0)


@each_kind
def test_the_first_reason_sticks(native: bool) -> None:
    flags = new_flags(native)
    assert flags.store_first(3, 17) == 17
    assert flags.store_first(3, 18) == 17
    assert flags.load(3) == 17
    with pytest.raises(ValueError, match="other than 0"):
        flags.store_first(4, 0)


@pytest.mark.parametrize("native", [NATIVE])
def test_exactly_one_thread_is_first(native: bool) -> None:
    flags = new_flags(native, words=2000)
    answers: list[list[int]] = [[], []]
    gate = threading.Barrier(2)

    def claim(me: int) -> None:
        gate.wait()
        answers[me] = [flags.store_first(i, me + 1) for i in range(len(flags))]

    threads = [threading.Thread(target=claim, args=(me,)) for me in (0, 1)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert answers[0] == answers[1] == [flags.load(i) for i in range(len(flags))]
    assert set(answers[0]) <= {1, 2}


@each_kind
def test_unfit_buffers_are_refused(native: bool) -> None:
    fixed = np.zeros(4, np.uint64)
    fixed.flags.writeable = False
    for buffer in (memoryview(bytes(16)), fixed, memoryview(np.zeros(8, np.uint64))[::2]):
        with pytest.raises((BufferError, ValueError)):
            open_flags(buffer, native=native)
    with pytest.raises(ValueError, match="aligned to 8 bytes"):
        open_flags(np.zeros(24, np.uint8)[4:20], native=native)


@each_kind
def test_flags_keep_their_buffer_alive(native: bool) -> None:
    area = mmap.mmap(-1, mmap.PAGESIZE)
    flags = open_flags(memoryview(area), native=native)
    with pytest.raises(BufferError):
        area.close()
    flags.store(511, 9)
    assert flags.load(511) == 9
    del flags
    area.close()


# Waits


@each_kind
def test_a_wait_for_what_is_there_returns_at_once(native: bool) -> None:
    flags = new_flags(native)
    flags.store(8, 5)
    start = time.monotonic()
    assert flags.wait_reached(8, 1, 8, 5, math.inf)
    assert flags.wait_reached(8, 0, 8, 99, 10)
    assert time.monotonic() - start < 1


@each_kind
@pytest.mark.parametrize("timeout_s", [0.0, -1.0, -math.inf, 1e-6, 0.06, 0.2])
@pytest.mark.parametrize("spin_us", [0.0, 50.0, 1e6])
def test_a_wait_in_vain_takes_its_time(native: bool, timeout_s: float, spin_us: float) -> None:
    flags = open_flags(np.zeros(64, np.uint64), native=native, spin_us=spin_us)
    flags.store(0, 7)
    start = time.monotonic()
    assert not flags.wait_reached(0, 4, 8, 7, timeout_s)
    assert max(timeout_s, 0) <= time.monotonic() - start < max(timeout_s, 0) + 2


@each_kind
def test_a_timeout_that_is_no_number_is_refused(native: bool) -> None:
    with pytest.raises(ValueError, match="not a number"):
        new_flags(native).wait_reached(0, 1, 1, 1, math.nan)


@each_kind
def test_other_threads_run_during_a_wait(native: bool) -> None:
    flags = new_flags(native)

    def count_and_store() -> None:
        end = time.monotonic() + 0.2
        while time.monotonic() < end:  # holds the GIL whenever it can
            pass
        flags.store(8, 1)

    thread = threading.Thread(target=count_and_store)
    start = time.monotonic()
    thread.start()
    assert flags.wait_reached(0, 1, 1, 0, 10)
    assert flags.wait_reached(8, 1, 1, 1, 10)
    assert 0.2 <= time.monotonic() - start < 5
    thread.join()


@each_kind
def test_ctrl_c_interrupts_a_wait(native: bool) -> None:
    child = start_python(__file__, "wait", str(int(native)))
    assert child.stdout is not None
    assert child.stdout.readline() == "waiting\n"
    time.sleep(0.3)
    assert child.poll() is None
    start = time.monotonic()
    child.send_signal(signal.SIGINT)
    status, out, err = finish(child)
    assert (status, out) == (0, "interrupted\n"), err
    assert time.monotonic() - start < 10


def test_a_spin_is_short_where_ranks_share_cores() -> None:
    assert spin_time_us(4, cores=4) == spin_time_us(1, cores=1) > 10 * spin_time_us(5, cores=4)
    assert spin_time_us(len(os.sched_getaffinity(0))) > spin_time_us(len(os.sched_getaffinity(0)) + 1)


# Two processes

ROUNDS = 20_000
ENOUGH_S = 5  # on a busy machine, where a round waits for both processes to be scheduled
PAYLOAD = 67  # elements, over nine cache lines
WORDS = 128


def view(segment: Segment) -> np.ndarray:
    return segment.array(np.int64, WORDS * 8, PAYLOAD)


def produce(path: str, native: bool) -> None:
    """Overwrites the payload each round, as soon as the reader has said that it has seen the last one.

    The reader ends it by saying the largest number.
    """
    with attach_segment(path, WORDS * 8 + PAYLOAD * 8) as segment:
        flags, payload = open_flags(segment.buffer[: WORDS * 8], native=native), view(segment)
        turn = 0
        while flags.load(64) != LARGEST:
            turn += 1
            payload[...] = turn
            flags.store(0, turn)
            if not flags.wait_reached(64, 1, 1, turn, 20):
                sys.exit(f"the reader did not answer in round {turn}")


def wait_for_ever(native: bool) -> None:
    signal.signal(signal.SIGINT, signal.default_int_handler)
    flags = new_flags(native)
    flags.wait_reached(0, 1, 1, 0, 0)
    print("waiting", flush=True)
    try:
        flags.wait_reached(0, 1, 1, 1, math.inf)
    except KeyboardInterrupt:
        print("interrupted", flush=True)


@pytest.mark.parametrize("writer_native", KINDS)
@each_kind
def test_data_are_there_when_the_flag_is(tmp_path: Path, native: bool, writer_native: bool) -> None:
    with create_segment(WORDS * 8 + PAYLOAD * 8, directory=str(tmp_path), purpose="order") as segment:
        child = start_python(__file__, "produce", str(int(writer_native)), segment.path)
        flags, payload = open_flags(segment.buffer[: WORDS * 8], native=native), view(segment)
        turn = torn = 0
        try:
            assert flags.wait_reached(0, 1, 1, 1, 20), child.poll()
            end = time.monotonic() + ENOUGH_S
            while turn < ROUNDS and time.monotonic() < end:
                turn += 1
                assert flags.wait_reached(0, 1, 1, turn, 20), (turn, child.poll())
                torn += not (payload == turn).all()
                flags.store(64, turn if turn < ROUNDS else LARGEST)
        finally:
            flags.store(64, LARGEST)
            status, _, err = finish(child)
        assert (torn, status) == (0, 0), err
        assert turn > 100


# Which kind is used


def test_the_environment_turns_the_extension_off(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HPCCOLL_NATIVE", "0")
    assert not _native.available()
    assert not open_flags(np.zeros(1, np.uint64)).native
    with pytest.raises(ResourceError, match="turned off by HPCCOLL_NATIVE=0"):
        open_flags(np.zeros(1, np.uint64), native=True)


@pytest.mark.skipif(not _native.available(), reason=f"no extension: {_native.reason()}")
def test_the_extension_is_used_where_it_is() -> None:
    assert _native.reason() == ""
    assert open_flags(np.zeros(1, np.uint64)).native


@pytest.mark.parametrize(("content", "reason"), [(None, "is not built"), (b"no library", "does not load")])
def test_without_the_extension_flags_say_why_and_work(
    tmp_path: Path, content: bytes | None, reason: str
) -> None:
    shutil.copytree(PACKAGE, tmp_path / "hpccoll", ignore=shutil.ignore_patterns("*.so", "__pycache__"))
    if content is not None:
        suffix = importlib.machinery.EXTENSION_SUFFIXES[0]
        (tmp_path / "hpccoll" / "_native" / f"_core{suffix}").write_bytes(content)
    code = (
        "import numpy as np; from hpccoll import _native; from hpccoll.memory.flags import open_flags\n"
        "flags = open_flags(np.zeros(2, np.uint64)); flags.store(1, 5)\n"
        "print(_native.available(), flags.native, flags.load(1), _native.reason())"
    )
    status, out, err = finish(start_python("-c", code, root=tmp_path, HPCCOLL_NATIVE="1"))
    assert status == 0, err
    assert out.startswith("False False 5 hpccoll._native._core ")
    assert reason in out


if __name__ == "__main__":
    role, wanted, *paths = sys.argv[1:]
    {"produce": produce, "wait": wait_for_ever}[role](*paths, bool(int(wanted)))
