"""Ragged calls of which a rank knows its own node's lengths: its program is that of one who knows all."""

from __future__ import annotations

import random
from collections.abc import Iterator
from dataclasses import replace

import pytest

from hpccoll.plans.catalogue import RECIPES, Recipe, make_plan
from hpccoll.plans.collective import LOCALLY_RAGGED, Collective
from hpccoll.plans.lower import lower
from hpccoll.plans.select import Tuning, possible
from hpccoll.plans.steps import Plan
from hpccoll.topology.layout import Layout
from tests.plans.cases import SEGMENT, all_layouts, ragged, text_of


def known_to(rank: int, call: Collective, layout: Layout) -> Collective:
    """What a rank knows of a call: the counts, rows and columns of its node, and as the root everything."""
    near = layout.nodes[layout.node(rank)]
    if call.name == "alltoall":
        columns = {
            target: tuple(call.gives[source][target] for source in range(call.size)) for target in near
        }
        return replace(call, gives={source: call.gives[source] for source in near}, takes=columns)
    if rank == call.root:
        return call
    assert call.counts is not None
    return replace(
        call, counts=tuple(count if other in near else 0 for other, count in enumerate(call.counts))
    )


def recipes(call: Collective, layout: Layout) -> Iterator[Recipe]:
    """Those that selection takes for such a call."""
    for recipe in RECIPES[call.name]:
        if recipe.exists(layout) and possible(recipe, call, layout, 1, Tuning()):
            yield recipe


def same_programs(plan: Plan, between: str | None) -> bool:
    call, layout = plan.collective, plan.layout
    for rank in range(layout.size):
        mine = make_plan(plan.name, known_to(rank, call, layout), layout, segment=SEGMENT, between=between)
        if lower(mine, rank) != lower(plan, rank):
            return False
    return True


@pytest.mark.parametrize("collective", sorted(LOCALLY_RAGGED))
def test_programs_from_what_a_rank_knows_are_those_from_everything(collective: str) -> None:
    chance = random.Random(collective)
    layouts = [layout for size in (1, 2, 3, 4) for layout in all_layouts(size)]
    layouts += [Layout.parse(text) for text in ("3x2", "cyclic:3x3", "4+1+3", "cyclic:3+1+2")]
    seen = set()
    for layout in layouts:
        call = ragged(collective, layout.size, chance, chance.randrange(layout.size), (0, 1, 3, 7))
        for recipe in recipes(call, layout):
            for between in recipe.between or (None,):
                plan = make_plan(recipe.name, call, layout, segment=SEGMENT, between=between)
                assert same_programs(plan, between), text_of(plan)
                seen.add(recipe.name)
    assert seen == {"flat", "direct", "two_level"} | ({"rail"} if collective == "alltoall" else set())


@pytest.mark.parametrize("collective", ["gather", "scatter"])
def test_a_tree_over_nodes_would_need_to_know_more(collective: str) -> None:
    layout = Layout.parse("3+1")  # rank 3 is under rank 2
    plan = make_plan("binomial", Collective(collective, 4, 0, 0, (1, 2, 3, 4)), layout, segment=SEGMENT)
    assert not same_programs(plan, None)
    assert "binomial" not in [recipe.name for recipe in recipes(plan.collective, layout)]
    alike = Collective(collective, 4, 2)
    assert "binomial" in [recipe.name for recipe in recipes(alike, layout)]


def test_what_is_not_known_cannot_be_asked_for() -> None:
    call = known_to(0, ragged("alltoall", 4, random.Random(0)), Layout.parse("2+2"))
    assert call.pair(3, 1).length == call.takes[1][3]
    assert call.pair(1, 3).length == call.gives[1][3]
    with pytest.raises(ValueError, match="what rank 2 gives to rank 3 is not known here"):
        call.pair(2, 3)
