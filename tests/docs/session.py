"""A block of a terminal: `$ command` lines and what they print; run again, is it still so?

    <!-- run -->            the output is compared as it stands; a line `...` is any lines, or none
    <!-- run: shape -->     numbers with their units, bars and the spaces between columns may be others: of
                            what is measured
    <!-- run: prose -->     lines that are indented by four spaces or more go on with the line before,
                            wherever it was broken
    <!-- run: status 1 -->  the exit status of the last command (by default 0)
    <!-- run: slow -->      in `make test-slow` only;  root: there, with virtual hosts

`python -m tests.docs.session PAGE ...` runs the blocks of pages and prints what differs; with `--write` it
puts what is printed now into the pages.
"""

from __future__ import annotations

import argparse
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
from tests.docs.comparison import difference, renewed
from tests.support.launch import REPOSITORY, find_mpiexec, run_program

__all__ = ["Words", "commands", "link_repository", "rehearse", "words"]

LIMIT_S = 150.0
HOST = "host"  # this machine, in pages
ENVIRONMENT = {"HPCCOLL_TIMEOUT_S": "300"}  # as for users: what hangs is to be seen


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
    """Run the blocks in `directory`, in order; yield a text for each command that prints something else."""
    for played in play(these, directory):
        said = words(played.block)
        fault = difference(played.printed, played.expected, said.shape, said.prose)
        if played.failed or fault:
            yield f"{played.block.where}: $ {played.command}\n{played.failed or fault}"


@dataclass(frozen=True)
class Played:
    """A command of a block that was run; `failed`: why, when it ended otherwise than the block says."""

    block: Block
    command: str
    expected: Sequence[str]
    printed: Sequence[str]
    failed: str


def link_repository(directory: Path) -> None:
    """Make the repository's files seem to lie in `directory`; what a page writes is then not among them."""
    for entry in REPOSITORY.iterdir():
        if entry.name not in (".git", "build") and not (directory / entry.name).exists():
            (directory / entry.name).symlink_to(entry)


def play(these: Iterable[Block], directory: Path) -> Iterator[Played]:
    """Run the commands of the blocks in `directory`, where the repository's files seem to lie."""
    link_repository(directory)
    for block in these:
        every = commands(block)
        for number, (command, lines) in enumerate(every, 1):
            done = run_program(
                ["bash", "-c", _script(command)], timeout_s=LIMIT_S, env=ENVIRONMENT, cwd=directory
            )
            status = words(block).status if number == len(every) else 0
            failed = ""
            if done.timed_out or done.returncode != status:
                failed = f"exit status {done.returncode}, not {status}\n{done.stdout}{done.stderr}"
            printed = re.sub(rf"\b{re.escape(socket.gethostname())}\b", HOST, done.stdout)
            printed = printed.replace(f"{directory}/", "")
            yield Played(block, command, lines, printed.splitlines(), failed)


def _script(command: str) -> str:
    """The command with the tests' launcher for mpiexec and mpirun, and errors where a terminal has them."""
    launcher = find_mpiexec()
    options = shlex.join(launcher.command(1, [])[1:-2])
    start = f'{{ command {shlex.quote(launcher.path)} {options} "$@"; }}'
    lines = [f"{name}() {start}" for name in ("mpiexec", "mpirun")]
    return "\n".join(["exec 2>&1", *lines, command])


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
