"""`hpccoll bench --device cuda`, run as a user would run it."""

from __future__ import annotations

import json
import os
from pathlib import Path

import pytest

from tests.support.launch import REPOSITORY, Result, run_ranks

LIMIT_S = 100.0
ON_STAND_IN = "STANDIN_FOLDER" in os.environ
MOVES = ("broadcast", "allgather", "gather", "scatter", "alltoall")
REDUCES = ("allreduce", "reduce", "reduce_scatter")

pytestmark = pytest.mark.timeout(LIMIT_S + 20)
more_than_two = pytest.mark.skipif(
    not ON_STAND_IN, reason="more than two ranks on one GPU may wait for each other's kernels"
)


def bench(ranks: int, arguments: str, **env: str) -> Result:
    program = ["-m", "hpccoll.cli", "bench", *arguments.split()]
    result = run_ranks(ranks, program, timeout_s=LIMIT_S, env=env)
    assert not result.timed_out, result
    return result


def rows(result: Result) -> list[list[str]]:
    """The columns of the lines that are no comments; the algorithm's words are one."""
    return [line.split(maxsplit=13) for line in result.stdout.splitlines() if not line.startswith("#")]


def good(result: Result) -> list[list[str]]:
    assert result.returncode == 0, result
    assert "# Out of bounds values : 0 OK" in result.stdout
    found = rows(result)
    assert {row[8] for row in found} == {"0"}, result
    return found


@pytest.mark.parametrize("name", [*MOVES, *REDUCES])
def test_every_collective_beside_the_plain_call(name: str) -> None:
    found = good(bench(2, f"{name} -b 64 -e 4K -f 64 -n 3 -u 1 -r all --device cuda --compare"))
    plans = [row[13] for row in found]
    assert set(plans) == {"flat *", "nccl"}
    # NCCL has no all-to-all in place.
    assert all((row[12] == "N/A") is (name == "alltoall" and row[13] == "nccl") for row in found)


@more_than_two
@pytest.mark.parametrize(
    ("name", "layout", "plan"),
    [
        ("allreduce", "2+2", "scatter_rail_gather"),
        ("allreduce", "2+2", "reduce_ring_broadcast"),
        ("allgather", "2+1", "two_level"),
        ("reduce_scatter", "2+2", "two_level"),
        ("broadcast", "1+2", "two_level"),
        ("reduce", "2+1", "two_level"),
        ("alltoall", "2+2", "two_level"),
    ],
)
def test_plans_of_two_levels(name: str, layout: str, plan: str) -> None:
    ranks = sum(int(part) for part in layout.split("+"))
    flags = f"-b 12K -e 12K -n 2 --layout {layout} --device cuda"
    (row,) = good(bench(ranks, f"{name} {flags} --algorithm {plan}"))
    assert row[13] == plan
    found = good(bench(ranks, f"{name} {flags} --compare"))
    assert {plan, "flat *", "nccl"} <= {one[13] for one in found}


@pytest.mark.parametrize("flag", ["--nonblocking", "--persistent", "-z 1", "-z 2", "-z 3", "-I 1", "-m 4"])
def test_other_ways_to_call_and_to_measure(flag: str) -> None:
    found = good(bench(2, f"allreduce -b 4K -e 4K -n 4 --device cuda --compare {flag}"))
    assert [row[-1].split()[-1] for row in found] == ["*", "nccl"]


@pytest.mark.parametrize(
    ("name", "plan"), [("scan", "flat, by kernels"), ("allgatherv", "flat"), ("alltoallv", "flat")]
)
def test_what_nccl_has_no_call_for(name: str, plan: str) -> None:
    result = bench(2, f"{name} -b 960 -e 960 -n 1 --device cuda --compare")
    assert {row[13].removesuffix(" *") for row in good(result)} == {plan}
    assert f"# no row: NCCL has no {name}" in result.stdout


def test_types_and_operators() -> None:
    result = bench(2, "allreduce -b 512 -e 512 -n 1 -d float -o all --device cuda --compare")
    assert result.returncode == 0, result
    found = rows(result)
    assert {row[3] for row in found if "by kernels" in row[13]} == {"max", "min"}
    # NCCL's own average is rounded in another way.
    assert {(row[3], row[13]) for row in found if row[8] != "0"} == {("avg", "nccl")}
    assert {row[3] for row in found} == {"sum", "prod", "max", "min", "avg", "mulsum"}


def test_all_goes_over_the_host_where_that_is_asked_for() -> None:
    result = bench(2, "allreduce -b 4K -e 4K -n 1 --device cuda", HPCCOLL_DEVICE_PATH="host")
    ((*_, plan),) = good(result)
    assert plan.endswith(", over the host")
    assert "# Arrays on devices travel by host: device_path is host" in result.stdout


def test_the_time_to_enqueue() -> None:
    """With -C 1 the time columns are without the wait for the end."""
    result = bench(2, "allreduce -b 1M -e 1M -n 4 --device cuda -C 1")
    (row,) = good(result)
    busbw, size, microseconds = float(row[7]), float(row[0]), float(row[5])
    # The bandwidth is still that of the whole time.
    assert busbw <= 1.01 * size / microseconds / 1e3 + 0.01


def test_json_says_where_it_ran(tmp_path: Path) -> None:
    path = tmp_path / "out.json"
    good(bench(2, f"allreduce -b 8 -e 8 -n 1 --device cuda --compare --json {path}"))
    found = json.loads(path.read_text())
    assert (found["device"], found["stand_in"]) == ("cuda", ON_STAND_IN)
    assert found["nccl_version"] > 20000
    assert found["notes"][0] == "Arrays on devices travel by nccl"
    assert len(found["notes"]) == (2 if ON_STAND_IN else 1)
    devices = found["config"]["devices"]
    assert [one["rank"] for one in devices] == [0, 1]
    if ON_STAND_IN:
        assert [one["device"] for one in devices] == [0, 1]
        assert len({one["device_hex"] for one in devices}) == 2
        assert {one["device_info"] for one in devices} == {"NVIDIA CPU stand-in"}
    assert [one["algorithm"] for one in found["results"]] == ["flat", "nccl"]


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ("--algorithm ring", "on layout 2 allreduce has flat, nccl"),
        ("--algorithm mpi", "on layout 2 allreduce has flat, nccl"),
        ("--algorithm nccl -d int16", "NCCL has no int16"),
        ("--per-level", "--device cuda and --per-level"),
    ],
)
def test_misuse(arguments: str, message: str) -> None:
    result = bench(2, f"allreduce -b 8 -e 8 --device cuda {arguments}")
    assert result.returncode == 2, result
    assert result.stderr.startswith("hpccoll bench: ")
    assert message in result.stderr
    assert result.stderr.count("\n") == 1
    assert rows(result) == []


def test_without_a_device() -> None:
    result = bench(2, "allreduce -b 8 -e 8 --device cuda", CUDA_VISIBLE_DEVICES="")
    assert result.returncode == 2, result
    assert result.stderr == "hpccoll bench: --device cuda: ranks 0, 1: no CUDA device is visible\n"


def test_a_wrong_element_is_counted() -> None:
    """The first element of rank 1's result is changed on the device after every call."""
    code = """
import sys
from mpi4py import MPI
import hpccoll
from hpccoll.cli import main
from hpccoll.runtime import streams
right = hpccoll.Communicator.Allreduce
def wrong(self, sendbuf, recvbuf, op=MPI.SUM, **options):
    right(self, sendbuf, recvbuf, op, **options)
    if self.rank == 1:
        cuda = recvbuf.__cuda_array_interface__
        streams.checked(streams.driver.cuMemsetD8Async(cuda["data"][0], 7, 1, cuda["stream"]), "memset")
hpccoll.Communicator.Allreduce = wrong
sys.exit(main())
"""
    arguments = ["bench", "allreduce", "-b", "4K", "-e", "4K", "-n", "1", "-d", "int32", "--device", "cuda"]
    result = run_ranks(2, ["-c", code, *arguments], timeout_s=LIMIT_S)
    assert result.returncode == 1, result
    assert [(row[8], row[12]) for row in rows(result)] == [("1", "1")]
    assert "# Wrong elements       : 2 FAILED" in result.stdout


def test_a_write_out_of_bounds_is_counted() -> None:
    code = """
import sys
from mpi4py import MPI
import hpccoll
from hpccoll.cli import main
from hpccoll.runtime import streams
right = hpccoll.Communicator.Allreduce
def wrong(self, sendbuf, recvbuf, op=MPI.SUM, **options):
    right(self, sendbuf, recvbuf, op, **options)
    cuda = recvbuf.__cuda_array_interface__
    end = cuda["data"][0] + 4 * cuda["shape"][0]
    streams.checked(streams.driver.cuMemsetD8Async(end, 0xEE, 3, cuda["stream"]), "cuMemsetD8Async")
hpccoll.Communicator.Allreduce = wrong
sys.exit(main())
"""
    arguments = ["bench", "allreduce", "-b", "4K", "-e", "4K", "-n", "1", "-c", "0", "--device", "cuda"]
    result = run_ranks(1, ["-c", code, *arguments], timeout_s=LIMIT_S)
    assert result.returncode == 1, result
    assert "# Out of bounds values : 6 FAILED" in result.stdout


def test_the_cost_of_a_call_is_measured(tmp_path: Path) -> None:
    program = [str(REPOSITORY / "benchmarks" / "gpu" / "call_cost.py")]
    flags = ["--rounds", "3", "--calls", "5", "--no-limits", "--save", str(tmp_path)]
    result = run_ranks(2, [*program, *flags], timeout_s=LIMIT_S)
    assert result.returncode == 0, result
    (file,) = tmp_path.glob("call-cost-*.json")
    found = json.loads(file.read_text())
    assert found["stand_in"] is ON_STAND_IN
    assert found["medians"]["bindings"]["processor_above_us"] == 0
    assert {"bindings", "core", "ours"} <= set(found["times_us"])
    assert all(len(one["clock"]) == 3 for one in found["times_us"].values())
    assert any(row["function"] == "blocking.py:Allreduce" for row in found["profile_of_ours"])
    text = file.with_suffix(".md").read_text()
    assert text.startswith("Python cost of an enqueued all-reduce of 1024 bytes, 2 ranks")
    assert ("CPU stand-in" in text) is ON_STAND_IN
