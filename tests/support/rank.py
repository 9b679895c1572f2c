"""One test process under the runner: `python -m tests.support.rank FOLDER RANKS [PYTEST ARGUMENT ...]`.

All that it says goes to files in FOLDER: its events, its output, its stacks when asked for. RANKS is 0 for
tests without MPI. The exit status is 0 whatever the outcome of the tests; another status means that pytest
itself failed.
"""

from __future__ import annotations

import faulthandler
import os
import sys
from collections.abc import Sequence
from pathlib import Path

import pytest

from tests.support.lockstep import STACK_SIGNAL
from tests.support.record import output_file, stacks_file

HARMLESS = (pytest.ExitCode.OK, pytest.ExitCode.TESTS_FAILED, pytest.ExitCode.NO_TESTS_COLLECTED)


def main(arguments: Sequence[str]) -> int:
    """Run pytest in this process."""
    folder, ranks = Path(arguments[0]), int(arguments[1])
    rank = world_rank(ranks) if ranks else 0
    descriptor = os.open(output_file(folder, rank), os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o600)
    sys.stdout.flush()
    os.dup2(descriptor, 1)
    os.dup2(descriptor, 2)
    # The file is opened now: a rank out of descriptors must still be able to say where it is.
    with stacks_file(folder, rank).open("w") as stacks:
        faulthandler.register(STACK_SIGNAL, file=stacks, all_threads=True)
        status = pytest.main([*arguments[2:], f"--record={folder}", f"--basetemp={folder / f'tmp-{rank}'}"])
        faulthandler.unregister(STACK_SIGNAL)
    return 0 if status in HARMLESS else int(status)


def world_rank(ranks: int) -> int:
    """This rank.

    A launcher of another MPI than mpi4py's starts `ranks` worlds of one rank each.
    """
    from mpi4py import MPI

    if MPI.COMM_WORLD.size != ranks:
        library = MPI.Get_library_version().splitlines()[0].strip("\0 ")
        sys.exit(f"mpiexec started {ranks} processes, but mpi4py ({library}) sees {MPI.COMM_WORLD.size}")
    return MPI.COMM_WORLD.rank


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
