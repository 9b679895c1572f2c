"""`examples/heat.py --device cuda`: halos of CuPy arrays by Sendrecv, and the answer of the host."""

from __future__ import annotations

import re

import pytest

from tests.support.launch import REPOSITORY, Result, run_ranks

HEAT = str(REPOSITORY / "examples" / "heat.py")
LIMIT_S = 200.0  # on the stand-in, a kernel that has never run is first compiled
SMALL = ("--size", "9", "11", "--tolerance", "0.3")

pytestmark = pytest.mark.timeout(2 * LIMIT_S + 20)


def solve(ranks: int, *arguments: str, **env: str) -> Result:
    result = run_ranks(ranks, [HEAT, *SMALL, *arguments], timeout_s=LIMIT_S, env=env)
    assert not result.timed_out, result
    return result


def steps(result: Result) -> str:
    return re.search(r"^(\d+) steps in", result.stdout, re.MULTILINE)[1]  # type: ignore[index]


@pytest.mark.parametrize("ranks", [2, 4])
def test_the_plate_on_devices_is_that_on_the_host(ranks: int) -> None:
    on_device = solve(ranks, "--device", "cuda")
    assert on_device.returncode == 0, on_device
    assert re.search(r"^arrays on GPUs; messages travel by (mpi|host: .*)$", on_device.stdout, re.MULTILINE)
    assert f"OK: the result of {ranks} ranks is the exact solution" in on_device.stdout
    on_host = solve(ranks)
    assert on_host.returncode == 0, on_host
    assert steps(on_device) == steps(on_host)


@pytest.mark.parametrize(
    "fault", ["lambda self: None", "lambda self: right(self) or self.u[1:-1, 0].fill(0)"]
)
def test_a_wrong_halo_is_noticed(fault: str) -> None:
    folder = str(REPOSITORY / "examples")
    code = (
        f"import sys; sys.path.insert(0, {folder!r}); import heat; right = heat.Block.exchange; "
        f"heat.Block.exchange = {fault}; sys.exit(heat.main())"
    )
    result = run_ranks(4, ["-c", code, *SMALL, "--device", "cuda"], timeout_s=LIMIT_S)
    assert result.returncode == 1, result
    assert "WRONG: the result differs from the exact solution by" in result.stderr


def test_without_a_device_it_says_so_once() -> None:
    result = solve(2, "--device", "cuda", CUDA_VISIBLE_DEVICES="")
    assert result.returncode == 2, result
    assert result.stderr == "heat.py: --device cuda: ranks 0, 1: no CUDA device is visible\n"


def test_it_does_not_hand_devices_to_mpi_alone() -> None:
    result = solve(2, "--device", "cuda", "--plain")
    assert result.returncode == 2, result
    assert result.stderr.count("leave out --plain") == 1
