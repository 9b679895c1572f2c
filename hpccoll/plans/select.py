"""Which plan: a pure function of facts that all ranks share."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field

from hpccoll.plans.catalogue import Recipe, make_plan, names, recipe_of
from hpccoll.plans.collective import BLOCKED, Collective
from hpccoll.plans.cost import Cost, Links, price
from hpccoll.plans.flat import ONE_SHOT
from hpccoll.plans.steps import Plan
from hpccoll.topology.layout import Layout

CHUNKS = (1, 2, 4, 8)


@dataclass(frozen=True)
class Tuning:
    """What selection may use besides the collective and the layout.

    `native` says that the transport of the whole world has a call of its own for this operator and
    dtype, so that `flat` is a candidate.  `small_bytes` bounds the payload that a rank sends along with
    the agreement check (`one_shot`), `segment_bytes` a message, `chunk_bytes` is the smallest chunk.
    """

    native: bool = True
    small_bytes: int = 4096
    segment_bytes: int = 256 * 1024
    chunk_bytes: int = 1024 * 1024
    links: Links = field(default_factory=Links)


@dataclass(frozen=True)
class Candidate:
    """A plan that could be taken, and its price."""

    name: str
    made: Plan
    cost: Cost

    @property
    def plan(self) -> str:
        """The name, with chunks and the algorithm between nodes where the plan has them."""
        return describe(self.made)

    @property
    def time_s(self) -> float:
        return self.cost.time_s

    @property
    def bytes_between_nodes(self) -> int:
        return self.cost.bytes_between_nodes


def describe(plan: Plan) -> str:
    """A plan in a few words: `scatter_rail_gather(ring, 4 chunks)`."""
    between = {step.algorithm for step in plan.steps if step.family in ("LEADERS", "RAIL")}
    details = sorted(between) + ([f"{plan.chunks} chunks"] if plan.chunks > 1 else [])
    return plan.name + (f"({', '.join(details)})" if details else "")


def candidates(
    collective: Collective, layout: Layout, itemsize: int, tuning: Tuning, only: str | None = None
) -> tuple[Candidate, ...]:
    """Every plan that can do the collective, the cheapest first; `only` asks for one by name.

    UsageError when `only` does not exist.  A plan asked for by name is given even where selection
    would not consider it for its size.
    """
    recipes: Iterable[Recipe]
    if only is not None:
        recipes = (recipe_of(collective.name, only, layout),)
    else:
        recipes = (recipe_of(collective.name, name, layout) for name in names(collective.name, layout))
    found = [
        best
        for recipe in recipes
        if only is not None or _considered(recipe, collective, layout, itemsize, tuning)
        for best in _variants(recipe, collective, layout, itemsize, tuning)
    ]
    found.sort(key=lambda candidate: candidate.time_s)
    best_of: dict[str, Candidate] = {}
    for candidate in found:
        best_of.setdefault(candidate.name, candidate)
    return tuple(best_of.values())


def select(
    collective: Collective, layout: Layout, itemsize: int, tuning: Tuning, only: str | None = None
) -> Plan:
    """The cheapest plan."""
    return candidates(collective, layout, itemsize, tuning, only)[0].made


def fits_one_shot(collective: Collective, layout: Layout, itemsize: int, small_bytes: int) -> bool:
    """The payload of one rank, and what all ranks' payloads come to, fit the agreement's slots."""
    payload = collective.count * itemsize
    if collective.name == "reduce_scatter":
        payload *= collective.size
    total = payload * (collective.size if collective.name in BLOCKED else 1)
    return payload <= small_bytes and total <= ONE_SHOT_TOTAL * small_bytes


# The result of a one-shot call may be so many times the payload of a rank.
ONE_SHOT_TOTAL = 16


def _considered(
    recipe: Recipe, collective: Collective, layout: Layout, itemsize: int, tuning: Tuning
) -> bool:
    if recipe.name == ONE_SHOT:
        return fits_one_shot(collective, layout, itemsize, tuning.small_bytes)
    if recipe.name == "flat":
        return tuning.native or layout.node_count == 1
    return True


def _variants(
    recipe: Recipe, collective: Collective, layout: Layout, itemsize: int, tuning: Tuning
) -> list[Candidate]:
    segment = max(1, tuning.segment_bytes // itemsize)
    most = max(1, collective.elements * itemsize // tuning.chunk_bytes)
    chunk_counts = [count for count in CHUNKS if count <= most] if recipe.chunked else [1]
    plans = [
        make_plan(recipe.name, collective, layout, segment=segment, chunks=chunks, between=between)
        for between in recipe.between or (None,)
        for chunks in chunk_counts
    ]
    return [Candidate(recipe.name, plan, price(plan, itemsize, tuning.links)) for plan in plans]
