"""A block of a terminal: `$ command` lines and what they print; run again, is it still so?

    <!-- run -->            the output is compared as it stands; a line `...` is any lines, or none
    <!-- run: shape -->     numbers with their units, bars and the spaces between columns may be others: of what
                            is measured
    <!-- run: prose -->     lines that are indented by four spaces or more go on with the line before, wherever it
                            was broken
    <!-- run: status 1 -->  the exit status of the last command (by default 0)
    <!-- run: slow -->      in `make test-slow` only;  root: there, with virtual hosts

`python -m tests.docs.session PAGE ...` runs the blocks of pages and prints what differs; with `--write` it puts what
is printed now into the pages.
"""

from __future__ import annotations

import argparse
import difflib
import os
import re
import shlex
import socket
import sys
import tempfile
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

from tests.docs.blocks import Block, blocks
from tests.support.launch import REPOSITORY, find_mpiexec, run_program

__all__ = ["Words", "commands", "difference", "link_repository", "rehearse", "renewed", "words"]

LIMIT_S = 150.0
ANYTHING = "..."
HOST = "host"  # this machine, in pages
ENVIRONMENT = {"HPCCOLL_TIMEOUT_S": "300"}  # as for users: what hangs is to be seen
# In this order: a bar, a number with what is glued to it or a unit behind it, spaces.
MASKS = (
    (re.compile(r"={2,}|-{2,}|#{2,}"), "="),
    (re.compile(r"(?<![\w.])[-+]?\d[\d.,]*(?:e[-+]?\d+)?(?:\s?(?:[KMGT]i?B|B|[num]?s|us|%|x)\b)?"), "0"),
    (re.compile(r"\s+"), " "),
)


@dataclass(frozen=True)
class Words:
    """What the comment before a block says."""

    shape: bool = False
    prose: bool = False
    slow: bool = False
    root: bool = False
    status: int = 0


def words(block: Block) -> Words:
    """ValueError for a word that is not known."""
    found = Words()
    values = dict(vars(found))
    for word in block.run or ():
        name, _, value = word.partition(" ")
        if name not in values:
            raise ValueError(f"{block.where}: unknown word {word!r}")
        values[name] = int(value) if value else True
    return Words(**values)


def commands(block: Block) -> list[tuple[str, list[str]]]:
    """Each command of the block, with the lines that it prints."""
    found: list[tuple[str, list[str]]] = []
    goes_on = False
    for line in block.text.splitlines():
        if goes_on:
            found[-1] = (f"{found[-1][0]}\n{line}", found[-1][1])
        elif line.startswith("$ "):
            found.append((line.removeprefix("$ "), []))
        elif not found:
            raise ValueError(f"{block.where}: output before the first command")
        else:
            found[-1][1].append(line)
        goes_on = line.endswith("\\") and (goes_on or line.startswith("$ "))
    return found


def rehearse(these: Iterable[Block], directory: Path) -> Iterator[str]:
    """Run the blocks one after the other in `directory`; yield a text for each that does not print the same."""
    for played in play(these, directory):
        said = words(played.block)
        fault = difference(played.printed, played.expected, said.shape, said.prose)
        if played.failed or fault:
            yield f"{played.block.where}: $ {played.command}\n{played.failed or fault}"


@dataclass(frozen=True)
class Played:
    """A command of a block that was run; `failed`: why, when its exit status is another than the block says."""

    block: Block
    command: str
    expected: Sequence[str]
    printed: Sequence[str]
    failed: str


def link_repository(directory: Path) -> None:
    """Make the repository's files seem to lie in `directory`, so that what a page writes is not written there."""
    for entry in REPOSITORY.iterdir():
        if entry.name not in (".git", "build") and not (directory / entry.name).exists():
            (directory / entry.name).symlink_to(entry)


def play(these: Iterable[Block], directory: Path) -> Iterator[Played]:
    """Run the commands of the blocks in `directory`, where the repository's files seem to lie."""
    link_repository(directory)
    for block in these:
        every = commands(block)
        for number, (command, lines) in enumerate(every, 1):
            done = run_program(["bash", "-c", _script(command)], timeout_s=LIMIT_S, env=ENVIRONMENT, cwd=directory)
            status = words(block).status if number == len(every) else 0
            failed = ""
            if done.timed_out or done.returncode != status:
                failed = f"exit status {done.returncode}, not {status}\n{done.stdout}{done.stderr}"
            printed = re.sub(rf"\b{re.escape(socket.gethostname())}\b", HOST, done.stdout)
            printed = printed.replace(f"{directory}/", "")
            yield Played(block, command, lines, printed.splitlines(), failed)


def _script(command: str) -> str:
    """The command, with the launcher of the tests for mpiexec and mpirun, and errors where a terminal has them."""
    launcher = find_mpiexec()
    options = shlex.join(launcher.command(1, [])[1:-2])
    start = f'{{ command {shlex.quote(launcher.path)} {options} "$@"; }}'
    lines = [f"{name}() {start}" for name in ("mpiexec", "mpirun")]
    return "\n".join(["exec 2>&1", *lines, command])


def difference(
    printed: Sequence[str], expected: Sequence[str], shape: bool = False, prose: bool = False
) -> str:
    """Of what was printed from what was expected; "" when there is none."""
    have, want = _forms(_whole(printed, prose), shape), _forms(_whole(expected, prose), shape)
    if _aligned(have, want) is not None:
        return ""
    return "\n".join(difflib.unified_diff(want, have, "in the page", "printed", lineterm="", n=2))


def renewed(printed: Sequence[str], expected: Sequence[str], prose: bool = False) -> list[str] | None:
    """The expected lines as they are printed now; None where more than numbers has changed."""
    have, want = _whole(printed, prose), _whole(expected, prose)
    places = _aligned(_forms(have, True), _forms(want, True))
    if places is None:
        return None
    lines = [ANYTHING if place is None else have[place] for place in places]
    lines = [line.rstrip() for whole in lines for line in whole.split("\n")]
    return [*lines, *want[len(places) :]]


def _whole(lines: Sequence[str], prose: bool) -> list[str]:
    """The lines, of prose those that belong together as one."""
    whole: list[str] = []
    for line in lines:
        if prose and whole and line.startswith("    "):
            whole[-1] += f"\n{line}"
        else:
            whole.append(line)
    return whole


def _forms(lines: Sequence[str], shape: bool) -> list[str]:
    forms = [_form(" ".join(line.split()) if "\n" in line else line, shape) for line in lines]
    while forms and not forms[-1]:
        forms.pop()
    return forms


def _form(line: str, shape: bool) -> str:
    if not shape or line.strip() == ANYTHING:
        return line.rstrip()
    for pattern, mask in MASKS:
        line = pattern.sub(mask, line)
    return line.strip()


def _aligned(have: Sequence[str], want: Sequence[str], begin: int = 0) -> list[int | None] | None:
    """For each line that is wanted the place where it is, None for a line `...`; None when they do not match."""
    if not want:
        return [] if begin == len(have) else None
    if want[0].strip() == ANYTHING:
        if len(want) == 1:
            return [None]
        for place in range(begin, len(have) + 1):
            rest = _aligned(have, want[1:], place)
            if rest is not None:
                return [None, *rest]
        return None
    if begin == len(have) or have[begin] != want[0]:
        return None
    rest = _aligned(have, want[1:], begin + 1)
    return None if rest is None else [begin, *rest]


def write(page: Path, directory: Path) -> None:
    """Put into the page what its commands print now, where only numbers have changed."""
    source = page.read_text()
    texts: dict[int, tuple[str, list[str]]] = {}
    for played in play(_runnable(page), directory):
        lines = renewed(played.printed, played.expected, words(played.block).prose)
        if lines is None:
            print(f"{played.block.where}: $ {played.command}: more than numbers has changed; left as it is")
        _, parts = texts.setdefault(played.block.line, (played.block.text, []))
        parts += [f"$ {played.command}", *(played.expected if lines is None else lines)]
    for text, parts in texts.values():
        source = source.replace(text, "\n".join(parts) + "\n")
    page.write_text(source)


def _runnable(page: Path) -> list[Block]:
    these = [one for one in blocks(page, "console") if one.run is not None]
    return [one for one in these if os.geteuid() == 0 or not words(one).root]


def main() -> None:
    """Run the blocks of the pages named; exit status 1 where one prints something else."""
    parser = argparse.ArgumentParser(prog="python -m tests.docs.session", description="Terminals of pages.")
    parser.add_argument("--write", action="store_true", help="put what is printed now into the pages")
    parser.add_argument("pages", nargs="+", type=Path)
    args = parser.parse_args()
    faults = []
    for name in args.pages:
        page = name.resolve()
        with tempfile.TemporaryDirectory() as directory:
            if args.write:
                write(page, Path(directory))
                continue
            for fault in rehearse(_runnable(page), Path(directory)):
                print(fault, end="\n\n")
                faults.append(fault)
    sys.exit(1 if faults else 0)


if __name__ == "__main__":
    main()
