"""A plan carried out by the executor on NumPy arrays, all ranks in this process; and what must come out."""

from __future__ import annotations

import random
import sys
import threading
import time
from collections.abc import Sequence
from dataclasses import dataclass
from functools import reduce
from typing import Any

import numpy as np

from hpccoll.plans.collective import Collective
from hpccoll.plans.hazards import IN_PLACE
from hpccoll.plans.lower import lower
from hpccoll.plans.program import GroupCall
from hpccoll.plans.spans import Region, length
from hpccoll.plans.steps import Plan
from hpccoll.runtime.executor import Execution, Schedule
from hpccoll.transports.base import Array, Combine, GroupTransport
from hpccoll.transports.threads import Exchange

LIMIT_S = 30.0
UNTOUCHED = -77


def add(left: Array, right: Array, target: Array) -> None:
    np.add(left, right, out=target)


def compose(left: Array, right: Array, target: Array) -> None:
    """x -> a x + b, as a + b j: associative, and the order of the operands shows in the result."""
    scale, shift = left.real * right.real, left.real * right.imag + left.imag
    target[...] = scale + 1j * shift


@dataclass
class Outcome:
    """What each rank holds afterwards: its results, and the buffer it passed as input."""

    results: list[Array]
    inputs: list[Array]


def taken(one: Region, elements: Array) -> Array:
    """The elements of a region, one after the other."""
    return np.concatenate([elements[span.start : span.stop] for span in one] or [elements[:0]])


def contributions(collective: Collective, chance: np.random.Generator, dtype: Any) -> list[Array]:
    """For every rank, all elements of the index space; ranks that give only some use only those."""
    values = chance.integers(-50, 50, (collective.size, collective.elements))
    return list(values.astype(dtype))


def expected(collective: Collective, given: Sequence[Array], combine: Combine = add) -> list[Array]:
    """What each rank must get."""
    if collective.reduces:
        whole = reduce(lambda left, right: _combined(left, right, combine), given)
    else:
        whole = given[0].copy()
        for rank, elements in enumerate(given):
            for span in collective.input(rank):
                whole[span.start : span.stop] = elements[span.start : span.stop]
    return [taken(collective.output(rank), whole) for rank in range(collective.size)]


def _combined(left: Array, right: Array, combine: Combine) -> Array:
    target = np.empty_like(left)
    combine(left, right, target)
    return target


def execute(
    plan: Plan,
    given: Sequence[Array],
    combine: Combine = add,
    *,
    in_place: bool = False,
    order: random.Random | None = None,
) -> Outcome:
    """Carry a plan out; ranks move on in the order that `order` draws, or by themselves in threads."""
    exchange = Exchange()
    executions: list[Execution] = []
    outcome = Outcome([], [])
    for rank in range(plan.layout.size):
        program = lower(plan, rank)
        source, target = _memory(plan.collective, rank, given[rank], in_place)
        outcome.inputs.append(source)
        outcome.results.append(target)
        scratch = np.full(program.scratch, UNTOUCHED, target.dtype)
        executions.append(
            Execution(
                Schedule(program), (source, target, scratch), exchange.network(rank),
                _Groups(exchange, rank), combine, lambda step: step,
            )
        )  # fmt: skip
    if order is None:
        _run_threads(executions)
    else:
        _run_in_turn(executions, order)
    return outcome


def _memory(collective: Collective, rank: int, elements: Array, in_place: bool) -> tuple[Array, Array]:
    given, wanted = collective.input(rank), collective.output(rank)
    target = np.full(length(wanted), UNTOUCHED, elements.dtype)
    if not (in_place and collective.name in IN_PLACE and given and wanted):
        return taken(given, elements), target
    begin = given[0].start - wanted[0].start
    source = target[begin : begin + length(given)]
    source[...] = taken(given, elements)
    return source, target


class _Groups:
    """One transport for each group, made when first asked for."""

    def __init__(self, exchange: Exchange, rank: int) -> None:
        self._exchange = exchange
        self._rank = rank
        self._made: dict[tuple[int, ...], GroupTransport] = {}

    def __call__(self, call: GroupCall) -> GroupTransport:
        if call.members not in self._made:
            self._made[call.members] = self._exchange.group(call.members, self._rank)
        return self._made[call.members]


def _run_in_turn(executions: Sequence[Execution], order: random.Random) -> None:
    waiting = list(executions)
    for _ in range(100_000):
        if not waiting:
            return
        one = order.choice(waiting)
        if one.advance():
            waiting.remove(one)
    raise TimeoutError(f"stuck at {[one.waiting_for() for one in waiting]}")


def _run_threads(executions: Sequence[Execution]) -> None:
    failures: list[BaseException] = []
    deadline = time.monotonic() + LIMIT_S

    def drive(one: Execution) -> None:
        try:
            while not one.advance():
                if time.monotonic() > deadline or failures:
                    raise TimeoutError(f"stuck at {one.waiting_for()}")
                time.sleep(0)
        except BaseException as failure:
            failures.append(failure)

    threads = [threading.Thread(target=drive, args=(one,), daemon=True) for one in executions]
    before = sys.getswitchinterval()
    sys.setswitchinterval(1e-5)  # ranks change often, and in the middle of things
    try:
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join(LIMIT_S + 5)
    finally:
        sys.setswitchinterval(before)
    if failures:
        raise failures[0]
