"""A Slurm cluster of four nodes for the tests of this folder; where there can be none, they skip."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.support.slurm import Slurm, available


@pytest.fixture(scope="session")
def slurm() -> Iterator[Slurm]:
    reason = available()
    if reason is not None:
        pytest.skip(reason)
    with Slurm(nodes=4, gpus=2) as cluster:
        yield cluster


@pytest.fixture
def directory(tmp_path: Path) -> Path:
    """Where jobs are submitted, and where they write."""
    return tmp_path
