"""Blocks of code in Markdown pages, with what HTML comments around them say to the tests.

    ```python       executed on two ranks, all blocks of a page in one namespace (test_python.py)
    ```console      `$ command` lines and what they print (test_console.py)
    ```sh           commands that must parse and name files that are there (test_commands.py)

A comment right before a block, which readers do not see:

    <!-- not run: needs a GPU -->         why a block is not executed
    <!-- run: shape, slow -->             how a console block is; words in session.py
    <!-- before
    gradients = [np.ones(10)]
    -->                                   Python that is executed before the block
    <!-- after
    assert total[0] == 3
    -->                                   Python that is executed after it; stands behind the block
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from tests.support.launch import REPOSITORY
from tests.support.links import markdown_files

__all__ = ["Block", "blocks", "name", "pages"]

FOLDERS = ("README.md", "CONTRIBUTING.md", "docs", "examples/README.md", "slurm/README.md")
BLOCK = re.compile(
    r"(?P<before>(?:^<!--(?:(?!-->).)*-->\n+)*)"
    r"^(?P<indent> *)```(?P<language>\w*)\n(?P<text>.*?)^(?P=indent)```$"
    r"(?P<after>(?:\n+<!-- after\n(?:(?!-->).)*-->)?)",
    re.MULTILINE | re.DOTALL,
)
COMMENT = re.compile(r"<!--\s*(not run|run|before|after)(?::|\n)?(.*?)-->", re.DOTALL)


@dataclass(frozen=True)
class Block:
    """One block; `line` is that of its first line of text."""

    page: Path
    line: int
    language: str
    text: str
    not_run: str = ""
    run: tuple[str, ...] | None = None
    before: str = ""
    after: str = ""

    @property
    def where(self) -> str:
        return f"{name(self.page)}:{self.line}"


def pages() -> list[Path]:
    """All pages of the documentation."""
    return list(markdown_files([REPOSITORY / folder for folder in FOLDERS]))


def name(page: Path) -> str:
    """The page as people call it."""
    return str(page.relative_to(REPOSITORY))


def blocks(page: Path, *languages: str) -> Iterator[Block]:
    """The blocks of a page that are in one of `languages`."""
    source = page.read_text()
    for match in BLOCK.finditer(source):
        if match["language"] in languages:
            line = source.count("\n", 0, match.start("text")) + 1
            said = dict(COMMENT.findall(match["before"] + match["after"]))
            yield Block(
                page,
                line,
                match["language"],
                match["text"],
                said.get("not run", "").strip(),
                tuple(filter(None, map(str.strip, said["run"].split(",")))) if "run" in said else None,
                said.get("before", ""),
                said.get("after", ""),
            )
