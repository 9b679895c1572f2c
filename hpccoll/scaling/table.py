"""A study as lines of text, and as comma-separated values."""

from __future__ import annotations

import csv
import io
from collections.abc import Iterator

from hpccoll.cli.sizes import format_bytes
from hpccoll.scaling.study import Point, Study

HEADER = (
    f"# {'nodes':>5} {'ranks':>6} {'size':>8} {'time':>12} {'quartiles':>21} {'busbw':>9} {'kept':>6} "
    f"{'model':>6}  plan"
)
UNITS = f"# {'':>5} {'':>6} {'(B)':>8} {'(us)':>12} {'(us)':>21} {'(GB/s)':>9} {'(%)':>6} {'(%)':>6}"
LEGEND = (
    "# busbw: as nccl-tests; kept: busbw over that of the fewest nodes; model: predicted over measured\n"
    "# time; behind a simulated plan: the links that are busiest, and for how much of the time"
)


def row(study: Study, point: Point) -> str:
    """One line of the table."""
    kept = study.kept(point)
    quartiles = "-" if point.low_us is None else f"{point.low_us:.1f} - {point.high_us:.1f}"
    model = None if point.predicted_us is None or not point.time_us else point.predicted_us / point.time_us
    wrong = f"  {point.wrong} WRONG" if point.wrong else ""
    what = f"{point.plan}{_limit(point)}{wrong}"
    return (
        f"  {point.nodes:>5} {point.ranks:>6} {format_bytes(point.nbytes):>8} {point.time_us:>12.1f} "
        f"{quartiles:>21} {point.busbw:>9.3g} {_percent(kept):>6} {_percent(model):>6}  {what}"
    )


def lines(study: Study) -> Iterator[str]:
    """The whole table."""
    yield title(study)
    yield from (HEADER, UNITS)
    yield from (row(study, one) for one in study.points)
    yield LEGEND


def title(study: Study) -> str:
    """What was measured or priced, and where."""
    how = study.datatype + ("" if study.redop in ("", "none") else f" {study.redop}")
    return f"# {study.operation}, {how}, {study.kind}: {study.source}"


def as_csv(studies: Iterator[Study] | list[Study]) -> str:
    """All points of all studies, with a line of names."""
    text = io.StringIO()
    writer = csv.writer(text, lineterminator="\n")
    writer.writerow(
        ("operation", "datatype", "redop", "kind", "source", "nodes", "ranks", "layout", "bytes", "plan",
         "time_us", "low_us", "high_us", "predicted_us", "busbw_gbs", "kept", "wrong", "limit", "used")
    )  # fmt: skip
    for study in studies:
        for one in study.points:
            writer.writerow(
                (study.operation, study.datatype, study.redop, study.kind, study.source, one.nodes, one.ranks,
                 one.layout, one.nbytes, one.plan, one.time_us, one.low_us, one.high_us, one.predicted_us,
                 one.busbw, study.kept(one), one.wrong, one.limit,
                 " ".join(f"{name}={part:.3f}" for name, part in one.used.items()))
            )  # fmt: skip
    return text.getvalue()


def _limit(point: Point) -> str:
    if not point.used:
        return ""
    busiest = max(point.used, key=lambda one: point.used[one])
    return f"; {busiest} {_percent(point.used[busiest])} %"


def _percent(part: float | None) -> str:
    return "-" if part is None else f"{100 * part:.0f}"
