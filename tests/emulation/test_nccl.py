"""The NCCL stand-in: results, order, errors and faults, by the programs of `nccl_programs` under mpiexec."""

from __future__ import annotations

import importlib.util
import os
import re
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.emulation import build
from tests.emulation.load import environment
from tests.support.launch import Result, find_mpiexec, run_ranks

WHEELS = ("nccl", "cuda.core", "mpi4py", "ml_dtypes")


def absent() -> str | None:
    """Why these tests cannot run here; None: they can."""
    for name in WHEELS:
        try:
            found = importlib.util.find_spec(name)
        except ModuleNotFoundError:
            found = None
        if not found:
            return f"{name} is not installed"
    try:
        find_mpiexec()
    except FileNotFoundError as error:
        return str(error)
    return build.missing()


pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif(bool(absent()), reason=f"the CUDA stand-in cannot run: {absent()}"),
    pytest.mark.timeout(120),
]


@pytest.fixture(autouse=True)
def nothing_left() -> Iterator[None]:
    """No shared memory of the stand-in is left when a program has ended."""
    before = segments()
    yield
    assert segments() <= before


def segments() -> set[str]:
    return {name for name in os.listdir("/dev/shm") if name.startswith("standin-nccl-")}


def run(names: str, ranks: int, *, mode: str = "lazy", **settings: object) -> Result:
    """Run programs one after the other on so many ranks; they must succeed."""
    arguments = ["-m", "tests.emulation.nccl_programs", *names.split()]
    result = run_ranks(ranks, arguments, timeout_s=80, env=environment(mode=mode, **settings))
    assert not result.timed_out, result.stdout + result.stderr
    assert result.returncode == 0, result.stdout + result.stderr
    return result


@pytest.mark.parametrize("ranks", [1, 2, 3, 4])
def test_collectives(ranks: int) -> None:
    run("collectives", ranks)


@pytest.mark.slow
@pytest.mark.parametrize("mode", ["eager", "delay"])
def test_collectives_in_other_modes(mode: str) -> None:
    run("collectives", 3, mode=mode)


@pytest.mark.parametrize("ranks", [2, 3])
def test_all_types_and_operators_to_the_last_bit(ranks: int) -> None:
    run("arithmetic scaled_sums", ranks)


def test_special_values() -> None:
    run("special_values", 2)


@pytest.mark.parametrize(
    ("programs", "ranks"),
    [
        ("several_streams several_in_turn", 3),
        ("lone_send first_use_waits destroy_waits", 2),
        ("splits device_order", 4),
        ("memory ranks_of_threads freed_memory", 1),
        ("windows", 3),
        ("nonblocking nobody_comes", 2),
        ("abort_reaches_peers mismatch_unchecked", 3),
        ("wrong_calls", 2),
    ],
)
def test_programs(programs: str, ranks: int) -> None:
    run(programs, ranks)


@pytest.mark.parametrize("mode", ["eager", "delay", "lazy"])
@pytest.mark.parametrize(("programs", "ranks"), [("groups capture", 3), ("threads", 1)])
def test_order_in_all_modes(programs: str, ranks: int, mode: str) -> None:
    run(programs, ranks, mode=mode)


def test_buffers_that_overlap() -> None:
    assert "overlaps" in run("overlapping_buffers", 2).stderr
    run("overlapping_buffers_checked", 2, nccl_check=1)


def test_two_ranks_on_one_device() -> None:
    run("one_device", 2)
    run("one_device_allowed", 2, NCCL_MULTI_RANK_GPU_ENABLE=1)


def test_abort_is_local_where_it_reaches_nobody() -> None:
    run("abort_reaches_nobody", 3, nccl_abort_reaches="nothing")


@pytest.mark.parametrize(
    ("program", "fault"),
    [
        ("fault_async", "async:1:2"),
        ("fault_absent", "absent:0:2@named"),
        ("fault_init", "init:1"),
        ("fault_late", "late:1:300"),
    ],
)
def test_faults(program: str, fault: str) -> None:
    run(program, 2, nccl_fault=fault)


def test_a_fault_that_cannot_be_read_is_not_ignored() -> None:
    arguments = ["-m", "tests.emulation.nccl_programs", "info_lines"]
    result = run_ranks(1, arguments, timeout_s=60, env=environment(nccl_fault="async:1"))
    assert result.returncode != 0
    assert 'cannot read "async:1"' in result.stderr


def test_time_limit_on_demand() -> None:
    run("timeout", 2, nccl_timeout_s=1)


def test_mismatch_is_reported_with_checks() -> None:
    names = [f"mismatch_{what}" for what in ("count", "type", "op", "root", "collective")]
    assert run(" ".join(names), 3, nccl_check=1).stderr.count("MISMATCH") >= len(names)


def test_communicators_in_a_different_order_are_reported_with_checks() -> None:
    assert "in a different order" in run("mismatch_order", 2, nccl_check=1).stderr


def test_checks_find_nothing_in_right_programs() -> None:
    result = run("collectives groups splits scaled_sums", 3, nccl_check=1)
    assert "stand-in" not in result.stderr, result.stderr


def test_lines_of_nccl_debug() -> None:
    text = run("info_lines", 2, NCCL_DEBUG="INFO").stdout
    assert len(re.findall(r"^NCCL version \d+\.\d+\.\d+\+cuda\d+\.\d+$", text, re.M)) == 1
    for rank in range(2):
        assert re.search(
            rf"NCCL INFO ncclCommInitRank comm 0x\w+ rank {rank} nranks 2 .* - Init COMPLETE", text
        )
    assert "NCCL" not in run("info_lines", 2).stdout


@pytest.mark.slow
def test_many_ranks_on_few_cores() -> None:
    run("groups several_in_turn", 8, devices=8)


def test_a_killed_job_leaves_nothing_behind(tmp_path: Path) -> None:
    """Once all ranks have come, however they end."""
    program = tmp_path / "killed.py"
    program.write_text(
        "import os, sys\n"
        "from tests.emulation.nccl_programs.support import *\n"
        "with opened() as (comm, stream):\n"
        "    first_operation(comm, stream, Array(np.ones(10)))\n"
        "    WORLD.Barrier()\n"
        "    os.kill(os.getpid(), 9)\n"
    )
    begin = time.monotonic()
    result = run_ranks(2, [str(program)], timeout_s=60, env=environment())
    assert result.returncode != 0
    assert time.monotonic() - begin < 50
