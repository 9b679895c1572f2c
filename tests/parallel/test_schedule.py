"""The order of a stage's passes: all of them, no deadlock, few kept, the bubble that the formula says."""

from __future__ import annotations

import pytest

from hpccoll.errors import UsageError
from hpccoll.parallel.pipeline import BACKWARD, FORWARD, Action, bubble, deadlock, one_forward_one_backward

CASES = [(stages, micro) for stages in range(1, 9) for micro in range(1, 12)]


def schedules(stages: int, micro_batches: int) -> list[tuple[Action, ...]]:
    return [one_forward_one_backward(stages, stage, micro_batches) for stage in range(stages)]


@pytest.mark.parametrize(("stages", "micro"), CASES)
def test_every_pass_once_in_order_and_few_are_kept(stages: int, micro: int) -> None:
    for stage, actions in enumerate(schedules(stages, micro)):
        for kind in (FORWARD, BACKWARD):
            assert [one.micro_batch for one in actions if one.kind == kind] == list(range(micro))
        kept, most = 0, 0
        for one in actions:
            kept += 1 if one.kind == FORWARD else -1
            assert kept >= 0  # a micro-batch comes back after it went
            most = max(most, kept)
        assert most == min(stages - stage, micro)


@pytest.mark.parametrize(("stages", "micro"), CASES)
def test_no_stage_waits_for_ever(stages: int, micro: int) -> None:
    assert deadlock(schedules(stages, micro)) == ""


def test_a_deadlock_is_seen() -> None:
    swapped = schedules(3, 4)
    swapped[1] = (swapped[1][2], *swapped[1][:2], *swapped[1][3:])  # the way back before the way there
    assert "stage 1 waits in Action(kind='backward', micro_batch=0)" in deadlock(swapped)


@pytest.mark.parametrize(("stages", "micro"), CASES)
def test_the_bubble_is_the_formula(stages: int, micro: int) -> None:
    """All passes take one unit: the last stage to end does so after 2 (m + p - 1)."""
    if micro < stages:
        return
    actions = schedules(stages, micro)
    ended: dict[tuple[int, Action], int] = {}
    place, clock = [0] * stages, [0] * stages
    while any(place[stage] < len(actions[stage]) for stage in range(stages)):
        for stage in range(stages):
            if place[stage] == len(actions[stage]):
                continue
            one = actions[stage][place[stage]]
            other = stage - 1 if one.kind == FORWARD else stage + 1
            if 0 <= other < stages and (other, one) not in ended:
                continue
            clock[stage] = max(clock[stage], ended.get((other, one), 0)) + 1
            ended[stage, one] = clock[stage]
            place[stage] += 1
    assert max(clock) == 2 * (micro + stages - 1)
    assert max(clock) - 2 * micro == pytest.approx(bubble(stages, micro) * 2 * micro)


@pytest.mark.parametrize("arguments", [(2, 2, 4), (2, -1, 4), (2, 0, 0), (0, 0, 1)])
def test_a_stage_that_is_none(arguments: tuple[int, int, int]) -> None:
    with pytest.raises(UsageError, match="there is none"):
        one_forward_one_backward(*arguments)
