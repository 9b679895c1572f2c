"""Bytes that ranks hand to one another, by the level of the machine that they cross.

Of a plan they are those of its messages, exactly.  Where a step is left to the transport, which does not
say how it moves elements (shared memory, MPI's own collective, NCCL), they are the fewest with which the
step can be done: an all-reduce of S bytes by n ranks hands on 2 (n-1) S altogether, a reduce-scatter or an
all-gather (n-1) S.  What ranks say to agree on a call is not counted, but a payload that travels along is.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from itertools import pairwise

import numpy as np
from mpi4py import MPI

from hpccoll.config import Config
from hpccoll.errors import UsageError
from hpccoll.ops.table import arithmetic, operator_of
from hpccoll.plans.catalogue import RECIPES
from hpccoll.plans.collective import REDUCTIONS
from hpccoll.plans.cost import edges
from hpccoll.plans.flat import ONE_SHOT, one_by_one, payload_elements
from hpccoll.plans.steps import NATIVE, Kind, Plan
from hpccoll.runtime.planning import Planner
from hpccoll.topology.layout import Groups, Layout

NVLINK, NODE, NETWORK = "NVLINK", "NODE", "network"  # innermost first
Bytes = Counter[str]  # by level

# To the next rank of a group, from all but the last one: messages between pipeline stages, in one
# direction.
SHIFT = "shift"
# Algorithms that hand on the fewest bytes.
_FEWEST = {
    Kind.ALLREDUCE: "ring",
    Kind.REDUCE_SCATTER: "ring",
    Kind.ALLGATHER: "ring",
    Kind.REDUCE: "chain",
    Kind.BROADCAST: "chain",
    Kind.GATHER: "direct",
    Kind.SCATTER: "direct",
    Kind.ALLTOALL: "direct",
    Kind.SCAN: "linear_scan",
    Kind.EXSCAN: "linear_scan",
}


@dataclass(frozen=True)
class Use:
    """What a program does in the groups of one dimension, each step.

    Attributes:
        dimension: its name, or several: a group over all of these.
        collective: "allreduce", "allgather", ..., or `SHIFT`.
        nbytes: as nccl-tests counts them (of all ranks' blocks together, where there are blocks).
        times: how often in a step.
        dtype: of the elements.
        at: coordinates in other dimensions, where not all groups do it: {"pipeline": 1}.

    """

    dimension: str | tuple[str, ...]
    collective: str
    nbytes: int
    times: int = 1
    dtype: str = "float32"
    at: Mapping[str, int] = field(default_factory=dict)

    @property
    def names(self) -> tuple[str, ...]:
        """The dimensions."""
        return (self.dimension,) if isinstance(self.dimension, str) else tuple(self.dimension)


def level_between(layout: Layout, one: int, other: int) -> str:
    """The innermost level on which two ranks meet; NVLINK where the layout knows of NVLink domains."""
    if layout.domain_of is not None and layout.domain_of[one] == layout.domain_of[other]:
        return NVLINK
    return NODE if layout.node_of[one] == layout.node_of[other] else NETWORK


def plan_bytes(plan: Plan, itemsize: int) -> Bytes:
    """Bytes of one call, of all its ranks together; `itemsize`: of the plan's elements."""
    found: Bytes = Counter()
    between = plan.wire_itemsize(itemsize)
    for step in plan.steps:
        if step.algorithm == ONE_SHOT:
            found += _one_shot(plan, itemsize)
        elif step.kind in _FEWEST:
            known = replace(step, algorithm=_FEWEST[step.kind]) if step.algorithm == NATIVE else step
            for source, target, elements in edges(plan, known):
                level = level_between(plan.layout, source, target)
                found[level] += elements * (between if level == NETWORK else itemsize)
    return +found


def _one_shot(plan: Plan, itemsize: int) -> Bytes:
    """Every payload is read by all others of its node; leaders pass on those of their node, or the sum."""
    layout, collective = plan.layout, plan.collective
    payload = payload_elements(collective) * itemsize
    found: Bytes = Counter()
    for members in layout.nodes:
        for one in members:
            for other in members:
                if one != other:
                    found[level_between(layout, one, other)] += payload
        copies = len(members) if one_by_one(collective, layout, plan.order) else 1
        found[NETWORK] += payload * copies * (layout.node_count - 1)
    return found


def shift_bytes(layout: Layout, group: Sequence[int], nbytes: int) -> Bytes:
    """Of a message of every rank of a group but the last to the next one."""
    found: Bytes = Counter()
    for one, other in pairwise(group):
        found[level_between(layout, one, other)] += nbytes
    return found


class Forecast:
    """What uses will move on a layout, by the plans that calls will take.

    Groups that lie alike are looked at once.
    """

    def __init__(self, layout: Layout, config: Config) -> None:
        self._layout = layout
        self._config = config
        self._planners: dict[Layout, Planner] = {}
        self._known: dict[tuple[object, ...], Bytes] = {}

    def of(self, use: Use, groups: Groups) -> Bytes:
        """Bytes in a step, of all these groups together.  Raises: UsageError for an unknown collective."""
        total: Bytes = Counter()
        for group in groups:
            for level, nbytes in self._of_group(use, group).items():
                total[level] += use.times * nbytes
        return total

    def _of_group(self, use: Use, group: Sequence[int]) -> Bytes:
        layout = self._layout.restrict(group)
        key = (layout, use.collective, use.nbytes, use.dtype)
        if key not in self._known:
            self._known[key] = self._look(use, layout)
        return self._known[key]

    def _look(self, use: Use, layout: Layout) -> Bytes:
        if layout.size == 1:
            return Counter()
        if use.collective == SHIFT:
            return shift_bytes(layout, range(layout.size), use.nbytes)
        if layout not in self._planners:
            self._planners[layout] = Planner(layout, 0, self._config)
        dtype = np.dtype(use.dtype)
        reduces = use.collective in REDUCTIONS
        how = arithmetic(operator_of(MPI.SUM), dtype) if reduces else None
        found = self._planners[layout].explain(use.collective, use.nbytes, dtype, 0, how)
        return plan_bytes(found.candidates[0].made, 1 if how is None else how.working.itemsize)


def check_uses(uses: Sequence[Use], names: Sequence[str]) -> tuple[Use, ...]:
    """The uses, if all that they name exists.  Raises: UsageError."""
    for use in uses:
        for name in (*use.names, *use.at):
            if name not in names:
                raise UsageError(f"a use names dimension {name!r}; there are {', '.join(names) or 'none'}")
        if use.collective not in (*RECIPES, SHIFT):
            raise UsageError(
                f"a use names collective {use.collective!r}; there are {', '.join(RECIPES)}, {SHIFT}"
            )
        np.dtype(use.dtype)
    return tuple(uses)
