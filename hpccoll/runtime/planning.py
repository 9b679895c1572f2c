"""The plan of a call, from a cache keyed by what all ranks share."""

from __future__ import annotations

from collections.abc import Generator
from contextlib import contextmanager
from dataclasses import dataclass
from functools import cached_property

from hpccoll.calls import Call
from hpccoll.config import Config
from hpccoll.errors import UsageError
from hpccoll.plans.catalogue import RECIPES, names
from hpccoll.plans.collective import Collective
from hpccoll.plans.flat import ONE_SHOT
from hpccoll.plans.lower import lower
from hpccoll.plans.select import Candidate, Tuning, candidates, fits_one_shot, select
from hpccoll.plans.steps import Plan
from hpccoll.runtime.executor import Schedule
from hpccoll.topology.layout import Layout

Key = tuple[str, int, int, int, bool, str]
MOST_PLANS = 512


@dataclass(frozen=True)
class Planned:
    """A plan with this rank's program; None where the payload travels with the agreement, or is empty."""

    plan: Plan
    schedule: Schedule | None
    needs_staging: bool

    @cached_property
    def code(self) -> int:
        """The index of the plan among those of its collective, for the agreement check."""
        recipes = RECIPES[self.plan.collective.name]
        return next(index for index, recipe in enumerate(recipes) if recipe.name == self.plan.name)


@dataclass(frozen=True)
class Explanation:
    """Why a plan is taken: the candidates with predicted times, the best first.

    `forced` is the name asked for by `algorithm` or `forced()`, or empty.
    """

    collective: str
    nbytes: int
    layout: str
    forced: str
    candidates: tuple[Candidate, ...]

    @property
    def plan(self) -> str:
        """The name of the plan that is taken."""
        return self.candidates[0].name

    def __str__(self) -> str:
        why = f"asked for by name: {self.forced}" if self.forced else "lowest predicted time"
        lines = [f"{self.collective} of {self.nbytes} bytes on layout {self.layout}: {why}"]
        for candidate in self.candidates:
            mark = "->" if candidate is self.candidates[0] else "  "
            lines.append(
                f"{mark} {candidate.plan:44s} {candidate.time_s * 1e6:12.1f} us predicted, "
                f"{candidate.bytes_between_nodes} bytes leave a node"
            )
        return "\n".join(lines)


class Planner:
    """Chooses and keeps the plans of one communicator; all ranks choose alike."""

    def __init__(self, layout: Layout, rank: int, config: Config) -> None:
        self._layout = layout
        self._rank = rank
        self._config = config
        self._wanted = _wanted(config.algorithm, layout)
        self._forced = ""
        self._cache: dict[Key, Planned] = {}

    def plan(self, call: Call) -> Planned:
        """The plan of a call.  Raises UsageError when the plan asked for cannot do it."""
        native = call.arithmetic is None or call.arithmetic.mpi is not None
        only = self._only(call.collective)
        key = (call.collective, call.count, call.working.itemsize, call.root, native, only)
        planned = self._cache.get(key)
        if planned is None:
            if len(self._cache) >= MOST_PLANS:
                self._cache.clear()
            collective = Collective(call.collective, self._layout.size, call.count, call.root)
            planned = self._cache[key] = self._make(collective, call.working.itemsize, native, only)
        return planned

    def explain(
        self, name: str, nbytes: int, element_bytes: int, itemsize: int, root: int, native: bool
    ) -> Explanation:
        """The candidates for a collective of so many bytes, as nccl-tests counts them.

        `element_bytes`: of the caller's elements; `itemsize`: of those that travel.
        """
        if name not in RECIPES:
            raise UsageError(f"no collective {name!r}; there are {', '.join(RECIPES)}")
        count = max(0, nbytes // element_bytes)
        if name in ("allgather", "reduce_scatter"):
            count //= self._layout.size
        collective = Collective(name, self._layout.size, count, root)
        only = self._usable(collective, itemsize, native, self._only(name))
        found = candidates(collective, self._layout, itemsize, self._tuning(native), only or None)
        return Explanation(name, nbytes, str(self._layout), only, found)

    @contextmanager
    def forced(self, name: str) -> Generator[None, None, None]:
        """Inside, collectives that have a plan of this name take it.

        UsageError when none has, or it does not exist on this layout.
        """
        if not any(name in names(collective, self._layout) for collective in RECIPES):
            known = sorted({one for collective in RECIPES for one in names(collective, self._layout)})
            raise UsageError(f"algorithm {name!r} is not one of {', '.join(known)} on layout {self._layout}")
        before, self._forced = self._forced, name
        try:
            yield
        finally:
            self._forced = before

    def _only(self, collective: str) -> str:
        """The plan asked for by name, where this collective has it."""
        if self._forced and self._forced in names(collective, self._layout):
            return self._forced
        return self._wanted.get(collective, "")

    def _usable(self, collective: Collective, itemsize: int, native: bool, only: str) -> str:
        """The plan asked for, unless this call cannot take it: too large to travel along, not in MPI."""
        if only == ONE_SHOT and not fits_one_shot(
            collective, self._layout, itemsize, self._config.small_bytes
        ):
            return ""
        if only == "flat" and not native and self._layout.node_count > 1:
            return ""
        return only

    def _make(self, collective: Collective, itemsize: int, native: bool, only: str) -> Planned:
        only = self._usable(collective, itemsize, native, only)
        if collective.name == "barrier":
            only = ONE_SHOT
        plan = select(collective, self._layout, itemsize, self._tuning(native), only or None)
        moves = plan.name != ONE_SHOT and collective.elements > 0
        schedule = Schedule(lower(plan, self._rank)) if moves else None
        on_node = any(
            step.algorithm == "native" and (step.family == "NODE" or self._layout.node_count == 1)
            for step in plan.steps
        )
        return Planned(plan, schedule, on_node and moves)

    def _tuning(self, native: bool) -> Tuning:
        config = self._config
        return Tuning(native, config.small_bytes, config.segment_bytes, config.chunk_bytes)


def _wanted(text: str, layout: Layout) -> dict[str, str]:
    """What `algorithm` asks for: a name for every collective that has it, or collective:name pairs."""
    wanted: dict[str, str] = {}
    for part in filter(None, (piece.strip() for piece in text.split(","))):
        collective, colon, name = part.partition(":")
        chosen = [collective] if colon else [one for one in RECIPES if part in names(one, layout)]
        if colon and collective not in RECIPES:
            raise UsageError(
                f"algorithm is {text!r}: no collective {collective!r}; there are {', '.join(RECIPES)}"
            )
        name = name if colon else part
        for one in chosen:
            if name not in names(one, layout):
                raise UsageError(
                    f"algorithm is {text!r}: {one} has no {name!r} on layout {layout}; "
                    f"there are {', '.join(names(one, layout))}"
                )
            wanted[one] = name
        if not chosen:
            known = sorted({one for each in RECIPES for one in names(each, layout)})
            raise UsageError(
                f"algorithm is {text!r}: {part!r} is not one of {', '.join(known)} on layout {layout}"
            )
    return wanted
