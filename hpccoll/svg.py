"""SVG as text: the shapes and colours of all pictures.

Text is in the viewer's sans-serif font, and nothing is loaded from elsewhere.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from html import escape

COLOURS = ("#3b6fb6", "#e08a2e", "#3f9b64", "#b5529a", "#8a6fc4", "#c2543d", "#2f9ba6", "#9a8430")
INK, QUIET, LINE, FILL = "#1f2933", "#616e7c", "#cbd2d9", "#f5f7fa"


def document(width: float, height: float, parts: Iterable[str]) -> str:
    """A self-contained file: `parts` on white."""
    head = (
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {width} {height}" width="{width}" '
        f'height="{height}" font-family="system-ui, Segoe UI, Helvetica, Arial, sans-serif">'
    )
    return "\n".join([head, box(0, 0, width, height, "#ffffff"), *parts, "</svg>", ""])


def line(
    points: Sequence[tuple[float, float]], stroke: str, width: float = 1, marker: str = "", opacity: float = 1
) -> str:
    """A line through points; `marker`: the id of what is at its end."""
    way = " L".join(f"{x:.1f},{y:.1f}" for x, y in points)
    end = f' marker-end="url(#{marker})"' if marker else ""
    faint = f' opacity="{opacity}"' if opacity != 1 else ""
    return f'<path d="M{way}" fill="none" stroke="{stroke}" stroke-width="{width}"{faint}{end}/>'


def box(
    x: float, y: float, width: float, height: float, fill: str, stroke: str = "none", round_: float = 0
) -> str:
    """A rectangle; `round_`: the radius of its corners."""
    return (
        f'<rect x="{x:.1f}" y="{y:.1f}" width="{width:.1f}" height="{height:.1f}" rx="{round_}" '
        f'fill="{fill}" stroke="{stroke}"/>'
    )


def text(
    x: float, y: float, words: str, size: float, fill: str = INK, anchor: str = "start", weight: int = 400
) -> str:
    """One line of text, `y` being that of its feet."""
    return (
        f'<text x="{x:.1f}" y="{y:.1f}" font-size="{size}" fill="{fill}" text-anchor="{anchor}" '
        f'font-weight="{weight}">{escape(words)}</text>'
    )
