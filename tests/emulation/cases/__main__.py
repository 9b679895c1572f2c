"""Runs cases and says, in a line of JSON before and after each, how they went."""

from __future__ import annotations

import importlib
import json
import sys
import time
import traceback
from collections.abc import Callable

from tests.emulation.cases import fresh

MODULES = ("devices", "memory", "order", "host", "allocation", "graphs", "capture", "kernels", "together")


def cases() -> dict[str, Callable[[], None]]:
    found = {}
    for module in MODULES:
        content = vars(importlib.import_module(f"tests.emulation.cases.{module}"))
        found.update(
            {name.removeprefix("case_"): content[name] for name in content if name.startswith("case_")}
        )
    return found


def main(names: list[str]) -> None:
    known = cases()
    for name in names or known:
        print(json.dumps({"begin": name}), flush=True)
        start = time.perf_counter()
        said = ""
        try:
            fresh()
            known[name]()
        except Exception:
            said = traceback.format_exc()
        print(json.dumps({"end": name, "said": said, "seconds": time.perf_counter() - start}), flush=True)


if __name__ == "__main__":
    main(sys.argv[1:])
