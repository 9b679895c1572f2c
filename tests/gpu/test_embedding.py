"""A program of others in CuPy that knows nothing of hpccoll, run under it: `python -m hpccoll`."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.support.launch import run_ranks

pytestmark = pytest.mark.timeout(150)

# Plain mpi4py with arrays on devices: without a CUDA-aware MPI it reads device memory as its own, and dies.
PROGRAM = """
import cupy as cp
from mpi4py import MPI

comm = MPI.COMM_WORLD
given = cp.arange(1000, dtype=cp.float32) * (comm.rank + 1)
total = cp.empty_like(given)
comm.Allreduce(given, total, op=MPI.SUM)
parts = cp.empty((comm.size, 4), dtype=cp.int64)
comm.Allgather(cp.full(4, comm.rank, dtype=cp.int64), parts)
line = comm.Create_cart([comm.size], periods=[True])
before, after = line.Shift(0, 1)
halo = cp.empty(8)
line.Sendrecv(cp.full(8, float(comm.rank)), dest=after, recvbuf=halo, source=before)
whole = comm.size * (comm.size + 1) // 2
assert (total.get() == cp.arange(1000).get() * whole).all()
assert parts.get()[:, 0].tolist() == list(range(comm.size))
assert halo.get().tolist() == [float(before)] * 8
comm.Barrier()
if comm.rank == 0:
    print(type(comm).__name__, type(total).__module__.split(".")[0])
"""


def test_a_cupy_program_as_it_is(tmp_path: Path) -> None:
    script = tmp_path / "solver.py"
    script.write_text(PROGRAM)
    done = run_ranks(2, ["-m", "hpccoll", str(script)], timeout_s=100.0)
    assert (done.returncode, done.stdout) == (0, "Communicator cupy\n"), done.stderr
