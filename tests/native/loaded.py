"""A plugin of pytest (`-p tests.native.loaded`): the run was on the extension of HPCCOLL_TEST_CORE."""

from __future__ import annotations

import os
from pathlib import Path

import pytest


def pytest_sessionfinish(session: pytest.Session) -> None:
    from hpccoll._native import _core

    wanted, found = Path(os.environ["HPCCOLL_TEST_CORE"]), Path(_core.__file__ or "")
    if not found.samefile(wanted):
        raise pytest.UsageError(f"the tests ran on {found}, not on {wanted}")
    print(f"\nall of it ran on {wanted}")
