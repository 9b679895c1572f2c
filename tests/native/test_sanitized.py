"""The C files under sanitizers: the extension's own tests, and the harness with members as threads.

AddressSanitizer and UndefinedBehaviorSanitizer see what is read or written where nothing is, and arithmetic
that C does not define; ThreadSanitizer sees data that are read without the order that a flag was to give,
also on processors where it would go well.
"""

from __future__ import annotations

import shutil
import subprocess
from pathlib import Path

import pytest

from tests.support.launch import run_program
from tests.support.native import (
    ADDRESSES,
    RACES,
    build_harness,
    build_package,
    missing,
    run_harness,
    runtimes,
    with_changed_line,
)

pytestmark = [pytest.mark.slow, pytest.mark.timeout(600)]
with_addresses = pytest.mark.skipif(bool(missing("gcc", *ADDRESSES)), reason=missing("gcc", *ADDRESSES))
with_races = pytest.mark.skipif(bool(missing("gcc", *RACES)), reason=missing("gcc", *RACES))

TESTS = [
    "tests/native/test_bounds.py",
    "tests/native/test_fuzz_kernels.py",
    "tests/native/test_fuzz_programs.py",
    "tests/native/test_fuzz_repeats.py",
    "tests/unit/test_engine.py",
    "tests/unit/test_engine_calls.py",
    "tests/unit/test_flags.py",
    "tests/unit/test_checksums.py",
    "tests/unit/test_kernels.py",
    "tests/unit/test_native_repeats.py",
    "tests/unit/test_native_tape.py",
]
# Seconds of waiting for another process, in which nothing of C is done that the others do not do.
LONG = "tests/unit/test_flags.py::test_data_are_there_when_the_flag_is"
# Of ThreadSanitizer: addresses that the kernel draws too far apart are beyond what older ones know.
FIXED = ["setarch", "--addr-no-randomize"]
if not shutil.which("setarch") or subprocess.run([*FIXED, "true"], capture_output=True).returncode:
    FIXED = []  # not allowed in some containers


@with_addresses
def test_the_extension(tmp_path: Path) -> None:
    """Its tests that need no ranks, on an extension built with sanitizers, which is what is loaded."""
    extension = build_package(tmp_path, *ADDRESSES)
    env = {
        "LD_PRELOAD": runtimes("libasan.so", "libubsan.so"),
        "ASAN_OPTIONS": f"detect_leaks=0:log_path={tmp_path}/report",  # Python frees little at its end
        "UBSAN_OPTIONS": f"print_stacktrace=1:log_path={tmp_path}/report",
        "PYTHONMALLOC": "malloc",
        "PYTHONPATH": str(tmp_path),
        "HPCCOLL_TEST_CORE": str(extension),
    }
    command = ["python", "-m", "pytest", "-q", "-x", "-p", "no:cacheprovider", "-p", "tests.native.loaded"]
    result = run_program(
        [*command, "-m", "not slow and not mpi", "--deselect", LONG, *TESTS],
        timeout_s=560,
        env=env,
        cwd=tmp_path,
    )
    reports = "".join(path.read_text()[:4000] for path in tmp_path.glob("report.*"))
    assert (result.returncode, reports) == (0, ""), result.stdout[-4000:] + result.stderr[-2000:]
    assert f"all of it ran on {extension}" in result.stdout


@with_addresses
def test_the_engine_between_threads(tmp_path: Path) -> None:
    program = build_harness(tmp_path, *ADDRESSES)
    for arguments in (("copies",), ("words", "2000"), ("calls", "1", "300")):
        result = run_harness(program, *arguments)
        assert (result.returncode, result.stdout) == (0, "good\n"), result.stderr


@with_addresses
def test_a_slot_that_is_not_there_is_seen(tmp_path: Path) -> None:
    changed = with_changed_line(
        tmp_path, "slots.c", "self->slots + ((int64_t)(block % 2)", "self->slots + ((int64_t)(block % 3)"
    )
    result = run_harness(build_harness(tmp_path, *ADDRESSES, native=changed), "calls", "1", "50")
    assert result.returncode != 0
    assert "AddressSanitizer: heap-buffer-overflow" in result.stderr, result.stderr


@with_races
def test_no_data_without_order(tmp_path: Path) -> None:
    program = build_harness(tmp_path, *RACES)
    for arguments in (("words", "2000"), ("calls", "2", "100")):
        result = run_harness(program, *arguments, before=FIXED)
        assert (result.returncode, result.stdout) == (0, "good\n"), result.stderr


@with_races
@pytest.mark.parametrize(
    ("file", "old", "new", "arguments"),
    [
        (
            "wait.h",
            "atomic_store_explicit(at, value, memory_order_release)",
            "atomic_store_explicit(at, value, memory_order_relaxed)",
            ("words", "500"),
        ),
        (
            "wait.h",
            "atomic_load_explicit(at, memory_order_acquire)",
            "atomic_load_explicit(at, memory_order_relaxed)",
            ("calls", "1", "100"),
        ),
        (
            "execution.c",
            "held(&self->left) - 1, memory_order_release)",
            "held(&self->left) - 1, memory_order_relaxed)",
            ("calls", "1", "100"),
        ),
        (
            "group.c",
            "self->ticket + 1, memory_order_release)",
            "self->ticket + 1, memory_order_relaxed)",
            ("calls", "1", "200"),
        ),
    ],
    ids=["a word's store", "a word's load", "an execution's end", "a group's turn"],
)
def test_a_weaker_order_is_seen(
    tmp_path: Path, file: str, old: str, new: str, arguments: tuple[str, ...]
) -> None:
    program = build_harness(tmp_path, *RACES, native=with_changed_line(tmp_path, file, old, new))
    result = run_harness(program, *arguments, before=FIXED)
    assert result.returncode != 0
    assert "ThreadSanitizer: data race" in result.stderr, result.stderr
