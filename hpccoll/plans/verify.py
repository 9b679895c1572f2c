"""Proof that a plan does what its collective says, on one layout, by running it on symbols.

Every element of every rank's input is a symbol that no other has; a combination is the list of its
operands in order.  All ranks' programs run together (rehearsal.py).  Reported are: elements that do not
arrive, arrive more than once or come from elsewhere; operands out of rank order in a plan that promises
it; results whose bits may differ between ranks; programs that never end (cycles, unmatched messages);
reads of places never written; steps that use what a step gives without being `after` it; and what is wrong
with a rank's program alone (hazards.py).

Without a hazard the order in which ranks move on cannot change a result, so that one run stands for all.
Collectives that take MPI.IN_PLACE are proved a second time with the input inside the output.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Sequence

from hpccoll.plans.collective import SCANS, Collective
from hpccoll.plans.flat import ONE_SHOT
from hpccoll.plans.hazards import IN_PLACE, hazards, in_place
from hpccoll.plans.lower import lower
from hpccoll.plans.program import Memory, Program
from hpccoll.plans.rehearsal import Actor, Rehearsal, indices
from hpccoll.plans.steps import Order, Plan, Step
from hpccoll.plans.text import operation_text
from hpccoll.topology.notation import format_ranks

Operands = tuple[tuple[int, int], ...]  # element, rank


def verify(plan: Plan, programs: Sequence[Program] | None = None) -> list[str]:
    """What is wrong with a plan, in words; an empty list is the proof.

    `programs` replaces the lowered ones, one for each rank in rank order.  The work grows with elements
    times ranks times operations: meant for counts of tens of elements.
    """
    problems = [fault for number, step in enumerate(plan.steps) for fault in _malformed(plan, number, step)]
    if problems or any(step.algorithm == ONE_SHOT for step in plan.steps):
        return problems  # one_shot is carried by the agreement check, not by a program
    if programs is None:
        try:
            programs = [lower(plan, rank) for rank in range(plan.layout.size)]
        except ValueError as error:
            return [f"the plan has no programs: {error}"]
    problems = _prove(plan, programs, aliased=False)
    if not problems and plan.collective.name in IN_PLACE:
        programs = [in_place(program, plan.collective) for program in programs]
        problems = [f"in place: {problem}" for problem in _prove(plan, programs, aliased=True)]
    return problems


def _malformed(plan: Plan, number: int, step: Step) -> Iterator[str]:
    for earlier in step.after:
        if not 0 <= earlier < number:
            yield f"step {number} waits for step {earlier}, which is not before it"
    times = Counter(rank for group in step.groups for rank in group)
    if max(times.values(), default=0) > 1 or not times.keys() <= set(range(plan.layout.size)):
        yield f"step {number} needs disjoint groups of the ranks 0 to {plan.layout.size - 1}"
    if len(step.regions) != len(step.groups) or len(step.roots) not in (0, len(step.groups)):
        yield f"step {number} needs regions, and a root if any, for each of its {len(step.groups)} groups"
        return
    for group, regions in zip(step.groups, step.regions, strict=True):
        if len(regions) != step.kind.region_count(len(group)):
            yield f"step {number} has {len(regions)} regions for {format_ranks(group)}"
    for group, root in zip(step.groups, step.roots, strict=False):
        if not 0 <= root < len(group):
            yield f"step {number} has root {root} in a group of {len(group)}"


def _prove(plan: Plan, programs: Sequence[Program], *, aliased: bool) -> list[str]:
    problems = [problem for program in programs for problem in hazards(program)]
    rehearsal = Rehearsal(plan, programs, aliased=aliased)
    rehearsal.run()
    return (
        problems
        + rehearsal.problems
        + (_unfinished(rehearsal) or list(_wrong(plan, rehearsal)) or list(_differing(plan, rehearsal)))
    )


def _unfinished(rehearsal: Rehearsal) -> list[str]:
    """Operations that started and never end; who waits for whom in a circle."""
    found: list[str] = []
    waits_for: dict[int, tuple[int, ...]] = {}
    for actor in rehearsal.actors:
        rank, operations = actor.program.rank, actor.program.operations
        under_way = sorted(actor.started - actor.complete)
        if not under_way and len(actor.complete) < len(operations):
            found.append(f"rank {rank} has operations that wait for each other: {_left(actor)}")
        for index in under_way:
            others = rehearsal.missing(rank, operations[index])
            waits_for.setdefault(rank, others)
            found.append(
                f"rank {rank} never completes operation {index} of step {operations[index].step} "
                f"({operation_text(operations[index])}): it waits for {format_ranks(others)}"
            )
    circle = _circle(waits_for)
    return found + ([f"ranks {' -> '.join(map(str, circle))} wait for each other"] if circle else [])


def _left(actor: Actor) -> str:
    left = (index for index in range(len(actor.program.operations)) if index not in actor.complete)
    return ", ".join(map(str, left))


def _circle(waits_for: dict[int, tuple[int, ...]]) -> list[int]:
    """Ranks that wait for one another, the first one again at the end; [] where there are none."""
    for start in waits_for:
        way = [start]
        while others := waits_for.get(way[-1]):
            if others[0] in way:
                return [*way[way.index(others[0]) :], others[0]]
            way.append(others[0])
    return []


def _wrong(plan: Plan, rehearsal: Rehearsal) -> Iterator[str]:
    """Outputs that are not every input exactly once."""
    collective = plan.collective
    shared = _wanted(collective)
    for actor in rehearsal.actors:
        rank = actor.program.rank
        wanted = _wanted_of_scan(collective, rank) if collective.name in SCANS else shared
        elements = indices(collective.output(rank))
        for element, value in zip(elements, actor.memory[Memory.OUTPUT], strict=True):
            got = value.operands if value is not None else ()
            if got != wanted[element] and (plan.order > Order.ANY or tuple(sorted(got)) != wanted[element]):
                yield f"rank {rank} element {element} {_difference(got, wanted[element])}"
            elif plan.order is Order.FOLD and value is not None and not value.folded:
                yield f"rank {rank} element {element} has operands that were combined before their turn"


def _differing(plan: Plan, rehearsal: Rehearsal) -> Iterator[str]:
    """Outputs of several ranks that were not combined and rounded alike."""
    if plan.collective.name in SCANS:
        return  # each rank has a result of its own
    first: dict[int, tuple[int, int]] = {}  # element -> bits, rank
    for actor in rehearsal.actors:
        rank = actor.program.rank
        elements = indices(plan.collective.output(rank))
        for element, value in zip(elements, actor.memory[Memory.OUTPUT], strict=True):
            if value is None:
                continue
            bits, other = first.setdefault(element, (value.bits, rank))
            if bits != value.bits:
                yield f"rank {rank} element {element} was combined or rounded otherwise than on rank {other}"


def _wanted(collective: Collective) -> dict[int, Operands]:
    """For each element, the operands of a right result in rank order."""
    operands: dict[int, Operands] = {}
    for rank in range(collective.size):
        for element in indices(collective.input(rank)):
            operands[element] = (*operands.get(element, ()), (element, rank))
    return operands


def _wanted_of_scan(collective: Collective, rank: int) -> dict[int, Operands]:
    last = rank + 1 if collective.name == "scan" else rank
    return {
        element: tuple((element - collective.count, one) for one in range(last))
        for element in indices(collective.output(rank))
    }


def _difference(got: Operands, wanted: Operands) -> str:
    if not got:
        return "is never written"
    if sorted(got) == list(wanted):
        return f"has its operands in the order of ranks {', '.join(str(rank) for _, rank in got)}"
    times = Counter(got)
    missing = [rank for element, rank in wanted if (element, rank) not in times]
    parts = [f"lacks the input of {format_ranks(missing)}"] if missing else []
    for element, rank in sorted(times):
        if (element, rank) not in wanted:
            parts.append(f"has element {element} of rank {rank}")
        elif times[element, rank] > 1:
            parts.append(f"has the input of rank {rank} {times[element, rank]} times")
    return " and ".join(parts)
