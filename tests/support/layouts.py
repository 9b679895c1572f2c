"""The layouts that tests of collectives go through."""

from __future__ import annotations

import pytest

__all__ = ["LAYOUTS", "layouts", "on_layouts"]

# Layouts by number of ranks; every test file that goes through them meets unequal nodes, nodes of one rank
# and ranks dealt in turn.
LAYOUTS = {
    1: ("",),
    2: ("", "1+1"),
    3: ("", "2+1", "1+1+1"),
    4: ("", "2+2", "3+1", "1+3", "2+1+1", "1+1+1+1", "cyclic:2+2"),
    5: ("", "4+1", "cyclic:3+2"),
    6: ("2+2+2",),
}


def on_layouts(*sizes: int) -> pytest.MarkDecorator:
    """Run a test with the argument `layout` on all layouts of these numbers of ranks."""
    return pytest.mark.parametrize(
        "layout",
        [
            pytest.param(layout, marks=pytest.mark.ranks(size), id=f"{size}:{layout or 'one node'}")
            for size in sizes
            for layout in LAYOUTS[size]
        ],
    )


def layouts(ranks: dict[str, tuple[int, ...]]) -> pytest.MarkDecorator:
    """Run a test with the argument `layout` on a few layouts, each at its numbers of ranks."""
    return pytest.mark.parametrize(
        "layout",
        [
            pytest.param(layout, marks=pytest.mark.ranks(*counts), id=layout or "one node")
            for layout, counts in ranks.items()
        ],
    )
