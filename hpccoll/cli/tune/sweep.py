"""All collectives, sizes and plans, one after the other; each plan's result is checked before it is timed."""

from __future__ import annotations

import math
import os
import sys
import time
from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
from mpi4py import MPI

from hpccoll.cli.bench.contenders import Contender
from hpccoll.cli.bench.facts import gather_facts
from hpccoll.cli.bench.kinds import Cpu
from hpccoll.cli.bench.measure import Checked, Measurement, cases
from hpccoll.cli.bench.modes import Mode
from hpccoll.cli.bench.operations import OPERATIONS
from hpccoll.cli.bench.results import Case
from hpccoll.cli.bench.timing import Pace
from hpccoll.cli.output import by_rank_0, write_json
from hpccoll.cli.tune.options import Options
from hpccoll.cli.tune.progress import Progress, time_left
from hpccoll.config import load
from hpccoll.errors import UsageError
from hpccoll.plans.measured import DeviceFacts, decide
from hpccoll.tuning import links, place
from hpccoll.tuning.fingerprint import Fingerprint
from hpccoll.tuning.here import fingerprint_of
from hpccoll.tuning.statistics import median_interval, without_rounds
from hpccoll.tuning.table import Entry, Row, Table, from_toml, to_toml
from hpccoll.units import number_text

_GUESS_S = 100e-6  # of a call whose plan has no price, as on devices
_CALLS_BESIDES = 3  # the check and two to find the pace


@dataclass(frozen=True)
class Part:
    """A collective at a size, with its plans and how long that is expected to take."""

    case: Case
    contenders: tuple[Contender, ...]
    expected_s: float


class Sweep:
    """One run of `hpccoll tune`.

    `world`: for barriers; `comm`: ours over the same ranks, with no table; `kind`: where the arrays are.
    """

    def __init__(self, world: MPI.Intracomm, comm: Any, kind: Cpu, options: Options) -> None:
        self._world, self._comm, self._kind, self._options = world, comm, kind, options
        self._pace = Pace(options.rounds, options.round_s)
        self._wrong: list[str] = []

    def run(self, argv: Sequence[str]) -> int:
        """Measure all, and write the table, also in between.  Collective; returns the exit status.

        Raises: UsageError on all ranks; HpccollError when a collective failed.
        """
        begin = time.monotonic()
        fingerprint = fingerprint_of(self._world, self._comm.machine, self._comm.config)
        path, before = self._opened(fingerprint)
        room = gather_facts(self._world, self._comm, self._kind, self._options.each.max_bytes).max_bytes
        found = self._links()
        table = Table(fingerprint, (), links.for_model(found), self._device_facts(), self._run_facts(argv))
        table = self._price_by(table, before)
        parts = self._parts(room)
        progress = Progress(
            sys.stderr if self._world.rank == 0 else None, sum(part.expected_s for part in parts)
        )
        for line in _title(fingerprint, found, parts):
            progress.say(line)
        measurement = Measurement(self._world, self._options.each, self._kind, room)
        for index, part in enumerate(parts):
            entry, text = self._measure(part, measurement)
            table = replace(table, entries=(*table.entries, *([entry] if entry.rows else [])))
            progress.done(part.expected_s, text)
            last = index + 1 == len(parts) or parts[index + 1].case.operation != part.case.operation
            if last:  # what is there stays, when the rest does not come to its end
                self._write(table, before, path)
        for line in self._wrong:
            progress.say(f"# wrong: {line}")
        overwritten = int(self._world.allreduce(measurement.out_of_bounds))
        if overwritten:
            progress.say(f"# wrong: {overwritten} bytes out of bounds were written")
        took = time_left(time.monotonic() - begin)
        progress.say(f"# {path}: {len(table.entries)} sizes of collectives, after {took}")
        self._write_json(table)
        return 1 if self._wrong or overwritten else 0

    # --- the table ------------------------------------------------------------------------------

    def _opened(self, fingerprint: Fingerprint) -> tuple[Path, Table | None]:
        """Where the table goes, and what is there of the same machine.  Collective."""
        return by_rank_0(self._world, lambda: self._look(fingerprint))

    def _look(self, fingerprint: Fingerprint) -> tuple[Path, Table | None]:
        path = place.path_for(fingerprint, self._options.output or load().tuning, os.environ)
        try:
            text = path.read_text(encoding="utf-8")
        except FileNotFoundError:
            place.check_writable(path)
            return path, None
        except (OSError, UnicodeDecodeError) as error:
            raise UsageError(f"cannot read {path}, where the table is to go: {error}") from None
        place.check_writable(path)
        found = from_toml(text, str(path))
        differences = fingerprint.differences(found.fingerprint)
        if differences:
            raise UsageError(
                f"{path} is of another machine, and stays: here {'; '.join(differences)}; remove it, or give "
                "another --output"
            )
        return path, found

    def _write(self, table: Table, before: Table | None, path: Path) -> None:
        whole = table if before is None else before.updated(table)
        by_rank_0(self._world, lambda: place.write(whole, path))

    def _write_json(self, table: Table) -> None:
        if (path := self._options.json) is not None:
            by_rank_0(self._world, lambda: write_json(path, asdict(table)))

    def _device_facts(self) -> DeviceFacts | None:
        if not self._options.on_device:
            return None
        return DeviceFacts.of(self._kind.nccl_version or 0, self._world.allgather(self._kind.processor))

    def _run_facts(self, argv: Sequence[str]) -> dict[str, str | int]:
        return {
            "date": time.strftime("%Y-%m-%d"),
            "command": " ".join(["hpccoll", *argv[1:]]),
            "elements": self._options.each.datatypes[0],
            "rounds": self._options.rounds,
        }

    # --- links ----------------------------------------------------------------------------------

    def _links(self) -> tuple[links.Link, ...]:
        deadline = time.monotonic() + self._comm.config.timeout_s
        return links.measure(self._world, self._comm.machine.layout.by_node, deadline)

    def _price_by(self, table: Table, before: Table | None) -> Table:
        """Let the links decide now, as later with the table, in which variant each plan is taken.

        Where some of what was measured before stays, that are the links of then.
        """
        wanted = {(self._options.memory, name) for name in self._options.collectives}
        if before is not None and any(entry.key not in wanted for entry in before.entries):
            table = replace(table, links=before.links)
        written = from_toml(to_toml(table), "")  # with as many digits as the file has
        self._comm._context.planner.measured = written.measured("")
        return written

    # --- plans ----------------------------------------------------------------------------------

    def _parts(self, room: int) -> list[Part]:
        return [part for name in self._options.collectives for part in self._parts_of(name, room)]

    def _parts_of(self, name: str, room: int) -> list[Part]:
        operation = OPERATIONS[name]
        each = replace(self._options.each, operation=operation)
        redop = "sum" if operation.reduces else None
        found: dict[int, Part] = {}
        for case in cases(each, [(each.datatypes[0], redop)], self._world.size, room):
            if case.count and case.nbytes not in found:
                found[case.nbytes] = self._part(case)
        return [part for part in found.values() if part.contenders]

    def _part(self, case: Case) -> Part:
        able = []
        expected_s = 0.0
        for name in self._kind.algorithms(self._comm, case.operation.explained_as):
            one = self._kind.contender(self._comm, name, Mode.BLOCKING, False, case)
            if one.expected(case).name != name:
                continue
            able.append(one)
            call_s = _GUESS_S if self._options.on_device else one.predicted_s(case)
            expected_s += _CALLS_BESIDES * call_s + self._pace.rounds * max(self._pace.round_s, call_s)
        return Part(case, tuple(able), expected_s)

    def _measure(self, part: Part, measurement: Measurement) -> tuple[Entry, str]:
        """Times of the plans that are right, and the outcome in words."""
        case = part.case
        found = measurement.checked(case, part.contenders, self._pace)
        rows = []
        for one, checked, (middle, low, high) in zip(part.contenders, found, _intervals(found), strict=True):
            name = str(one.algorithm)
            if checked.wrong:
                self._wrong.append(f"{case.operation.name} of {case.nbytes} bytes by {name}: {checked.wrong}")
                continue
            plan = one.expected(case).plan
            rows.append(Row(name, middle * 1e6, low * 1e6, high * 1e6, plan if plan != name else ""))
        rows.sort(key=lambda row: row.time_us)
        entry = Entry(self._options.memory, case.operation.explained_as, case.nbytes, tuple(rows))
        return entry, self._outcome(part, entry)

    def _outcome(self, part: Part, entry: Entry) -> str:
        what = f"{entry.collective} {entry.nbytes} B"
        if not entry.rows:
            return f"{what}: no plan is right"
        times = {row.plan: row.time for row in entry.rows}
        free = self._kind.contender(self._comm, None, Mode.BLOCKING, False, part.case)
        before = free.expected(part.case).name
        taken, _ = decide(before, times)
        beside = "" if taken == before else f", instead of {before} {_us(times[before].time_s * 1e6)}"
        best = entry.rows[0]
        fastest = "" if best.plan == taken else f"; fastest {best.plan} {_us(best.time_us)}"
        took = f" {_us(times[taken].time_s * 1e6)}" if taken in times else ""
        return f"{what}: {taken}{took}{beside}{fastest}"


def _intervals(found: Sequence[Checked]) -> list[tuple[float, float, float]]:
    """Median and interval of each, freed of what slowed whole rounds; zeros for what was not timed."""
    longest = max((len(one.rounds_s) for one in found), default=0)
    times = np.full((longest, len(found)), math.nan)
    for column, one in enumerate(found):
        times[: len(one.rounds_s), column] = one.rounds_s
    timed = [column for column, one in enumerate(found) if one.rounds_s]
    cleaned = without_rounds(times[:, timed])
    intervals = [(0.0, 0.0, 0.0)] * len(found)
    for index, column in enumerate(timed):
        intervals[column] = median_interval(cleaned[:, index])
    return intervals


def _us(time_us: float) -> str:
    return f"{number_text(time_us)} us"


def _title(fingerprint: Fingerprint, found: Sequence[links.Link], parts: Sequence[Part]) -> Iterator[str]:
    plans = sum(len(part.contenders) for part in parts)
    total_s = sum(part.expected_s for part in parts)
    yield f"# layout {fingerprint.layout}, {fingerprint.mpi}; {'; '.join(fingerprint.hardware)}"
    for one in found:
        rate = f"{number_text(one.node_gbs)} GB/s a node"
        yield f"# link {one.family:7s} {one.latency_us:9.2f} us, {rate}, {one.pairs} pairs at once"
    yield f"# {len(parts)} sizes of collectives, {plans} plans; by their prices {time_left(total_s)} at least"
