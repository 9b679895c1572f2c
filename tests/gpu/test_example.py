"""`examples/train_digits.py --device cuda`: the losses of the host, on arrays of CuPy."""

from __future__ import annotations

import re

import pytest

from tests.support.launch import REPOSITORY, Result, run_ranks

DIGITS = str(REPOSITORY / "examples" / "train_digits.py")
LIMIT_S = 200.0  # on the stand-in, a kernel that has never run is first compiled
EPOCHS = ("--epochs", "4")

pytestmark = pytest.mark.timeout(2 * LIMIT_S + 20)


def train(ranks: int, *arguments: str, **env: str) -> Result:
    result = run_ranks(ranks, [DIGITS, *arguments], timeout_s=LIMIT_S, env=env)
    assert not result.timed_out, result
    return result


def table(result: Result) -> list[tuple[str, ...]]:
    """Epoch, loss and accuracy of each row, as printed."""
    return re.findall(r"^ +(\d+) +(\d+\.\d{5}) +(\d+\.\d\d%) ", result.stdout, re.MULTILINE)


@pytest.mark.parametrize("layout", ["2", "1+1"])
def test_training_on_devices_is_that_on_the_host(layout: str) -> None:
    pytest.importorskip("sklearn")
    on_device = train(2, *EPOCHS, "--layout", layout, "--device", "cuda")
    assert on_device.returncode == 0, on_device
    assert "arrays on GPUs, which travel by nccl\n" in on_device.stdout
    assert "OK: training on 2 ranks equals training in one process" in on_device.stdout
    on_host = train(2, *EPOCHS, "--layout", layout)
    assert on_host.returncode == 0, on_host
    assert len(table(on_device)) == 4
    assert table(on_device) == table(on_host)


@pytest.mark.parametrize(
    "average", ["lambda self, values: None", "lambda self, values: values.__imul__(1.5)"]
)
def test_a_wrong_average_is_noticed(average: str) -> None:
    pytest.importorskip("sklearn")
    folder = str(REPOSITORY / "examples")
    code = (
        f"import sys; sys.path.insert(0, {folder!r}); import train_digits; "
        f"train_digits.Ranks.average = {average}; sys.exit(train_digits.main())"
    )
    result = run_ranks(2, ["-c", code, "--epochs", "1", "--device", "cuda"], timeout_s=LIMIT_S)
    assert result.returncode == 1, result
    assert "WRONG: the loss differs by" in result.stderr


def test_without_a_device_it_says_so_once() -> None:
    pytest.importorskip("sklearn")
    result = train(2, "--device", "cuda", CUDA_VISIBLE_DEVICES="")
    assert result.returncode == 2, result
    assert result.stderr == "train_digits.py: --device cuda: ranks 0, 1: no CUDA device is visible\n"


def test_without_cupy_it_says_what_to_install() -> None:
    pytest.importorskip("sklearn")
    code = (
        "import importlib.util, runpy, sys; real = importlib.util.find_spec; "
        "importlib.util.find_spec = lambda name, *more: None if name == 'cupy' else real(name, *more); "
        f"sys.argv = ['it', '--device', 'cuda']; runpy.run_path({DIGITS!r}, run_name='__main__')"
    )
    result = run_ranks(2, ["-c", code], timeout_s=LIMIT_S)
    assert result.returncode == 2, result
    assert result.stderr.count("CuPy is missing; install it with: pip install 'hpccoll[cuda12]'") == 1
