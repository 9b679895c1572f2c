"""`examples/train_3d.py`: as one process on any layout, bytes as said before, wrong runs noticed."""

from __future__ import annotations

import importlib.util
import re
import sys
from collections.abc import Iterator
from types import ModuleType

import numpy as np
import pytest
from mpi4py import MPI

from hpccoll.parallel import Mesh
from tests.support.launch import REPOSITORY, Result, run_ranks

EXAMPLE = REPOSITORY / "examples" / "train_3d.py"
LIMIT_S = 100.0
LONG_LIMIT_S = 600.0
FIGURES = re.compile(r"^  (tensor|data|pipeline) +(NODE|network) +(\d+) +(\d+)$", re.MULTILINE)

pytestmark = pytest.mark.timeout(LIMIT_S + 20)


def train(ranks: int, *arguments: str, layout: str = "", timeout_s: float = LIMIT_S) -> Result:
    result = run_ranks(ranks, [str(EXAMPLE), *arguments], timeout_s=timeout_s, env={"HPCCOLL_LAYOUT": layout})
    assert not result.timed_out, result
    return result


def good(result: Result) -> dict[tuple[str, str], int]:
    """Bytes by dimension and level, as counted and as said before."""
    assert result.returncode == 0, result
    assert "train as one process does" in result.stdout
    difference = re.search(r"relative difference from one process: (\S+)", result.stdout)
    assert difference is not None
    assert 0 <= float(difference[1]) <= 1e-5
    found = FIGURES.findall(result.stdout)
    assert all(said == counted for *_, said, counted in found)
    return {(name, level): int(counted) for name, level, _, counted in found}


def test_tensor_groups_stay_inside_nodes() -> None:
    moved = good(train(8, "--steps", "2", layout="4+4"))
    assert {key for key in moved if key[0] == "tensor"} == {("tensor", "NODE")}
    assert ("pipeline", "network") in moved


def test_a_bad_order_is_warned_of_with_the_bytes_that_are_counted() -> None:
    result = train(8, "--steps", "1", "--order", "pipeline,data,tensor", layout="4+4")
    moved = good(result)
    warned = re.search(
        r"RuntimeWarning: 4 of 4 tensor groups .*network \S+ \S+ \((\d+) bytes\)", result.stderr
    )
    assert warned is not None, result
    assert moved[("tensor", "network")] == int(warned[1])
    assert ("tensor", "NODE") not in moved


@pytest.mark.slow
@pytest.mark.parametrize("options", [("--sequence",), ("--tensor", "1", "--pipeline", "4")])
def test_other_ways_on_four_ranks(options: tuple[str, ...]) -> None:
    good(train(4, "--steps", "1", *options, layout="2+2"))


@pytest.mark.slow
@pytest.mark.timeout(LONG_LIMIT_S + 20)
@pytest.mark.parametrize("layout", ["4+4", "2+2+2+2", "3+3+2"])
def test_fifty_steps(layout: str) -> None:
    moved = good(train(8, "--steps", "50", layout=layout, timeout_s=LONG_LIMIT_S))
    assert (("tensor", "network") in moved) == (layout == "3+3+2")


@pytest.mark.parametrize(
    ("statement", "verdict"),
    [
        pytest.param(
            "train_3d.ShardedAdam.step = lambda self, gradient: None", "the loss differs by", id="no-step"
        ),
        pytest.param(
            "part.Stage.send = lambda self, kind, array: send(self, kind, array * 1.001)",
            "the loss differs by",
            id="wrong-message",
            marks=pytest.mark.slow,
        ),
        pytest.param(
            "train_3d.SHIFT = 'allreduce'",
            "the pipeline groups moved",
            id="wrong-forecast",
            marks=pytest.mark.slow,
        ),
    ],
)
def test_a_wrong_run_is_noticed(statement: str, verdict: str) -> None:
    # Rank 0 trains alone afterwards, in the same process: only the run on all ranks is spoilt.
    code = (
        f"import sys; sys.path.insert(0, {str(EXAMPLE.parent)!r}); import train_3d; "
        "import hpccoll.parallel.pipeline as part; send = part.Stage.send; "
        f"right = train_3d.ShardedAdam.step; {statement}; check = train_3d.check\n"
        "def mended(*arguments):\n"
        "    train_3d.ShardedAdam.step, part.Stage.send = right, send\n"
        "    return check(*arguments)\n"
        "train_3d.check = mended; sys.exit(train_3d.main())"
    )
    options = ("--steps", "2", "--tensor", "1")
    result = run_ranks(2, ["-c", code, *options], timeout_s=LIMIT_S)
    assert result.returncode == 1, result
    assert f"WRONG: {verdict}" in result.stderr, result


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (("--tensor", "2", "--pipeline", "2", "--data", "1"), "2 ranks are not tensor 2 x pipeline 2 = 4"),
        pytest.param(("--tensor", "3"), "--tensor is 3", marks=pytest.mark.slow),
        pytest.param(("--tensor", "1", "--order", "depth"), "must name some of", marks=pytest.mark.slow),
        pytest.param(("--steps", "0"), "--steps is 0", marks=pytest.mark.slow),
    ],
)
def test_wrong_arguments_are_told_once(options: tuple[str, ...], message: str) -> None:
    result = train(2, *options)
    assert result.returncode == 2, result
    assert result.stderr.count(message) == 1, result


@pytest.fixture(scope="module")
def example() -> Iterator[ModuleType]:
    spec = importlib.util.spec_from_file_location("train_3d", EXAMPLE)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules["train_3d"] = module  # its dataclasses look themselves up
    spec.loader.exec_module(module)
    yield module
    del sys.modules["train_3d"]


@pytest.mark.ranks(1)
def test_the_gradient_is_the_slope_of_the_loss(example: ModuleType) -> None:
    """In one process, of some elements of every parameter, by central differences."""
    shape = example.Shape(vocabulary=8, hidden=8, heads=2, layers=2, length=6, micro_batch=2, batch=2)
    rng = np.random.default_rng(0)
    with Mesh(MPI.COMM_SELF) as mesh:
        part = example.Part(shape, mesh, np, False)
        part.weights.flat += 0.1 * rng.normal(size=part.weights.flat.size)
        part.inputs = [tuple(rng.integers(8, size=(2, 6, 2)))]

        def loss() -> float:
            part.loss[...] = 0.0
            part.forward(0, part.room())
            return float(part.loss[0])

        loss()
        part.backward(0, part.room())
        for name, view in part.weights.named.items():
            for at in rng.integers(view.size, size=3):
                flat, before = view.reshape(-1), view.reshape(-1)[at]
                flat[at] = before + 1e-5
                up = loss()
                flat[at] = before - 1e-5
                down = loss()
                flat[at] = before
                slope = part.gradient[name].reshape(-1)[at]
                assert slope == pytest.approx((up - down) / 2e-5, abs=1e-8), name
