"""Tests on virtual hosts launch mpiexec themselves and need root and iproute2; elsewhere they skip."""

from __future__ import annotations

import pytest

from tests.support.virtual_hosts import available


@pytest.fixture(autouse=True, scope="session")
def virtual_hosts_available() -> None:
    reason = available()
    if reason is not None:
        pytest.skip(reason)
