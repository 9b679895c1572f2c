"""A study of training as a folder: a page that opens without a network, figures, all numbers as CSV."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

from hpccoll.plans.text import time_text
from hpccoll.scaling.figures import axes_over, begin
from hpccoll.scaling.report import Page
from hpccoll.scaling.training import LOSSES, Step

_NAMES = ("nodes", "GPUs", "batch", "step", "gradients", "exposed", "TFLOP/s a GPU", "efficiency, %", "limit")


def write_report(folder: Path, title: str, command: str, steps: Sequence[Step], csv_text: str) -> Path:
    """Write all of it; the page's path.

    Raises: UsageError where it cannot be written, or without matplotlib.
    """
    begin()
    cells = [
        (f"{one.nodes}", f"{one.gpus}", f"{one.batch}", time_text(one.step_s), time_text(one.gradients_s),
         time_text(one.exposed_s), f"{one.tflops:.0f}", f"{100 * one.efficiency:.0f}", one.limit)
        for one in steps
    ]  # fmt: skip
    page = Page("Scaling of training", [title], [("Steps", _NAMES, cells, command)])
    return page.write(
        folder, {"efficiency": _efficiency(steps), "step": _parts(steps)}, "steps.csv", csv_text
    )


def _efficiency(steps: Sequence[Step]) -> Any:
    figure, axes = axes_over("nodes", "efficiency", bytes_=False)
    axes.plot([one.nodes for one in steps], [one.efficiency for one in steps], marker="o", markersize=3.5)
    axes.axhline(1, color="gray", linewidth=0.8)
    axes.set_xticks([one.nodes for one in steps])
    axes.set_ylim(0, 1.1)
    return figure


def _parts(steps: Sequence[Step]) -> Any:
    figure, axes = axes_over("nodes", "part of the step", bytes_=False)
    nodes = [one.nodes for one in steps]
    below = [0.0] * len(steps)
    for index, name in enumerate(("compute", *LOSSES)):
        parts = [(one.losses.get(name, one.compute_s)) / one.step_s for one in steps]
        if any(parts):
            width = [0.5 * one for one in nodes]
            axes.bar(nodes, parts, width, below, label=name, color=f"C{index}")
        below = [one + other for one, other in zip(below, parts, strict=True)]
    axes.set_xticks(nodes)
    axes.legend(fontsize=8, frameon=False, loc="upper left", bbox_to_anchor=(1.0, 1.0))
    return figure
