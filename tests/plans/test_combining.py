"""What the cost model says a rank combines is what the lowered programs combine."""

from __future__ import annotations

import pytest

from hpccoll.plans.collective import Collective
from hpccoll.plans.flat import one_step
from hpccoll.plans.lower import ALGORITHMS, lower
from hpccoll.plans.program import Combine
from hpccoll.plans.spans import split_evenly
from hpccoll.plans.steps import Kind, Plan
from hpccoll.topology.layout import Layout

COMBINING = [
    (name, kind)
    for name, algorithm in ALGORITHMS.items()
    for kind in sorted(algorithm.kinds, key=str)
    if kind.reduces
]


@pytest.mark.parametrize(("name", "kind"), COMBINING)
@pytest.mark.parametrize("size", [1, 2, 3, 4, 5, 7, 8, 12])
def test_elements_combined_by_the_busiest_rank(name: str, kind: Kind, size: int) -> None:
    layout = Layout.parse("+".join("1" * size))
    count = 840
    collective = Collective(kind.value, size, count)
    plan = Plan(name, collective, layout, one_step(collective, layout, name), count)
    counted = max(
        sum(
            one.target.stop - one.target.start
            for one in lower(plan, rank).operations
            if isinstance(one, Combine)
        )
        for rank in range(size)
    )
    lengths = [count] * size if kind is Kind.REDUCE_SCATTER else split_evenly(count, size)
    assert ALGORITHMS[name].combines(kind, lengths) == counted
