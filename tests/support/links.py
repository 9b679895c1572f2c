"""Do relative links in Markdown files lead somewhere?  `python -m tests.support.links README.md docs`."""

from __future__ import annotations

import re
import sys
from collections.abc import Iterator, Sequence
from pathlib import Path

__all__ = ["broken_links"]

FENCE = re.compile(r"^(```|~~~).*?^\1", re.MULTILINE | re.DOTALL)
CODE = re.compile(r"`[^`\n]*`")
LINK = re.compile(r"\[[^\]]*\]\(\s*<?([^)\s>]+)>?[^)]*\)")
HEADING = re.compile(r"^#+\s+(.*?)\s*#*$", re.MULTILINE)
ELSEWHERE = re.compile(r"^[a-z][a-z0-9+.-]*:", re.IGNORECASE)


def broken_links(paths: Sequence[Path]) -> list[str]:
    """One line for each link in `paths` (Markdown files, or folders of them) that leads nowhere."""
    return [
        f"{file}: {target}: {fault}"
        for file in markdown_files(paths)
        for target in LINK.findall(CODE.sub("", prose(file)))
        if (fault := _fault(file, target))
    ]


def markdown_files(paths: Sequence[Path]) -> Iterator[Path]:
    """The Markdown files in `paths`, those in folders at any depth."""
    for path in paths:
        yield from sorted(path.rglob("*.md")) if path.is_dir() else [path]


def prose(file: Path) -> str:
    """The text of a Markdown file without its blocks of code."""
    return FENCE.sub("", file.read_text())


def _fault(file: Path, target: str) -> str:
    if ELSEWHERE.match(target):
        return ""
    name, _, anchor = target.partition("#")
    there = file.parent / name if name else file
    if not there.exists():
        return "no such file"
    if anchor and there.suffix == ".md" and anchor not in anchors(there):
        return "no such heading"
    return ""


def anchors(file: Path) -> set[str]:
    """The names by which headings are linked to: lower case, hyphens for spaces, no punctuation."""
    headings = (re.sub(r"[`*]", "", heading) for heading in HEADING.findall(prose(file)))
    return {re.sub(r"[^\w\- ]", "", heading.lower()).replace(" ", "-") for heading in headings}


def main() -> None:
    """Exit with status 1 when a link is broken."""
    broken = broken_links([Path(name) for name in sys.argv[1:]])
    print("\n".join(broken) or "all relative links lead somewhere")
    sys.exit(1 if broken else 0)


if __name__ == "__main__":
    main()
