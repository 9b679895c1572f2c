"""pylops-mpi's own tests pass on our communicators exactly where they pass on MPI's."""

from __future__ import annotations

from collections import Counter

import pytest

from tests.conformance.rows import ROW_LIMIT_S, Finished, changed_outcomes, run_pylops
from tests.support.launch import Result

pytestmark = pytest.mark.timeout(2 * ROW_LIMIT_S + 200)


@pytest.mark.slow
@pytest.mark.usefixtures("pylops_mpi_sources")
def test_same_tests_pass() -> None:
    plain, ours = run_pylops(2, plain=True), run_pylops(2, plain=False)
    assert not plain.wrong, plain.output
    assert not ours.wrong, ours.output
    assert changed_outcomes(plain, ours) == []
    for outcomes in ours.numbers["outcomes"]:
        # The others need mpi4py-fft.
        assert Counter(outcomes.values())["passed"] >= 471
    assert ours.numbers["calls"] == ours.numbers["on_plans"] > 1000


def finished(*outcomes: dict[str, str]) -> Finished:
    return Finished(Result(0, "", "", 1.0, False), {"outcomes": list(outcomes), "wrong": []})


def test_a_change_on_one_rank_is_seen() -> None:
    before = {"a": "passed", "b": "failed"}
    plain = finished(before, before)
    assert changed_outcomes(plain, finished(before, before)) == []
    (change,) = changed_outcomes(plain, finished(before, {**before, "a": "failed"}))
    assert change.startswith("rank 1: a: passed with")
    assert len(changed_outcomes(plain, finished({"a": "passed"}, {**before, "b": "passed"}))) == 2
