"""Numbers with units in words; for plans, for hosts, for all that prints."""

from __future__ import annotations


def number_text(value: float) -> str:
    """A number without needless digits: `200`, `2.5`, `56.3`."""
    return f"{value:.0f}" if value >= 100 or value == int(value) else f"{value:.3g}"


def in_binary_unit(count: float) -> tuple[float, str]:
    """So many bytes in the unit, of B to TiB, in which they are below 1024 where there is one."""
    size, unit = float(count), "B"
    for larger in ("KiB", "MiB", "GiB", "TiB"):
        if round(size) < 1024:
            break
        size, unit = size / 1024, larger
    return size, unit
