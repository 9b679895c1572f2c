"""The batch scripts of slurm/ on a real Slurm: sizes, layouts, GPUs, results, and what goes wrong."""

from __future__ import annotations

import json
import sys
from collections.abc import Mapping
from pathlib import Path

import pytest

from hpccoll.scaling.study import read
from tests.emulation.build import build
from tests.emulation.load import environment as on_devices
from tests.support.launch import find_mpiexec, until
from tests.support.slurm import Job, Slurm

pytestmark = [pytest.mark.cluster, pytest.mark.timeout(300)]

REPOSITORY = Path(__file__).resolve().parents[2]
SCRIPTS = REPOSITORY / "slurm"
VENV = str(Path(sys.executable).parents[1])
OPENMPI = find_mpiexec().flavour == "openmpi"
# How ranks are started, by the MPI that the tests run on.
STARTS = (
    ("srun --mpi=pmix --kill-on-bad-exit=1", "mpirun")
    if OPENMPI
    else (
        "srun --mpi=pmi2 --kill-on-bad-exit=1",
        "mpiexec",
    )
)


def ran(
    slurm: Slurm, directory: Path, script: str, *options: str, env: Mapping[str, str] | None = None
) -> Job:
    """Submit a script as a user would, and wait for its end."""
    number = slurm.submit(
        [*options, str(SCRIPTS / script)],
        env={"VENV": VENV, "START": STARTS[0], **(env or {})},
        cwd=directory,
    )
    return slurm.wait(number, directory)


@pytest.mark.parametrize("start", STARTS)
def test_allreduce(slurm: Slurm, directory: Path, start: str) -> None:
    env = {"START": start, "SIZES": "-b 1K -e 64K -f 8"}
    job = ran(slurm, directory, "allreduce.sbatch", "--nodes=3", "--ntasks-per-node=2", env=env)
    assert (job.state, job.status) == ("COMPLETED", 0), job.output
    assert "6 ranks: 3 nodes (3x2)" in job.output
    document = json.loads((directory / f"allreduce-{job.number}.json").read_text())
    assert document["layout"] == "3x2"
    assert {one["hostname"] for one in document["config"]["devices"]} == {"node0", "node1", "node2"}
    assert {one["size"] for one in document["results"]} == {1024, 8192, 65536}
    assert all(one["out_of_place"]["nwrong"] == 0 for one in document["results"])


def test_uneven_nodes(slurm: Slurm, directory: Path) -> None:
    env = {"SIZES": "-b 1K -e 1K"}
    job = ran(slurm, directory, "allreduce.sbatch", "--nodes=2", "--ntasks=3", "--ntasks-per-node=2", env=env)
    assert (job.state, job.status) == ("COMPLETED", 0), job.output
    assert "3 ranks: 2 nodes (2+1)" in job.output


def test_tasks_dealt_out_in_turn(slurm: Slurm, directory: Path) -> None:
    env = {"SIZES": "-b 1K -e 1K", "START": f"{STARTS[0]} --distribution=cyclic"}
    job = ran(slurm, directory, "allreduce.sbatch", "--nodes=2", "--ntasks-per-node=2", env=env)
    assert (job.state, job.status) == ("COMPLETED", 0), job.output
    assert "4 ranks: 2 nodes (cyclic:2+2)" in job.output


@pytest.mark.parametrize(
    ("options", "taken"),
    [
        ("", [0, 1, 0, 1]),  # all see both GPUs of their node, and the library deals them out
        ("--gpus-per-task=1", [0, 0, 0, 0]),  # each sees its own alone
    ],
)
def test_gpus(slurm: Slurm, directory: Path, options: str, taken: list[int]) -> None:
    build()
    env = {
        **on_devices(2, "lazy", meeting=directory),
        "DEVICE": "cuda",
        "SIZES": "-b 1K -e 8K -f 8",
        "START": f"{STARTS[0]} {options}",
    }
    chosen = ("--nodes=2", "--ntasks-per-node=2", "--gpus-per-node=2")
    job = ran(slurm, directory, "allreduce.sbatch", *chosen, env=env)
    assert (job.state, job.status) == ("COMPLETED", 0), job.output
    document = json.loads((directory / f"allreduce-{job.number}.json").read_text())
    ranks = document["config"]["devices"]
    assert [one["device"] for one in ranks] == taken
    assert len({(one["hostname"], one["device_hex"]) for one in ranks}) == 4  # no two on one GPU
    assert all(one["out_of_place"]["nwrong"] == 0 for one in document["results"])


def test_scaling(slurm: Slurm, directory: Path) -> None:
    env = {"SIZES": "-b 1K -e 64K -f 8", "OP": "allgather"}
    options = ("--nodes=3", "--ntasks-per-node=1")
    job = ran(slurm, directory, "scaling.sbatch", *options, env=env)
    assert (job.state, job.status) == ("COMPLETED", 0), job.output
    study = read(directory / "allgather-3-nodes.json")
    assert (study.node_counts, study.sizes, study.wrong) == ((1, 2, 3), (1024, 8192, 65536), 0)
    assert {one.layout for one in study.on(3)} == {"3x1"}
    report = directory / "allgather-3-nodes.json.report"
    assert {"index.html", "kept.png", "points.csv"} <= {one.name for one in report.iterdir()}
    again = ran(slurm, directory, "scaling.sbatch", *options, env=env)
    assert again.output.count("(from ") == 9  # it goes on from what there is


@pytest.mark.parametrize("start", STARTS)
def test_training_stops_before_the_limit_and_goes_on(slurm: Slurm, directory: Path, start: str) -> None:
    """The signal before the time limit becomes a checkpoint, and the job is queued again, once."""
    env = {
        "START": start,
        "TRAIN": f"python {REPOSITORY}/examples/train_digits.py --epochs 30",
        "CHECKPOINT": str(directory / "digits.npz"),
    }
    options = ["--nodes=2", "--ntasks-per-node=1", str(SCRIPTS / "train.sbatch")]
    number = slurm.submit(options, env={"VENV": VENV, **env}, cwd=directory)
    until(lambda: (directory / "digits.npz").exists(), 60.0)
    slurm.run(["scancel", "--batch", "--signal=USR1", str(number)], cwd=directory)
    until(lambda: slurm.shown(number).get("Restarts") == "1", 60.0)
    job = slurm.wait(number, directory)
    assert (job.state, job.status) == ("COMPLETED", 0), job.output
    assert "of 30 epochs, kept in" in job.output
    assert "OK: training on 2 ranks equals training in one process" in job.output
    assert not (directory / "digits.npz.stop").exists()


@pytest.mark.parametrize("start", STARTS)
def test_doctor_finds_nothing(slurm: Slurm, directory: Path, start: str) -> None:
    job = ran(slurm, directory, "doctor.sbatch", "--nodes=4", "--ntasks-per-node=1", env={"START": start})
    assert (job.state, job.status) == ("COMPLETED", 0), job.output
    assert "0 wrong" in job.output


@pytest.mark.parametrize("plugin", ["none", *(["pmi2"] if OPENMPI else [])])
def test_doctor_finds_singletons(slurm: Slurm, directory: Path, plugin: str) -> None:
    """The wrong --mpi: every process is rank 0 of 1, computes alone and ends with status 0."""
    env = {"START": f"srun --mpi={plugin}"}
    job = ran(slurm, directory, "doctor.sbatch", "--nodes=2", "--ntasks-per-node=2", env=env)
    assert (job.state, job.status) == ("FAILED", 1), job.output
    assert "MPI.COMM_WORLD has 1 process, but the launcher started 4 (SLURM_STEP_NUM_TASKS=4)" in job.output
    assert f"srun --mpi={'pmix' if OPENMPI else 'pmi2'}" in job.output


def test_doctor_finds_a_slow_link(slurm: Slurm, directory: Path) -> None:
    slurm.hosts.limit("node2", "100mbit")
    try:
        job = ran(slurm, directory, "doctor.sbatch", "--nodes=4", "--ntasks-per-node=1")
    finally:
        slurm.hosts.limit("node2", "1gbit")
    # All ranks end with status 1; of one that srun ended first (--kill-on-bad-exit) it is 128 + SIGTERM.
    assert (job.state, job.status in (1, 143)) == ("FAILED", True), job.output
    assert "the link of node2 is slow" in job.output
    assert "1 wrong, 0 to note" in job.output


def test_a_lost_rank_ends_the_job(slurm: Slurm, directory: Path) -> None:
    """Without --kill-on-bad-exit the others would wait until the time limit."""
    program = directory / "lost.py"
    program.write_text(
        "import os, signal, numpy as np, hpccoll\n"
        "from mpi4py import MPI\n"
        "comm = hpccoll.Communicator(MPI.COMM_WORLD)\n"
        "comm.Barrier()\n"
        "if comm.rank == 1: os.kill(os.getpid(), signal.SIGKILL)\n"
        "comm.Allreduce(np.ones(4), np.empty(4))\n"
    )
    script = directory / "lost.sbatch"
    script.write_text(f"#!/bin/bash\n$START {sys.executable} {program}\n")
    number = slurm.submit(
        ["--nodes=2", "--ntasks-per-node=1", "--output=%x-%j.out", str(script)],
        env={"START": STARTS[0]},
        cwd=directory,
    )
    job = slurm.wait(number, directory, timeout_s=30.0)
    assert job.state == "FAILED"
    assert job.status not in (0, None)
