"""Which plan: a pure function of facts that all ranks share."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field, replace

from hpccoll.plans.catalogue import Recipe, make_plan, names, recipe_of
from hpccoll.plans.collective import LOCALLY_RAGGED, Collective
from hpccoll.plans.cost import Cost, price
from hpccoll.plans.flat import ONE_SHOT, one_by_one, payload_elements
from hpccoll.plans.links import Links
from hpccoll.plans.margins import FLAT, clearly_cheaper
from hpccoll.plans.measured import Measured, Time, call_bytes, decide
from hpccoll.plans.steps import NATIVE, Order, Plan
from hpccoll.topology.layout import Layout

CHUNKS = (1, 2, 4, 8)
# By links that nobody has measured prices are as good as equal up to this factor, for plans that wait for the
# bytes between nodes longer than this part of their time.
NEAR, BY_BYTES = 1.2, 0.5
# Plans whose messages between nodes cannot be rounded on their way.
WHOLE = frozenset({"flat", "fold"})


@dataclass(frozen=True)
class Tuning:
    """What selection may use besides the collective and the layout.

    `native`: the transport of the whole world has a call of its own for this operator and dtype, so that
    `flat` is a candidate; over several nodes up to `native_bytes`, and not for blocks of which no rank knows
    all lengths.  `order`: what the operator and the settings ask for.  `small_bytes` bounds the payload that
    a rank sends along with the agreement check (`one_shot`), `segment_bytes` a message; `chunk_bytes` is the
    smallest chunk.  `wire`: the dtype in which elements travel between nodes, where it is not their own; then
    plans that cannot do that (MPI's own call, folding inputs one by one) are no candidates.  `measured`: what
    plans took on this machine, as their elements are; `links` are then the measured ones.
    """

    native: bool = True
    order: Order = Order.ANY
    native_bytes: int = 2**31 - 1
    small_bytes: int = 4096
    segment_bytes: int = 256 * 1024
    chunk_bytes: int = 1024 * 1024
    wire: str = ""
    links: Links = field(default_factory=Links)
    measured: Measured = field(default_factory=Measured)


@dataclass(frozen=True)
class Candidate:
    """A plan that could be taken, its price, and what a call of this size takes by measurement, if known."""

    name: str
    made: Plan
    cost: Cost
    measured: Time | None = None

    @property
    def plan(self) -> str:
        """The name, with chunks and the algorithm between nodes where the plan has them."""
        return describe(self.made)

    @property
    def time_s(self) -> float:
        """To the picosecond: equal sums in another order are equal."""
        return round(self.cost.time_s, 12)

    @property
    def bytes_between_nodes(self) -> int:
        return self.cost.bytes_between_nodes


@dataclass(frozen=True)
class Choice:
    """The plan to take, then the others by price; and why that one."""

    candidates: tuple[Candidate, ...]
    why: str


def describe(plan: Plan) -> str:
    """A plan in a few words: `scatter_rail_gather(ring, 4 chunks)`."""
    between = {step.algorithm for step in plan.steps if step.family in ("LEADERS", "RAIL", "LAST")}
    details = sorted(between) + ([f"{plan.chunks} chunks"] if plan.chunks > 1 else [])
    details += [f"as {plan.wire}"] if plan.wire else []
    return plan.name + (f"({', '.join(details)})" if details else "")


def candidates(
    collective: Collective, layout: Layout, itemsize: int, tuning: Tuning, only: str | None = None
) -> tuple[Candidate, ...]:
    """Every plan that can do the collective: the one to take, then by price; `only` as in `choose`."""
    return choose(collective, layout, itemsize, tuning, only).candidates


def choose(
    collective: Collective, layout: Layout, itemsize: int, tuning: Tuning, only: str | None = None
) -> Choice:
    """The plan to take among all that can do the collective; `only` asks for one by name.

    UsageError when `only` does not exist.  Where it exists but cannot do this call (one_shot a long one, a
    ring an operator that does not commute) the others are candidates.
    """
    asked = [] if only is None else [recipe_of(collective.name, only, layout)]
    every = [recipe_of(collective.name, name, layout) for name in names(collective.name, layout)]
    found = _able(asked, collective, layout, itemsize, tuning) or _able(
        every, collective, layout, itemsize, tuning
    )
    found.sort(key=lambda candidate: candidate.time_s)
    best_of: dict[str, Candidate] = {}
    for candidate in found:
        best_of.setdefault(candidate.name, candidate)
    return _by_measurement(tuple(best_of.values()), collective, itemsize, tuning, only)


def _by_measurement(
    found: tuple[Candidate, ...], collective: Collective, itemsize: int, tuning: Tuning, only: str | None
) -> Choice:
    """The candidates with their measured times, the one to take first."""
    # What is rounded between nodes takes another time than what was measured.
    times = {} if tuning.wire else tuning.measured.times(collective.name, call_bytes(collective, itemsize))
    every = [replace(one, measured=times.get(one.name)) for one in found]
    if any(one.name == only for one in every):
        return Choice(tuple(every), f"asked for by name: {only}")
    if tuning.links.fabric is not None and any(one.name == FLAT for one in every):
        # As communicators choose for arrays on devices (on_devices.py).
        prices = {one.name: one.time_s for one in every}
        taken, why = clearly_cheaper(prices, call_bytes(collective, itemsize))
        every.sort(key=lambda one: one.name != taken)
        return Choice(tuple(every), why)
    first, because = _unmeasured(every, tuning.links)
    taken, why = decide(first, {one.name: one.measured for one in every if one.measured is not None}, because)
    every.sort(key=lambda one: one.name != taken)
    return Choice(tuple(every), why)


def _unmeasured(every: Sequence[Candidate], links: Links) -> tuple[str, str]:
    """What is taken without measurements, and because of what."""
    cheapest = every[0]
    by_network_s = cheapest.bytes_between_nodes / (links.network_gbs * 1e9)
    if cheapest.made.layout.node_count == 1:
        # The others pass on through the same memory; what they save there is less than prices are sure of.
        own = [one.name for one in every if one.name in (FLAT, ONE_SHOT)]
        if own and own[0] != cheapest.name:
            return own[0], "the node's own call, on one node"
    elif links == Links() and by_network_s > BY_BYTES * cheapest.time_s:
        near = [one for one in every if one.time_s <= NEAR * cheapest.time_s]
        fewest = min(near, key=lambda one: one.bytes_between_nodes)  # of several the cheapest
        if fewest.bytes_between_nodes < cheapest.bytes_between_nodes:
            return fewest.name, "fewest bytes between nodes, whose links are not measured"
    return cheapest.name, "lowest predicted time"


def select(
    collective: Collective, layout: Layout, itemsize: int, tuning: Tuning, only: str | None = None
) -> Plan:
    """The plan to take."""
    return candidates(collective, layout, itemsize, tuning, only)[0].made


def fits_one_shot(
    collective: Collective, layout: Layout, itemsize: int, small_bytes: int, order: Order = Order.ANY
) -> bool:
    """The payload of one rank, and what all ranks' payloads come to, fit the agreement's slots."""
    if collective.ragged:
        return False
    payload = payload_elements(collective) * itemsize
    alone = order if collective.reduces and order > _by_node(layout) else Order.ANY
    copies = collective.size if one_by_one(collective, layout, Order.FOLD if alone else Order.ANY) else 1
    return payload <= small_bytes and payload * copies <= ONE_SHOT_TOTAL * small_bytes


def _by_node(layout: Layout) -> Order:
    """The order that combining node by node keeps."""
    if layout.node_count == 1:
        return Order.FOLD
    return Order.RANKS if layout.is_contiguous else Order.ANY


# The result of a one-shot call may be so many times the payload of a rank.
ONE_SHOT_TOTAL = 16


def _able(
    recipes: Sequence[Recipe], collective: Collective, layout: Layout, itemsize: int, tuning: Tuning
) -> list[Candidate]:
    return [
        one
        for recipe in recipes
        if possible(recipe, collective, layout, itemsize, tuning)
        for one in _variants(recipe, collective, layout, itemsize, tuning)
        if one.made.order >= tuning.order
    ]


def possible(recipe: Recipe, collective: Collective, layout: Layout, itemsize: int, tuning: Tuning) -> bool:
    """Whether a plan can do a call of this size, operator and raggedness."""
    if tuning.links.fabric is not None:
        return recipe.name == "flat" or bool(recipe.between)  # what consists of NCCL's calls
    partly_known = collective.ragged and collective.name in LOCALLY_RAGGED
    if recipe.name == ONE_SHOT:
        return fits_one_shot(collective, layout, itemsize, tuning.small_bytes, tuning.order)
    if tuning.wire and recipe.name in WHOLE:
        return False
    if recipe.name == "flat" and layout.node_count > 1:
        longest = collective.elements * itemsize
        return tuning.native and longest <= tuning.native_bytes and not partly_known
    return not (recipe.whole_counts and partly_known)


def _variants(
    recipe: Recipe, collective: Collective, layout: Layout, itemsize: int, tuning: Tuning
) -> list[Candidate]:
    segment = max(1, tuning.segment_bytes // itemsize)
    most = max(1, collective.elements * itemsize // tuning.chunk_bytes)
    chunk_counts = [count for count in CHUNKS if count <= most] if recipe.chunked else [1]
    plans = [
        make_plan(
            recipe.name,
            collective,
            layout,
            segment=segment,
            chunks=chunks,
            between=between,
            order=tuning.order,
            wire=tuning.wire,
        )
        for between in (recipe.between if tuning.links.fabric is None else (NATIVE,)) or (None,)
        for chunks in chunk_counts
    ]
    return [Candidate(recipe.name, plan, price(plan, itemsize, tuning.links)) for plan in plans]
