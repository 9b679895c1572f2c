"""What has been counted, as data: the form of `comm.metrics()`."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any, NamedTuple

from hpccoll.observe.meter import Sums
from hpccoll.observe.overlapped import NO_STEPS, Times
from hpccoll.observe.rates import NETWORK, NODE, Rate, Rates
from hpccoll.plans.bandwidth import FACTORS, bandwidths

BLOCKING, STARTED = "blocking", "started"
HOST, NCCL, STAGED = "host", "nccl", "staged"


class Kind(NamedTuple):
    """Which calls are counted together; see `Row`.  `levels`: what they move on each level is known."""

    collective: str
    plan: str
    form: str
    memory: str
    most_bytes: int
    levels: bool


@dataclass(frozen=True)
class Level:
    """What calls moved on one level of the machine.

    Attributes:
        name: "node", copies inside a node, or "network", what leaves one.
        nbytes: by the plans' cost model: of the node that moves most.
        gbs: 1e9 bytes a second, while elements moved; None where no time is known.
        of_nominal, of_measured: that over the nominal and the measured rate; None where such a one is not
            known.

    """

    name: str
    nbytes: int
    gbs: float | None
    of_nominal: float | None
    of_measured: float | None

    @property
    def share(self) -> float | None:
        """That of the measured rate, else of the nominal one."""
        return self.of_nominal if self.of_measured is None else self.of_measured


@dataclass(frozen=True)
class Row:
    """Calls that are alike, on one rank.

    Attributes:
        collective: its name; with a `v` where blocks have lengths of their own.
        plan: the plan, with its chunks and the algorithm between nodes.
        form: "blocking", or "started" (`I...`, and `Start` of a persistent call).
        memory: "host"; "nccl", enqueued on device arrays; "staged", device arrays over the host.
        most_bytes: the size class: calls above half of it, up to it, as nccl-tests counts bytes.
        calls: those that ended well; of "nccl" those that were enqueued.
        nbytes: of all of them.
        seconds: from their begins to their ends, added up; None where that is not measured ("nccl").
        agreeing_s: of it, until all ranks had come, of calls whose elements move after that.
        waited_s: of "started": how long callers stood in Wait, or Waitall, for them.
        shortest_s, longest_s: of one call.
        times: how many calls took how long: from so many seconds on, up to twice that.
        algbw, busbw: in 1e9 bytes a second, of the mean call.
        levels: innermost first; () where what moves on each is not known.
        bound: the level nearest to its rate, None where a rate is not known.

    """

    collective: str
    plan: str
    form: str
    memory: str
    most_bytes: int
    calls: int
    nbytes: int
    seconds: float | None
    agreeing_s: float | None
    waited_s: float | None
    shortest_s: float | None
    longest_s: float | None
    times: Mapping[float, int]
    algbw: float | None
    busbw: float | None
    levels: tuple[Level, ...]
    bound: str | None

    @property
    def order(self) -> tuple[str, int, str, str, str]:
        """In which rows are shown."""
        return (self.collective, self.most_bytes, self.form, self.memory, self.plan)

    @property
    def mean_s(self) -> float | None:
        """Of one call."""
        return None if self.seconds is None else self.seconds / self.calls

    @property
    def hidden_s(self) -> float | None:
        """Of "started": the time that calls were under way while nobody waited for them."""
        if self.seconds is None or self.waited_s is None:
            return None
        return max(0.0, self.seconds - self.waited_s)


@dataclass(frozen=True)
class Snapshot:
    """What one rank has counted on one communicator.

    Attributes:
        name: of the communicator, as MPI knows it.
        rank, ranks: who counted, of how many.
        layout: the nodes.
        seconds: since the communicator was first used, or the last reset.
        nominal, measured: the rates of the levels, where they are known, and who says so.
        rows: by collective, size class, form, plan.
        steps: those of GradientBuckets on this communicator, with their hidden and exposed time.

    """

    name: str
    rank: int
    ranks: int
    layout: str
    seconds: float
    nominal: Mapping[str, Rate]
    measured: Mapping[str, Rate]
    rows: tuple[Row, ...]
    steps: Times = NO_STEPS

    def __post_init__(self) -> None:
        object.__setattr__(self, "rows", tuple(sorted(self.rows, key=lambda row: row.order)))

    @property
    def hidden_s(self) -> float:
        """Of all started calls: how long they were under way while nobody waited for them, added up."""
        return sum(row.hidden_s or 0.0 for row in self.rows)

    @property
    def exposed_s(self) -> float:
        """How long callers stood in blocking calls, and in waits for started ones."""
        return sum((row.seconds if row.form == BLOCKING else row.waited_s) or 0.0 for row in self.rows)

    def calls(self, collective: str = "") -> int:
        """How many calls were counted, of one collective or of all."""
        return sum(row.calls for row in self.rows if collective in ("", row.collective))

    def as_dict(self) -> dict[str, Any]:
        """The same in what JSON knows."""
        return asdict(self)


def row_of(kind: Kind, sums: Sums, bins: Sequence[int], size: int, rates: Rates) -> Row:
    """A row from what a meter has counted; `size`: the number of ranks."""
    timed = kind.memory != NCCL
    moving_s = (sums.ns - sums.agreeing_ns) / 1e9
    levels = _levels(kind, sums, moving_s, rates) if kind.levels else ()
    factor = FACTORS[kind.collective.removesuffix("v")]
    algbw, busbw = bandwidths(sums.nbytes, sums.ns / 1e9, factor, size)
    return Row(
        *kind[:5],
        calls=sums.calls,
        nbytes=sums.nbytes,
        seconds=sums.ns / 1e9 if timed else None,
        agreeing_s=sums.agreeing_ns / 1e9 if timed else None,
        waited_s=sums.waited_ns / 1e9 if timed and kind.form == STARTED else None,
        shortest_s=sums.shortest_ns / 1e9 if timed else None,
        longest_s=sums.longest_ns / 1e9 if timed else None,
        times={(1 << bin) / 1e9: count for bin, count in enumerate(bins) if count},
        algbw=algbw if timed else None,
        busbw=busbw if timed else None,
        levels=levels,
        bound=bound_of(levels),
    )


def _levels(kind: Kind, sums: Sums, moving_s: float, rates: Rates) -> tuple[Level, ...]:
    found = []
    for name, nbytes in ((NODE, sums.inside), (NETWORK, sums.between)):
        if nbytes:
            gbs = nbytes / 1e9 / moving_s if moving_s > 0 else None
            shares = (share_of(gbs, rates.nominal.get(name)), share_of(gbs, rates.measured.get(name)))
            found.append(Level(name, nbytes, gbs, *shares))
    return tuple(found)


def share_of(gbs: float | None, rate: Rate | None) -> float | None:
    """A speed over a rate; None where either is not known."""
    if gbs is None or rate is None or rate.gbs is None:
        return None
    return gbs / rate.gbs


def bound_of(levels: Sequence[Level]) -> str | None:
    """The level nearest to its rate; the only one; None where a rate is not known."""
    if len(levels) == 1:
        return levels[0].name
    if not levels or any(level.share is None for level in levels):
        return None
    return max(levels, key=lambda level: level.share or 0.0).name
