"""From a plan to the program of one rank."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from hpccoll.plans.algorithm import Algorithm
from hpccoll.plans.builder import Builder
from hpccoll.plans.direct import Direct
from hpccoll.plans.fold import Fold
from hpccoll.plans.program import Program
from hpccoll.plans.recursive_doubling import RecursiveDoubling
from hpccoll.plans.ring import Ring
from hpccoll.plans.scan import DoublingScan, LinearScan
from hpccoll.plans.spans import Region, Span, length
from hpccoll.plans.steps import NATIVE, Kind, Plan, Step
from hpccoll.plans.tree import DoubleTree, RootedTree

ALGORITHMS: dict[str, Algorithm] = {
    algorithm.name: algorithm
    for algorithm in (
        Ring(),
        RecursiveDoubling(),
        DoubleTree(),
        RootedTree("chain"),
        RootedTree("binomial"),
        Direct(),
        Fold(),
        DoublingScan(),
        LinearScan(),
    )
}


def lower(plan: Plan, rank: int, *, all_blocks: bool = False) -> Program:
    """The operations that a plan asks of one rank.

    `all_blocks`: the calls of a group's own all-to-all know what every member gives to every other.
    """
    build = Builder(plan.collective, rank, plan.segment, plan.layout.node_of if plan.wire else None)
    groups = [step.group_of(rank) for step in plan.steps]
    for step, group in zip(plan.steps, groups, strict=True):
        if group is not None and step.kind is Kind.ALLTOALL and step.algorithm != NATIVE:
            _lay_messages(build, step.groups[group].index(rank), len(step.groups[group]), step.regions[group])
        elif group is not None and step.kind is Kind.PREPEND:
            build.lay(step.regions[group][0])
    for number, (step, group) in enumerate(zip(plan.steps, groups, strict=True)):
        if group is None:
            continue
        build.begin(number)
        members, regions = step.groups[group], step.regions[group]
        me, root = members.index(rank), step.roots[group] if step.roots else 0
        if step.kind is Kind.PREPEND:
            _each_span(build.combine, regions)
        elif len(members) == 1:
            if step.kind is Kind.SCAN:
                _each_span(build.copy, regions)
        elif step.algorithm == NATIVE:
            _call(build, step, members, me, root, regions, all_blocks=all_blocks or _on_node(plan, step))
        else:
            ALGORITHMS[step.algorithm].lower(build, step.kind, members, me, regions, root)
    return build.finish()


def _lay_messages(build: Builder, me: int, count: int, regions: Sequence[Region]) -> None:
    """What is collected from others to be sent together is put side by side as it comes."""
    for other in range(count):
        message = regions[me * count + other] if other != me else ()
        if len(message) > 1:
            build.lay(message)


def _each_span(action: Callable[[Span, Span], None], regions: Sequence[Region]) -> None:
    for one, other in zip(*regions, strict=True):
        action(one, other)


def _call(
    build: Builder,
    step: Step,
    members: tuple[int, ...],
    me: int,
    root: int,
    regions: Sequence[Region],
    *,
    all_blocks: bool,
) -> None:
    gives: Sequence[Region]
    gets: Sequence[Region]
    counts: tuple[int, ...] = ()
    match step.kind:
        case Kind.ALLTOALL:
            count = len(members)
            gives, gets = regions[me * count : (me + 1) * count], regions[me::count]
            counts = tuple(map(length, regions)) if all_blocks else ()
        case Kind.SCAN | Kind.EXSCAN:
            gives, gets = regions[:1], regions[1:]
            if step.kind is Kind.EXSCAN and me == 0:
                gets = ()
        case _:
            mine = (regions[me],) if step.kind.by_member else regions
            scatters = step.kind in (Kind.REDUCE_SCATTER, Kind.SCATTER)
            gathers = step.kind in (Kind.ALLGATHER, Kind.GATHER)
            gives, gets = (mine if gathers else regions), (mine if scatters else regions)
            if step.kind in (Kind.REDUCE, Kind.GATHER) and me != root:
                gets = ()
            if step.kind is Kind.BROADCAST:
                gives, gets = (regions, ()) if me == root else ((), regions)
            if step.kind is Kind.SCATTER and me != root:
                gives = ()
            if step.kind.by_member:
                counts = tuple(map(length, regions))
    # Member after member, which is not index order where a member's region has several spans.
    build.call(step.kind, step.family, members, root, _spans(gives), _spans(gets), counts)


def _on_node(plan: Plan, step: Step) -> bool:
    """Shared memory wants to know all blocks of an all-to-all; MPI's own call needs but its own."""
    return step.family == "NODE" or plan.layout.node_count == 1


def _spans(regions: Sequence[Region]) -> tuple[Span, ...]:
    return tuple(span for one in regions for span in one)
