"""Tables for tests: times that nobody measured, of machines that there are not."""

from __future__ import annotations

from collections.abc import Mapping

from hpccoll.plans.measured import Curve, Measured, Time
from hpccoll.tuning.fingerprint import Fingerprint
from hpccoll.tuning.table import Entry, Row, Table

SETTINGS: dict[str, str | int] = {
    "checks": "on",
    "small_bytes": 4096,
    "segment_bytes": 262144,
    "chunk_bytes": 1048576,
    "staging_bytes": 524288,
    "single_copy_bytes": 131072,
}
FINGERPRINT = Fingerprint("0.1.0", "2+2", ("2 x a processor, network none",), "MPICH 5.0.2", True, SETTINGS)


def time(time_us: float, spread: float = 0.01) -> Time:
    """With an interval of so much to either side."""
    return Time(time_us * 1e-6, time_us * (1 - spread) * 1e-6, time_us * (1 + spread) * 1e-6)


def curve(points: Mapping[int, float], spread: float = 0.01) -> Curve:
    """Microseconds by size."""
    return Curve(tuple(points), tuple(time(value, spread) for value in points.values()))


def measured(collective: str, **plans: Mapping[int, float]) -> Measured:
    """Of one collective, in host memory."""
    return Measured(
        "a table", {("host", collective): {name: curve(points) for name, points in plans.items()}}
    )


def table(fingerprint: Fingerprint = FINGERPRINT, collective: str = "allreduce", **times_us: float) -> Table:
    """One entry, of 64 KiB."""
    rows = tuple(Row(plan, value, 0.99 * value, 1.01 * value) for plan, value in times_us.items())
    return Table(
        fingerprint, (Entry("host", collective, 65536, rows),), {"network_gbs": 1.25}, None, {"rounds": 15}
    )
