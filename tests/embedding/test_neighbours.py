"""Libraries in C and Fortran that take our communicators: the handle is the one that mpi4py has."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import sysconfig
from pathlib import Path

import mpi4py
import pytest

from tests.support.launch import environment, run_ranks

pytestmark = pytest.mark.timeout(150)

SOURCE = Path(__file__).with_name("neighbour.c")
PROGRAM = """
import ctypes, sys
from importlib.machinery import ExtensionFileLoader
from importlib.util import module_from_spec, spec_from_file_location

import numpy as np
from mpi4py import MPI

import hpccoll

loader = ExtensionFileLoader("neighbour", sys.argv[1])
spec = spec_from_file_location("neighbour", sys.argv[1], loader=loader)
neighbour = module_from_spec(spec)
loader.exec_module(neighbour)
library = ctypes.CDLL(sys.argv[1])
library.neighbour_sum.argtypes = [ctypes.c_void_p, ctypes.c_double, ctypes.POINTER(ctypes.c_double)]

world = hpccoll.Communicator(MPI.COMM_WORLD, layout="2+1")
half = world.Split(world.rank % 2)
line = world.Create_cart([world.size])
assert MPI.Comm.Compare(world, MPI.COMM_WORLD) == MPI.IDENT
assert world.handle == MPI.COMM_WORLD.handle and world == MPI.Comm.fromhandle(world.handle)
for comm in (world, half, line):
    mine, total, error = comm.rank + 0.5, np.empty(1), ctypes.c_int(-1)
    comm.Allreduce(np.full(1, mine), total)
    for _ in range(3):  # and ours before and after, on the same communicator
        found = ctypes.c_double()
        assert library.neighbour_sum(MPI._addressof(comm), mine, ctypes.byref(found)) == 0
        assert found.value == total[0], (comm, found)
        number, given, found = ctypes.c_int(comm.py2f()), ctypes.c_double(mine), ctypes.c_double()
        library.neighbour_sum_(*map(ctypes.byref, (number, given, found, error)))
        assert (found.value, error.value) == (total[0], 0)
        assert MPI.Comm.f2py(comm.py2f()) == comm
        assert neighbour.sum(comm, mine) == total[0]
        again = np.empty(1)
        comm.Allreduce(np.full(1, mine), again)
        assert again[0] == total[0]
try:
    neighbour.sum(None, 1.0)
except TypeError:  # so what it took above was taken for what it is
    good = world.reduce(1)
    if good is not None:
        print(good, "good")
"""


@pytest.fixture(scope="module")
def library(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The library, compiled for the MPI that the tests run on."""
    beside = str(Path(sys.executable).parent)
    mpicc = shutil.which("mpicc", path=beside) or shutil.which("mpicc")
    headers = Path(sysconfig.get_path("include"))
    if mpicc is None or shutil.which("cc") is None:
        pytest.skip("no mpicc, or no C compiler for it")
    if not (headers / "Python.h").exists():
        pytest.skip("no Python.h (Debian: apt install python3-dev)")
    built = tmp_path_factory.mktemp("neighbour") / f"neighbour{sysconfig.get_config_var('EXT_SUFFIX')}"
    folders = [f"-I{headers}", f"-I{mpi4py.get_include()}"]
    command = [mpicc, "-shared", "-fPIC", "-O1", *folders, str(SOURCE), "-o", str(built)]
    env = environment({"PATH": os.pathsep.join([beside, os.environ["PATH"]])})
    done = subprocess.run(command, env=env, capture_output=True, text=True, timeout=60, check=False)
    assert done.returncode == 0, done.stderr
    return built


@pytest.mark.parametrize("ranks", [1, 3])
def test_the_handle_is_the_same(library: Path, ranks: int) -> None:
    program = PROGRAM if ranks == 3 else PROGRAM.replace('layout="2+1"', 'layout="1"')
    done = run_ranks(ranks, ["-c", program, str(library)], timeout_s=60.0)
    assert (done.returncode, done.stdout) == (0, f"{ranks} good\n"), done.stderr
