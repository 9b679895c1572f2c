"""`examples/train_3d.py --device cuda`: the losses of the host, on arrays of CuPy."""

from __future__ import annotations

import pytest

from tests.support.launch import REPOSITORY, run_ranks

EXAMPLE = str(REPOSITORY / "examples" / "train_3d.py")
LIMIT_S = 400.0  # on the stand-in, a kernel that has never run is first compiled


@pytest.mark.slow
@pytest.mark.timeout(LIMIT_S + 20)
@pytest.mark.parametrize("options", [("--pipeline", "1", "--sequence"), ("--tensor", "1")])
def test_training_on_devices_is_that_on_the_host(options: tuple[str, ...]) -> None:
    arguments = [EXAMPLE, "--steps", "1", "--device", "cuda", *options]
    result = run_ranks(2, arguments, timeout_s=LIMIT_S, env={"HPCCOLL_LAYOUT": "1+1"})
    assert result.returncode == 0, result
    assert "ranks train as one process does" in result.stdout
