"""A block of a terminal: `$ command` lines and what they print; run again, is it still so?

    <!-- run -->            the output is compared as it stands; a line `...` is any lines, or none
    <!-- run: shape -->     numbers with their units, bars and the spaces between columns may be others: of what
                            is measured
    <!-- run: status 1 -->  the exit status of the last command (by default 0)
    <!-- run: slow -->      in `make test-slow` only;  root: there, with virtual hosts

`python -m tests.docs.session PAGE ...` runs the blocks of pages and writes what differs.
"""

from __future__ import annotations

import difflib
import os
import re
import shlex
import sys
import tempfile
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

from tests.docs.blocks import Block, blocks
from tests.support.launch import REPOSITORY, find_mpiexec, run_program

__all__ = ["Words", "commands", "difference", "rehearse", "words"]

LIMIT_S = 150.0
ANYTHING = "..."
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
    for entry in REPOSITORY.iterdir():
        if entry.name not in (".git", "build") and not (directory / entry.name).exists():
            (directory / entry.name).symlink_to(entry)
    for block in these:
        expected = words(block)
        for number, (command, lines) in enumerate(commands(block), 1):
            last = number == len(commands(block))
            done = run_program(["bash", "-c", _script(command)], timeout_s=LIMIT_S, cwd=directory)
            status = expected.status if last else 0
            fault = difference(done.stdout.splitlines(), lines, expected.shape)
            if done.timed_out or done.returncode != status:
                fault = f"exit status {done.returncode}, not {status}\n{done.stdout}{done.stderr}"
            if fault:
                yield f"{block.where}: $ {command}\n{fault}"


def _script(command: str) -> str:
    """The command, with the launcher of the tests for mpiexec and mpirun, and errors where a terminal has them."""
    launcher = find_mpiexec()
    options = shlex.join(launcher.command(1, [])[1:-2])
    start = f'{{ command {shlex.quote(launcher.path)} {options} "$@"; }}'
    lines = [f"{name}() {start}" for name in ("mpiexec", "mpirun")]
    return "\n".join(["exec 2>&1", *lines, command])


def difference(printed: Sequence[str], expected: Sequence[str], shape: bool = False) -> str:
    """Of what was printed from what was expected; "" when there is none."""
    have = [_form(line, shape) for line in printed]
    want = [_form(line, shape) for line in expected]
    while have and not have[-1]:
        have.pop()
    while want and not want[-1]:
        want.pop()
    if _matches(have, want):
        return ""
    return "\n".join(difflib.unified_diff(want, have, "in the page", "printed", lineterm="", n=2))


def _form(line: str, shape: bool) -> str:
    line = line.rstrip()
    if shape and line.strip() != ANYTHING:
        for pattern, mask in MASKS:
            line = pattern.sub(mask, line)
    return line.strip() if shape else line


def _matches(have: Sequence[str], want: Sequence[str]) -> bool:
    """Each stretch between lines `...` is there, in order; nothing else where there is no such line."""
    if ANYTHING not in [line.strip() for line in want]:
        return list(have) == list(want)
    place = next(number for number, line in enumerate(want) if line.strip() == ANYTHING)
    if list(have[:place]) != list(want[:place]):
        return False
    rest = want[place + 1 :]
    return not rest or any(_matches(have[begin:], rest) for begin in range(place, len(have) + 1))


def main() -> None:
    """Run the blocks of the pages named; exit status 1 where one prints something else."""
    faults = []
    for name in sys.argv[1:]:
        these = [one for one in blocks(Path(name).resolve(), "console") if one.run is not None]
        root = os.geteuid() == 0
        with tempfile.TemporaryDirectory() as directory:
            for fault in rehearse([one for one in these if root or not words(one).root], Path(directory)):
                print(fault, end="\n\n")
                faults.append(fault)
    sys.exit(1 if faults else 0)


if __name__ == "__main__":
    main()
