"""A plan carried out by the executor on NumPy arrays, all ranks in this process; and what must come out."""

from __future__ import annotations

import random
import sys
import threading
import time
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from hpccoll.plans.collective import Collective
from hpccoll.plans.hazards import IN_PLACE
from hpccoll.plans.lower import lower
from hpccoll.plans.program import GroupCall
from hpccoll.plans.spans import Region, Span, length
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


def contributions(collective: Collective, chance: np.random.Generator, dtype: Any) -> list[Array]:
    """The send buffer of every rank."""
    lengths = [length(collective.input(rank)) for rank in range(collective.size)]
    return [chance.integers(-50, 50, count).astype(dtype) for count in lengths]


def maps(collective: Collective, chance: np.random.Generator) -> list[Array]:
    """Send buffers for `compose`, whose results are exact."""
    given = contributions(collective, chance, np.float64)
    return [chance.choice([-1.0, 2.0, 3.0], shift.size) + 1j * shift for shift in given]


def expected(collective: Collective, given: Sequence[Array], combine: Combine = add) -> list[Array]:
    """What each rank must get, said without the index space of plans."""
    size, root, nothing = collective.size, collective.root, given[0][:0]
    ranks = range(size)
    match collective.name:
        case "allreduce":
            return [folded(given, combine)] * size
        case "reduce":
            return [folded(given, combine) if rank == root else nothing for rank in ranks]
        case "reduce_scatter":
            return cut(folded(given, combine), block_lengths(collective))
        case "scan":
            return [folded(given[: rank + 1], combine) for rank in ranks]
        case "exscan":
            return [nothing, *(folded(given[:rank], combine) for rank in ranks[1:])]
        case "broadcast":
            return [given[root]] * size
        case "allgather":
            return [np.concatenate(given)] * size
        case "gather":
            return [np.concatenate(given) if rank == root else nothing for rank in ranks]
        case "scatter":
            return cut(given[root], block_lengths(collective))
    rows = [cut(given[rank], block_lengths(collective, rank)) for rank in ranks]
    return [np.concatenate([row[rank] for row in rows]) for rank in ranks]


def folded(given: Sequence[Array], combine: Combine) -> Array:
    """The operands combined one after the other."""
    total = given[0].copy()
    for right in given[1:]:
        combine(total.copy(), right, total)
    return total


def block_lengths(collective: Collective, source: int = 0) -> list[int]:
    """The length of every rank's block; in an all-to-all of those that one rank has."""
    if collective.name == "alltoall" and collective.ragged:
        return list(collective.gives[source])
    return list(collective.counts or [collective.count] * collective.size)


def cut(elements: Array, lengths: Sequence[int]) -> list[Array]:
    """Consecutive pieces."""
    return np.split(elements, np.cumsum(lengths)[:-1])


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
        return elements.copy(), target
    begin = sum(span.length for span in split_before(wanted, given[0].start))
    source = target[begin : begin + elements.size]
    source[...] = elements
    return source, target


def split_before(one: Region, element: int) -> Region:
    """What a region has before an element."""
    return tuple(Span(span.start, min(span.stop, element)) for span in one if span.start < element)


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
