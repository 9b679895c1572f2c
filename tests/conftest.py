"""What every test sees: the MPI-aware plugin, the fixture `world`, Hypothesis the same on all ranks."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

import pytest

if TYPE_CHECKING:
    from mpi4py import MPI

pytest_plugins = ["tests.support.plugin"]


def pytest_pycollect_makemodule(module_path: Path) -> None:
    """Settle Hypothesis before a test file that uses it; others are spared its slow import."""
    if "hypothesis" in module_path.read_text():
        load_hypothesis_profile()


def load_hypothesis_profile() -> None:
    """Ranks must draw the same examples, so nothing comes from chance or from a file.

    And none may shrink: the others would wait for the rank whose example failed.
    """
    from hypothesis import HealthCheck, Phase, settings

    settings.register_profile(
        "hpccoll",
        derandomize=True,
        database=None,
        deadline=None,
        phases=(Phase.explicit, Phase.generate),
        suppress_health_check=(HealthCheck.too_slow,),
    )
    settings.load_profile("hpccoll")


@pytest.fixture
def world() -> MPI.Intracomm:
    """The plain world of mpi4py."""
    from mpi4py import MPI

    return MPI.COMM_WORLD
