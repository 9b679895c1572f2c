"""Studies as a folder: a page that opens without a network, figures in PNG and SVG, all points as CSV."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from html import escape
from pathlib import Path
from typing import Any

from hpccoll._version import __version__
from hpccoll.cli.sizes import format_bytes
from hpccoll.errors import UsageError
from hpccoll.scaling.figures import as_svg, draw
from hpccoll.scaling.study import Study
from hpccoll.scaling.table import as_csv

TITLES = {
    "busbw": "Bus bandwidth",
    "kept": "What of the bus bandwidth is kept as nodes are added",
    "time": "Time: the smallest sizes show the latency",
    "used": "How busy the levels are: the busiest link of each, at the largest size",
    "against": "Predicted against measured time (grey: within 20 %)",
    "model": "The same as a ratio, over the size",
    "efficiency": "Efficiency over nodes",
    "step": "What a step takes",
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
    names = ", ".join(dict.fromkeys(study.operation for study in studies))
    tables = [(f"Points, {study.kind}", _COLUMNS, _cells(study), study.command) for study in studies]
    page = Page(f"Scaling of {names}", [_source(study) for study in studies], tables)
    return page.write(folder, draw(studies), "points.csv", as_csv(list(studies)))


_COLUMNS = ("nodes", "ranks", "size", "time, us", "bus bandwidth, GB/s", "kept, %", "plan")
Table = tuple[str, Sequence[str], Sequence[Sequence[str]], str]  # title, names, cells, command


@dataclass(frozen=True)
class Page:
    """What a report says besides its figures: a heading, where it is from, tables with their commands."""

    heading: str
    sources: Sequence[str]
    tables: Sequence[Table]

    def write(self, folder: Path, figures: dict[str, Any], csv_name: str, csv_text: str) -> Path:
        """Write page, figures and numbers to a folder; the page's path.

        Raises: UsageError where it cannot be written.
        """
        pictures = {name: as_svg(figure) for name, figure in figures.items()}
        page = folder / "index.html"
        try:
            folder.mkdir(parents=True, exist_ok=True)
            for name, figure in figures.items():
                figure.savefig(folder / f"{name}.png", dpi=150)
                (folder / f"{name}.svg").write_text(pictures[name], encoding="utf-8")
            (folder / csv_name).write_text(csv_text, encoding="utf-8")
            page.write_text(_html(self, pictures, csv_name), encoding="utf-8")
        except OSError as error:
            raise UsageError(f"--report: cannot write to {folder}: {error.strerror}") from None
        return page


def _html(page: Page, pictures: dict[str, str], csv_name: str) -> str:
    parts = [
        '<!DOCTYPE html><html lang="en"><head><meta charset="utf-8">',
        '<meta name="viewport" content="width=device-width, initial-scale=1">',
        '<link rel="icon" href="data:,">',
        f"<title>{escape(page.heading)}</title><style>{STYLE}</style></head><body>",
        f"<h1>{escape(page.heading)}</h1>",
    ]
    parts += [f'<p class="source">{escape(source)}</p>' for source in page.sources]
    for name, picture in pictures.items():
        parts.append(f"<h2>{TITLES[name]}</h2><figure>{picture}</figure>")
    for title, names, cells, command in page.tables:
        rows = ["".join(f"<th>{escape(name)}</th>" for name in names)]
        rows += ["".join(f"<td>{escape(cell)}</td>" for cell in row) for row in cells]
        table = "".join(f"<tr>{row}</tr>" for row in rows)
        parts.append(f'<h2>{escape(title)}</h2><div class="scroll"><table>{table}</table></div>')
        if command:
            parts.append(f"<p><code>{escape(command)}</code></p>")
    parts.append(
        f'<p class="source">hpccoll {__version__}; all numbers are in {csv_name}.</p></body></html>\n'
    )
    return "\n".join(parts)


def _source(study: Study) -> str:
    how = study.datatype + ("" if study.redop in ("", "none") else f" {study.redop}")
    facts = "; ".join(f"{name}: {value}" for name, value in study.facts.items())
    return f"{study.operation}, {how}, {study.kind}: {study.source}" + (f" ({facts})" if facts else "")


def _cells(study: Study) -> list[tuple[str, ...]]:
    rows: list[tuple[str, ...]] = []
    for one in study.points:
        kept = study.kept(one)
        rows.append(
            (
                f"{one.nodes}",
                f"{one.ranks}",
                format_bytes(one.nbytes),
                f"{one.time_us:.1f}",
                f"{one.busbw:.3g}",
                "-" if kept is None else f"{100 * kept:.0f}",
                one.plan
                + (f"; limit: {one.limit}" if one.limit else "")
                + (f" {one.wrong} WRONG" if one.wrong else ""),
            )
        )
    return rows
