"""Was this program started as the launcher meant it?"""

from __future__ import annotations

from collections.abc import Mapping

_FLAGS = {
    "MPICH": "MPICH and Intel MPI: srun --mpi=pmi2",
    "Open MPI": "Open MPI: srun --mpi=pmix",
}


def launch_warning(environ: Mapping[str, str], world_size: int, library: str = "") -> str | None:
    """What to tell the user when the launcher started more processes than MPI.COMM_WORLD has.

    Started with the wrong flag, or with the launcher of another MPI, every process is rank 0 of 1 and
    computes alone, with exit status 0.

    Args:
        environ: the environment of one process, as `os.environ`.
        world_size: the size of MPI.COMM_WORLD in it.
        library: what MPI calls itself; unset: the advice covers all.

    Returns:
        The message; None when nothing is wrong, or nothing is known.

    """
    expected, witness = _expected_size(environ)
    if world_size >= expected or (witness.startswith("SLURM") and world_size > 1):
        return None
    processes = "1 process" if world_size == 1 else f"{world_size} processes"
    return (
        f"MPI.COMM_WORLD has {processes}, but the launcher started {expected} ({witness}={expected}): "
        f"they do not know of each other. {_advice(library, witness)}"
    )


def tasks_of_step(environ: Mapping[str, str]) -> int | None:
    """How many tasks srun has started, where it has started this process itself; None elsewhere."""
    tasks = _number(environ, "SLURM_STEP_NUM_TASKS")
    by_mpi = "OMPI_COMM_WORLD_SIZE" in environ or _number(environ, "PMI_SIZE") not in (-1, tasks)
    return tasks if tasks > 0 and "SLURM_STEP_ID" in environ and not by_mpi else None


def _expected_size(environ: Mapping[str, str]) -> tuple[int, str]:
    # The launcher's own variables come first: under mpiexec and mpirun the SLURM_ ones are those of
    # the daemon that started the ranks.
    for name in ("OMPI_COMM_WORLD_SIZE", "PMI_SIZE"):
        if _number(environ, name) > 0:
            return _number(environ, name), name
    if _inside_slurm_step(environ):
        for name in ("SLURM_STEP_NUM_TASKS", "SLURM_NTASKS"):
            if _number(environ, name) > 0:
                return _number(environ, name), name
    return 0, ""


def _inside_slurm_step(environ: Mapping[str, str]) -> bool:
    """Whether srun started this process.

    The shell of a batch script has SLURM_NTASKS, SLURM_PROCID=0 and SLURM_LOCALID=0 too, but no step
    (Slurm's setup_env leaves SLURM_STEP_ID out there), and one plain process in it is right.
    """
    return "SLURM_STEP_ID" in environ or _number(environ, "SLURM_PROCID") > 0


def _number(environ: Mapping[str, str], name: str) -> int:
    text = environ.get(name, "")
    return int(text) if text.isascii() and text.isdigit() else -1


def _advice(library: str, witness: str) -> str:
    if "Open MPI" in library:
        flags = [_FLAGS["Open MPI"]]
    elif "MPICH" in library or "Intel" in library:
        flags = [_FLAGS["MPICH"]]
    else:
        flags = list(_FLAGS.values())
    own = "the mpiexec of the MPI that mpi4py was built with"
    if witness == "OMPI_COMM_WORLD_SIZE":
        return f"Start it with {own} instead of Open MPI's mpirun"
    return f"Start it with {own}, or under Slurm ({'; '.join(flags)})"
