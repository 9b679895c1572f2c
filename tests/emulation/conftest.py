"""The stand-in is built before the first test, as its time is no test's."""

from __future__ import annotations

import contextlib
from pathlib import Path

import pytest

from tests.emulation import build, load

HERE = Path(__file__).resolve().parent


def pytest_collection_finish(session: pytest.Session) -> None:
    """What goes wrong here, goes wrong again in the tests, and is told there."""
    ours = any(HERE in item.path.parents for item in session.items)
    if ours and not session.config.option.collectonly and build.missing() is None:
        with contextlib.suppress(RuntimeError, ValueError):
            load.environment()
