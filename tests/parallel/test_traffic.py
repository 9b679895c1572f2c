"""Bytes by level: those of the messages that lowered plans send, and the fewest where a transport decides."""

from __future__ import annotations

from collections import Counter

import pytest

from hpccoll.config import load
from hpccoll.errors import UsageError
from hpccoll.parallel.traffic import Forecast, Use, check_uses, level_between, plan_bytes, shift_bytes
from hpccoll.plans.catalogue import make_plan
from hpccoll.plans.collective import Collective
from hpccoll.plans.lower import lower
from hpccoll.plans.program import Send
from hpccoll.plans.steps import NATIVE, Plan
from hpccoll.topology.layout import Layout
from tests.plans.cases import COLLECTIVES, all_layouts, plans

ITEMSIZE = 8


def sent(plan: Plan) -> Counter[str]:
    """By all ranks' programs."""
    found: Counter[str] = Counter()
    for rank in range(plan.layout.size):
        for one in lower(plan, rank).operations:
            if isinstance(one, Send):
                elements = one.source.stop - one.source.start
                found[level_between(plan.layout, rank, one.peer)] += elements * ITEMSIZE
    return +found


@pytest.mark.parametrize("collective", COLLECTIVES)
def test_bytes_are_those_of_the_programs(collective: str) -> None:
    looked_at = 0
    for layout in all_layouts(4):
        for plan in plans(collective, layout, (7,), (3,)):
            if any(step.algorithm == NATIVE for step in plan.steps):
                continue
            assert plan_bytes(plan, ITEMSIZE) == sent(plan)
            looked_at += 1
    assert looked_at > 10


@pytest.mark.parametrize(
    ("collective", "bytes_of"),
    [
        ("allreduce", lambda n, count: 2 * (n - 1) * count),
        ("reduce_scatter", lambda n, count: (n - 1) * n * count),
        ("allgather", lambda n, count: (n - 1) * n * count),
        ("broadcast", lambda n, count: (n - 1) * count),
        ("alltoall", lambda n, count: n * (n - 1) * count),
    ],
)
def test_what_a_transport_moves_is_the_least_there_is(collective: str, bytes_of: object) -> None:
    for n in (2, 3, 4):
        plan = make_plan("flat", Collective(collective, n, 12), Layout.parse(str(n)), segment=100)
        assert plan_bytes(plan, ITEMSIZE) == {"NODE": bytes_of(n, 12) * ITEMSIZE}  # type: ignore[operator]


def test_levels() -> None:
    layout = Layout((0, 0, 0, 1), (0, 0, 1, 1))
    assert [level_between(layout, 0, other) for other in (1, 2, 3)] == ["NVLINK", "NODE", "network"]
    assert level_between(layout, 2, 3) == "NVLINK"  # a domain that spans nodes
    assert shift_bytes(layout, (0, 1, 2, 3), 5) == {"NVLINK": 10, "NODE": 5}


def test_a_payload_that_travels_with_the_agreement() -> None:
    layout = Layout.parse("2+2")
    plan = make_plan("one_shot", Collective("allreduce", 4, 2), layout, segment=4)
    # Each reads the other's 16 bytes; each leader sends its node's sum.
    assert plan_bytes(plan, ITEMSIZE) == {"NODE": 4 * 16, "network": 2 * 16}
    gathers = make_plan("one_shot", Collective("allgather", 4, 16), layout, segment=4)
    assert plan_bytes(gathers, 1) == {"NODE": 4 * 16, "network": 2 * 2 * 16}


def test_a_forecast_adds_up_groups_and_times() -> None:
    layout = Layout.parse("2+2+1")
    forecast = Forecast(layout, load())
    use = Use("tensor", "allreduce", 1 << 20, times=3)
    assert forecast.of(use, ((0, 1), (2, 3), (4,))) == {"NODE": 2 * 3 * 2 << 20}
    crossing = forecast.of(use, ((0, 2),))
    assert crossing == {"network": 3 * 2 << 20}
    assert forecast.of(Use("pipeline", "shift", 100, times=2), ((0, 1, 2),)) == {"NODE": 200, "network": 200}


def test_a_use_of_a_dimension_that_is_none() -> None:
    with pytest.raises(UsageError, match="a use names dimension 'depth'"):
        check_uses([Use("depth", "allreduce", 8)], ("tensor",))
    with pytest.raises(UsageError, match="a use names dimension 'depth'"):
        check_uses([Use("tensor", "allreduce", 8, at={"depth": 0})], ("tensor",))
    with pytest.raises(UsageError, match="a use names collective 'allred'"):
        check_uses([Use("tensor", "allred", 8)], ("tensor",))


def test_elements_that_are_rounded_between_nodes() -> None:
    layout = Layout.parse("2+2")
    call = Collective("allreduce", 4, 64)
    whole, rounded = (
        plan_bytes(make_plan("reduce_ring_broadcast", call, layout, segment=64, wire=wire), 4)
        for wire in ("", "bfloat16")
    )
    assert whole["NODE"] == rounded["NODE"] > 0
    assert whole["network"] == 2 * rounded["network"] > 0
