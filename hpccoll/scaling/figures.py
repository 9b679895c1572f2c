"""Figures of studies: bus bandwidth over size; what is kept, and time, over nodes; the model beside it."""

from __future__ import annotations

import io
import itertools
from collections.abc import Iterator, Sequence
from typing import Any

from hpccoll.cli.sizes import format_bytes
from hpccoll.errors import UsageError
from hpccoll.scaling.study import SIMULATED, Study

_MOST_LINES = 8


def draw(studies: Sequence[Study]) -> dict[str, Any]:
    """Matplotlib's figures by name.  Raises: UsageError without matplotlib."""
    begin()
    figures = {
        "busbw": _over_sizes(studies),
        "kept": _over_nodes(studies, "part of the bus bandwidth kept", kept=True),
        "time": _over_nodes(studies, "time (us)", kept=False),
    }
    if any(one.used for study in studies for one in study.points):
        figures["used"] = _used([study for study in studies if any(one.used for one in study.points)])
    if any(one.predicted_us for study in studies for one in study.points):
        figures |= {"against": _against(studies), "model": _model(studies)}
    return figures


def begin() -> None:
    """Make matplotlib draw to files.  Raises: UsageError where it is missing."""
    try:
        import matplotlib
    except ImportError:
        raise UsageError("--report draws with matplotlib: pip install 'hpccoll[plot]'") from None
    matplotlib.use("agg")


def as_svg(figure: Any) -> str:
    """A figure as text that can stand in a page."""
    text = io.StringIO()
    figure.savefig(text, format="svg", metadata={"Date": None})
    return text.getvalue()[text.getvalue().index("<svg") :]


def axes_over(xlabel: str, ylabel: str, *, bytes_: bool) -> tuple[Any, Any]:
    """A figure whose horizontal axis doubles: nodes, or bytes."""
    from matplotlib.figure import Figure
    from matplotlib.ticker import FuncFormatter, NullLocator

    figure = Figure(figsize=(8, 4.2), layout="constrained")
    axes = figure.subplots()
    axes.set(xlabel=xlabel, ylabel=ylabel)
    axes.set_xscale("log", base=2)
    form = (lambda value, _: format_bytes(int(value))) if bytes_ else (lambda value, _: f"{value:g}")
    axes.xaxis.set_major_formatter(FuncFormatter(form))
    axes.xaxis.set_minor_locator(NullLocator())
    axes.grid(alpha=0.25, linewidth=0.6)
    for side in ("top", "right"):
        axes.spines[side].set_visible(False)
    return figure, axes


def _style(study: Study) -> dict[str, Any]:
    return (
        {"linestyle": "--", "marker": ""} if study.kind == SIMULATED else {"marker": "o", "markersize": 3.5}
    )


def _some(values: Sequence[int]) -> list[int]:
    """So many that the lines can be told apart, first and last among them."""
    if len(values) <= _MOST_LINES:
        return list(values)
    step = (len(values) - 1) / (_MOST_LINES - 1)
    return [values[round(step * index)] for index in range(_MOST_LINES)]


def _lines(studies: Sequence[Study], of: str) -> Iterator[tuple[Study, int, str]]:
    """Each line with its colour: the same for the same value in all studies."""
    values = sorted(set(itertools.chain.from_iterable(getattr(study, of) for study in studies)))
    colours = {value: f"C{index % 10}" for index, value in enumerate(_some(values))}
    for study in studies:
        for value, colour in colours.items():
            if value in getattr(study, of):
                yield study, value, colour


def _name(studies: Sequence[Study], study: Study, words: str) -> str:
    return f"{words}, {study.kind}" if len({one.kind for one in studies}) > 1 else words


def _nodes_text(nodes: int) -> str:
    return f"{nodes} node{'s' if nodes > 1 else ''}"


def _over_sizes(studies: Sequence[Study]) -> Any:
    figure, axes = axes_over("size (B)", "bus bandwidth (GB/s)", bytes_=True)
    for study, nodes, colour in _lines(studies, "node_counts"):
        points = [one for one in study.on(nodes) if one.nbytes and one.ranks > 1]
        label = _name(studies, study, _nodes_text(nodes))
        sizes, speeds = [one.nbytes for one in points], [one.busbw for one in points]
        axes.plot(sizes, speeds, color=colour, label=label, **_style(study))
    axes.set_ylim(bottom=0)
    _legend(axes)
    return figure


def _over_nodes(studies: Sequence[Study], ylabel: str, *, kept: bool) -> Any:
    figure, axes = axes_over("nodes", ylabel, bytes_=False)
    for study, nbytes, colour in _lines(studies, "sizes"):
        points = study.of_size(nbytes)
        values = [study.kept(one) if kept else one.time_us for one in points]
        shown = [(one.nodes, value) for one, value in zip(points, values, strict=True) if value is not None]
        label = _name(studies, study, format_bytes(nbytes))
        axes.plot([x for x, _ in shown], [y for _, y in shown], color=colour, label=label, **_style(study))
    axes.set_xticks(sorted({one.nodes for study in studies for one in study.points}))
    if kept:
        axes.axhline(1, color="gray", linewidth=0.8)
        axes.set_ylim(bottom=0)
    else:
        axes.set_yscale("log")
    _legend(axes)
    return figure


def _model(studies: Sequence[Study]) -> Any:
    figure, axes = axes_over("size (B)", "predicted / measured time", bytes_=True)
    for study, nodes, colour in _lines(studies, "node_counts"):
        points = [one for one in study.on(nodes) if one.predicted_us and one.time_us and one.nbytes]
        ratios = [(one.predicted_us or 0.0) / one.time_us for one in points]
        if points:
            axes.plot(
                [one.nbytes for one in points], ratios, color=colour, label=_nodes_text(nodes), marker="o"
            )
    axes.axhspan(0.8, 1.2, color="gray", alpha=0.15)
    axes.set_yscale("log")
    _legend(axes)
    return figure


# Classes of links that are one level to whoever reads.
_LEVELS = {"NVLink switch": "NVLink", "network out": "network", "network in": "network", "messages": "memory",
           "leaf up": "leaf switches", "leaf down": "leaf switches"}  # fmt: skip


def _used(studies: Sequence[Study]) -> Any:
    figure, axes = axes_over("nodes", "part of the time that it is busy", bytes_=False)
    for study in studies:
        points = study.of_size(study.sizes[-1])
        of_level: dict[str, dict[int, float]] = {}
        for one in points:
            for name, part in one.used.items():
                busiest = of_level.setdefault(_LEVELS.get(name, name), {})
                busiest[one.nodes] = max(part, busiest.get(one.nodes, 0.0))
        for index, (level, parts) in enumerate(of_level.items()):
            label = f"{level}, {format_bytes(study.sizes[-1])}"
            nodes = [one.nodes for one in points]
            shown = [parts.get(node, 0.0) for node in nodes]
            axes.plot(nodes, shown, color=f"C{index % 10}", label=label, marker="o", markersize=3.5)
    axes.set_xticks(sorted({one.nodes for study in studies for one in study.points}))
    axes.set_ylim(0, 1.05)
    _legend(axes)
    return figure


def _legend(axes: Any) -> None:
    """Beside the lines, so that it hides none."""
    axes.legend(fontsize=8, frameon=False, loc="upper left", bbox_to_anchor=(1.0, 1.0))


def _against(studies: Sequence[Study]) -> Any:
    figure, axes = axes_over("measured time (us)", "predicted time (us)", bytes_=False)
    ends: list[float] = []
    for study, nodes, colour in _lines(studies, "node_counts"):
        points = [one for one in study.on(nodes) if one.predicted_us and one.time_us]
        measured, predicted = [one.time_us for one in points], [one.predicted_us or 0.0 for one in points]
        ends += measured + predicted
        if points:
            label = _nodes_text(nodes)
            axes.plot(measured, predicted, "o", color=colour, label=label, markersize=4)
    line = [min(ends) / 1.5, max(ends) * 1.5]
    axes.plot(line, line, color="gray", linewidth=0.8)
    axes.fill_between(
        line, [0.8 * one for one in line], [1.2 * one for one in line], color="gray", alpha=0.15
    )
    axes.set_xscale("log")
    axes.set_yscale("log")
    _legend(axes)
    return figure
