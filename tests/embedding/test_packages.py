"""Packages of others on our communicators: in the place of MPI.COMM_WORLD, and handed over."""

from __future__ import annotations

import re

import pytest

from tests.support.launch import REPOSITORY, Result, run_ranks

pytestmark = [pytest.mark.slow, pytest.mark.timeout(200)]

WAYS = {"plain": (), "in its place": ("-m", "hpccoll"), "handed over": ("--hand-over",)}


def ran(ranks: int, example: str, way: str, env: dict[str, str], *options: str) -> Result:
    """An example by one of the ways; with virtual nodes, which only ours notice."""
    words = WAYS[way]
    before, after = (words, ()) if words[:1] == ("-m",) else ((), words)
    program = [*before, str(REPOSITORY / "examples" / example), *after, *options]
    done = run_ranks(ranks, program, timeout_s=60.0, env={"HPCCOLL_LAYOUT": "3+1", **env})
    assert done.returncode == 0, done.stderr
    return done


def test_mpipartition(with_mpipartition: str) -> None:
    """The same particles to the last bit on each rank, by Alltoallv and Reduce on Cartesian communicators."""
    found = {}
    for way in WAYS:
        done = ran(4, "particles.py", way, {"PYTHONPATH": with_mpipartition}, "--count", "3000")
        kind, *found[way] = done.stdout.splitlines()
        assert ("CartCommunicator" in kind) is (way != "plain"), kind
    assert found["plain"][2] == "OK: each particle is on the rank that owns its place"
    assert found["plain"] == found["in its place"] == found["handed over"]


def test_pylops_mpi(with_pylops_mpi: dict[str, str]) -> None:
    """Least squares, with a sum by Allreduce in each step; numpy.linalg.lstsq is the judge."""
    for way in WAYS:
        done = ran(4, "least_squares.py", way, with_pylops_mpi)
        kind, error, verdict = done.stdout.splitlines()
        assert (" Communicator " in kind) is (way != "plain"), kind
        assert float(re.findall(r"\S+$", error)[0]) < 1e-8
        assert verdict == "OK: the least-squares solution"
