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
    try:
        import matplotlib
    except ImportError:
        raise UsageError("--report draws with matplotlib: pip install 'hpccoll[plot]'") from None
    matplotlib.use("agg")
    figures = {
        "busbw": _over_sizes(studies),
        "kept": _over_nodes(studies, "part of the bus bandwidth kept", kept=True),
        "time": _over_nodes(studies, "time (us)", kept=False),
    }
    if any(one.predicted_us for study in studies for one in study.points):
        figures["model"] = _model(studies)
    return figures


def as_svg(figure: Any) -> str:
    """A figure as text that can stand in a page."""
    text = io.StringIO()
    figure.savefig(text, format="svg", metadata={"Date": None})
    return text.getvalue()[text.getvalue().index("<svg") :]


def _axes(xlabel: str, ylabel: str, *, bytes_: bool) -> tuple[Any, Any]:
    from matplotlib.figure import Figure
    from matplotlib.ticker import FuncFormatter, NullLocator

    figure = Figure(figsize=(7, 4.2), layout="constrained")
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


def _over_sizes(studies: Sequence[Study]) -> Any:
    figure, axes = _axes("size (B)", "bus bandwidth (GB/s)", bytes_=True)
    for study, nodes, colour in _lines(studies, "node_counts"):
        points = [one for one in study.on(nodes) if one.nbytes and one.ranks > 1]
        label = _name(studies, study, f"{nodes} node{'s' if nodes > 1 else ''}")
        sizes, speeds = [one.nbytes for one in points], [one.busbw for one in points]
        axes.plot(sizes, speeds, color=colour, label=label, **_style(study))
    axes.set_ylim(bottom=0)
    axes.legend(fontsize=8, frameon=False)
    return figure


def _over_nodes(studies: Sequence[Study], ylabel: str, *, kept: bool) -> Any:
    figure, axes = _axes("nodes", ylabel, bytes_=False)
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
    axes.legend(fontsize=8, frameon=False)
    return figure


def _model(studies: Sequence[Study]) -> Any:
    figure, axes = _axes("size (B)", "predicted / measured time", bytes_=True)
    for study, nodes, colour in _lines(studies, "node_counts"):
        points = [one for one in study.on(nodes) if one.predicted_us and one.time_us and one.nbytes]
        ratios = [(one.predicted_us or 0.0) / one.time_us for one in points]
        if points:
            axes.plot(
                [one.nbytes for one in points], ratios, color=colour, label=f"{nodes} nodes", marker="o"
            )
    axes.axhspan(0.8, 1.2, color="gray", alpha=0.15)
    axes.set_yscale("log")
    axes.legend(fontsize=8, frameon=False)
    return figure
