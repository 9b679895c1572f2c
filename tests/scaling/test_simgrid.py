"""Our simulation beside SimGrid's: the same plan, replayed as its actors on the same platform."""

from __future__ import annotations

import pytest

from benchmarks.simgrid.__main__ import CASES, LARGE, Case
from benchmarks.simgrid.case import available

WITHIN = 0.10
needs_simgrid = pytest.mark.skipif(available() is not None, reason=str(available()))


@needs_simgrid
@pytest.mark.timeout(300)
@pytest.mark.parametrize("case", CASES, ids=str)
def test_against_simgrid(case: Case) -> None:
    ours, theirs = case.times_s()
    assert ours == pytest.approx(theirs, rel=WITHIN)


@needs_simgrid
@pytest.mark.slow
@pytest.mark.timeout(600)
@pytest.mark.parametrize("case", LARGE, ids=str)
def test_against_simgrid_on_up_to_64_ranks(case: Case) -> None:
    ours, theirs = case.times_s()
    assert ours == pytest.approx(theirs, rel=WITHIN)
