"""The pictures of plans in the documentation, drawn anew: `python -m tests.docs.pictures`.

Each is drawn by the command that stands below it in its page: a line that is `hpccoll plan ... --svg FILE`.
"""

from __future__ import annotations

import re
import shlex
import sys
from collections.abc import Iterator

from hpccoll import cli
from tests.docs.blocks import pages
from tests.support.launch import REPOSITORY

__all__ = ["drawing_commands", "form"]

COMMAND = re.compile(r"^`hpccoll (plan .* --svg (\S+))`$", re.MULTILINE)
# A price may change, and with it the bars of the schedule; a plan's steps and messages are the picture.
HEADING = re.compile(r"<text[^>]*>(step \d+: [^<]*)</text>")


def drawing_commands() -> Iterator[tuple[str, list[str]]]:
    """Each picture, and the arguments of `hpccoll` that draw it."""
    for page in pages():
        for arguments, picture in COMMAND.findall(page.read_text()):
            yield picture, shlex.split(arguments)


def form(svg: str) -> tuple[list[str], int]:
    """What a picture says of its plan: the headings of the steps, and how many arrows there are."""
    return HEADING.findall(svg), svg.count("marker-end")


def main() -> None:
    """Draw all."""
    for picture, arguments in drawing_commands():
        arguments[-1] = str(REPOSITORY / picture)
        status = cli.main(arguments)
        if status:
            sys.exit(status)


if __name__ == "__main__":
    main()
