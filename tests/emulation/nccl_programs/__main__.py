"""`mpiexec -n 4 python -m tests.emulation.nccl_programs <program> ...`: on each rank, one after the other.

A program raises where something is wrong; then all ranks are ended.
"""

from __future__ import annotations

import importlib
import sys
import traceback

from tests.emulation.nccl_programs.support import PROGRAMS, WORLD

MODULES = ("arithmetic", "communicators", "failures", "mismatch", "order", "results", "wrong_calls")


def main() -> None:
    try:
        for name in MODULES:
            importlib.import_module(f"tests.emulation.nccl_programs.{name}")
        for name in sys.argv[1:]:
            PROGRAMS[name]()
    except BaseException:
        traceback.print_exc()
        sys.stderr.flush()
        WORLD.Abort(1)


if __name__ == "__main__":
    main()
