"""Every plan there is, by collective and name: the candidates of selection."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import partial

from hpccoll.errors import UsageError
from hpccoll.plans import two_level
from hpccoll.plans.collective import Collective
from hpccoll.plans.flat import ONE_SHOT, one_step
from hpccoll.plans.lower import ALGORITHMS
from hpccoll.plans.steps import NATIVE, Plan, Step
from hpccoll.topology.layout import Layout

Make = Callable[[Collective, Layout, str, int], tuple[Step, ...]]


@dataclass(frozen=True)
class Recipe:
    """How a plan is made, and for which layouts it exists."""

    name: str
    make: Make
    between: tuple[str, ...] = ()  # algorithms that can run between the nodes, the default first
    two_level: bool = False
    needs_rails: bool = False
    chunked: bool = False

    def exists(self, layout: Layout) -> bool:
        if self.two_level and (layout.node_count == 1 or layout.node_count == layout.size):
            return False
        return bool(layout.groups("RAIL")) or not self.needs_rails


def _flat(algorithm: str) -> Make:
    def make(collective: Collective, layout: Layout, between: str, chunks: int) -> tuple[Step, ...]:
        return one_step(collective, layout, algorithm)

    return make


_leaders = partial(Recipe, two_level=True)
_rails = partial(Recipe, two_level=True, needs_rails=True)
_ALLREDUCE_BETWEEN = ("ring", "recursive_doubling", "tree")
_TREES = ("chain", "binomial")

RECIPES: dict[str, tuple[Recipe, ...]] = {
    "allreduce": (
        Recipe("flat", _flat(NATIVE)),
        Recipe(ONE_SHOT, _flat(ONE_SHOT)),
        Recipe("ring", _flat("ring")),
        Recipe("tree", _flat("tree")),
        Recipe("recursive_doubling", _flat("recursive_doubling")),
        # At equal price the first is taken: rails spread the messages over all ranks of a node.
        _rails("scatter_rail_gather", two_level.scatter_rail_gather, _ALLREDUCE_BETWEEN, chunked=True),
        _leaders("reduce_ring_broadcast", two_level.reduce_ring_broadcast, _ALLREDUCE_BETWEEN, chunked=True),
    ),
    "reduce": (
        Recipe("flat", _flat(NATIVE)),
        Recipe(ONE_SHOT, _flat(ONE_SHOT)),
        Recipe("chain", _flat("chain")),
        Recipe("binomial", _flat("binomial")),
        _leaders("two_level", two_level.reduce_through_leaders, _TREES, chunked=True),
    ),
    "broadcast": (
        Recipe("flat", _flat(NATIVE)),
        Recipe(ONE_SHOT, _flat(ONE_SHOT)),
        Recipe("chain", _flat("chain")),
        Recipe("binomial", _flat("binomial")),
        _leaders("two_level", two_level.broadcast_through_leaders, _TREES, chunked=True),
    ),
    "allgather": (
        Recipe("flat", _flat(NATIVE)),
        Recipe(ONE_SHOT, _flat(ONE_SHOT)),
        Recipe("ring", _flat("ring")),
        _leaders("two_level", two_level.gather_through_leaders, ("ring",)),
        _rails("rail", two_level.rail_gather, ("ring",)),
    ),
    "reduce_scatter": (
        Recipe("flat", _flat(NATIVE)),
        Recipe(ONE_SHOT, _flat(ONE_SHOT)),
        Recipe("ring", _flat("ring")),
        _leaders("two_level", two_level.scatter_through_leaders, ("ring",)),
        _rails("rail", two_level.scatter_rail, ("ring",)),
    ),
    "barrier": (Recipe(ONE_SHOT, lambda collective, layout, between, chunks: ()),),
}


def names(collective: str, layout: Layout) -> tuple[str, ...]:
    """The plans that exist for a collective on a layout."""
    return tuple(recipe.name for recipe in RECIPES[collective] if recipe.exists(layout))


def recipe_of(collective: str, name: str, layout: Layout) -> Recipe:
    """The recipe of a plan name; UsageError when it is unknown or does not exist on the layout."""
    for recipe in RECIPES[collective]:
        if recipe.name == name:
            if not recipe.exists(layout):
                raise UsageError(
                    f"algorithm {name!r} of {collective} does not exist on layout {layout}; "
                    f"there are {', '.join(names(collective, layout))}"
                )
            return recipe
    raise UsageError(
        f"{collective} has no algorithm {name!r}; there are {', '.join(names(collective, layout))}"
    )


def make_plan(
    name: str,
    collective: Collective,
    layout: Layout,
    *,
    segment: int,
    chunks: int = 1,
    between: str | None = None,
) -> Plan:
    """The plan called `name` for a collective on a layout.

    `segment`: the longest message in elements.  `chunks`: parts of the buffer that are on the way at
    the same time (two-level plans; at most one for each element).  `between`: the algorithm between
    nodes, the recipe's default when None.
    """
    recipe = recipe_of(collective.name, name, layout)
    chosen = between or (recipe.between[0] if recipe.between else NATIVE)
    used = max(1, min(chunks, collective.elements)) if recipe.chunked else 1
    steps = recipe.make(collective, layout, chosen, used)
    ordered = all(
        step.algorithm in (NATIVE, ONE_SHOT) or ALGORITHMS[step.algorithm].ordered for step in steps
    )
    return Plan(name, collective, layout, steps, segment, used, ordered and layout.is_contiguous)
