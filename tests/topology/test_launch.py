"""Processes that were started together but do not know of each other (singletons)."""

from __future__ import annotations

import os
import subprocess
import sys

import pytest

from hpccoll.topology.launch import launch_warning

STEP = {"SLURM_NTASKS": "4", "SLURM_STEP_NUM_TASKS": "4", "SLURM_STEP_ID": "0", "SLURM_LOCALID": "0"}


@pytest.mark.parametrize(
    ("environ", "witness"),
    [
        ({"SLURM_NTASKS": "4", "SLURM_PROCID": "2"}, "SLURM_NTASKS=4"),
        ({**STEP, "SLURM_PROCID": "0"}, "SLURM_STEP_NUM_TASKS=4"),
        ({"OMPI_COMM_WORLD_SIZE": "4", "OMPI_COMM_WORLD_RANK": "0"}, "OMPI_COMM_WORLD_SIZE=4"),
        ({"PMI_SIZE": "4", "PMI_RANK": "3"}, "PMI_SIZE=4"),
    ],
)
def test_singletons_are_told_both_sizes_and_what_to_do(environ: dict[str, str], witness: str) -> None:
    message = launch_warning(environ, 1)
    assert message is not None
    assert "MPI.COMM_WORLD has 1 process, but the launcher started 4" in message
    assert witness in message
    assert "mpiexec of the MPI that mpi4py was built with" in message


@pytest.mark.parametrize(
    ("library", "flag", "other"),
    [
        ("MPICH 5.0.2", "--mpi=pmi2", "--mpi=pmix"),
        ("Intel(R) MPI Library 2021.13 for Linux* OS", "--mpi=pmi2", "--mpi=pmix"),
        ("Open MPI v5.0.11", "--mpi=pmix", "--mpi=pmi2"),
    ],
)
def test_the_flag_is_that_of_the_library(library: str, flag: str, other: str) -> None:
    message = launch_warning({**STEP, "SLURM_PROCID": "1"}, 1, library) or ""
    assert f"srun {flag}" in message
    assert other not in message


def test_both_flags_where_the_library_is_unknown() -> None:
    message = launch_warning({**STEP, "SLURM_PROCID": "1"}, 1) or ""
    assert "srun --mpi=pmi2" in message
    assert "srun --mpi=pmix" in message


@pytest.mark.parametrize(
    ("environ", "world_size"),
    [
        pytest.param({}, 1, id="plain python"),
        pytest.param({**STEP, "SLURM_PROCID": "3"}, 4, id="srun, all is well"),
        pytest.param(
            {"SLURM_NTASKS": "4", "SLURM_PROCID": "0", "SLURM_LOCALID": "0"},
            1,
            id="plain python in a batch script",
        ),
        pytest.param({"SLURM_NTASKS": "4"}, 1, id="plain python under salloc"),
        pytest.param(
            {
                "SLURM_NTASKS": "4",
                "SLURM_STEP_NUM_TASKS": "1",
                "SLURM_STEP_ID": "4294967290",
                "SLURM_PROCID": "0",
            },
            1,
            id="plain python in an interactive step",
        ),
        pytest.param(
            {**STEP, "SLURM_PROCID": "1", "PMI_SIZE": "1"}, 1, id="mpiexec -n 1, started by a proxy"
        ),
        pytest.param({**STEP, "SLURM_PROCID": "1"}, 2, id="mpirun -n 2, started by four daemons"),
        pytest.param({"PMI_SIZE": "2"}, 4, id="more than started: spawned"),
        pytest.param({"PMI_SIZE": "many", "SLURM_PROCID": "x", "SLURM_NTASKS": "-3"}, 1, id="nonsense"),
    ],
)
def test_silence_where_nothing_is_wrong(environ: dict[str, str], world_size: int) -> None:
    assert launch_warning(environ, world_size) is None


def test_discovery_warns_a_singleton() -> None:
    program = (
        "import time; from mpi4py import MPI; from hpccoll.topology.machine import discover\n"
        "comm = MPI.COMM_WORLD.Dup()\n"
        "machine = discover(comm, layout=None, shm_directory='/dev/shm', deadline=time.monotonic() + 10)\n"
        "print(machine.layout.size)"
    )
    kept = {k: v for k, v in os.environ.items() if not k.startswith(("PMI", "OMPI", "SLURM", "HYDI"))}
    done = subprocess.run(
        [sys.executable, "-c", program],
        env={**kept, "SLURM_NTASKS": "4", "SLURM_PROCID": "2"},
        capture_output=True,
        text=True,
        timeout=50,
        check=True,
    )
    assert done.stdout.strip() == "1"
    assert "RuntimeWarning: MPI.COMM_WORLD has 1 process, but the launcher started 4" in done.stderr
