"""One row after the other: time the calls, then make checked ones with changing data."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field, replace
from itertools import count, takewhile
from typing import Any

import numpy as np
from mpi4py import MPI

from hpccoll.cli.bench.contenders import Contender
from hpccoll.cli.bench.elements import dtype_of
from hpccoll.cli.bench.kinds import Cpu
from hpccoll.cli.bench.modes import Mode
from hpccoll.cli.bench.options import Options
from hpccoll.cli.bench.overlap import Halves, measure_overlap
from hpccoll.cli.bench.pattern import Pattern, count_wrong, fill, spoil
from hpccoll.cli.bench.places import Blocks, Place
from hpccoll.cli.bench.results import Case, Half, Row
from hpccoll.cli.bench.timing import Block, Pace, spread_of, time_block

_REDUCTIONS = {2: MPI.MIN, 3: MPI.MAX}


@dataclass(frozen=True)
class Calls:
    """One contender's call on this rank; the times of its blocks, and how many calls each plan made."""

    contender: Contender
    call: Callable[[], None]
    blocks: list[Block] = field(default_factory=list)
    ran: Counter[str] = field(default_factory=Counter)


@dataclass(frozen=True)
class Arrays:
    """One rank's arrays for one half of a row.

    `give`: the elements it gives (a part of `take` where they lie there); `keeps`: they must survive;
    `takes`: results are written to `take` (not so on the root of a broadcast out of place).
    """

    arguments: tuple[Any, ...]
    give: np.ndarray[Any, Any]
    take: np.ndarray[Any, Any]
    keeps: bool
    takes: bool
    in_place: bool


@dataclass(frozen=True)
class Checked:
    """A contender's wrong elements of all ranks, and the seconds of a call in each round, the slowest rank's.

    It is not timed where an element is wrong, and not to the end where it is hopeless.
    """

    wrong: int
    rounds_s: tuple[float, ...] = ()


class Measurement:
    """Measures on one communicator.

    `world`: the user's, for barriers and for collecting results; `kind`: where the arrays are.
    """

    def __init__(self, world: MPI.Intracomm, options: Options, kind: Cpu, max_bytes: int) -> None:
        self._world = world
        self._kind = kind
        self._options = options
        widest = max(dtype_of(name).itemsize for name in options.datatypes)
        nbytes = max_bytes + options.unalign * widest
        self._send, self._take = kind.buffer(nbytes), kind.buffer(nbytes)
        self._iteration = count()
        self.out_of_bounds = 0  # of this rank

    def rows(self, case: Case, contenders: Sequence[Contender]) -> list[Row]:
        """A row for each contender."""
        ran = [Counter[str]() for _ in contenders]
        halves: list[list[Half | None]] = []
        for in_place in (False, True):
            able = [
                index
                for index, one in enumerate(contenders)
                if not in_place or (case.operation.sized and one.does(case, in_place=True))
            ]
            measured = self._halves(
                case, [contenders[one] for one in able], [ran[one] for one in able], in_place=in_place
            )
            found = dict(zip(able, measured, strict=True))
            halves.append([found.get(index) for index in range(len(contenders))])
        first, second = halves
        rows = []
        for one, plans, outside, inside in zip(contenders, ran, first, second, strict=True):
            taken = one.taken(case, plans)
            selected = one.algorithm is None or taken.name == self._selected(case, one)
            plan = (taken.name, taken.plan, selected, taken.crossing)
            rows.append(Row(case, outside, inside, *plan, one.reproducible))
        return rows

    def _selected(self, case: Case, one: Contender) -> str:
        """The name of the plan that selection takes, instead of this contender."""
        if one.is_plain:
            return ""
        free = replace(one, algorithm=None, mode=Mode.BLOCKING)
        if not case.operation.ragged:
            return free.expected(case).name
        # Which one it is depends on all lengths, which the ranks tell each other in the call.
        place = self._place(case)
        arrays = self._arrays(case, place, in_place=False)
        before = free.tally()
        with free.bound(case, place, arrays.arguments, arrays.take) as call:
            call()
        return free.taken(case, free.tally() - before).name

    def _halves(
        self, case: Case, contenders: Sequence[Contender], ran: Sequence[Counter[str]], *, in_place: bool
    ) -> list[Half]:
        """The times and wrong elements of all contenders; `ran` gets how many calls each plan made."""
        if not contenders:
            return []
        with self._bound(case, contenders, ran, in_place=in_place) as (run, arrays, place):
            for calls in run:
                with calls.contender.inside():
                    for _ in range(self._options.warmup):
                        calls.call()
            self._time(run)
            shares = [self._overlap(calls) for calls in run]
            self.out_of_bounds += self._overwritten()
            return [
                replace(
                    self._half(case, calls, self._check(case, calls, arrays, place)), overlap_percent=share
                )
                for calls, share in zip(run, shares, strict=True)
            ]

    def checked(self, case: Case, contenders: Sequence[Contender], pace: Pace) -> list[Checked]:
        """Each contender's result out of place is checked, and if right, timed in rounds with the others."""
        ran = [Counter[str]() for _ in contenders]
        with self._bound(case, contenders, ran, in_place=False) as (run, arrays, place):
            wrong = [self._check(case, calls, arrays, place) or 0 for calls in run]
            right = [calls for calls, count in zip(run, wrong, strict=True) if not count]
            # The first call makes connections and plans; the second one says how long the rounds should be.
            once = [[self._one_s(calls, 1) for _ in range(2)][-1] for calls in right]
            rounds: list[list[float]] = [[] for _ in right]
            for turn in range(pace.rounds):
                for index in range(len(right)):
                    which = (index + turn) % len(right)
                    if turn < pace.rounds_of(once[which], min(once)):
                        rounds[which].append(self._one_s(right[which], pace.calls(once[which])))
            self.out_of_bounds += self._overwritten()
        times = iter(rounds)
        return [Checked(count, () if count else tuple(next(times))) for count in wrong]

    def _one_s(self, calls: Calls, count: int) -> float:
        """Seconds of a call, the slowest rank's."""
        with calls.contender.inside():
            block = time_block(
                calls.call, self._world.Barrier, iterations=1, calls=count, settle=self._kind.settle
            )
        return self._over_ranks([block.elapsed_s / count], slowest=True)[0]

    @contextmanager
    def _bound(
        self, case: Case, contenders: Sequence[Contender], ran: Sequence[Counter[str]], *, in_place: bool
    ) -> Iterator[tuple[list[Calls], Arrays, Place]]:
        """The calls of all contenders, on the same arrays; `ran` gets how many calls each plan made."""
        place = self._place(case)
        arrays = self._arrays(case, place, in_place)
        out = arrays.take[: sum(piece.length for piece in case.operation.result(place))]
        with ExitStack() as open_calls:
            run = [
                Calls(one, open_calls.enter_context(one.bound(case, place, arrays.arguments, out)), ran=plans)
                for one, plans in zip(contenders, ran, strict=True)
            ]
            yield run, arrays, place

    def _place(self, case: Case) -> Place:
        return case.operation.place(self._world.rank, self._world.size, case.root, case.count)

    # --- time -----------------------------------------------------------------------------------

    def _time(self, run: Sequence[Calls]) -> None:
        """The iterations of all contenders: in turn in each round, another one first each time."""
        options = self._options
        rounds = min(options.rounds, options.iterations) if len(run) > 1 else 1
        for turn in range(rounds):
            first, end = (options.iterations * number // rounds for number in (turn, turn + 1))
            for index in range(len(run)):
                calls = run[(index + turn) % len(run)]
                before = calls.contender.tally()
                with calls.contender.inside():
                    block = time_block(
                        calls.call,
                        self._world.Barrier,
                        iterations=end - first,
                        calls=options.calls,
                        blocking=options.blocking,
                        each=options.per_iteration,
                        settle=self._kind.settle,
                    )
                calls.blocks.append(block)
                calls.ran.update(calls.contender.tally() - before)

    def _overlap(self, calls: Calls) -> float | None:
        if not self._options.overlap or not isinstance(calls.call, Halves):
            return None
        with calls.contender.inside():
            return measure_overlap(self._world, calls.call, self._options.iterations)

    def _half(self, case: Case, calls: Calls, wrong: int | None) -> Half:
        options, blocks = self._options, calls.blocks
        total = sum(block.calls for block in blocks)
        own = [sum(block.elapsed_s for block in blocks) / total, sum(block.cpu_s for block in blocks) / total]
        if len(blocks) > 1:
            own += [block.elapsed_s / block.calls for block in blocks]
        time_s, cpu_s, *rounds_s = self._over_ranks(own)
        spread = None
        if options.per_iteration:
            each = [one / options.calls for block in blocks for one in block.each_s]
            slowest = self._over_ranks(each, slowest=True)
            spread = spread_of(tuple(one * 1e6 for one in slowest), options.skip)
        algbw, busbw = case.operation.bandwidth(case.nbytes, time_s, self._world.size)
        rounds_us = tuple(one * 1e6 for one in rounds_s)
        return Half(time_s * 1e6, cpu_s * 1e6, algbw, busbw, wrong, spread, rounds_us)

    def _over_ranks(self, values: Sequence[float], *, slowest: bool = False) -> list[float]:
        """Each value of all ranks as -a says."""
        average = 3 if slowest else self._options.average
        own = np.array(values, np.float64)
        if average == 0:
            self._world.Bcast(own, root=0)
        else:
            self._world.Allreduce(MPI.IN_PLACE, own, _REDUCTIONS.get(average, MPI.SUM))
        return [float(value) for value in (own / self._world.size if average == 1 else own)]

    # --- results --------------------------------------------------------------------------------

    def _check(self, case: Case, calls: Calls, arrays: Arrays, place: Place) -> int | None:
        """Wrong elements of all ranks in the check iterations; None without any.

        As in nccl-tests, a wrong iteration is the last one.
        """
        if not self._options.check or not case.operation.sized or not calls.contender.is_checked(case):
            return None
        wrong = np.zeros(1, np.int64)
        with calls.contender.inside():
            for _ in range(self._options.check):
                wrong[0] = self._check_once(case, calls, arrays, place)
                self.out_of_bounds += self._overwritten()
                self._world.Allreduce(MPI.IN_PLACE, wrong, MPI.SUM)
                if wrong[0]:
                    break
        return int(wrong[0])

    def _check_once(self, case: Case, calls: Calls, arrays: Arrays, place: Place) -> int:
        dtype, length = dtype_of(case.datatype), case.count * case.operation.units(place.size)
        pattern = Pattern(dtype, case.redop, place.size, next(self._iteration), length)
        results = []
        end = calls.contender.result_start(case, place, in_place=arrays.in_place)
        for piece in case.operation.result(place) if arrays.takes else ():
            if piece.ranks and piece.length:
                table = pattern.expected(piece.ranks)
                results.append((arrays.take[end : end + piece.length], table, piece.start))
            end += piece.length
        for part in results:
            spoil(*part)
        given = pattern.given(place.rank) if arrays.give.size else None
        if given is not None:
            fill(arrays.give, given)
        for buffer in (self._send, self._take):
            buffer.push()
        calls.call()
        if self._kind.settle is not None:
            self._kind.settle()
        for buffer in (self._send, self._take):
            buffer.pull()
        wrong = sum(count_wrong(*part) for part in results)
        if given is not None and arrays.keeps:
            wrong += count_wrong(arrays.give, given)
        return wrong

    def _arrays(self, case: Case, place: Place, in_place: bool) -> Arrays:
        operation, dtype, skip = case.operation, dtype_of(case.datatype), self._options.unalign
        gives, pieces = operation.gives(place), operation.result(place)
        takes = sum(piece.length for piece in pieces)
        send = self._send.view(dtype, gives, skip)
        start = operation.in_place_start(place)
        take = self._take.view(dtype, max(takes, start + gives) if in_place else takes, skip)
        ours = self._send.passed(send), self._take.passed(take)
        arguments = operation.arguments(*ours, place, MPI.IN_PLACE if in_place else None)
        passed = [one.array if isinstance(one, Blocks) else one for one in arguments]
        reads_send, takes_any = (any(array is one for array in passed) for one in ours)
        give = send if reads_send or not in_place else take[start : start + gives]
        keeps = reads_send or not any(piece.ranks for piece in pieces)
        return Arrays(arguments, give, take, keeps, takes_any, in_place)

    def _overwritten(self) -> int:
        return self._send.overwritten() + self._take.overwritten()


def cases(
    options: Options, pairs: Sequence[tuple[str, str | None]], size: int, max_bytes: int
) -> Iterator[Case]:
    """Every case of one cycle: `pairs` of type and operator, in each the roots, in each the sizes."""
    operation = options.operation
    for datatype, redop in pairs:
        itemsize = dtype_of(datatype).itemsize
        for root in options.all_roots(size):
            for wanted in takewhile(lambda nbytes: nbytes <= max_bytes, options.sizes):
                elements = operation.count(wanted, itemsize, size)
                yield Case(
                    operation, datatype, redop, root, elements, operation.nbytes(elements, itemsize, size)
                )
