"""A Slurm cluster of four nodes for the tests of this folder; where there can be none, they skip."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from functools import cache
from pathlib import Path

import pytest

from tests.support.slurm import Job, Slurm, available
from tests.support.slurm_mpi import Mpi

SCRIPTS = Path(__file__).resolve().parents[2] / "slurm"


@pytest.fixture(scope="session")
def slurm() -> Iterator[Slurm]:
    reason = available()
    if reason is not None:
        pytest.skip(reason)
    with Slurm(nodes=4, gpus=2) as cluster:
        yield cluster


@pytest.fixture(scope="session")
def needs(slurm: Slurm) -> Callable[[Mpi], None]:
    """Skips where an MPI's programs cannot be started on the cluster."""
    lacking = cache(lambda mpi: mpi.lacking(slurm))

    def check(mpi: Mpi) -> None:
        if (reason := lacking(mpi)) is not None:
            pytest.skip(reason)

    return check


@pytest.fixture
def directory(tmp_path: Path) -> Path:
    """Where jobs are submitted, and where they write."""
    return tmp_path


@pytest.fixture
def submitted(slurm: Slurm, directory: Path, needs: Callable[[Mpi], None]) -> Callable[..., int]:
    """Submits a script as a user of an MPI would; the job's number.  Variables are the script's."""

    def submit(mpi: Mpi, script: str | Path, *options: str, **variables: str) -> int:
        needs(mpi)
        env = {"VENV": str(mpi.venv), "START": mpi.srun, **variables}
        return slurm.submit([*options, str(SCRIPTS / script)], env=env, cwd=directory)

    return submit


@pytest.fixture
def ran(slurm: Slurm, directory: Path, submitted: Callable[..., int]) -> Callable[..., Job]:
    """As `submitted`, and waits for the job's end."""

    def run(mpi: Mpi, script: str | Path, *options: str, **variables: str) -> Job:
        return slurm.wait(submitted(mpi, script, *options, **variables), directory)

    return run
