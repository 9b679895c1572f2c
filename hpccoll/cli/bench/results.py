"""What was measured: a row has an out-of-place and an in-place half."""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from math import prod

from hpccoll.cli.bench.operations import Operation
from hpccoll.cli.bench.timing import Spread

REPRODUCIBLE = ", reproducible"


@dataclass(frozen=True)
class Case:
    """What a row is about.  `redop` is None for collectives that only move; `root` -1 where there is none."""

    operation: Operation
    datatype: str
    redop: str | None
    root: int
    count: int
    nbytes: int


@dataclass(frozen=True)
class Half:
    """Out of place or in place: times over the ranks as -a says, wrong elements of all ranks.

    `wrong` is None where nothing was checked; `rounds_us`: the time of each round of --compare;
    `overlap_percent` is that of --overlap, where the call can be started.
    """

    time_us: float
    cpu_us: float
    algbw: float
    busbw: float
    wrong: int | None
    spread: Spread | None = None
    rounds_us: tuple[float, ...] = ()
    overlap_percent: float | None = None


@dataclass(frozen=True)
class Crossing:
    """Bytes that a plan moves by its cost model: inside a node, and out of one, the most of any node."""

    node_bytes: int
    network_bytes: int

    def network_gbs(self, half: Half | None) -> float | None:
        """What left a node a second, in 1e9 bytes; None where nothing did."""
        if half is None or half.time_us <= 0.0 or self.network_bytes == 0:
            return None
        return self.network_bytes / 1e9 / (half.time_us * 1e-6)


@dataclass(frozen=True)
class Price:
    """Times of the reproducible mode over those of the default mode's choice."""

    out_of_place: float | None
    in_place: float | None

    @property
    def halves(self) -> tuple[float | None, ...]:
        """Both."""
        return (self.out_of_place, self.in_place)


@dataclass(frozen=True)
class Row:
    """One line of the table.

    `algorithm` is the name of the plan that was taken, `plan` says more of it; `selected`: it is the one that
    selection takes; `crossing` is None where the plan is unknown (MPI's own call); `price` is that of
    `reproducible` rows.
    """

    case: Case
    out_of_place: Half | None
    in_place: Half | None
    algorithm: str
    plan: str
    selected: bool
    crossing: Crossing | None
    reproducible: bool = False
    price: Price | None = None

    @property
    def halves(self) -> tuple[Half, ...]:
        """Those that were measured."""
        return tuple(half for half in (self.out_of_place, self.in_place) if half is not None)

    @property
    def contender(self) -> str:
        """The name under which it is compared with others."""
        return f"{self.algorithm}{REPRODUCIBLE if self.reproducible else ''}"


def priced(rows: list[Row]) -> list[Row]:
    """The rows of one case, the reproducible ones with their price."""
    default = sorted((row for row in rows if not row.reproducible), key=lambda row: not row.selected)
    return [replace(row, price=_price(row, default[0])) if row.reproducible else row for row in rows]


def _price(row: Row, base: Row) -> Price:
    return Price(_ratio(row.out_of_place, base.out_of_place), _ratio(row.in_place, base.in_place))


def _ratio(half: Half | None, base: Half | None) -> float | None:
    return half.time_us / base.time_us if half is not None and base is not None and base.time_us else None


@dataclass
class Outcome:
    """All rows, and what was found besides."""

    rows: list[Row] = field(default_factory=list)
    out_of_bounds: int = 0
    errors: list[str] = field(default_factory=list)

    @property
    def wrong(self) -> int:
        """Wrong elements of all rows."""
        return sum(half.wrong or 0 for row in self.rows for half in row.halves)

    def price(self) -> float | None:
        """The geometric mean of all prices, or of those of plans that selection takes; None without."""
        rows = [row for row in self.rows if row.price is not None]
        prices = [row.price for row in rows if row.selected or not any(one.selected for one in rows)]
        found = [one for price in prices if price for one in price.halves if one is not None]
        return prod(one ** (1 / len(found)) for one in found) if found else None

    def busbw(self, contender: str | None = None) -> float:
        """The average over all sizes and both halves, or those of one contender; 0 without any."""
        found = [half.busbw for row in self.rows if contender in (None, row.contender) for half in row.halves]
        return sum(found) / len(found) if found else 0.0

    def is_good(self, min_bandwidth: float | None) -> bool:
        """Nothing wrong, nothing out of bounds, no error, and at least 0.9 of the bandwidth asked for."""
        fast = min_bandwidth is None or self.busbw() >= 0.9 * min_bandwidth
        return fast and not self.wrong and not self.out_of_bounds and not self.errors
