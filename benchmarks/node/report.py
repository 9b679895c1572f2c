"""Tables and figures of what measure.py found."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

WAYS = ("private", "checked", "registered")
# Whose time divided by which of ours is drawn, and how.
LINES = (("mpi", "private", "-"), ("mpi", "registered", ":"), ("gloo", "private", "--"))


def tables(found: dict[str, Any]) -> str:
    """A table in Markdown: MPI's time divided by ours, ours in microseconds; gloo's by ours where it ran."""
    with_gloo = any("gloo" in row["us"] for row in found["rows"])
    lines = [
        f"## {found['mpi']}, {found['ranks']} ranks\n",
        "MPI's time divided by ours (ours in us); last: the part of the memory's copy rate that an",
        "all-reduce of registered arrays reaches, from (2 P + 2) S bytes.\n",
    ]
    if with_gloo:
        lines[-1] = lines[-1].rstrip() + " Gloo: its time divided by private's.\n"
    lines += [f"Left out: {name}, as {reason}.\n" for name, reason in found["left_out"].items()]
    lines += [
        "| collective | bytes | MPI, us | private | checked | registered | of copy rate |"
        + with_gloo * " gloo |",
        "|---|---:|---:|---:|---:|---:|---:|" + with_gloo * "---:|",
    ]
    for row in found["rows"]:
        times = row["us"]
        ratios = " | ".join(_ratio(times, "mpi", way, times.get(way)) for way in WAYS)
        name, nbytes, limit = row["collective"], row["bytes"], _of_limit(found, row)
        cells = f"| {name} | {nbytes} | {times['mpi']:g} | {ratios} | {limit} |"
        gloo = f" {_ratio(times, 'gloo', 'private', times.get('gloo'))} |"
        lines.append(cells + with_gloo * gloo)
    return "\n".join(lines) + "\n"


def _ratio(times: dict[str, float], theirs: str, ours: str, shown: float | None) -> str:
    if theirs not in times or ours not in times:
        return ""
    return f"{times[theirs] / times[ours]:.2f} ({shown:g})"


def _of_limit(found: dict[str, Any], row: dict[str, Any]) -> str:
    if row["collective"] != "Allreduce" or not row["copy_gbs"] or "registered" not in row["us"]:
        return ""
    moved = (2 * found["ranks"] + 2) * row["bytes"]
    return f"{moved / (row['us']['registered'] * 1e3 * row['copy_gbs']):.0%}"


def figures(runs: Sequence[dict[str, Any]], into: Path) -> None:
    """For each number of ranks MPI's and gloo's time divided by ours; nothing without matplotlib."""
    try:
        import matplotlib
    except ImportError:
        print("no figures: matplotlib is not installed (pip install 'hpccoll[plot]')")
        return
    matplotlib.use("agg")
    from matplotlib import pyplot

    for ranks in sorted({found["ranks"] for found in runs}):
        of_ranks = [found for found in runs if found["ranks"] == ranks]
        names = list(dict.fromkeys(row["collective"] for row in of_ranks[0]["rows"]))
        height = -(-len(names) // 3)
        figure, axes = pyplot.subplots(height, min(3, len(names)), figsize=(12, 3.2 * height), squeeze=False)
        for axis, name in zip(axes.flat, names, strict=False):
            for index, found in enumerate(of_ranks):
                rows = [row for row in found["rows"] if row["collective"] == name]
                sizes = [row["bytes"] for row in rows]
                label = " ".join(found["mpi"].replace(",", "").split()[:3])
                for theirs, ours, style in LINES:
                    if all(theirs in row["us"] and ours in row["us"] for row in rows):
                        ratios = [row["us"][theirs] / row["us"][ours] for row in rows]
                        axis.plot(
                            sizes,
                            ratios,
                            style,
                            marker=".",
                            color="black" if theirs == "gloo" else f"C{index}",
                            label=_label(label, theirs, ours),
                        )
            axis.axhline(1, color="gray", linewidth=0.8)
            axis.set(title=name, xscale="log", yscale="log", xlabel="bytes", ylabel="other's time / ours")
        axes.flat[0].legend(fontsize=6, loc="upper right")
        figure.suptitle(f"{ranks} ranks on one node: above 1, hpccoll is faster")
        figure.tight_layout()
        figure.savefig(into / f"node-{ranks}-ranks.png", dpi=120)
        pyplot.close(figure)


def _label(mpi: str, theirs: str, ours: str) -> str:
    return f"gloo beside {mpi}" if theirs == "gloo" else f"{mpi}, {ours}"
