"""`python -m tests.emulation [--devices 4] [--mode lazy] command ...`: run a command on the stand-in."""

from __future__ import annotations

import argparse
import os
import sys

from tests.emulation.build import build
from tests.emulation.load import environment


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m tests.emulation", description=__doc__)
    parser.add_argument("--devices", type=int, default=4, help="devices of the machine (default: 4)")
    parser.add_argument("--mode", choices=("eager", "delay", "lazy"), default="lazy")
    parser.add_argument("command", nargs=argparse.REMAINDER, help="without one, only build and say where")
    options = parser.parse_args()
    if not options.command:
        print(build())
        return 0
    os.execvpe(options.command[0], options.command, environment(options.devices, options.mode, **_settings()))


def _settings() -> dict[str, str]:
    """Settings that the caller's environment has already, but for those that are options here."""
    taken = {"STANDIN_FOLDER", "STANDIN_DEVICES", "STANDIN_MODE"}
    names = [name for name in os.environ if name.startswith("STANDIN_") and name not in taken]
    return {name: os.environ[name] for name in [*names, "CUDA_VISIBLE_DEVICES"] if name in os.environ}


if __name__ == "__main__":
    sys.exit(main())
