"""Runs cases and says, in a line of JSON before and after each, how they went."""

from __future__ import annotations

import importlib
import json
import sys
import time
import traceback
from collections.abc import Callable

MODULES = ("arrays", "kernels", "runtime", "network")


def cases() -> dict[str, Callable[[], None]]:
    found = {}
    for module in MODULES:
        content = vars(importlib.import_module(f"tests.emulation.cupy_cases.{module}"))
        names = [name for name in content if name.startswith("case_")]
        found.update({name.removeprefix("case_"): content[name] for name in names})
    return found


def main(names: list[str]) -> None:
    import cupy

    known = cases()
    for name in names or known:
        print(json.dumps({"begin": name}), flush=True)
        start = time.perf_counter()
        said = ""
        try:
            with cupy.cuda.Device(0):
                cupy.cuda.runtime.deviceSynchronize()
                known[name]()
        except Exception:
            said = traceback.format_exc()
        print(json.dumps({"end": name, "said": said, "seconds": time.perf_counter() - start}), flush=True)


if __name__ == "__main__":
    main(sys.argv[1:])
