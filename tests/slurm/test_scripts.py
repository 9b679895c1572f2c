"""The batch scripts of slurm/ on a real Slurm: sizes, layouts, results, and what goes wrong."""

from __future__ import annotations

import json
import re
from collections.abc import Callable
from pathlib import Path

import pytest

from hpccoll.scaling.study import read
from tests.slurm.conftest import SCRIPTS
from tests.support.launch import REPOSITORY, until
from tests.support.slurm import Job, Slurm
from tests.support.slurm_mpi import MPICH, OPENMPI, Mpi

pytestmark = [pytest.mark.cluster, pytest.mark.timeout(300)]

STARTS = [
    pytest.param(mpi, start, id=f"{mpi.flavour}, {start.split()[0]}")
    for mpi in (MPICH, OPENMPI)
    for start in (mpi.srun, mpi.launcher)
]
# Open MPI's ranks keep their core while they wait, and there are more ranks than cores: so few small calls.
FEW = {MPICH: "-b 1K -e 64K -f 8 -n 5", OPENMPI: "-b 1K -e 8K -f 8 -n 2"}


@pytest.mark.parametrize(("mpi", "start"), STARTS)
def test_allreduce(ran: Callable[..., Job], directory: Path, mpi: Mpi, start: str) -> None:
    nodes = 3 if mpi is MPICH else 2
    options = (f"--nodes={nodes}", "--ntasks-per-node=2")
    job = ran(mpi, "allreduce.sbatch", *options, START=start, SIZES=FEW[mpi])
    assert (job.state, job.status) == ("COMPLETED", 0), job.output
    layout = "3x2" if mpi is MPICH else "2+2"
    assert f"{2 * nodes} ranks: {nodes} nodes ({layout})" in job.output
    document = json.loads((directory / f"allreduce-{job.number}.json").read_text())
    assert document["layout"] == layout
    assert document["mpi_library"].startswith("MPICH" if mpi is MPICH else "Open MPI")
    assert {one["hostname"] for one in document["config"]["devices"]} == {f"node{n}" for n in range(nodes)}
    assert {1024, 8192} <= {one["size"] for one in document["results"]}
    assert all(one["out_of_place"]["nwrong"] == 0 for one in document["results"])


def test_uneven_nodes_over_a_chosen_network(ran: Callable[..., Job]) -> None:
    """UCX_NET_DEVICES is one of the variables of slurm/README.md; a name that is not there ends the job."""
    options = ("--nodes=2", "--ntasks=3", "--ntasks-per-node=2")
    job = ran(MPICH, "allreduce.sbatch", *options, SIZES="-b 1K -e 1K -n 2", UCX_NET_DEVICES="eth0")
    assert (job.state, job.status) == ("COMPLETED", 0), job.output
    assert "3 ranks: 2 nodes (2+1)" in job.output
    job = ran(MPICH, "allreduce.sbatch", *options, UCX_NET_DEVICES="mlx5_9:1")
    assert job.state == "FAILED", job.output


def test_tasks_dealt_out_in_turn(ran: Callable[..., Job]) -> None:
    start = f"{MPICH.srun} --distribution=cyclic"
    options = ("--nodes=2", "--ntasks-per-node=2")
    job = ran(MPICH, "allreduce.sbatch", *options, SIZES="-b 1K -e 1K -n 2", START=start)
    assert (job.state, job.status) == ("COMPLETED", 0), job.output
    assert "4 ranks: 2 nodes (cyclic:2+2)" in job.output


def test_scaling(ran: Callable[..., Job], directory: Path) -> None:
    variables = {"SIZES": "-b 1K -e 64K -f 8", "OP": "allgather"}
    options = ("--nodes=3", "--ntasks-per-node=1")
    job = ran(MPICH, "scaling.sbatch", *options, **variables)
    assert (job.state, job.status) == ("COMPLETED", 0), job.output
    study = read(directory / "allgather-3-nodes.json")
    assert (study.node_counts, study.sizes, study.wrong) == ((1, 2, 3), (1024, 8192, 65536), 0)
    assert {one.layout for one in study.on(3)} == {"3x1"}
    report = directory / "allgather-3-nodes.json.report"
    assert {"index.html", "kept.png", "points.csv"} <= {one.name for one in report.iterdir()}
    again = ran(MPICH, "scaling.sbatch", *options, **variables)
    assert again.output.count("(from ") == 9  # it goes on from what there is


# Open MPI by mpirun alone: under srun nothing lies between the ranks and Slurm, as with MPICH.
@pytest.mark.parametrize(("mpi", "start"), [*STARTS[:2], STARTS[3]])
def test_training_stops_before_the_limit_and_goes_on(
    slurm: Slurm, directory: Path, submitted: Callable[..., int], mpi: Mpi, start: str
) -> None:
    """The signal before the time limit becomes a checkpoint, and the job is queued again, once."""
    file = directory / "digits.npz"
    program = f"python {REPOSITORY}/examples/train_digits.py --epochs 30"
    options = ("--nodes=2", "--ntasks-per-node=1")
    number = submitted(mpi, "train.sbatch", *options, START=start, TRAIN=program, CHECKPOINT=str(file))
    until(file.exists, 60.0)
    slurm.run(["scancel", "--batch", "--signal=USR1", str(number)], cwd=directory)
    until(lambda: slurm.shown(number).get("Restarts") == "1", 60.0)
    job = slurm.wait(number, directory)
    assert (job.state, job.status) == ("COMPLETED", 0), job.output
    assert "of 30 epochs, kept in" in job.output
    assert "OK: training on 2 ranks equals training in one process" in job.output
    assert not file.with_name("digits.npz.stop").exists()


@pytest.mark.parametrize("start", [MPICH.srun, MPICH.launcher])
def test_doctor_finds_nothing(ran: Callable[..., Job], start: str) -> None:
    job = ran(MPICH, "doctor.sbatch", "--nodes=4", "--ntasks-per-node=1", START=start)
    assert (job.state, job.status) == ("COMPLETED", 0), job.output
    assert "0 wrong" in job.output


@pytest.mark.parametrize(
    ("mpi", "plugin"),
    [(MPICH, "none"), (OPENMPI, "none"), (OPENMPI, "pmi2")],
    ids=lambda one: getattr(one, "flavour", one),
)
def test_doctor_finds_singletons(ran: Callable[..., Job], mpi: Mpi, plugin: str) -> None:
    """The wrong --mpi: every process is rank 0 of 1, computes alone and would end with status 0."""
    options = ("--nodes=2", "--ntasks-per-node=2")
    job = ran(mpi, "doctor.sbatch", *options, START=f"srun --mpi={plugin}")
    assert (job.state, job.status) == ("FAILED", 1), job.output
    told = " ".join(job.output.split())
    variable = "PMI_SIZE" if plugin == "pmi2" else "SLURM_STEP_NUM_TASKS"
    assert f"MPI.COMM_WORLD has 1 process, but the launcher started 4 ({variable}=4)" in told
    assert f"srun --mpi={mpi.plugin}" in told


def test_mpich_says_itself_that_it_does_not_speak_pmix(
    ran: Callable[..., Job], needs: Callable[[Mpi], None]
) -> None:
    needs(OPENMPI)  # there is pmix
    job = ran(MPICH, "doctor.sbatch", "--nodes=1", "--ntasks-per-node=2", START=OPENMPI.srun)
    assert job.state == "FAILED"
    assert "unsupported PMI version PMIx" in job.output


def test_doctor_finds_a_slow_link(slurm: Slurm, ran: Callable[..., Job]) -> None:
    slurm.hosts.limit("node2", "100mbit")
    try:
        job = ran(MPICH, "doctor.sbatch", "--nodes=4", "--ntasks-per-node=1")
    finally:
        slurm.hosts.limit("node2", "1gbit")
    # All ranks end with status 1; of one that srun ended first (--kill-on-bad-exit) it is 128 + SIGTERM.
    assert (job.state, job.status in (1, 143)) == ("FAILED", True), job.output
    assert "the link of node2 is slow" in job.output
    assert "1 wrong, 0 to note" in job.output


@pytest.mark.parametrize("mpi", [MPICH, OPENMPI], ids=lambda one: one.flavour)
def test_a_lost_rank_ends_the_job(
    slurm: Slurm, submitted: Callable[..., int], directory: Path, mpi: Mpi
) -> None:
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
    script.write_text(f"#!/bin/bash\n$START $VENV/bin/python {program}\n")
    number = submitted(mpi, script, "--nodes=2", "--ntasks-per-node=1", "--output=%x-%j.out")
    job = slurm.wait(number, directory, timeout_s=60.0)
    assert job.state == "FAILED"
    assert job.status != 0


def test_in_a_container(ran: Callable[..., Job], directory: Path) -> None:
    """The line for Apptainer, without its #, and with a stand-in that starts the command as it is."""
    stand_in = directory / "apptainer"
    stand_in.write_text(
        '#!/bin/bash\n[ "$1 $2 $3" = "exec --nv hpccoll.sif" ] || exit 9\n'
        'echo "in the container"; PATH=$APPTAINERENV_PREPEND_PATH:$PATH exec "${@:4}"\n'
    )
    stand_in.chmod(0o755)
    script = directory / "allreduce.sbatch"
    text, taken = re.subn(r"(?m)^#(export APPTAINERENV)", r"\1", (SCRIPTS / script.name).read_text())
    assert taken == 1
    script.write_text(text.replace("apptainer exec", f"{stand_in} exec"))
    job = ran(MPICH, script, "--nodes=2", "--ntasks-per-node=2", SIZES="-b 1K -e 1K -n 2")
    assert (job.state, job.status) == ("COMPLETED", 0), job.output
    assert job.output.count("in the container") == 8  # 4 ranks, twice
    assert "4 ranks: 2 nodes (2+2)" in job.output
