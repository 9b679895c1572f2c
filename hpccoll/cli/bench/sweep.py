"""All cases of a run, and what is said of them: by rank 0 alone."""

from __future__ import annotations

import os
import resource
import time
from collections.abc import Iterable, Sequence
from itertools import product
from typing import Any, TextIO

from mpi4py import MPI

from hpccoll.cli.bench.choice import is_good, judge
from hpccoll.cli.bench.contenders import Contender, operator_of
from hpccoll.cli.bench.elements import dtype_of
from hpccoll.cli.bench.facts import RunFacts, gather_facts
from hpccoll.cli.bench.kinds import Cpu
from hpccoll.cli.bench.measure import Measurement, cases
from hpccoll.cli.bench.options import Options
from hpccoll.cli.bench.report import document
from hpccoll.cli.bench.results import REPRODUCIBLE, Case, Outcome, Row, priced
from hpccoll.cli.bench.table import (
    TIME_FORMAT,
    column_lines,
    footer_lines,
    memory_line,
    row_line,
    title_lines,
)
from hpccoll.cli.output import abort, all_come, write_json
from hpccoll.errors import UsageError, UsageTypeError
from hpccoll.ops.table import arithmetic
from hpccoll.ops.table import operator_of as table_row

# How long a rank whose collective failed waits for the others before it ends the job.
_PATIENCE_S = 10.0


class Sweep:
    """One run of the benchmark on `world`; rank 0 writes to `stream`.

    `measure` may raise in the middle: `outcome` then has what was measured before.
    """

    def __init__(self, world: MPI.Intracomm, options: Options, stream: TextIO) -> None:
        self.outcome = Outcome()
        self._world = world
        self._options = options
        self._stream = stream
        self._begin = _now()
        self._facts: RunFacts | None = None
        self._kind = Cpu(world)
        self._left_out: set[str] = set()
        self._compared: list[str] = []

    def measure(self, comm: Any, reproducible: Any = None, *, kind: Cpu | None = None) -> None:
        """Measure all cases with `comm`, and one in reproducible mode if given; print rows as they come.

        `kind`: where the arrays are, by default in host memory.  Collective.

        Raises UsageError, on all ranks, for a plan, a root or a pair of operator and type that does not
        exist; HpccollError when a collective failed.
        """
        options = self._options
        kind = self._kind = Cpu(self._world) if kind is None else kind
        _check_algorithm(comm, kind, options)
        facts = self._facts = gather_facts(self._world, comm, kind, options.max_bytes)
        pairs = _pairs(options)
        options.all_roots(self._world.size)
        if options.operation.sized and options.min_bytes > facts.max_bytes:
            raise UsageError(f"--minbytes: {options.min_bytes} bytes do not fit into memory")
        measurement = Measurement(
            self._world, options, kind, facts.max_bytes if options.operation.sized else 0
        )
        self._say(title_lines(options, facts))
        self._say(column_lines(options))
        cycle = 0
        while cycle < options.cycles or options.cycles == 0:
            for case in cases(options, pairs, self._world.size, facts.max_bytes):
                contenders = self._contenders(comm, reproducible, case)
                for row in priced(self._kept(contenders, measurement.rows(case, contenders))):
                    self._tell(row)
            cycle += 1
        self.outcome.out_of_bounds = int(self._world.allreduce(measurement.out_of_bounds))

    def _kept(self, contenders: Sequence[Contender], rows: Sequence[Row]) -> list[Row]:
        """The rows without those where, as it turned out, another plan was taken than the one asked for."""
        kept = []
        for contender, row in zip(contenders, rows, strict=True):
            if self._options.compare and row.algorithm != contender.algorithm:
                self._cannot(contender, row.case)
            else:
                kept.append(row)
        return kept

    def _tell(self, row: Row) -> None:
        self.outcome.rows.append(row)
        if row.contender not in self._compared:
            self._compared.append(row.contender)
        self._say([row_line(row, self._options, _now())])

    def _contenders(self, comm: Any, reproducible: Any, case: Case) -> list[Contender]:
        if self._options.algorithm == self._kind.plain_name:
            return self._plain(comm, case)
        found = self._ours(case, comm)
        if reproducible is not None:
            found += self._ours(case, reproducible, reproducible=True)
        return found + (self._plain(comm, case) if self._options.compare else [])

    def _ours(self, case: Case, comm: Any, *, reproducible: bool = False) -> list[Contender]:
        """The way asked for, or all that there are."""
        mode = self._options.mode
        if not self._options.compare:
            return [self._kind.contender(comm, self._options.algorithm, mode, reproducible, case)]
        found = []
        for name in self._kind.algorithms(comm, case.operation.explained_as):
            one = self._kind.contender(comm, name, mode, reproducible, case)
            if case.operation.ragged or one.expected(case).name == name:
                found.append(one)
            else:
                self._cannot(one, case)
        return found

    def _cannot(self, contender: Contender, case: Case) -> None:
        kind = f"{case.datatype} {case.redop or ''}".strip()
        words = f"{contender.algorithm}{REPRODUCIBLE if contender.reproducible else ''}"
        what = "unequal blocks" if case.operation.ragged else f"{case.nbytes} bytes"
        self._leave_out(f"{words} {kind}", f"{words} cannot carry {what} of {kind}")

    def _plain(self, comm: Any, case: Case) -> list[Contender]:
        """What ours are compared with, if it knows the case, as it must if it alone was asked for."""
        try:
            return [self._kind.plain(comm, self._options.mode, case)]
        except UsageError as error:
            if not self._options.compare and self._only_one_kind:
                raise
            self._leave_out(f"{self._kind.plain_name} {case.redop} {case.datatype}", str(error))
            return []

    @property
    def _only_one_kind(self) -> bool:
        return len(self._options.datatypes) == len(self._options.redops) == 1

    def _leave_out(self, key: str, why: str) -> None:
        """Say once why there is no row."""
        if key not in self._left_out:
            self._left_out.add(key)
            self._say([f"# no row: {why}"])

    # --- the end --------------------------------------------------------------------------------

    def conclude(self, args: Sequence[str]) -> int:
        """Print what comes after the rows, write the JSON file.

        Returns the exit status: 0 good, 1 something was wrong or slower than asked for, 2 the file could
        not be written.  Collective; but after a failed collective other ranks may be lost: the job ends
        here if not all ranks come.
        """
        options, outcome = self._options, self.outcome
        names = self._compared if options.compare else []
        memory = self._memory_line() if options.memory and not outcome.errors else None
        self._say(footer_lines(outcome, options, names, memory))
        good = outcome.is_good(options.min_bandwidth)
        if options.within_pct is not None:
            good = good and is_good(judge(outcome.rows), options.within_pct)
        status = 0 if good else 1
        if options.json is not None and self._facts is not None and self._world.rank == 0:
            times = (self._begin, _now())
            found = document(outcome, options, self._facts, args=args, environ=os.environ, times=times)
            try:
                write_json(options.json, found)
            except UsageError as error:
                self._say([f"# error: {error}"])
                status = 2
        if outcome.errors:
            if not all_come(self._world, _PATIENCE_S):
                abort(self._world, 1)
            return status
        return int(self._world.bcast(status))

    def _memory_line(self) -> str:
        facts = self._facts
        buffers = 2 * (facts.max_bytes if facts is not None else 0)
        peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024
        return memory_line(buffers, self._world.allreduce(peak, MPI.MAX))

    def _say(self, lines: Iterable[str]) -> None:
        if self._world.rank == 0:
            for line in lines:
                print(line, file=self._stream)
            self._stream.flush()


def _pairs(options: Options) -> list[tuple[str, str | None]]:
    """Types with the operators that they have.  Raises UsageError when none is left."""
    if not options.operation.sized:
        return [("none", None)]
    if not options.operation.reduces:
        return [(datatype, None) for datatype in options.datatypes]
    found: list[tuple[str, str | None]] = []
    for datatype, redop in product(options.datatypes, options.redops):
        try:
            arithmetic(table_row(operator_of(redop)), dtype_of(datatype))
            found.append((datatype, redop))
        except UsageTypeError as error:
            why = f"-o {redop} -d {datatype}: {error}"
    if not found:
        raise UsageError(why)
    return found


def _check_algorithm(comm: Any, kind: Cpu, options: Options) -> None:
    known = (*kind.algorithms(comm, options.operation.explained_as), kind.plain_name)
    if options.algorithm is not None and options.algorithm not in known:
        raise UsageError(
            f"--algorithm is {options.algorithm!r}: on layout {comm.machine.layout} "
            f"{options.operation.name} has {', '.join(known)}"
        )


def _now() -> str:
    return time.strftime(TIME_FORMAT)
