"""Medians, intervals, what slows a round; the bar and the time left; whether a choice was good."""

from __future__ import annotations

import io
import math

import numpy as np
import pytest

from hpccoll.cli.bench.choice import choice_lines, is_good, judge
from hpccoll.cli.bench.operations import OPERATIONS
from hpccoll.cli.bench.results import Case, Half
from hpccoll.cli.bench.results import Row as BenchRow
from hpccoll.cli.bench.timing import Pace
from hpccoll.cli.tune.progress import Progress, time_left
from hpccoll.tuning.links import Link, for_model, pairs_of
from hpccoll.tuning.statistics import median_interval, ratio_interval, without_rounds

CHANCE = np.random.default_rng(7)


def test_an_interval_holds_the_median_in_most_runs() -> None:
    inside = 0
    for _ in range(200):
        sample = np.exp(CHANCE.normal(0.0, 0.3, 15))
        middle, low, high = median_interval(sample)
        assert low <= middle <= high
        inside += low <= 1.0 <= high  # the median of what is drawn from
    assert 170 <= inside <= 199  # 190 are promised


def test_the_same_times_have_the_same_interval() -> None:
    sample = CHANCE.uniform(1, 2, 15)
    assert median_interval(sample) == median_interval(sample.copy())
    assert median_interval(np.array([3.0])) == (3.0, 3.0, 3.0)
    assert median_interval(np.array([3.0, math.nan])) == (3.0, 3.0, 3.0)


def test_what_slows_a_whole_round_is_taken_out() -> None:
    base = np.array([10.0, 12.0, 40.0])
    of_round = CHANCE.uniform(1, 5, 15)
    times = of_round[:, None] * base
    _, low, high = median_interval(times[:, 0])
    assert high > 1.5 * low
    cleaned = without_rounds(times)
    assert np.allclose(cleaned / cleaned[0], 1.0)
    assert np.allclose(cleaned[0] / cleaned[0, 0], base / base[0])


def test_who_left_early_is_cleaned_by_the_others() -> None:
    times = CHANCE.uniform(1, 5, 15)[:, None] * np.array([10.0, 12.0, 90.0])
    times[3:, 2] = math.nan
    cleaned = without_rounds(times)
    assert np.allclose(cleaned[:3, 2] / cleaned[0, 2], 1.0)
    assert np.isnan(cleaned[3:, 2]).all()
    alone = times[:, :1]
    assert (without_rounds(alone) == alone).all()


def test_a_ratio_of_the_same_rounds() -> None:
    base = CHANCE.uniform(1, 2, 25)
    assert ratio_interval(1.2 * base, base) == pytest.approx((1.2, 1.2, 1.2))
    ratio, low, high = ratio_interval(CHANCE.uniform(1, 2, 25), base)
    assert low < ratio < high


def test_the_hopeless_take_part_in_the_first_rounds_only() -> None:
    pace = Pace(15, 2e-3)
    assert pace.rounds_of(1e-5, 1e-5) == pace.rounds_of(3.9e-5, 1e-5) == 15
    assert pace.rounds_of(4.1e-5, 1e-5) == pace.FEW
    assert (pace.calls(1e-3), pace.calls(1.0), pace.calls(1e-12)) == (2, 1, pace.MOST_CALLS)


# --- progress -----------------------------------------------------------------------------------


def test_the_time_left_is_by_what_those_done_have_taken() -> None:
    now = [0.0]
    stream = io.StringIO()
    progress = Progress(stream, 100.0, lambda: now[0])
    now[0] = 50.0  # twice as slow as expected
    progress.done(25.0, "a quarter")
    assert stream.getvalue() == "[######..................]  25 %, 2 min 30 s left  a quarter\n"
    progress.done(75.0, "the rest")
    assert "100 %, 0 s left" in stream.getvalue()
    Progress(None, 0.0).done(1.0, "on other ranks nothing is said")


def test_on_a_terminal_one_line_is_used() -> None:
    class Terminal(io.StringIO):
        def isatty(self) -> bool:
            return True

    stream = Terminal()
    progress = Progress(stream, 2.0)
    progress.done(1.0, "one")
    progress.say("a line")
    progress.done(1.0, "two")
    assert stream.getvalue().count("\n") == 1
    assert stream.getvalue().count("\r") == 3


def test_times_in_words() -> None:
    assert [time_left(one) for one in (0.4, 59, 61, 3600, 7500)] == [
        "0 s", "59 s", "1 min 1 s", "1 h 0 min", "2 h 5 min"
    ]  # fmt: skip


# --- links --------------------------------------------------------------------------------------


def test_neighbours_meet_and_nobody_twice() -> None:
    assert pairs_of(((0, 1), (2, 3))) == [(0, 1), (2, 3)]
    assert pairs_of(((0, 4, 8, 12), (1, 5, 9))) == [(0, 4), (8, 12), (1, 5)]
    assert pairs_of(((0,), ())) == []


def test_what_the_model_takes_of_links() -> None:
    node, leaders, rail = Link("NODE", 2, 1.0, 5.0), Link("LEADERS", 1, 20.0, 1.0), Link("RAIL", 2, 22.0, 1.2)
    assert for_model([node, leaders, rail]) == {
        "message_latency_us": 1.0, "message_gbs": 5.0, "network_latency_us": 20.0, "network_gbs": 1.2
    }  # fmt: skip
    assert for_model([node]) == {"message_latency_us": 1.0, "message_gbs": 5.0}
    assert for_model([leaders])["network_gbs"] == 1.0


# --- was it a good choice -----------------------------------------------------------------------


def row(plan: str, rounds_us: list[float], *, selected: bool = False, nbytes: int = 64) -> BenchRow:
    case = Case(OPERATIONS["allreduce"], "float", "sum", -1, nbytes // 4, nbytes)
    half = Half(sum(rounds_us) / len(rounds_us), 0.0, 0.0, 0.0, 0, None, tuple(rounds_us))
    return BenchRow(case, half, None, plan, plan, selected, None)


STEADY = [10.0, 10.1, 9.9, 10.0, 10.05, 9.95, 10.0, 10.1, 9.9, 10.0, 10.0, 10.0, 10.1, 9.9, 10.0]


def test_a_good_choice() -> None:
    rows = [
        row("flat", [1.02 * one for one in STEADY]),
        row("ring", STEADY, selected=True),
        row("mpi", [1.0] * 15),
    ]
    judged = judge(rows)
    (one,) = judged
    assert (one.best.plan, one.plan) == ("ring", "ring")
    assert one.best.ratio == 1.0
    assert one.flat is not None
    assert one.flat.ratio == pytest.approx(1 / 1.02, rel=0.01)
    assert is_good(judged, 5)
    assert list(choice_lines(judged, 5)) == [
        "# Choice within 5 %, or its 95 % interval: of the best plan 1 of 1, of flat 1 of 1"
    ]


def test_a_bad_choice() -> None:
    rows = [row("flat", STEADY), row("tree", [0.8 * one for one in STEADY])]
    rows += [row("ring", [1.2 * one for one in STEADY], selected=True)]
    rows += [row("ring", STEADY, selected=True, nbytes=128), row("tree", STEADY, nbytes=128)]
    judged = judge(rows)
    assert not is_good(judged, 5)
    assert is_good(judged, 60)
    lines = list(choice_lines(judged, 5))
    assert lines[0] == "# Choice within 5 %, or its 95 % interval: of the best plan 1 of 2, of flat 0 of 1"
    assert lines[1].startswith(
        "#  slower: 64 B float out of place: ring takes 1.50 (1.50 to 1.50) times tree"
    )
    assert lines[2].endswith("times flat")


def test_what_the_rounds_cannot_tell_is_not_blamed() -> None:
    noisy = [10.0, 30.0, 8.0, 50.0, 9.0, 11.0, 40.0]
    assert is_good(judge([row("tree", STEADY[:7]), row("ring", noisy, selected=True)]), 5)


def test_calls_without_elements_are_not_judged() -> None:
    assert judge([row("tree", STEADY, nbytes=0), row("ring", [9.0] * 15, selected=True, nbytes=0)]) == []


def test_too_few_rounds_are_not_judged() -> None:
    assert judge([row("tree", [1.0] * 4), row("ring", [9.0] * 4, selected=True)]) == []
    assert list(choice_lines([], 5)) == []
