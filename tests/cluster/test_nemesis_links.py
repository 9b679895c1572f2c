"""Random cuts of links between hosts: the promises of docs/reliability.md are kept."""

from __future__ import annotations

import pytest

from tests.faults.nemesis_links import judged, schedule

pytestmark = [pytest.mark.cluster, pytest.mark.timeout(120)]

SEED = 7


@pytest.mark.parametrize("number", range(12))
def test_a_random_cut(number: int) -> None:
    plan = schedule(SEED, number)
    assert judged(plan) == [], plan
