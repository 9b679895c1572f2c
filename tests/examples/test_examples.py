"""The examples and the demo, run as a reader would run them: their verdicts, and that these can be bad."""

from __future__ import annotations

import json
import os
import re
import sys
from pathlib import Path
from typing import Any

import pytest

from tests.support.launch import REPOSITORY, Result, environment, run_program, run_ranks

EXAMPLES = REPOSITORY / "examples"
DIGITS, HEAT, CG, STEP, DEMO = (
    str(EXAMPLES / name) for name in ("train_digits.py", "heat.py", "pipelined_cg.py", "step.py", "demo.sh")
)
LIMIT_S = 100.0
FEW_EPOCHS = ("--epochs", "8")
SMALL_PLATE = ("--size", "17", "23")

pytestmark = pytest.mark.timeout(LIMIT_S + 20)


def run_example(ranks: int, *arguments: str, layout: str = "") -> Result:
    """A Python program on so many ranks, with HPCCOLL_LAYOUT."""
    result = run_ranks(ranks, arguments, timeout_s=LIMIT_S, env={"HPCCOLL_LAYOUT": layout})
    assert not result.timed_out, result
    return result


def sabotage(example: str, statement: str) -> tuple[str, str]:
    """Arguments that run an example in which `statement` has changed something."""
    path, name = str(EXAMPLES), Path(example).stem
    code = f"import sys; sys.path.insert(0, {path!r}); import {name}; {statement}; sys.exit({name}.main())"
    return "-c", code


@pytest.mark.parametrize(("ranks", "layout"), [(1, ""), (2, "1+1"), (3, ""), (4, "2+2"), (4, "3+1")])
def test_training_equals_one_process(ranks: int, layout: str) -> None:
    pytest.importorskip("sklearn")
    options = ("--layout", layout) if layout else ()
    result = run_example(ranks, DIGITS, *FEW_EPOCHS, *options)
    assert result.returncode == 0, result
    assert f"OK: training on {ranks} ranks equals training in one process" in result.stdout
    assert f"layout: {layout or ranks}\n" in result.stdout
    assert "WRONG" not in result.stderr
    difference = re.search(r"relative difference from one process: (\S+)", result.stdout)
    accuracy = re.search(r"held out: (\S+)%", result.stdout)
    assert difference is not None
    assert accuracy is not None
    assert 0 <= float(difference[1]) <= 1e-9
    assert 95 < float(accuracy[1]) <= 100


@pytest.mark.parametrize("overlap", [(), ("--overlap",)], ids=["one by one", "in buckets"])
def test_step(overlap: tuple[str, ...]) -> None:
    few = ("--layers", "5", "--kilobytes", "40", "--compute-ms", "10", "--steps", "3")
    result = run_example(3, STEP, *few, *overlap, layout="2+1")
    assert result.returncode == 0, result
    assert re.fullmatch(
        r"3 ranks on 2 nodes: a step takes \d+ ms, computing 10 ms of them; \d+ samples/s\n", result.stdout
    )


def test_step_says_when_averages_are_wrong() -> None:
    argv = ["step.py", "--layers", "2", "--kilobytes", "1", "--compute-ms", "1", "--steps", "1"]
    spoilt = f"step.hpccoll.AVG = step.MPI.SUM; sys.argv = {argv!r}"
    result = run_example(2, *sabotage(STEP, spoilt))
    assert result.returncode != 0
    assert "the averages are wrong" in result.stderr


def test_training_goes_on_from_a_checkpoint(tmp_path: Path) -> None:
    """Stopped after an epoch, gone on by other numbers of ranks: every loss is that of one process."""
    pytest.importorskip("sklearn")
    file = tmp_path / "digits.npz"
    (tmp_path / "digits.npz.stop").touch()
    for ranks in (3, 2):
        result = run_example(ranks, DIGITS, *FEW_EPOCHS, "--checkpoint", str(file))
        assert result.returncode == 75, result
        assert f"stopped after {4 - ranks} of 8 epochs" in result.stdout
    (tmp_path / "digits.npz.stop").unlink()
    for _ in range(2):  # and a run that has nothing left to do
        result = run_example(2, DIGITS, *FEW_EPOCHS, "--checkpoint", str(file))
        assert result.returncode == 0, result
        assert "OK: training on 2 ranks equals training in one process" in result.stdout
    assert [one.name for one in tmp_path.iterdir()] == [file.name]
    result = run_example(2, DIGITS, "--epochs", "3", "--checkpoint", str(file))
    assert (result.returncode, result.stderr.count("train_digits.py:")) == (2, 1)
    assert "8 epochs, more than --epochs 3" in result.stderr


@pytest.mark.parametrize(("ranks", "layout"), [(2, "1+1"), pytest.param(4, "3+1", marks=pytest.mark.slow)])
def test_overlapped_training_has_the_same_bits(ranks: int, layout: str) -> None:
    pytest.importorskip("sklearn")
    env = {"HPCCOLL_LAYOUT": layout, "HPCCOLL_REPRODUCIBLE": "1"}
    weights = []
    for options in ((), ("--overlap",)):
        result = run_ranks(ranks, (DIGITS, *FEW_EPOCHS, *options), timeout_s=LIMIT_S, env=env)
        assert result.returncode == 0, result
        assert ("hidden: " in result.stdout) is bool(options)
        found = re.search(r"^weights: ([0-9a-f]{16})$", result.stdout, re.MULTILINE)
        assert found is not None
        weights.append(found[1])
    assert weights[0] == weights[1]


CG_ROW = re.compile(r"^(plain|pipelined) +(\d+) +(\d) +\S+ ms +\d+ us +\d+ us +(\S+)$", re.MULTILINE)


@pytest.mark.parametrize(("ranks", "layout"), [(1, ""), (3, "2+1")])
def test_pipelined_conjugate_gradients(ranks: int, layout: str) -> None:
    result = run_example(ranks, CG, "--size", "23", "30", "--rounds", "1", layout=layout)
    assert result.returncode == 0, result
    assert "OK: both found the solution" in result.stdout
    rows = CG_ROW.findall(result.stdout)
    assert [(name, sums) for name, _, sums, _ in rows] == [("plain", "2"), ("pipelined", "1")]
    assert abs(int(rows[0][1]) - int(rows[1][1])) <= 2
    assert all(float(error) < 1e-7 for *_, error in rows)


def test_pipelined_conjugate_gradients_see_a_wrong_solution() -> None:
    change = (
        "from dataclasses import replace; right = pipelined_cg.pipelined; "
        "wrong = lambda found: replace(found, x=1.001 * found.x); "
        "pipelined_cg.METHODS['pipelined'] = lambda *arguments: wrong(right(*arguments))"
    )
    result = run_example(2, *sabotage(CG, change), "--size", "9", "8", "--rounds", "1")
    assert result.returncode == 1, result
    assert "WRONG: a solution is not" in result.stderr


def test_pipelined_conjugate_gradients_refuse_too_few_rows() -> None:
    result = run_example(3, CG, "--size", "2", "8")
    assert result.returncode == 2, result
    assert result.stderr.count("every rank needs at least a row") == 1


@pytest.mark.slow
@pytest.mark.parametrize(("ranks", "layout"), [(5, "4+1"), (6, "3x2"), (6, "cyclic:3+3")])
def test_training_equals_one_process_on_more_ranks(ranks: int, layout: str) -> None:
    test_training_equals_one_process(ranks, layout)


def test_one_epoch_is_not_enough_and_the_training_says_so() -> None:
    pytest.importorskip("sklearn")
    result = run_example(1, DIGITS, "--epochs", "1")
    assert result.returncode == 1, result
    assert re.search(r"^WRONG: accuracy is \d\d\.\d\d%, not above 95%$", result.stderr, re.MULTILINE)
    assert "OK" not in result.stdout


@pytest.mark.parametrize(
    ("average", "verdict"),
    [
        ("lambda self, values: None", "the weights of ranks [1, 2] are not those of rank 0"),
        # All ranks alike, and off by so little that accuracy does not suffer.
        ("lambda self, values: (right(self, values), values.__imul__(1 + 1e-7))", "the loss differs by"),
    ],
    ids=["no-average", "wrong-weight"],
)
def test_a_wrong_average_is_noticed(average: str, verdict: str) -> None:
    pytest.importorskip("sklearn")
    statement = f"right = train_digits.Ranks.average; train_digits.Ranks.average = {average}"
    result = run_example(3, *sabotage(DIGITS, statement), *FEW_EPOCHS)
    assert result.returncode == 1, result
    assert f"WRONG: {verdict}" in result.stderr
    assert "OK" not in result.stdout


@pytest.mark.slow
def test_the_loss_curves_are_drawn(tmp_path: Path) -> None:
    pytest.importorskip("sklearn")
    pytest.importorskip("matplotlib")
    picture = tmp_path / "loss.png"
    result = run_example(2, DIGITS, *FEW_EPOCHS, "--plot", str(picture))
    assert result.returncode == 0, result
    assert picture.read_bytes().startswith(b"\x89PNG")


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (("--device", "gpu"), "argument --device: invalid choice: 'gpu'"),
        (("--epochs", "0"), "--epochs is 0: must be at least 1"),
        (("--layout", "3+2"), 'layout "3+2" has 5 ranks'),
    ],
)
def test_wrong_arguments_are_told_once(arguments: tuple[str, ...], message: str) -> None:
    pytest.importorskip("sklearn")
    result = run_example(2, DIGITS, *arguments)
    assert result.returncode == 2, result
    assert (result.stdout + result.stderr).count(message) == 1
    assert "Traceback" not in result.stderr


def test_a_machine_without_a_gpu_is_told() -> None:
    """Whether CuPy is installed or not."""
    pytest.importorskip("sklearn")
    result = run_ranks(2, [DIGITS, "--device", "cuda"], timeout_s=LIMIT_S, env={"CUDA_VISIBLE_DEVICES": ""})
    assert result.returncode == 2, result
    said = re.findall("--device cuda: (CuPy is missing|ranks 0, 1: no CUDA device is visible)", result.stderr)
    assert len(said) == 1
    assert "Traceback" not in result.stderr


@pytest.mark.parametrize(
    ("example", "cause"),
    # Rank 0 alone reads the digits, and alone has the whole plate.
    [(DIGITS, "sys.modules['sklearn.datasets'] = None"), (HEAT, "hashlib.sha256 = None")],
    ids=["digits", "heat"],
)
def test_an_error_on_one_rank_ends_all(example: str, cause: str) -> None:
    pytest.importorskip("sklearn")
    run = f"sys.argv = ['it']; runpy.run_path({example!r}, run_name='__main__')"
    result = run_example(3, "-c", f"import hashlib, runpy, sys; {cause}; {run}")
    assert result.returncode not in (0, 2), result
    assert "Traceback" in result.stderr
    # Not by a deadline: that would take 20 s.
    assert "CollectiveTimeoutError" not in result.stderr


def answers(result: Result) -> tuple[str, ...]:
    """Steps, residual (all its digits) and fingerprint of the plate, as printed."""
    assert result.returncode == 0, result
    steps = re.search(r"^(\d+) steps in .*; residual: (\S+) of the first$", result.stdout, re.MULTILINE)
    plate = re.search(r"^sha256 of the result: ([0-9a-f]{64})$", result.stdout, re.MULTILINE)
    assert steps is not None, result.stdout
    assert plate is not None, result.stdout
    return (steps[1], steps[2], plate[1])


@pytest.mark.parametrize(("ranks", "layout"), [(1, ""), (2, ""), (3, "2+1"), (4, "2+2"), (4, "3+1")])
def test_heat_is_exact_and_the_same_without_hpccoll(ranks: int, layout: str) -> None:
    ours = run_example(ranks, HEAT, *SMALL_PLATE, layout=layout)
    plain = run_example(ranks, HEAT, *SMALL_PLATE, "--plain")
    for result, kind in ((ours, "CartCommunicator"), (plain, "Cartcomm")):
        assert f"ranks in a {kind}, 17 x 23 points" in result.stdout
        assert f"OK: the result of {ranks} ranks is the exact solution" in result.stdout
    steps, residual, plate = answers(ours)
    assert (steps, plate) == (answers(plain)[0], answers(plain)[2])
    assert float(residual) == pytest.approx(float(answers(plain)[1]), rel=1e-12)
    assert int(steps) > 100


@pytest.mark.slow
@pytest.mark.parametrize(("ranks", "layout"), [(5, "4+1"), (6, "3x2")])
def test_heat_on_more_ranks(ranks: int, layout: str) -> None:
    test_heat_is_exact_and_the_same_without_hpccoll(ranks, layout)


@pytest.mark.parametrize(
    ("arguments", "verdict"),
    [
        ((HEAT, "--steps", "50"), "no convergence in 50 steps"),
        (sabotage(HEAT, "heat.Block.exchange = lambda self: None"), "the result differs from the exact"),
    ],
    ids=["steps", "no-halo"],
)
def test_a_wrong_plate_is_noticed(arguments: tuple[str, ...], verdict: str) -> None:
    result = run_example(2, *arguments, *SMALL_PLATE)
    assert result.returncode == 1, result
    assert f"WRONG: {verdict}" in result.stderr
    assert "OK" not in result.stdout


def test_heat_tells_a_wrong_layout_once() -> None:
    result = run_example(2, HEAT, *SMALL_PLATE, layout="3+1")
    assert result.returncode == 2, result
    assert result.stderr.count('layout "3+1" has 4 ranks') == 1


@pytest.mark.slow
def test_the_plate_is_drawn(tmp_path: Path) -> None:
    pytest.importorskip("matplotlib")
    picture = tmp_path / "heat.png"
    result = run_example(2, HEAT, *SMALL_PLATE, "--save", str(picture))
    assert result.returncode == 0, result
    assert picture.read_bytes().startswith(b"\x89PNG")


def bench_document() -> dict[str, Any]:
    """What `hpccoll bench` writes when all is well, as far as the demo reads it."""
    half = {"nwrong": 0}
    names = ["one_shot"] * 2 + ["reduce_ring_broadcast"] * 6
    rows = [
        {"size": 1024 * 4**k, "out_of_place": half, "in_place": half, "algorithm": name}
        for k, name in enumerate(names)
    ]
    return {"layout": "2+2", "results": rows, "out_of_bounds": {"count": 0, "okay": True}, "errors": []}


def run_demo_on(tmp_path: Path, document: dict[str, Any], **other: str) -> Result:
    """The demo where every command but its own verdict succeeds at once, and bench found `document`.

    `other`: the text of the script to take for a command instead.
    """
    (tmp_path / "found.json").write_text(json.dumps(document))
    commands = {
        "mpiexec": 'while [ "${1:-}" != -n ]; do [ $# -gt 0 ] || exit 0; shift; done; shift 2; "$@"',
        "hpccoll": f'[ "$1" = bench ] || exit 0; cp "{tmp_path}/found.json" "${{@: -1}}"',
        "python": f'[ "$1" != - ] || exec "{sys.executable}" "$@"',
    }
    for name, text in (commands | other).items():
        (tmp_path / name).write_text(f"#!/usr/bin/env bash\n{text}\n")
        (tmp_path / name).chmod(0o755)
    path = os.pathsep.join([str(tmp_path), environment()["PATH"]])
    return run_program(["bash", DEMO], timeout_s=30, env={"PATH": path})


def test_the_demo_ends_with_what_was_seen(tmp_path: Path) -> None:
    result = run_demo_on(tmp_path, bench_document())
    assert result.returncode == 0, result
    assert result.stdout.splitlines()[-1] == (
        "layout 2+2: 8 sizes from 1 KiB to 16 MiB, 0 wrong elements, 2 plans chosen by size: "
        "one_shot (1 KiB, 4 KiB); reduce_ring_broadcast (16 KiB, 64 KiB, 256 KiB, 1 MiB, 4 MiB, 16 MiB); "
        "training on 4 ranks equal to one process"
    )


@pytest.mark.parametrize(
    ("fault", "message"),
    [
        ("wrong", "wrong elements: "),
        ("unchecked", "wrong elements: "),
        ("plans", "one plan for all sizes: "),
        ("sizes", "sizes are "),
        ("bounds", "out of bounds: "),
        ("errors", "errors: "),
    ],
)
def test_the_demo_fails_when_something_is_wrong(tmp_path: Path, fault: str, message: str) -> None:
    document = bench_document()
    rows = document["results"]
    if fault in ("wrong", "unchecked"):
        rows[3] = {**rows[3], "in_place": {"nwrong": 2 if fault == "wrong" else None}}
    elif fault == "plans":
        document["results"] = [{**row, "algorithm": "ring"} for row in rows]
    elif fault == "sizes":
        rows.pop()
    elif fault == "bounds":
        document["out_of_bounds"] = {"count": 1, "okay": False}
    else:
        document["errors"] = ["CollectiveTimeoutError: rank 3"]
    result = run_demo_on(tmp_path, document)
    assert result.returncode == 1, result
    assert f"demo.sh: {message}" in result.stderr
    assert "equal to one process" not in result.stdout


def test_the_demo_fails_when_a_command_does(tmp_path: Path) -> None:
    result = run_demo_on(tmp_path, bench_document(), hpccoll="exit 3")
    assert result.returncode == 3, result
    assert result.stderr.endswith("demo.sh: exit status 3 of: mpiexec -n 4 hpccoll topo --layout 2+2\n")
    assert "Seen" not in result.stdout


@pytest.mark.slow
@pytest.mark.timeout(200)
def test_the_demo() -> None:
    pytest.importorskip("sklearn")
    result = run_program(["bash", DEMO], timeout_s=180)
    assert result.returncode == 0, result
    verdict = r"^layout 2\+2: 8 sizes from 1 KiB to 16 MiB, 0 wrong elements, [2-8] plans chosen by size"
    assert re.search(verdict, result.stdout.splitlines()[-1]), result.stdout
