"""What all ranks have counted, put together: as a table for people, as JSON lines for programs.

A row of the summary is that of the mean rank: times are means over the ranks (as with nccl-tests' `-a 1`),
the shortest and the longest those of any.  `skew_s` says how far apart the ranks' mean times are: a rank that
comes last waits for nobody, so that its calls are the short ones, and `last` names it.
"""

from __future__ import annotations

import json
from collections import defaultdict
from collections.abc import Iterator, Sequence
from dataclasses import asdict, astuple, dataclass
from typing import Any

from hpccoll._version import __version__
from hpccoll.observe.meter import Sums
from hpccoll.observe.overlapped import NO_STEPS, Times
from hpccoll.observe.rates import LEVELS, Rate, Rates
from hpccoll.observe.snapshot import HOST, NCCL, STARTED, Kind, Level, Row, row_of
from hpccoll.plans.text import bytes_text, time_text

Counted = tuple[Kind, Sums, Sequence[int]]


@dataclass(frozen=True)
class Told:
    """What one rank has to tell; `counted`: its meters; `steps`: of its buckets."""

    rank: int
    seconds: float
    counted: tuple[Counted, ...]
    steps: Times = NO_STEPS

    def to_bytes(self) -> bytes:
        """JSON."""
        return json.dumps([self.rank, self.seconds, self.counted, astuple(self.steps)]).encode()

    @staticmethod
    def from_bytes(data: bytes) -> Told:
        rank, seconds, counted, steps = json.loads(data)
        rows = tuple((Kind(*kind), Sums(*sums), bins) for kind, sums, bins in counted)
        return Told(rank, seconds, rows, Times(*steps))


@dataclass(frozen=True)
class Line:
    """A row of the mean rank.

    `skew_s`: between the longest and the shortest mean time of a rank, None where no time is known or one
    rank told; `last`: the rank of the latter.
    """

    row: Row
    skew_s: float | None
    last: int | None


@dataclass(frozen=True)
class Summary:
    """The summary of one communicator; `told`: the ranks that it is of, of `ranks`."""

    name: str
    ranks: int
    layout: str
    told: tuple[int, ...]
    seconds: float
    waiting_s: float
    rates: Rates
    lines: tuple[Line, ...]
    steps: Times = NO_STEPS

    def json_lines(self) -> Iterator[str]:
        """A line for the communicator, then one for each row; the keys are those of the attributes."""
        about = {
            "kind": "communicator",
            "hpccoll": __version__,
            "name": self.name,
            "ranks": self.ranks,
            "layout": self.layout,
            "told": list(self.told),
            "seconds": self.seconds,
            "waiting_s": self.waiting_s,
            "nominal": {level: asdict(rate) for level, rate in self.rates.nominal.items()},
            "measured": {level: asdict(rate) for level, rate in self.rates.measured.items()},
            "steps": asdict(self.steps) | {"hidden_s": self.steps.hidden_s},
        }
        yield json.dumps(about)
        for line in self.lines:
            yield json.dumps({"kind": "row", **as_dict(line.row), "skew_s": line.skew_s, "last": line.last})

    def text(self) -> str:
        """A table, with the rates below."""
        whole = "" if len(self.told) == self.ranks else f", as rank {self.told[0]} alone saw them"
        part = f" ({self.waiting_s / self.seconds:.0%})" if self.seconds > 0 else ""
        spent = f"{time_text(self.waiting_s)}{part} in blocking calls and waits"
        head = (
            f"hpccoll metrics: {self.name or 'a communicator'}, {self.ranks} ranks on layout {self.layout}"
            f"{whole}; {time_text(self.seconds)}, of which {spent}"
        )
        cells = [_HEADINGS, *(_cells(line) for line in self.lines)]
        widths = [max(map(len, column)) for column in zip(*cells, strict=True)]
        table = ["  ".join(_placed(row, widths)).rstrip() for row in cells]
        return "\n".join([head, *table, *self._steps(), *self._rates()])

    def _steps(self) -> Iterator[str]:
        if self.steps.steps:
            mean = self.steps.mean
            under_way, hidden, exposed, waited = map(
                time_text, (mean.in_flight_s, mean.hidden_s, mean.exposed_s, mean.wait_s)
            )
            yield (
                f"steps of buckets: {self.steps.steps}, of each {under_way} under way: {hidden} hidden "
                f"({mean.hidden_percent:.0f} %), {exposed} exposed; {waited} in wait()"
            )

    def _rates(self) -> Iterator[str]:
        for level in LEVELS:
            said = [
                _rate_text(word, rates[level])
                for word, rates in (("measured", self.rates.measured), ("nominal", self.rates.nominal))
                if level in rates
            ]
            if said:
                yield f"{level}: {'; '.join(said)}"


def together(name: str, ranks: int, layout: str, rates: Rates, told: Sequence[Told]) -> Summary:
    """The summary of what some ranks tell."""
    found: dict[Kind, list[tuple[int, Sums, Sequence[int]]]] = defaultdict(list)
    for one in told:
        for kind, sums, bins in one.counted:
            found[kind].append((one.rank, sums, bins))
    lines = [_line(kind, of_ranks, ranks, rates) for kind, of_ranks in found.items()]
    lines.sort(key=lambda line: line.row.order)
    return Summary(
        name, ranks, layout, tuple(one.rank for one in told),
        max(one.seconds for one in told), sum(map(_waiting_s, told)) / len(told), rates, tuple(lines),
        _mean_rank([one.steps for one in told]),
    )  # fmt: skip


def _mean_rank(steps: Sequence[Times]) -> Times:
    """The steps of the mean rank."""
    total = sum(steps, NO_STEPS)
    count = len(steps)
    return Times(
        max(one.steps for one in steps),
        total.in_flight_s / count,
        total.exposed_s / count,
        total.wait_s / count,
    )


def _waiting_s(told: Told) -> float:
    """How long a rank stood in blocking calls and waits."""
    return sum(sums.waited_ns if kind.form == STARTED else sums.ns for kind, sums, _ in told.counted) / 1e9


def _line(kind: Kind, found: Sequence[tuple[int, Sums, Sequence[int]]], ranks: int, rates: Rates) -> Line:
    every = [sums for _, sums, _ in found]
    sums = max(every)._replace(
        ns=sum(one.ns for one in every) // len(every),
        agreeing_ns=sum(one.agreeing_ns for one in every) // len(every),
        waited_ns=sum(one.waited_ns for one in every) // len(every),
        shortest_ns=min(one.shortest_ns for one in every),
        longest_ns=max(one.longest_ns for one in every),
    )
    bins = [sum(column) for column in zip(*(one for _, _, one in found), strict=True)]
    row = row_of(kind, sums, bins, ranks, rates)
    if kind.memory == NCCL or len(found) < 2:
        return Line(row, None, None)
    means = {rank: sums.ns / sums.calls for rank, sums, _ in found}
    last = min(means, key=means.__getitem__)
    return Line(row, (max(means.values()) - means[last]) / 1e9, last)


def as_dict(row: Row) -> dict[str, Any]:
    """A row in what JSON knows: times by microseconds as text."""
    return {**asdict(row), "times": {f"{seconds * 1e6:g}": calls for seconds, calls in row.times.items()}}


_HEADINGS = (
    "collective", "up to", "made", "calls", "mean", "longest", "waited", "skew", "last", "algbw", "busbw",
    "node", "of rate", "network", "of rate", "bound", "plan",
)  # fmt: skip
_WORDS = {0, 2, 15, 16}  # columns that begin at the left


def _placed(cells: Sequence[str], widths: Sequence[int]) -> Iterator[str]:
    for column, (cell, width) in enumerate(zip(cells, widths, strict=True)):
        yield f"{cell:<{width}}" if column in _WORDS else f"{cell:>{width}}"


def _cells(line: Line) -> tuple[str, ...]:
    row = line.row
    levels = {level.name: level for level in row.levels}
    per_level = [cell for name in LEVELS for cell in _level_cells(levels.get(name))]
    return (
        row.collective,
        bytes_text(row.most_bytes),
        row.form if row.memory == HOST else f"{row.form}, {row.memory}",
        str(row.calls),
        _time(row.mean_s),
        _time(row.longest_s),
        _time(None if row.waited_s is None else row.waited_s / row.calls),
        _time(line.skew_s),
        "-" if line.last is None else str(line.last),
        _speed(row.algbw),
        _speed(row.busbw),
        *per_level,
        row.bound or "-",
        row.plan,
    )


def _level_cells(level: Level | None) -> tuple[str, str]:
    if level is None:
        return "-", "-"
    return _speed(level.gbs), "?" if level.share is None else f"{level.share:.0%}"


def _time(seconds: float | None) -> str:
    return "-" if seconds is None else time_text(seconds)


def _speed(gbs: float | None) -> str:
    return "-" if gbs is None else f"{gbs:.3g}"


def _rate_text(word: str, rate: Rate) -> str:
    known = "unknown" if rate.gbs is None else f"{rate.gbs:.3g} GB/s"
    return f"{word} rate {known} ({rate.source})"
