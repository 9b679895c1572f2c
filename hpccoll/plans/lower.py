"""From a plan to the program of one rank."""

from __future__ import annotations

from hpccoll.plans.algorithm import Algorithm
from hpccoll.plans.builder import Builder
from hpccoll.plans.direct import Direct
from hpccoll.plans.program import Program
from hpccoll.plans.recursive_doubling import RecursiveDoubling
from hpccoll.plans.ring import Ring
from hpccoll.plans.spans import Region, length
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
    )
}


def lower(plan: Plan, rank: int) -> Program:
    """The operations that a plan asks of one rank."""
    build = Builder(plan.collective, rank, plan.segment)
    for number, step in enumerate(plan.steps):
        group = step.group_of(rank)
        if group is None or len(step.groups[group]) == 1:
            continue
        build.begin(number)
        members = step.groups[group]
        root = step.roots[group] if step.roots else 0
        regions = step.regions[group]
        if step.algorithm == NATIVE:
            _call(build, step, members, members.index(rank), root, regions)
        else:
            algorithm = ALGORITHMS[step.algorithm]
            algorithm.lower(build, step.kind, members, members.index(rank), regions, root)
    return build.finish()


def _call(
    build: Builder, step: Step, members: tuple[int, ...], me: int, root: int, regions: tuple[Region, ...]
) -> None:
    # Member after member, which is not index order where a member's region has several spans.
    everything = tuple(span for one in regions for span in one)
    own = regions[me] if step.kind.by_member else everything
    at_root = me == root
    gives, gets = {
        Kind.ALLREDUCE: (everything, everything),
        Kind.REDUCE: (everything, everything if at_root else ()),
        Kind.BROADCAST: (everything if at_root else (), () if at_root else everything),
        Kind.REDUCE_SCATTER: (everything, own),
        Kind.ALLGATHER: (own, everything),
        Kind.GATHER: (own, everything if at_root else ()),
        Kind.SCATTER: (everything if at_root else (), own),
    }[step.kind]
    counts = tuple(length(one) for one in regions) if step.kind.by_member else ()
    build.call(step.kind, step.family, members, root, gives, gets, counts)
