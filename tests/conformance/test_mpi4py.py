"""mpi4py's own tests pass on our communicators, and all their collective calls run on our plans."""

from __future__ import annotations

import pytest

from tests.conformance.rows import ROW_LIMIT_S, Finished, Row, run_mpi4py
from tests.support.launch import run_ranks

pytestmark = [
    pytest.mark.slow,
    pytest.mark.timeout(ROW_LIMIT_S + 200),  # fetching may take its time too
    pytest.mark.usefixtures("mpi4py_sources"),
]

# As many as the modules of mpi4py 4.1.2 hold.
TESTS = 606
# Two of them with small payloads travelling with the agreement check, as they do by default.
ROWS = (
    Row(2, "", 0),
    Row(3),
    Row(4, "", 0),
    Row(4, "2+2"),
    Row(4, "3+1", 0),
    Row(4, "cyclic:2+2", 0),
)


@pytest.mark.parametrize("row", ROWS, ids=lambda row: str(row).replace(" ", "_"))
def test_all_pass_on_plans(row: Row) -> None:
    finished = run_mpi4py(row)
    assert not finished.wrong, finished.output
    assert finished.result.returncode == 0, finished.output
    assert finished.numbers["tests"] == TESTS
    if "MPICH" in finished.numbers["library"]:  # the others lack functions, which the tests know
        assert finished.numbers["skipped"] == []
    assert finished.numbers["calls"] == finished.numbers["on_plans"] > 100_000


# As many as the modules with buffers hold; some are of MPI alone.
CUPY_TESTS = 478
CUPY_SKIPPED = 9


@pytest.mark.usefixtures("cupy_on_devices")
def test_with_arrays_of_cupy() -> None:
    finished = run_mpi4py(Row(2, cupy=True))
    assert not finished.wrong, finished.output
    assert finished.result.returncode == 0, finished.output
    numbers = finished.numbers
    assert numbers["tests"] == CUPY_TESTS
    assert len(numbers["skipped"]) == CUPY_SKIPPED
    assert numbers["calls"] == numbers["on_plans"] > numbers["on_devices"] > 2 * numbers["over_host"] > 0


def sabotaged(statement: str, *names: str) -> Finished:
    """A run in which `statement` has changed hpccoll."""
    code = f"""
import hpccoll, runpy, sys
from mpi4py import MPI
{statement}
sys.argv[1:] = {names!r}
runpy.run_module("tests.conformance.run_mpi4py", run_name="__main__", alter_sys=True)
"""
    return Finished(run_ranks(2, ["-c", code], timeout_s=60), {})


ALLREDUCE = "test_cco_buf.TestCCOBufWorldDup.testAllreduce"


def test_a_call_that_does_not_run_on_a_plan_is_seen() -> None:
    finished = sabotaged("hpccoll.Communicator.Allreduce = MPI.Intracomm.Allreduce", ALLREDUCE)
    assert finished.result.returncode == 1, finished.output
    assert "WRONG on rank 1: allreduce: " in finished.output
    assert "calls, 0 on plans" in finished.output
    assert "failed:" not in finished.output


def test_a_wrong_result_is_seen() -> None:
    nothing = "hpccoll.Communicator.Allreduce = lambda self, *buffers: None"
    finished = sabotaged(nothing, ALLREDUCE)
    assert finished.result.returncode == 1, finished.output
    assert f"WRONG on rank 1: failed: {ALLREDUCE}" in finished.output
    assert "AssertionError" in finished.output
