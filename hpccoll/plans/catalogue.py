"""Every plan there is, by collective and name: the candidates of selection."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import partial

from hpccoll.errors import UsageError
from hpccoll.plans import exchange, two_level
from hpccoll.plans.collective import SCANS, Collective
from hpccoll.plans.flat import ONE_SHOT, one_step
from hpccoll.plans.lower import ALGORITHMS
from hpccoll.plans.steps import NATIVE, Order, Plan, Step
from hpccoll.topology.layout import Layout

Make = Callable[[Collective, Layout, str, int], tuple[Step, ...]]


@dataclass(frozen=True)
class Recipe:
    """How a plan is made, and for which layouts it exists.

    `whole_counts`: of ragged blocks it needs to know all, which no rank does in a gather or scatter.
    """

    name: str
    make: Make
    between: tuple[str, ...] = ()  # algorithms that can run between the nodes, the default first
    two_level: bool = False
    needs_rails: bool = False
    needs_runs: bool = False  # nodes of consecutive ranks
    chunked: bool = False
    whole_counts: bool = False

    def exists(self, layout: Layout) -> bool:
        layout = layout.by_node
        if self.two_level and (layout.node_count == 1 or layout.node_count == layout.size):
            return False
        if self.needs_runs and not layout.is_contiguous:
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
_SCANS = ("doubling_scan", "linear_scan")


def _rooted_blocks(through_leaders: Make) -> tuple[Recipe, ...]:
    """Gather and scatter."""
    return (
        Recipe("flat", _flat(NATIVE)),
        Recipe(ONE_SHOT, _flat(ONE_SHOT)),
        Recipe("direct", _flat("direct")),
        Recipe("binomial", _flat("binomial"), whole_counts=True),
        _leaders("two_level", through_leaders, ("direct",)),
    )


def _scans() -> tuple[Recipe, ...]:
    return (
        Recipe("flat", _flat(NATIVE)),
        Recipe(ONE_SHOT, _flat(ONE_SHOT)),
        Recipe("recursive_doubling", _flat("doubling_scan")),
        Recipe("linear", _flat("linear_scan")),
        _leaders("two_level", two_level.scan_by_nodes, _SCANS, needs_runs=True),
    )


# At equal price the first is taken: rails spread the messages, and the work, over all ranks of a node.
RECIPES: dict[str, tuple[Recipe, ...]] = {
    "allreduce": (
        Recipe("flat", _flat(NATIVE)),
        Recipe(ONE_SHOT, _flat(ONE_SHOT)),
        Recipe("ring", _flat("ring")),
        Recipe("tree", _flat("tree")),
        Recipe("recursive_doubling", _flat("recursive_doubling")),
        Recipe("fold", _flat("fold")),
        _rails("scatter_rail_gather", two_level.scatter_rail_gather, _ALLREDUCE_BETWEEN, chunked=True),
        _leaders("reduce_ring_broadcast", two_level.reduce_ring_broadcast, _ALLREDUCE_BETWEEN, chunked=True),
    ),
    "reduce": (
        Recipe("flat", _flat(NATIVE)),
        Recipe(ONE_SHOT, _flat(ONE_SHOT)),
        Recipe("chain", _flat("chain")),
        Recipe("binomial", _flat("binomial")),
        Recipe("fold", _flat("fold")),
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
        _rails("rail", two_level.rail_gather, ("ring",)),
        _leaders("two_level", two_level.gather_through_leaders, ("ring",)),
    ),
    "reduce_scatter": (
        Recipe("flat", _flat(NATIVE)),
        Recipe(ONE_SHOT, _flat(ONE_SHOT)),
        Recipe("ring", _flat("ring")),
        Recipe("fold", _flat("fold")),
        _rails("rail", two_level.scatter_rail, ("ring",)),
        _leaders("two_level", two_level.scatter_through_leaders, ("ring",)),
    ),
    "gather": _rooted_blocks(exchange.gather_through_leaders),
    "scatter": _rooted_blocks(exchange.scatter_through_leaders),
    "alltoall": (
        Recipe("flat", _flat(NATIVE)),
        Recipe(ONE_SHOT, _flat(ONE_SHOT)),
        Recipe("direct", _flat("direct")),
        _leaders("two_level", exchange.alltoall_through_leaders, ("direct",)),
        _rails("rail", exchange.alltoall_by_rails, ("direct",)),
    ),
    "scan": _scans(),
    "exscan": _scans(),
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
    order: Order = Order.ANY,
    wire: str = "",
) -> Plan:
    """The plan called `name` for a collective on a layout, between its nodes.

    `segment`: the longest message in elements.  `chunks`: parts of the buffer that are on the way at
    the same time (two-level plans; at most one for each element).  `between`: the algorithm between
    nodes, the recipe's default when None.  `order`: what `one_shot` is to keep, which can keep any; the other
    plans have that of their algorithms.  `wire`: the dtype in which elements travel between nodes, where it
    is not their own.
    """
    recipe = recipe_of(collective.name, name, layout)
    chosen = between or (recipe.between[0] if recipe.between else NATIVE)
    used = max(1, min(chunks, collective.elements)) if recipe.chunked else 1
    steps = recipe.make(collective, layout.by_node, chosen, used)
    return Plan(
        name, collective, layout, steps, segment, used, _order(name, collective, layout, steps, order), wire
    )


def _order(
    name: str, collective: Collective, layout: Layout, steps: tuple[Step, ...], wanted: Order
) -> Order:
    """How a plan's operands are combined; see `Order`."""
    by_node = Order.RANKS if layout.is_contiguous else Order.ANY
    if not collective.reduces or (name in ("flat", ONE_SHOT) and layout.node_count == 1):
        return Order.FOLD
    if name == ONE_SHOT:
        return Order.FOLD if wanted > by_node or collective.name in SCANS else by_node
    if name == "flat":
        return Order.ANY  # MPI promises no more
    lowered = [step for step in steps if step.algorithm != NATIVE]
    if len(steps) == 1:
        return min((_step_order(step) for step in lowered), default=Order.FOLD)
    return by_node if all(_step_order(step) >= Order.RANKS for step in lowered) else Order.ANY


def _step_order(step: Step) -> Order:
    if not step.kind.reduces:
        return Order.FOLD
    return ALGORITHMS[step.algorithm].order
