"""The tables of docs/cost-model.md: link classes, and predictions beside published and recorded figures.

    python -m benchmarks.published

prints them; `--write` puts them into the document, between its marks.
"""

from __future__ import annotations

import argparse
from collections.abc import Iterable
from itertools import groupby
from pathlib import Path

from benchmarks.published.figures import ALONE_BETWEEN_US, ALONE_US, SOURCES, Figure, figures, recorded
from hpccoll.plans.links import CALIBRATED, CLASSES
from hpccoll.plans.text import bytes_text

DOCUMENT = Path(__file__).parents[2] / "docs" / "cost-model.md"


def tables() -> dict[str, str]:
    """Each table of the document, by the name of its mark."""
    every = figures()
    return {
        "classes": _classes(),
        "figures": _figures([one for one in every if one.bound or one.calibrates]),
        "others": _others(every),
        "recorded": _recorded(),
        "sources": "\n".join(f"- {name}: {text}" for name, text in SOURCES.items()),
    }


def _table(head: str, align: str, rows: Iterable[tuple[str, ...]]) -> str:
    return "\n".join([head, align, *(f"| {' | '.join(row)} |" for row in rows)])


def _classes() -> str:
    return _table(
        "| class | latency, us | source | 1e9 bytes/s | source | efficiency | source |",
        "|---|---:|---|---:|---|---:|---|",
        (
            (
                one.name,
                f"{one.latency_us:g}",
                one.sources[0] + (" (fitted)" if one in CALIBRATED else ""),
                f"{one.gbs:g}",
                one.sources[1],
                f"{one.efficiency:.3f}",
                one.sources[2],
            )
            for one in CLASSES.values()
        ),
    )


def _figures(shown: list[Figure]) -> str:
    return _table(
        "| machine | GPUs | what | size | forced | published, GB/s | us | predicted, us | by | ratio | |",
        "|---|---:|---|---:|---|---:|---:|---:|---|---:|---|",
        (
            (
                f"{one.machine} ({one.source})",
                f"{one.nodes} x {one.gpus}",
                one.collective,
                bytes_text(one.nbytes),
                one.algorithm or "-",
                f"{one.busbw_gbs:g}",
                f"{one.time_us:.0f}" if one.time_us >= 100 else f"{one.time_us:.1f}",
                f"{one.predicted()[0]:.0f}" if one.predicted()[0] >= 100 else f"{one.predicted()[0]:.1f}",
                one.predicted()[1],
                f"{one.ratio:.2f}",
                one.use or ("" if one.met else "missed"),
            )
            for one in shown
        ),
    )


def _others(every: Iterable[Figure]) -> str:
    rows = []
    for (machine, nodes, source), sweep in groupby(every, lambda one: (one.machine, one.nodes, one.source)):
        ratios = [
            f"{bytes_text(one.nbytes)} {one.ratio:.2f}" for one in sweep if not (one.bound or one.calibrates)
        ]
        if ratios:
            rows.append((f"{machine} ({source})", str(nodes), ", ".join(ratios)))
    return _table("| machine | nodes | ratio by size |", "|---|---:|---|", rows)


def _recorded() -> str:
    return _table(
        "| hosts | size | plan | measured, ms | predicted, ms | ratio |",
        "|---:|---:|---|---:|---:|---:|",
        (
            (
                str(one.hosts),
                bytes_text(one.nbytes),
                one.algorithm,
                f"{one.measured_s * 1e3:.1f}",
                f"{one.predicted_s * 1e3:.1f}",
                f"{one.ratio:.2f}",
            )
            for one in recorded()
        ),
    )


def written(text: str) -> str:
    """The document with its tables as they are now."""
    for name, table in tables().items():
        begin, end = f"<!-- table: {name} -->\n", "<!-- end -->"
        before, after = text.split(begin)
        text = before + begin + table + "\n" + end + after.split(end, 1)[1]
    return text


def main() -> None:
    """Print the tables, or write them into the document."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("--write", action="store_true", help=f"into docs/{DOCUMENT.name}")
    if parser.parse_args().write:
        DOCUMENT.write_text(written(DOCUMENT.read_text(encoding="utf-8")), encoding="utf-8")
        return
    print("\n\n".join(tables().values()))
    print(f"\nIn the time of a call timed alone: {ALONE_US:g} us, between nodes {ALONE_BETWEEN_US:g} us")


if __name__ == "__main__":
    main()
