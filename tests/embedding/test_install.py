"""Our communicator in the place of MPI.COMM_WORLD: `python -m hpccoll`, `hpccoll.install()`, limits."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.support.launch import REPOSITORY, Result, run_ranks

pytestmark = pytest.mark.timeout(120)

# A program of its own: nothing in it knows of hpccoll.
PLAIN = """
import pickle, sys
import numpy as np
from mpi4py import MPI
from mpi4py.MPI import COMM_WORLD as taken

comm = MPI.COMM_WORLD
total = np.empty(1000)
comm.Allreduce(np.full(1000, comm.rank + 1.0), total)
half = comm.Split(comm.rank % 2)
everybody = half.allgather(comm.rank)
told = comm.bcast({"comm": comm, "word": sys.argv[1]}, root=comm.size - 1)
line = comm.Create_cart([comm.size])
if comm.rank == 0:
    kinds = {type(one).__name__ for one in (comm, half, taken, told["comm"], line)}
    print(total[0], everybody, told["word"], sorted(kinds))
"""


def ran(ranks: int, *arguments: str, env: dict[str, str] | None = None) -> Result:
    return run_ranks(ranks, arguments, timeout_s=60.0, env=env)


@pytest.fixture
def script(tmp_path: Path) -> str:
    file = tmp_path / "program.py"
    file.write_text(PLAIN)
    return str(file)


def test_a_script_as_it_is(script: str) -> None:
    plain, ours = ran(3, script, "word"), ran(3, "-m", "hpccoll", script, "word")
    assert plain.returncode == ours.returncode == 0, ours.stderr
    assert plain.stdout == "6.0 [0, 2] word ['Cartcomm', 'Intracomm']\n"
    assert ours.stdout == "6.0 [0, 2] word ['CartCommunicator', 'Communicator']\n"


def test_code_and_modules(script: str) -> None:
    for how in (("-c", PLAIN), ("-m", Path(script).stem)):
        done = ran(2, "-m", "hpccoll", *how, "word", env={"PYTHONPATH": str(Path(script).parent)})
        assert done.stdout == "3.0 [0] word ['CartCommunicator', 'Communicator']\n", done.stderr


def test_a_whole_program() -> None:
    """The heat solver as mpi4py's users write it: same steps, same bits of the result."""
    program = [str(REPOSITORY / "examples" / "heat.py"), "--plain", "--size", "24", "20"]
    plain, ours = ran(4, *program), ran(4, "-m", "hpccoll", *program, env={"HPCCOLL_LAYOUT": "2+2"})
    assert plain.returncode == ours.returncode == 0, ours.stderr
    found = [[line for line in one.stdout.splitlines() if "sha256" in line] for one in (plain, ours)]
    assert found[0] == found[1] != []


def test_executors_of_mpi4py() -> None:
    code = (
        "from mpi4py import MPI\nfrom mpi4py.futures import MPICommExecutor\n"
        "with MPICommExecutor(MPI.COMM_WORLD, root=0) as executor:\n"
        "    if executor is not None:\n"
        "        print(sum(executor.map(abs, range(-10, 10))))\n"
    )
    done = ran(3, "-m", "hpccoll", "-c", code)
    assert (done.returncode, done.stdout) == (0, "100\n"), done.stderr


def test_executors_that_a_server_runs(tmp_path: Path) -> None:
    """Workers that are ranks of the job have our world; those that MPI would spawn would not."""
    script = tmp_path / "pool.py"
    script.write_text(
        "from mpi4py import MPI\nfrom mpi4py.futures import MPIPoolExecutor\n"
        "def work(number): return type(MPI.COMM_WORLD).__name__, number * number\n"
        "if __name__ == '__main__':\n"
        "    with MPIPoolExecutor() as pool:\n"
        "        print(sorted(pool.map(work, range(3))))\n"
    )
    done = ran(3, "-m", "hpccoll", "-m", "mpi4py.futures", str(script))
    assert done.returncode == 0, done.stderr
    assert done.stdout == "[('Communicator', 0), ('Communicator', 1), ('Communicator', 4)]\n"


def test_what_was_taken_before_stays_plain() -> None:
    code = (
        "import copy, pickle\n"
        "from mpi4py import MPI\nfrom mpi4py.MPI import COMM_WORLD as taken\n"
        "def program(comm=MPI.COMM_WORLD): return comm\n"
        "import hpccoll\n"
        "ours = hpccoll.install(layout='1+1')\n"
        "assert MPI.COMM_WORLD is ours is hpccoll.install() is hpccoll.install(layout='1+1')\n"
        "assert ours.node_count == 2\n"
        "assert type(taken) is type(program()) is MPI.Intracomm\n"
        "assert taken == ours and program() == ours\n"
        "for one in (taken, ours):\n"
        "    assert pickle.loads(pickle.dumps(one)) is ours is copy.copy(one)\n"
        "assert pickle.loads(pickle.dumps(MPI.COMM_SELF)) is MPI.COMM_SELF\n"
        "peer = 1 - ours.rank\n"
        "assert taken.sendrecv(ours.rank, peer) == peer if ours.rank else ours.sendrecv(0, 1) == 1\n"
        "for wrong in ({'layout': '2'}, {'nonsense': 1}):\n"
        "    try: hpccoll.install(**wrong)\n"
        "    except hpccoll.UsageError as error: assert 'layout' in str(error)\n"
        "    else: raise AssertionError(wrong)\n"
        "print('good')\n"
    )
    done = ran(2, "-c", code)
    assert (done.returncode, done.stdout) == (0, "good\ngood\n"), done.stderr


def test_a_wrong_option() -> None:
    for code in (
        "import hpccoll; hpccoll.install(nonsense=1)",
        "import hpccoll; hpccoll.install(timeout_s=-1)",
    ):
        done = ran(1, "-c", f"{code}\n")
        assert done.returncode != 0
        assert "UsageError" in done.stderr
    done = ran(1, "-m", "hpccoll", "-c", "print('ran')", env={"HPCCOLL_TIMEOUT_S": "never"})
    assert done.returncode != 0
    assert "HPCCOLL_TIMEOUT_S" in done.stderr
    assert "ran" not in done.stdout


def test_an_exception_ends_the_job() -> None:
    code = (
        "from mpi4py import MPI\nif MPI.COMM_WORLD.rank: raise KeyError('lost')\nMPI.COMM_WORLD.Barrier()\n"
    )
    done = ran(2, "-m", "hpccoll", "-c", code)
    assert done.returncode != 0
    assert not done.timed_out
    assert "KeyError: 'lost'" in done.stderr
