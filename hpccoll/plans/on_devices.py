"""Which plan for arrays on devices: NCCL's own call, unless another is surely faster, as measured or priced.

Nobody is to be slower by plans than without, by more than 5 %.  Prices are not that sure: the model's times
of NCCL's published figures are off by factors from 0.5 to 1.3 (docs/cost-model.md).  Were the two prices that
are compared wrong by the worst of these, each in the worse direction, a plan that is `margin` times cheaper
than NCCL's own call would still be at most 5 % slower.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from math import inf, nan

from hpccoll.plans.catalogue import make_plan, names, recipe_of
from hpccoll.plans.collective import SCANS, Collective
from hpccoll.plans.cost import Cost, price
from hpccoll.plans.links import Links
from hpccoll.plans.measured import Time, decide
from hpccoll.plans.select import CHUNKS, Candidate, Choice
from hpccoll.plans.steps import NATIVE, Plan
from hpccoll.topology.layout import Layout

FLAT = "flat"
SLOWER = 1.05  # by no more may a plan be slower than NCCL's own call
# Up to so many bytes: the worst that a predicted time is, as a part of the published one and as a multiple.
OFF = ((1 << 20, 0.73, 1.32), (128 << 20, 0.50, 1.02), (inf, 0.85, 1.07))
NOT_PRICED = Cost(nan, {}, 0, 0, (), ())


def margin(nbytes: int) -> float:
    """So many times cheaper than NCCL's own call a plan must be, to be taken for its price."""
    # Between the sizes of the figures both neighbours count.
    beside = [worst for worst in OFF if nbytes <= 2 * worst[0]][:1] + [w for w in OFF if nbytes <= w[0]][:1]
    return max(most / least for _, least, most in beside) / SLOWER


def by_nccl(collective: str, layout: Layout) -> tuple[str, ...]:
    """The plans of a collective that consist of NCCL's calls."""
    return tuple(
        name
        for name in names(collective, layout)
        if collective not in SCANS and (name == FLAT or recipe_of(collective, name, layout).between)
    )


def choose_on_device(
    collective: Collective,
    layout: Layout,
    itemsize: int,
    *,
    chunk_bytes: int,
    links: Links | None,
    why_not: str = "",
    times: Mapping[str, Time] | None = None,
    only: str = "",
) -> Choice:
    """The plan to take, then the others by price.

    Args:
        collective: its elements as NCCL moves them.
        itemsize: bytes of such an element.
        layout: of which nodes are the NVLink domains.
        chunk_bytes: the smallest part of a buffer that a plan of two levels pipelines.
        links: with a fabric; None where prices say nothing.
        why_not: the reason for that, in words.
        times: what plans took on these devices, which count for more than prices.
        only: a plan asked for by name, or empty.

    """
    found = [
        _candidate(name, collective, layout, itemsize, chunk_bytes, links)
        for name in by_nccl(collective.name, layout)
    ]
    known = {} if times is None else {one.name: times[one.name] for one in found if one.name in times}
    found = [replace(one, measured=known.get(one.name)) for one in found]
    if links is not None:
        found.sort(key=lambda one: one.time_s)
    taken, why = _taken(
        found, known, margin(collective.elements * itemsize), links is not None, why_not, only
    )
    found.sort(key=lambda one: one.name != taken)
    return Choice(tuple(found), why)


def plan_on_device(
    name: str, collective: Collective, layout: Layout, itemsize: int, chunk_bytes: int
) -> Plan:
    """The plan of a name, of NCCL's calls, in chunks of at least so many bytes."""
    most = max(1, collective.elements * itemsize // chunk_bytes)
    chunks = max(count for count in CHUNKS if count <= most)
    segment = max(1, collective.elements)
    return make_plan(name, collective, layout, segment=segment, chunks=chunks, between=NATIVE)


def _candidate(
    name: str, collective: Collective, layout: Layout, itemsize: int, chunk_bytes: int, links: Links | None
) -> Candidate:
    plan = plan_on_device(name, collective, layout, itemsize, chunk_bytes)
    return Candidate(name, plan, NOT_PRICED if links is None else price(plan, itemsize, links))


def _taken(
    found: Sequence[Candidate],
    known: Mapping[str, Time],
    clear: float,
    priced: bool,
    why_not: str,
    only: str,
) -> tuple[str, str]:
    if any(one.name == only for one in found):
        return only, f"asked for by name: {only}"
    if len(found) == 1:
        return FLAT, "NCCL's own call, which is all there is for one node, or with one rank on each"
    if known:
        taken, why = decide(FLAT, known)
        return taken, why.replace("which has the lowest predicted time", "NCCL's own call").replace(
            "lowest predicted time", "NCCL's own call"
        )
    if not priced:
        return FLAT, f"NCCL's own call: nothing was measured, and {why_not}"
    (flat,) = (one for one in found if one.name == FLAT)
    best = found[0]
    times = flat.time_s / best.time_s if best.time_s else 1.0
    if best is not flat and times >= clear:
        return best.name, f"predicted {times:.2f} times as fast as NCCL's own call; {clear:.2f} is enough"
    if best is flat:
        return FLAT, "NCCL's own call, which has the lowest predicted time"
    return FLAT, (
        f"NCCL's own call: {best.name} is predicted {times:.2f} times as fast, and below {clear:.2f} that is "
        "not sure"
    )
