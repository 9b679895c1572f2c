"""Which plan for arrays on devices: NCCL's own call, unless another is measured, or surely priced, faster."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from math import nan

from hpccoll.plans.catalogue import make_plan, names, recipe_of
from hpccoll.plans.collective import SCANS, Collective
from hpccoll.plans.cost import Cost, price
from hpccoll.plans.links import Links
from hpccoll.plans.margins import FLAT, clearly_cheaper
from hpccoll.plans.measured import Time, call_bytes, decide
from hpccoll.plans.select import CHUNKS, Candidate, Choice
from hpccoll.plans.steps import NATIVE, Plan
from hpccoll.topology.layout import Layout

NOT_PRICED = Cost(nan, {}, 0, 0, (), ())


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
    nbytes = call_bytes(collective, itemsize)
    taken, why = _taken(found, known, nbytes, links is not None, why_not, only)
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
    nbytes: int,
    priced: bool,
    why_not: str,
    only: str,
) -> tuple[str, str]:
    if any(one.name == only for one in found):
        return only, f"asked for by name: {only}"
    if known and len(found) > 1:
        return decide(FLAT, known, "NCCL's own call")
    if not priced and len(found) > 1:
        return FLAT, f"NCCL's own call: nothing was measured, and {why_not}"
    return clearly_cheaper({one.name: one.time_s for one in found}, nbytes)
