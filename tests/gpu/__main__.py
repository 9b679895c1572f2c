"""`python -m tests.gpu [--modes lazy,delay,eager] [words for the runner]`: the tests on device arrays.

On a machine without NVIDIA's driver they run on the CPU stand-in, once in each mode.  With a GPU they run on
it: ranks share one where there are fewer (NCCL_MULTI_RANK_GPU_ENABLE, since NCCL 2.30), at most two of them,
since more may wait for each other's kernels.
"""

from __future__ import annotations

import argparse
import subprocess
import sys
from collections.abc import Sequence

from tests.emulation.load import devices, real_driver

MODES = ("lazy", "delay", "eager")
SWITCH = "HPCCOLL_TEST_GPU"  # without it the tests are not collected


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m tests.gpu", description=__doc__)
    parser.add_argument("--modes", default="lazy", help="of the stand-in: lazy, delay, eager, or several")
    options, words = parser.parse_known_args()
    if not any(word.startswith("tests/") for word in words):
        words = ["tests/gpu", *words]
    modes = options.modes.split(",")
    if unknown := set(modes) - set(MODES):
        parser.error(f"unknown mode {', '.join(sorted(unknown))}")
    if sign := real_driver():
        print(f"on real hardware ({sign})", flush=True)
        ranks = () if "--ranks" in words else ("--ranks", "0,1,2")
        return _run([*words, *ranks], devices())
    status = 0
    for mode in modes:
        print(f"on the CPU stand-in, {mode}", flush=True)
        status = _run(words, devices(mode)) or status
    return status


def _run(words: Sequence[str], env: dict[str, str]) -> int:
    command = [sys.executable, "-m", "tests.support.run", *words]
    return subprocess.run(command, env={**env, SWITCH: "1"}, check=False).returncode


if __name__ == "__main__":
    sys.exit(main())
