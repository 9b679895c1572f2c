"""Studies as a folder: a page that opens without a network, figures in PNG and SVG, all points as CSV."""

from __future__ import annotations

from collections.abc import Sequence
from html import escape
from pathlib import Path

from hpccoll._version import __version__
from hpccoll.cli.sizes import format_bytes
from hpccoll.errors import UsageError
from hpccoll.scaling.figures import as_svg, draw
from hpccoll.scaling.study import Study
from hpccoll.scaling.table import as_csv

TITLES = {
    "busbw": "Bus bandwidth",
    "kept": "What of the bus bandwidth is kept as nodes are added",
    "time": "Time",
    "model": "The cost model against the measured time (grey: within 20 %)",
}
STYLE = """\
body { font: 15px/1.5 system-ui, "Segoe UI", Helvetica, Arial, sans-serif;
       color: #1f2933; background: #ffffff; max-width: 60rem; margin: 2rem auto; padding: 0 1rem; }
h1 { font-size: 1.5rem; } h2 { font-size: 1.1rem; margin-top: 2.2rem; }
p.source { color: #616e7c; } figure { margin: 0; } svg { max-width: 100%; height: auto; }
div.scroll { overflow-x: auto; }
table { border-collapse: collapse; font-variant-numeric: tabular-nums; font-size: 0.9rem; }
th, td { padding: 0.15rem 0.7rem; text-align: right; border-bottom: 1px solid #e4e7eb; white-space: nowrap; }
th:last-child, td:last-child { text-align: left; }
code { font-size: 0.85rem; overflow-wrap: anywhere; }
"""


def write_report(folder: Path, studies: Sequence[Study]) -> Path:
    """Write all of it; the page's path.

    Raises: UsageError where it cannot be written, where there is nothing to show, or without matplotlib.
    """
    if not any(study.points for study in studies):
        raise UsageError("--report: there are no points to draw")
    figures = draw(studies)
    pictures = {name: as_svg(figure) for name, figure in figures.items()}
    page = folder / "index.html"
    try:
        folder.mkdir(parents=True, exist_ok=True)
        for name, figure in figures.items():
            figure.savefig(folder / f"{name}.png", dpi=150)
            (folder / f"{name}.svg").write_text(pictures[name], encoding="utf-8")
        (folder / "points.csv").write_text(as_csv(list(studies)), encoding="utf-8")
        page.write_text(_page(studies, pictures), encoding="utf-8")
    except OSError as error:
        raise UsageError(f"--report: cannot write to {folder}: {error.strerror}") from None
    return page


def _page(studies: Sequence[Study], pictures: dict[str, str]) -> str:
    names = ", ".join(dict.fromkeys(study.operation for study in studies))
    parts = [
        '<!DOCTYPE html><html lang="en"><head><meta charset="utf-8">',
        '<meta name="viewport" content="width=device-width, initial-scale=1">',
        '<link rel="icon" href="data:,">',
        f"<title>Scaling of {escape(names)}</title><style>{STYLE}</style></head><body>",
        f"<h1>Scaling of {escape(names)}</h1>",
    ]
    parts += [f'<p class="source">{escape(_source(study))}</p>' for study in studies]
    for name, picture in pictures.items():
        parts.append(f"<h2>{TITLES[name]}</h2><figure>{picture}</figure>")
    for study in studies:
        parts.append(f"<h2>Points, {escape(study.kind)}</h2>{_table(study)}")
        if study.command:
            parts.append(f"<p><code>{escape(study.command)}</code></p>")
    parts.append(
        f'<p class="source">hpccoll {__version__}; all points are in points.csv.</p></body></html>\n'
    )
    return "\n".join(parts)


def _source(study: Study) -> str:
    how = study.datatype + ("" if study.redop in ("", "none") else f" {study.redop}")
    facts = "; ".join(f"{name}: {value}" for name, value in study.facts.items())
    return f"{study.operation}, {how}, {study.kind}: {study.source}" + (f" ({facts})" if facts else "")


def _table(study: Study) -> str:
    names = ("nodes", "ranks", "size", "time, us", "bus bandwidth, GB/s", "kept, %", "plan")
    rows = [f"<tr>{''.join(f'<th>{name}</th>' for name in names)}</tr>"]
    for one in study.points:
        kept = study.kept(one)
        cells = (
            f"{one.nodes}",
            f"{one.ranks}",
            format_bytes(one.nbytes),
            f"{one.time_us:.1f}",
            f"{one.busbw:.3g}",
            "-" if kept is None else f"{100 * kept:.0f}",
            escape(one.plan) + (f" <b>{one.wrong} wrong</b>" if one.wrong else ""),
        )
        rows.append(f"<tr>{''.join(f'<td>{cell}</td>' for cell in cells)}</tr>")
    return f'<div class="scroll"><table>{"".join(rows)}</table></div>'
