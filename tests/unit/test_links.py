"""The documentation's links, and the check that finds broken ones."""

from __future__ import annotations

from pathlib import Path

from tests.support.launch import REPOSITORY
from tests.support.links import broken_links


def test_links_of_the_documentation_lead_somewhere() -> None:
    assert broken_links([*sorted(REPOSITORY.glob("*.md")), REPOSITORY / "docs"]) == []


def test_broken_links_are_found(tmp_path: Path) -> None:
    (tmp_path / "there.md").write_text("# What it *is*: `x`\n")
    (tmp_path / "page.md").write_text(
        "[good](there.md) [good](there.md#what-it-is-x) [far](https://example.org/) `[code](nowhere.md)`\n"
        "```\n[code](nowhere.md)\n```\n"
        "[file](nowhere.md)\n[heading](there.md#nowhere) [own](#nowhere)\n"
    )
    faults = [line.split(": ", 1)[1] for line in broken_links([tmp_path])]
    assert faults == [
        "nowhere.md: no such file",
        "there.md#nowhere: no such heading",
        "#nowhere: no such heading",
    ]
