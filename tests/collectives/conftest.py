"""Communicators that the tests of one module share, one for each set of options."""

from __future__ import annotations

from collections.abc import Callable, Generator
from typing import Any

import pytest
from mpi4py import MPI

import hpccoll

Make = Callable[..., hpccoll.Communicator]
FAILED = pytest.StashKey[bool]()


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport(item: pytest.Item) -> Generator[None, pytest.TestReport, pytest.TestReport]:
    """Let fixtures know whether the test failed."""
    report = yield
    if report.when == "call":
        item.stash[FAILED] = report.failed
    return report


@pytest.fixture(scope="module")
def _opened() -> Generator[dict[tuple[tuple[str, Any], ...], hpccoll.Communicator], None, None]:
    opened: dict[tuple[tuple[str, Any], ...], hpccoll.Communicator] = {}
    yield opened
    for comm in opened.values():
        comm.close()


@pytest.fixture
def communicator(
    request: pytest.FixtureRequest, _opened: dict[tuple[tuple[str, Any], ...], hpccoll.Communicator]
) -> Generator[Make, None, None]:
    """`communicator(**options)`: one over the world, kept for the other tests of the module.

    When a test fails on any rank the ranks may be out of step: what it used is not used again.
    """
    used = set()

    def make(**options: Any) -> hpccoll.Communicator:
        key = tuple(sorted(options.items()))
        if key not in _opened:
            _opened[key] = hpccoll.Communicator(MPI.COMM_WORLD, **options)
        used.add(key)
        return _opened[key]

    yield make
    if used and MPI.COMM_WORLD.allreduce(request.node.stash.get(FAILED, True), op=MPI.LOR):
        for key in used:
            _opened.pop(key, None)
