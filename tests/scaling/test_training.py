"""`hpccoll scale training`: the formulas by hand, and the command."""

from __future__ import annotations

import csv
import io
import json
import sys
from pathlib import Path

import pytest

from hpccoll.cli import main
from hpccoll.errors import UsageError
from hpccoll.parallel.models import Model
from hpccoll.parallel.price import Choice, price_choice
from hpccoll.plans.collective import Collective
from hpccoll.plans.machines import machine_of
from hpccoll.plans.select import Tuning, candidates
from hpccoll.scaling.training import STRONG, WEAK, Step, backward_s, exposed, study
from tests.support.launch import Result, run_program

MODEL = Model("small", 8, 1024, 16, 1024, 32000)
MACHINE = machine_of("dgx-h100")
RATE = 400e12
BUCKET = 25 << 20


def steps(
    counts: tuple[int, ...],
    choice: Choice,
    scaling: str = STRONG,
    bucket: int = BUCKET,
    *,
    overlap: bool = True,
) -> list[Step]:
    layouts = [MACHINE.layout(count) for count in counts]
    return list(study(MODEL, choice, layouts, MACHINE.links, RATE, bucket, scaling=scaling, overlap=overlap))


@pytest.mark.parametrize(
    ("backward", "times", "wanted"),
    [
        (3.0, [0.5, 0.5, 0.5], 0.5),  # all but the last are hidden
        (3.0, [2.0, 2.0, 2.0], 4.0),  # begun at 1, one after the other until 7
        (3.0, [1.0], 1.0),
        (0.0, [1.0, 1.0], 2.0),
        (4.0, [3.0, 0.5], 1.5),  # the first is done at 5, the last at 5.5
    ],
)
def test_what_is_exposed(backward: float, times: list[float], wanted: float) -> None:
    assert exposed(backward, times) == pytest.approx(wanted)


def test_a_step_is_that_of_hpccoll_layout_with_its_gradients_in_buckets() -> None:
    choice = Choice(1, 1, 16, batch=64)
    (one,) = steps((2,), choice)
    layout = MACHINE.layout(2)
    priced = price_choice(choice, MODEL, layout, MACHINE.links, RATE)
    assert (one.compute_s, one.bubble_s) == (priced.compute_s, priced.bubble_s)
    nbytes = int(MODEL.parameters) * 2
    assert one.buckets == -(-nbytes // BUCKET)
    assert one.micro_batches == 4
    tuning = Tuning(native_bytes=1 << 62, small_bytes=0, links=MACHINE.links)
    sizes = [BUCKET] * (one.buckets - 1) + [nbytes - BUCKET * (one.buckets - 1)]
    times = [candidates(Collective("allreduce", 16, size), layout, 1, tuning)[0].time_s for size in sizes]
    assert one.gradients_s == pytest.approx(sum(times), rel=1e-3)
    assert one.exposed_s == pytest.approx(exposed(backward_s(priced), times), rel=1e-2)
    (alone,) = steps((2,), choice, overlap=False)
    assert alone.exposed_s == pytest.approx(sum(times), rel=1e-3)
    assert alone.step_s > one.step_s


def test_strong_scaling_loses_and_ends_with_the_batch() -> None:
    found = steps((1, 2, 4, 8, 16), Choice(1, 1, 8, batch=64))
    assert [one.nodes for one in found] == [1, 2, 4, 8]  # 64 sequences for 64 GPUs: no more
    assert [one.batch for one in found] == [64] * 4
    efficiencies = [one.efficiency for one in found]
    assert efficiencies[0] == 1
    assert efficiencies == sorted(efficiencies, reverse=True)
    assert found[-1].limit == "exposed gradients"
    for one in found:
        assert one.efficiency == pytest.approx(found[0].step_s / one.step_s / one.nodes)


def test_weak_scaling_keeps_the_batch_of_each_group() -> None:
    found = steps((1, 2, 4, 16), Choice(1, 1, 8, batch=64), WEAK)
    assert [one.batch for one in found] == [64, 128, 256, 1024]
    assert len({round(one.compute_s, 9) for one in found}) == 1
    for one in found:
        assert one.efficiency == pytest.approx(found[0].step_s / one.step_s)


def test_more_tensor_and_pipeline() -> None:
    (one,) = steps((2,), Choice(2, 4, 2, batch=64))
    assert (one.tensor, one.pipeline, one.data, one.micro_batches) == (2, 4, 2, 32)
    assert min(one.tensor_s, one.pipeline_s, one.bubble_s) > 0
    assert one.step_s == pytest.approx(sum(one.losses.values()) + one.compute_s)
    with pytest.raises(UsageError, match="multiple"):
        steps((1,), Choice(3, 1, 2, batch=64))
    with pytest.raises(UsageError, match="heads"):
        steps((4,), Choice(32, 1, 1, batch=64))


def scale(*arguments: object) -> Result:
    words = [str(one) for one in ("training", *arguments)]
    return run_program([sys.executable, "-m", "hpccoll.cli", "scale", *words], timeout_s=100.0, env={})


def test_the_command(tmp_path: Path) -> None:
    done = scale(
        "--model", "gpt-7.5b", "--machine", "dgx-h100", "--nodes", "1..8", "--tensor", "4", "--weak",
        "--cards", "1", "--batch", "64", "--json", tmp_path / "one.json", "--report", tmp_path / "report",
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    document = json.loads((tmp_path / "one.json").read_text())
    assert [one["nodes"] for one in document["steps"]] == [1, 2, 4, 8]
    assert document["steps"][-1]["limit"] == "exposed gradients"
    rows = list(csv.DictReader(io.StringIO((tmp_path / "report" / "steps.csv").read_text())))
    assert [float(row["step_s"]) for row in rows] == [one["step_s"] for one in document["steps"]]
    page = (tmp_path / "report" / "index.html").read_text()
    assert page.count("<svg") == 2
    assert "weak scaling on dgx-h100" in page


@pytest.mark.parametrize(
    ("arguments", "word"),
    [
        ((), "--machine"),
        (("--machine", "dgx-h100"), "--model"),
        (("--machine", "dgx-h100", "--model", "none"), "gpt-7.5b"),
        (("--machine", "cpu-hdr", "--model", "gpt-7.5b"), "no GPU"),
        (("--machine", "dgx-h100", "--model", "gpt-7.5b", "--efficiency", "2"), "--efficiency"),
        (("--machine", "dgx-h100", "--model", "gpt-7.5b", "--tensor", "0"), "--tensor"),
        (("--machine", "dgx-h100", "--model", "gpt-7.5b", "--leaf", "2"), "--leaf"),
        (("--machine", "dgx-h100", "--model", "gpt-7.5b", "--cards", "9"), "--cards"),
        (("--machine", "dgx-h100", "--model", "gpt-7.5b", "--batch", "3"), "sequences"),
    ],
)
def test_what_is_refused(arguments: tuple[str, ...], word: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["scale", "training", *arguments, "--nodes", "1"]) == 2
    assert word in capsys.readouterr().err
