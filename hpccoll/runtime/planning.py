"""The plan of a call, from a cache keyed by what all ranks share."""

from __future__ import annotations

from collections.abc import Generator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from functools import cached_property
from math import isnan
from typing import Any

import numpy as np

from hpccoll.calls import Call
from hpccoll.config import Config
from hpccoll.errors import UsageError
from hpccoll.ops.table import Arithmetic
from hpccoll.ops.wire import CARRIED
from hpccoll.plans.catalogue import RECIPES, make_plan, names, recipe_of
from hpccoll.plans.collective import BLOCKED, SCANS, Collective
from hpccoll.plans.cost import Cost, price
from hpccoll.plans.flat import ONE_SHOT
from hpccoll.plans.lower import lower
from hpccoll.plans.measured import Measured, Time
from hpccoll.plans.select import Candidate, Tuning, candidates, choose, possible, select
from hpccoll.plans.steps import NATIVE, Order, Plan
from hpccoll.runtime.executor import Schedule
from hpccoll.topology.layout import Layout
from hpccoll.transports import mpi
from hpccoll.transports.base import Array

Key = tuple[object, ...]
Counts = tuple[int, ...]
Rows = Mapping[int, Array]  # by rank: how many elements for, or from, every rank
MOST_PLANS = 512
BY_SELECTION = 255  # in place of a plan's number, where the plan is chosen once the lengths are known


@dataclass(frozen=True)
class Planned:
    """A plan with this rank's program; None where the payload travels with the agreement, or is empty.

    `itemsize`: bytes of an element as it travels.
    """

    plan: Plan
    schedule: Schedule | None
    needs_staging: bool
    itemsize: int

    @cached_property
    def code(self) -> int:
        """The index of the plan among those of its collective, for the agreement check."""
        return plan_code(self.plan.collective.name, self.plan.name)

    @cached_property
    def cost(self) -> Cost:
        """What it moves on each level."""
        return price(self.plan, self.itemsize)


def plan_code(collective: str, name: str) -> int:
    """The index of a plan among those of its collective."""
    return next(index for index, recipe in enumerate(RECIPES[collective]) if recipe.name == name)


@dataclass(frozen=True)
class Explanation:
    """Why a plan is taken: the candidates with predicted and measured times, the one taken first.

    `forced` is the name asked for by `algorithm` or `forced()`, or empty; `why`: what decided, in words;
    `source`: the file with measured times, empty where none is used.
    """

    collective: str
    nbytes: int
    layout: str
    forced: str
    candidates: tuple[Candidate, ...]
    why: str
    source: str

    @property
    def plan(self) -> str:
        """The name of the plan that is taken."""
        return self.candidates[0].name

    def __str__(self) -> str:
        lines = [f"{self.collective} of {self.nbytes} bytes on layout {self.layout}: {self.why}"]
        for candidate in self.candidates:
            mark = "->" if candidate is self.candidates[0] else "  "
            predicted, leaving = f"{'not priced':>25s}", ""
            if not isnan(candidate.time_s):
                predicted = f"{candidate.time_s * 1e6:12.1f} us predicted"
                leaving = f", {candidate.bytes_between_nodes} bytes leave a node"
            lines.append(f"{mark} {candidate.plan:44s} {predicted}{self._measured(candidate)}{leaving}")
        return "\n".join([*lines, f"measured: {self.source or 'nothing (hpccoll tune)'}"])

    def _measured(self, candidate: Candidate) -> str:
        if not any(one.measured for one in self.candidates):
            return ""
        return f", {_measured_us(candidate.measured):>26s}"


def _measured_us(time: Time | None) -> str:
    if time is None:
        return "not measured"
    low, middle, high = (f"{one * 1e6:.1f}" for one in (time.low_s, time.time_s, time.high_s))
    return f"{middle} us ({low} to {high})"


class Planner:
    """Chooses and keeps the plans of one communicator; all ranks choose alike.

    Between the nodes of `layout`; of arrays on devices, whose nodes are the NVLink domains, it only knows the
    names of plans that are asked for.  `measured`: what plans took on this machine, the same on all ranks.
    """

    def __init__(self, layout: Layout, rank: int, config: Config, measured: Measured | None = None) -> None:
        self._layout, self._on_devices = layout.by_node, layout.by_domain
        self._rank = rank
        self._config = config
        self.measured = measured or Measured()
        self._wanted = _wanted(config.algorithm, self._layouts)
        self._forced = ""
        self._cache: dict[Key, Planned] = {}
        self._choices: dict[tuple[str, int, int, str], str] = {}

    def plan(self, call: Call) -> Planned:
        """The plan of a call of which every rank knows all lengths.

        Raises UsageError when the plan asked for cannot do it.
        """
        count, itemsize = _units(call)
        order, wire = self._order(call), self._wire(call.collective, call.arithmetic)
        native = call.arithmetic is None or call.arithmetic.mpi is not None
        only = self.only(call.collective, call.asked)
        counts = _shared_counts(call)
        key = (call.collective, count, counts, itemsize, call.root, native, order, wire, only)
        planned = self._cache.get(key)
        if planned is None:
            collective = Collective(call.collective, self._layout.size, count, call.root, counts)
            planned = self._make(collective, itemsize, self._tuning(native, order, wire), only)
            self._keep(key, planned)
        return planned

    def asked_code(self, call: Call) -> int:
        """The number of the plan asked for by name, or that there is none; the same on all ranks."""
        only = self.only(call.collective, call.asked, on_device=call.on_device)
        return plan_code(call.collective, only) if only else BY_SELECTION

    def choose(self, call: Call, total: int) -> str:
        """The name of the plan for blocks of lengths that no rank knows all of; `total`: of all together."""
        blocks = self._layout.size ** (2 if call.collective == "alltoall" else 1)
        mean = -(-total * call.dtype.itemsize // blocks)
        # One choice for all sizes up to a power of two: the lengths may be others in every call.
        only = self.only(call.collective, call.asked)
        key = (call.collective, call.root, max(1, mean - 1).bit_length(), only)
        if key not in self._choices:
            self._choices[key] = self._choose(call, 1 << key[2])
        return self._choices[key]

    def _choose(self, call: Call, mean: int) -> str:
        collective = Collective(call.collective, self._layout.size, mean, call.root, (0,) * self._layout.size)
        alike = replace(collective, counts=None)
        tuning = self._tuning(native=True, order=Order.ANY)
        for only in filter(None, (self.only(call.collective, call.asked), "any")):
            found = candidates(alike, self._layout, 1, tuning, None if only == "any" else only)
            for one in found:
                recipe = recipe_of(call.collective, one.name, self._layout)
                if possible(recipe, collective, self._layout, 1, tuning):
                    return one.name
        return "direct"

    def plan_ragged(self, call: Call, name: str, gives: Rows, takes: Rows) -> Planned:
        """The plan called `name`, from what some ranks give and take: this one's, or all of its node's."""
        known = tuple((rank, gives[rank].tobytes(), takes[rank].tobytes()) for rank in sorted(gives))
        key = (call.collective, call.root, call.dtype.itemsize, name, known)
        planned = self._cache.get(key)
        if planned is None:
            collective = self.ragged(call, gives, takes)
            tuning = self._tuning(native=True, order=Order.ANY)
            plan = make_plan(name, collective, self._layout, segment=tuning.segment_bytes)
            planned = Planned(plan, Schedule(lower(plan, self._rank)), _uses_node(plan), 1)
            self._keep(key, planned)
        return planned

    def ragged(self, call: Call, gives: Rows, takes: Rows) -> Collective:
        """A call with blocks of different lengths, in bytes, from what some ranks give and take."""
        name, size, itemsize = call.collective, self._layout.size, call.dtype.itemsize
        if call.collective == "allgather":
            return Collective(name, size, 0, counts=tuple(itemsize * count for count in call.takes or ()))
        if name == "alltoall":
            rows = {rank: tuple((row * itemsize).tolist()) for rank, row in gives.items()}
            columns = {rank: tuple((column * itemsize).tolist()) for rank, column in takes.items()}
            return Collective(name, size, 0, gives=rows, takes=columns)
        counts = np.zeros(size, np.int64)
        for rank in gives:
            counts[rank] = (gives if name == "gather" else takes)[rank][call.root]
        if call.root == self._rank:
            counts = (takes if name == "gather" else gives)[self._rank]
        return Collective(name, size, 0, call.root, tuple((counts * itemsize).tolist()))

    def explain(
        self, name: str, nbytes: int, dtype: np.dtype[Any], root: int, arithmetic: Arithmetic | None
    ) -> Explanation:
        """The candidates for a collective of so many bytes of a dtype, as nccl-tests counts them.

        `arithmetic`: of a reduction.
        """
        if name not in RECIPES:
            raise UsageError(f"no collective {name!r}; there are {', '.join(RECIPES)}")
        count = count_of(name, nbytes, dtype.itemsize, self._layout.size)
        if arithmetic is None:
            count, itemsize, tuning = count * dtype.itemsize, 1, self._tuning(native=True, order=Order.ANY)
        else:
            itemsize, order = arithmetic.working.itemsize, order_of(arithmetic, self._config)
            tuning = self._tuning(arithmetic.mpi is not None, order, self._wire(name, arithmetic))
        collective = Collective(name, self._layout.size, count, root)
        only = self.only_now(name)
        choice = choose(collective, self._layout, itemsize, tuning, only or None)
        layout, source = str(self._layout), self.measured.source
        return Explanation(name, nbytes, layout, only, choice.candidates, choice.why, source)

    @contextmanager
    def forced(self, name: str) -> Generator[None, None, None]:
        """Inside, collectives that have a plan of this name take it.

        UsageError when none has, or it does not exist on this layout.
        """
        known = sorted({one for collective in RECIPES for one in _names(collective, self._layouts)})
        if name not in known:
            raise UsageError(f"algorithm {name!r} is not one of {', '.join(known)} on layout {self._layout}")
        before, self._forced = self._forced, name
        try:
            yield
        finally:
            self._forced = before

    @property
    def forced_name(self) -> str:
        """The plan that `forced` asks for, or empty."""
        return self._forced

    def only(self, collective: str, asked: str, *, on_device: bool = False) -> str:
        """The plan asked for by name, by `asked` or else by the setting, where this collective has it."""
        if not asked and collective not in self._wanted:
            return ""  # at once: every call asks
        known = names(collective, self._on_devices if on_device else self._layout)
        wanted = asked if asked in known else self._wanted.get(collective, "")
        return wanted if wanted in known else ""

    def only_now(self, collective: str, *, on_device: bool = False) -> str:
        """The plan that a call made now is asked to take, or empty."""
        return self.only(collective, self._forced, on_device=on_device)

    @property
    def _layouts(self) -> tuple[Layout, Layout]:
        return self._layout, self._on_devices

    def _make(self, collective: Collective, itemsize: int, tuning: Tuning, only: str) -> Planned:
        if collective.name == "barrier":
            only = ONE_SHOT
        plan = select(collective, self._layout, itemsize, tuning, only or None)
        moves = plan.name != ONE_SHOT and collective.elements > 0
        schedule = Schedule(lower(plan, self._rank)) if moves else None
        return Planned(plan, schedule, moves and _uses_node(plan), itemsize)

    def _keep(self, key: Key, planned: Planned) -> None:
        if len(self._cache) >= MOST_PLANS:
            self._cache.clear()
        self._cache[key] = planned

    def _order(self, call: Call) -> Order:
        return order_of(call.arithmetic, self._config) if call.arithmetic is not None else Order.ANY

    def _wire(self, collective: str, arithmetic: Arithmetic | None) -> str:
        if arithmetic is None or self._layout.node_count == 1:
            return ""
        return wire_of(collective, arithmetic, self._config)

    def _tuning(self, native: bool, order: Order, wire: str = "") -> Tuning:
        config, limit = self._config, mpi.COUNT_LIMIT
        segment = min(config.segment_bytes, limit)
        sizes = config.small_bytes, segment, config.chunk_bytes
        native = native and not config.checksums  # what MPI's own collectives move cannot be checked
        return Tuning(native, order, limit, *sizes, wire, self.measured.links, self.measured)


def count_of(collective: str, nbytes: int, itemsize: int, size: int) -> int:
    """Elements of the buffer, or of a block, of a call of so many bytes as nccl-tests counts them."""
    count = max(0, nbytes // itemsize)
    return count // size if collective in BLOCKED else count


def wire_of(collective: str, arithmetic: Arithmetic, config: Config) -> str:
    """The dtype in which elements travel between nodes, by the operator or the settings; "" for their own."""
    operator = arithmetic.operator
    if collective in SCANS or not operator.sums or arithmetic.working != CARRIED or config.reproducible:
        return ""
    return config.wire_dtype if operator.wire is None else operator.wire


def order_of(arithmetic: Arithmetic, config: Config) -> Order:
    """In which order operands must be combined: the operator's own demand, or that of `reproducible`."""
    operator = arithmetic.operator
    rounds = arithmetic.working.kind not in "biu" and not operator.name.endswith("LOC")
    if config.reproducible and rounds:
        return Order.FOLD
    return Order.ANY if operator.commutes else Order.RANKS


def _units(call: Call) -> tuple[int, int]:
    """Elements of the buffer or of a block, and their size, as they travel."""
    if call.arithmetic is None:
        return call.count * call.dtype.itemsize, 1
    return call.count, call.working.itemsize


def _shared_counts(call: Call) -> Counts | None:
    """The lengths of all blocks of a ragged call, as they travel."""
    if call.collective == "allgather" and call.takes is not None:
        return tuple(count * call.dtype.itemsize for count in call.takes)
    return call.gives if call.collective == "reduce_scatter" else None


def _uses_node(plan: Plan) -> bool:
    """Whether a step is for the node's shared memory."""
    return any(
        step.algorithm == NATIVE and (step.family == "NODE" or plan.layout.node_count == 1)
        for step in plan.steps
    )


def _names(collective: str, layouts: Sequence[Layout]) -> tuple[str, ...]:
    """The plans of a collective that exist on any of the layouts."""
    return tuple(dict.fromkeys(name for layout in layouts for name in names(collective, layout)))


def _wanted(text: str, layouts: Sequence[Layout]) -> dict[str, str]:
    """What `algorithm` asks for: a name for every collective that has it, or collective:name pairs."""
    wanted: dict[str, str] = {}
    for part in filter(None, (piece.strip() for piece in text.split(","))):
        collective, colon, name = part.partition(":")
        chosen = [collective] if colon else [one for one in RECIPES if part in _names(one, layouts)]
        if colon and collective not in RECIPES:
            raise UsageError(
                f"algorithm is {text!r}: no collective {collective!r}; there are {', '.join(RECIPES)}"
            )
        name = name if colon else part
        for one in chosen:
            if name not in _names(one, layouts):
                raise UsageError(
                    f"algorithm is {text!r}: {one} has no {name!r} on layout {layouts[0]}; "
                    f"there are {', '.join(_names(one, layouts))}"
                )
            wanted[one] = name
        if not chosen:
            known = sorted({one for each in RECIPES for one in _names(each, layouts)})
            raise UsageError(
                f"algorithm is {text!r}: {part!r} is not one of {', '.join(known)} on layout {layouts[0]}"
            )
    return wanted
