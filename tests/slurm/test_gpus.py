"""Which GPUs ranks take under Slurm's options: declared to Slurm, computed on by the CPU stand-in."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path

import pytest

from tests.emulation.build import build
from tests.emulation.load import environment as on_devices
from tests.support.slurm import Job
from tests.support.slurm_mpi import MPICH

pytestmark = [pytest.mark.cluster, pytest.mark.timeout(300)]

NODES = ("--nodes=2", "--ntasks-per-node=2", "--gpus-per-node=2")


@pytest.fixture
def stand_in(directory: Path) -> dict[str, str]:
    """Two GPUs on each node, of which CUDA_VISIBLE_DEVICES hides some."""
    build()
    return on_devices(2, "lazy", meeting=directory)


@pytest.mark.parametrize(
    ("start", "taken"),
    [
        (MPICH.srun, [0, 1, 0, 1]),  # all see both GPUs of their node, and the library deals them out
        (MPICH.launcher, [0, 1, 0, 1]),  # likewise: mpiexec hands on what the job has
        (f"{MPICH.srun} --gpus-per-task=1", [0, 0, 0, 0]),  # each sees its own alone
        (f"{MPICH.srun} --gpu-bind=map_gpu:1,0", [0, 0, 0, 0]),
    ],
)
def test_no_two_ranks_take_one(
    ran: Callable[..., Job], directory: Path, stand_in: dict[str, str], start: str, taken: list[int]
) -> None:
    job = ran(
        MPICH, "allreduce.sbatch", *NODES, START=start, DEVICE="cuda", SIZES="-b 1K -e 1K -n 2", **stand_in
    )
    assert (job.state, job.status) == ("COMPLETED", 0), job.output
    document = json.loads((directory / f"allreduce-{job.number}.json").read_text())
    ranks = document["config"]["devices"]
    assert [one["device"] for one in ranks] == taken
    assert len({(one["hostname"], one["device_hex"]) for one in ranks}) == 4
    assert all(one["out_of_place"]["nwrong"] == 0 for one in document["results"])


def test_the_doctor_notes_ranks_that_see_one_gpu_each(
    ran: Callable[..., Job], stand_in: dict[str, str]
) -> None:
    start = f"{MPICH.srun} --gpus-per-task=1"
    job = ran(MPICH, "doctor.sbatch", *NODES, START=start, **stand_in)
    told = " ".join(job.output.split())
    assert "see one GPU each, of 2: where a cgroup hides the others, NCCL cannot use NVLink" in told, told
