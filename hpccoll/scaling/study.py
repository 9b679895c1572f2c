"""What a scaling study has found: points over nodes and sizes, the bandwidth that is kept, and its file."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import asdict, dataclass, field, fields, replace
from pathlib import Path
from typing import Any

from hpccoll import files
from hpccoll.errors import UsageError

VERSION = 1
MEASURED, SIMULATED = "measured", "simulated"


@dataclass(frozen=True)
class Point:
    """One collective on so many nodes.

    `nbytes`: the size asked for; where ranks have equal blocks of it, it is rounded down in the call.
    `time_us`: the median over iterations of the slowest rank's time, or the price.  `busbw`: as nccl-tests
    defines it, in 1e9 bytes a second.  `low_us`, `high_us`: the quartiles, where it was measured;
    `predicted_us`: what selection expected; `wrong`: elements that were not right.  `used`: where it was
    simulated, by class of links the part of the time that the busiest was busy.
    """

    nodes: int
    ranks: int
    layout: str
    nbytes: int
    plan: str
    time_us: float
    busbw: float
    low_us: float | None = None
    high_us: float | None = None
    predicted_us: float | None = None
    wrong: int = 0
    used: dict[str, float] = field(default_factory=dict)

    @property
    def limit(self) -> str:
        """What is busy for most of the time: a class of links, or "latency"; "" where it is not known."""
        if not self.used:
            return ""
        name = max(self.used, key=lambda one: self.used[one])
        return name if self.used[name] >= 0.5 else "latency"


@dataclass(frozen=True)
class Study:
    """Points of one collective, by sizes and then nodes.

    `kind`: measured or simulated.  `source`: where, in words.  `facts`: of the run: MPI's library, date.
    """

    operation: str
    datatype: str
    redop: str
    kind: str
    source: str
    points: tuple[Point, ...] = ()
    command: str = ""
    facts: dict[str, Any] = field(default_factory=dict)

    @property
    def sizes(self) -> tuple[int, ...]:
        """The sizes in bytes, rising."""
        return tuple(sorted({one.nbytes for one in self.points}))

    @property
    def node_counts(self) -> tuple[int, ...]:
        """The numbers of nodes, rising."""
        return tuple(sorted({one.nodes for one in self.points}))

    @property
    def wrong(self) -> int:
        """Wrong elements of all points."""
        return sum(one.wrong for one in self.points)

    def of_size(self, nbytes: int) -> tuple[Point, ...]:
        """The points of one size, by nodes."""
        return tuple(sorted((one for one in self.points if one.nbytes == nbytes), key=lambda one: one.nodes))

    def on(self, nodes: int) -> tuple[Point, ...]:
        """The points of one number of nodes, by size."""
        return tuple(sorted((one for one in self.points if one.nodes == nodes), key=lambda one: one.nbytes))

    def kept(self, point: Point) -> float | None:
        """Bus bandwidth over that of the fewest nodes with this size: 1 where nothing is lost by growing.

        Bus bandwidth does not fall with the number of ranks by itself, so this is the efficiency of scaling.
        None for a single rank, which has no bus bandwidth.
        """
        base = next((one for one in self.of_size(point.nbytes) if one.ranks > 1), None)
        return None if base is None or point.ranks == 1 or not base.busbw else point.busbw / base.busbw

    def with_points(self, points: Sequence[Point]) -> Study:
        """The same with more points; those of the same nodes and size are replaced."""
        kept = {(one.nbytes, one.nodes): one for one in (*self.points, *points)}
        return replace(self, points=tuple(kept[key] for key in sorted(kept)))

    def continues(self, other: Study) -> bool:
        """Whether the other's points belong here: of the same calls, of the same kind, at the same place."""
        names = ("operation", "datatype", "redop", "kind", "source")
        return all(getattr(self, name) == getattr(other, name) for name in names)


def write(path: Path, study: Study) -> None:
    """Write a study as JSON, complete or not at all.  Raises: UsageError where it cannot be written."""
    files.write_text(path, json.dumps({"version": VERSION, **asdict(study)}, indent=2) + "\n")


def read(path: Path) -> Study:
    """Read what `write` has written.  Raises: UsageError, naming the file and what is wrong in it."""
    try:
        document = json.loads(path.read_text(encoding="utf-8"))
    except OSError as error:
        raise UsageError(f"cannot read {path}: {error.strerror}") from None
    except ValueError as error:
        raise UsageError(f"{path} is not JSON: {error}") from None
    if not isinstance(document, dict) or document.get("version") != VERSION:
        raise UsageError(f"{path} is no study of `hpccoll scale`, version {VERSION}")
    try:
        points = tuple(_checked(Point(**one)) for one in document.pop("points"))
        known = {one.name for one in fields(Study)}
        return Study(**{name: value for name, value in document.items() if name in known}, points=points)
    except (TypeError, KeyError, ValueError, AttributeError) as error:
        raise UsageError(f"{path}: {error}") from None


def _checked(point: Point) -> Point:
    numbers = (point.nodes, point.ranks, point.nbytes, point.time_us, point.busbw)
    if not all(isinstance(one, int | float) and 0 <= one < float("inf") for one in numbers):
        raise ValueError(f"a point has numbers below 0, or none: {point}")
    return point
