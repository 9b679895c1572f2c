"""Rows of the comparison between hosts: completed, as lines and Markdown, and drawn."""

from __future__ import annotations

import re
import statistics
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

from benchmarks.cluster.candidates import AUTOMATIC, MPI_ALONE

# Title, width as text, key in a row, factor and digits of each number.
COLUMNS = (
    ("time ms", 9, "median_s", 1e3, 1),
    ("mpi/this", 8, "mpi_over_this", 1, 2),
    ("auto/this", 9, "auto_over_this", 1, 2),
    ("wire", 6, "wire_fraction", 1, 2),
    ("link", 6, "link_fraction", 1, 2),
    ("sent %", 7, "sent_percent", 1, 1),
    ("model %", 7, "modelled_percent", 1, 1),
    ("#wrong", 6, "wrong", 1, 0),
)
HEADER = f"# {'hosts':>5} {'bytes':>10} {'algorithm':<28} " + " ".join(
    f"{one[0]:>{one[1]}}" for one in COLUMNS
)
OVERLAP_COLUMNS = (
    ("pure ms", 9, "pure_s", 1e3, 1),
    ("overall ms", 10, "overall_s", 1e3, 1),
    ("compute ms", 10, "compute_s", 1e3, 1),
    ("overlap %", 9, "overlap_percent", 1, 0),
    ("slowed", 6, "slowed", 1, 2),
    ("#wrong", 6, "wrong", 1, 0),
)
OVERLAP_HEADER = f"# {'who':<8} {'computes':<8} " + " ".join(f"{one[0]:>{one[1]}}" for one in OVERLAP_COLUMNS)


def complete_row(
    row: dict[str, Any],
    rows: Sequence[dict[str, Any]],
    hosts: int,
    wire_bytes_per_s: float,
    link_bytes_per_s: float | None,
) -> None:
    """Add the median, the ratios to MPI's own and to the automatic choice, the shares of the limits and the
    percentages of bytes.
    """
    least_bytes = 2 * (hosts - 1) / hosts * row["bytes"]
    row["median_s"] = statistics.median(row["times_s"]) if row["times_s"] else None
    for other in rows:
        if other["bytes"] == row["bytes"] and row["median_s"]:
            for name, key in ((MPI_ALONE, "mpi_over_this"), (AUTOMATIC, "auto_over_this")):
                if other["algorithm"] == name:
                    row[key] = statistics.median(other["times_s"]) / row["median_s"]
    if row["median_s"]:
        row["wire_fraction"] = least_bytes / wire_bytes_per_s / row["median_s"]
        if link_bytes_per_s is not None:
            row["link_fraction"] = least_bytes / link_bytes_per_s / row["median_s"]
    if row["sent_bytes_per_call"] and least_bytes:
        row["sent_percent"] = 100 * max(row["sent_bytes_per_call"]) / least_bytes
    if row["modelled_bytes"] is not None and least_bytes:
        row["modelled_percent"] = 100 * row["modelled_bytes"] / least_bytes


def _cells(row: dict[str, Any], columns: Sequence[tuple[str, int, str, float, int]]) -> Iterator[str]:
    """The numbers of a row; '-' where one does not exist, the median where there is one a round."""
    for _, _, key, factor, digits in columns:
        value = row.get(key)
        if isinstance(value, list):
            value = statistics.median(value) if value else None
        yield "-" if value is None else f"{value * factor:.{digits}f}"


def _line(columns: Sequence[tuple[str, int, str, float, int]], row: dict[str, Any]) -> str:
    return " ".join(f"{cell:>{one[1]}}" for cell, one in zip(_cells(row, columns), columns, strict=True))


def format_row(hosts: int, row: dict[str, Any]) -> str:
    """One line of the table."""
    return f"  {hosts:>5} {row['bytes']:>10} {_name(row):<28} {_line(COLUMNS, row)}"


def format_overlap(row: dict[str, Any]) -> str:
    """One line of the table of overlap."""
    return f"  {row['who']:<8} {row['work']:<8} {_line(OVERLAP_COLUMNS, row)}"


def _name(row: dict[str, Any]) -> str:
    # Of the automatic choice the name is enough here: the row of that name has the rest.
    choice = row["plan"].split("(")[0]
    return f"auto: {choice}" if row["algorithm"] == AUTOMATIC else row["algorithm"]


def markdown(found: dict[str, Any]) -> str:
    """All that was found, as tables."""
    lines = [
        f"# All-reduce between hosts, {found['date']}\n",
        f"{found['ranks_per_host']} ranks a host, {found['rate']} a host, float32 sums, medians of"
        f" {found['rounds']} rounds of the slowest rank; `python -m benchmarks.cluster --help` says what the"
        " columns are.\n",
    ]
    for run in found["runs"]:
        rate = run["link_bytes_per_s"]
        measured = f"; a host sends {rate / 1e6:.1f} MB/s by MPI's messages" if rate else ""
        lines.append(f"## {run['hosts']} hosts, {run['ranks']} ranks\n\n{run['library']}{measured}.\n")
        lines += [f"Left out: {name}: {reason}.\n" for name, reason in run["left_out"].items()]
        lines += _table(("bytes", "algorithm"), COLUMNS)
        for row in run["rows"]:
            lines.append(f"| {row['bytes']} | {_name(row)} | {' | '.join(_cells(row, COLUMNS))} |")
        lines.append("")
    overlap = found["overlap"]
    if overlap:
        lines.append(f"## Overlap of an Iallreduce of {overlap['bytes']} bytes\n")
        lines.append(f"{overlap['hosts']} hosts, {overlap['ranks']} ranks.\n")
        lines += _table(("who", "computes"), OVERLAP_COLUMNS)
        for row in overlap["rows"]:
            lines.append(f"| {row['who']} | {row['work']} | {' | '.join(_cells(row, OVERLAP_COLUMNS))} |")
    return "\n".join(lines).rstrip() + "\n"


def _table(left: Sequence[str], columns: Sequence[tuple[str, int, str, float, int]]) -> list[str]:
    titles = [*left, *(one[0] for one in columns)]
    return [f"| {' | '.join(titles)} |", "|" + "---|" * len(left) + "---:|" * len(columns)]


def figures(found: dict[str, Any], into: Path) -> None:
    """For each number of hosts the share of the wire limit over the size; nothing without matplotlib."""
    try:
        import matplotlib
    except ImportError:
        print("no figures: matplotlib is not installed (pip install 'hpccoll[plot]')")
        return
    matplotlib.use("agg")
    from matplotlib import pyplot

    for run in found["runs"]:
        figure, axis = pyplot.subplots(figsize=(7, 4.5))
        for name in dict.fromkeys(row["algorithm"] for row in run["rows"]):
            rows = [row for row in run["rows"] if row["algorithm"] == name and "wire_fraction" in row]
            sizes, shares = [row["bytes"] for row in rows], [row["wire_fraction"] for row in rows]
            style = {MPI_ALONE: "--", AUTOMATIC: "-"}.get(name, ":")
            axis.plot(sizes, shares, style, marker=".", label=name)
        axis.axhline(1, color="gray", linewidth=0.8)
        axis.set(xscale="log", ylim=(0, None), xlabel="bytes", ylabel="part of the wire limit")
        axis.legend(fontsize=7, loc="lower right")
        axis.set_title(f"all-reduce, {run['hosts']} hosts, {found['rate']}")
        figure.tight_layout()
        figure.savefig(into / f"cluster-{run['hosts']}-hosts.png", dpi=120)
        pyplot.close(figure)


def bytes_per_second(rate: str) -> float:
    """Of a rate in tc's words: bit, kbit, mbit, gbit (powers of 1000).

    Raises: ValueError for other text.
    """
    match = re.fullmatch(r"(\d+(?:\.\d+)?)([kmg]?)bit", rate)
    if match is None:
        raise ValueError(f"rate {rate!r} is not a number followed by bit, kbit, mbit or gbit")
    return float(match[1]) * {"": 1, "k": 1e3, "m": 1e6, "g": 1e9}[match[2]] / 8
