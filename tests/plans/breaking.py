"""Plans and programs with one thing changed, and what is then said of them."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

from hpccoll.plans.catalogue import make_plan
from hpccoll.plans.collective import Collective
from hpccoll.plans.lower import lower
from hpccoll.plans.program import Operation, Program
from hpccoll.plans.steps import Plan
from hpccoll.plans.verify import verify
from hpccoll.topology.layout import Layout


def plan_of(name: str, text: str, count: int = 8, collective: str = "allreduce", **options: Any) -> Plan:
    layout = Layout.parse(text)
    return make_plan(name, Collective(collective, layout.size, count), layout, segment=4, **options)


def with_step(plan: Plan, number: int, **changes: Any) -> Plan:
    steps = list(plan.steps)
    steps[number] = replace(steps[number], **changes)
    return replace(plan, steps=tuple(steps))


def without_step(plan: Plan, number: int) -> Plan:
    """The plan with a step left out and no step waiting for it; the others keep their order."""
    kept = [index for index in range(len(plan.steps)) if index != number]
    place = {index: at for at, index in enumerate(kept)}
    steps = [
        replace(
            plan.steps[index], after=tuple(place[one] for one in plan.steps[index].after if one != number)
        )
        for index in kept
    ]
    return replace(plan, steps=tuple(steps))


def programs_of(plan: Plan) -> list[Program]:
    return [lower(plan, rank) for rank in range(plan.layout.size)]


def with_operation(program: Program, index: int, operation: Operation) -> Program:
    operations = list(program.operations)
    operations[index] = operation
    return replace(program, operations=tuple(operations))


def changed(program: Program, index: int, **changes: Any) -> Program:
    return with_operation(program, index, replace(program.operations[index], **changes))


def first(program: Program, kind: type[Operation], after: int = -1) -> tuple[int, Any]:
    """Index of the first operation of a kind, and the operation."""
    return next(
        (index, one)
        for index, one in enumerate(program.operations)
        if isinstance(one, kind) and index > after
    )


def problems_of(plan: Plan, rank: int, change: Callable[[Program], Program]) -> list[str]:
    """What is found when one rank's program is changed."""
    programs = programs_of(plan)
    assert verify(plan, programs) == []
    programs[rank] = change(programs[rank])
    return verify(plan, programs)


def one_of(problems: list[str], *words: str) -> bool:
    """One problem has all of the words."""
    return any(all(word in problem for word in words) for problem in problems)
