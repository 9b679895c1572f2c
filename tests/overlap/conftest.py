"""Communicators as in the tests of collectives."""

from __future__ import annotations

from tests.collectives.conftest import (  # noqa: F401  fixtures and a hook
    _opened,
    communicator,
    pytest_runtest_makereport,
)
