"""Commands in the documentation that are shown without output: they parse, and what they name is there."""

from __future__ import annotations

import importlib.util
import re
import shlex
from collections.abc import Iterator
from pathlib import Path

import pytest

from hpccoll import cli
from tests.docs.blocks import blocks, name, pages
from tests.docs.session import commands
from tests.support.launch import REPOSITORY

PAGES = [page for page in pages() if any(blocks(page, "sh", "console"))]
TARGETS = set(re.findall(r"^([a-z-]+):", (REPOSITORY / "Makefile").read_text(), re.MULTILINE))
LAUNCHERS = ("mpirun", "mpiexec", "srun", ".venv/bin/mpiexec")
PYTHONS = ("python", ".venv/bin/python")
# Files of this repository, as against those of a reader.
OURS = ("examples/", "tests/", "slurm/", "benchmarks/", "docs/")


def lines(page: Path) -> Iterator[tuple[str, list[str]]]:
    """Where a command stands, and its words."""
    for block in blocks(page, "sh", "console"):
        if block.language == "console":
            every = [command for command, _ in commands(block)]
        else:
            every = block.text.replace("\\\n", "").splitlines()
        for line in every:
            found = shlex.split(line.replace("\\\n", ""), comments=True)
            if found:
                yield f"{block.where}: {line}", found


def fault(found: list[str]) -> str:
    """What is wrong with a command, as far as it can be known without running it."""
    while found and re.fullmatch(r"[A-Z_]+=.*", found[0]):
        found = found[1:]
    if not found:
        return ""
    missing = [one for one in found if one.startswith(OURS) and "*" not in one and "$" not in one]
    missing = [one for one in missing if not (REPOSITORY / one).exists() and "results/" not in one]
    if missing and "--svg" not in found:
        return f"no such file: {missing}"
    if found[0] == "make":
        wanted = [word for word in found[1:] if "=" not in word and "/" not in word and word[0] != "#"]
        return "" if set(wanted) <= TARGETS else f"no such target: {wanted}"
    for number, word in enumerate(found):
        before = found[number - 1] if number else ""
        starts = number == 0 or found[0] in (*LAUNCHERS, *PYTHONS)
        if word in ("hpccoll", "hpccoll.cli") and starts and (word == "hpccoll.cli" or before != "-m"):
            return parse(found[number + 1 :])
        ours = word.partition(".")[0] in ("hpccoll", "benchmarks", "tests")
        if before == "-m" and found[number - 2].endswith("python") and ours:
            return "" if importlib.util.find_spec(word) else f"no such module: {word}"
    return ""


def parse(arguments: list[str]) -> str:
    """What argparse says against them."""
    ends = [number for number, word in enumerate(arguments) if word in ("&", "|", "&&", ";", ">", "2>&1")]
    arguments = arguments[: ends[0]] if ends else arguments
    try:
        cli.parser().parse_args(arguments)
    except SystemExit as ended:
        return "" if ended.code == 0 else f"hpccoll does not take: {' '.join(arguments)}"
    return ""


@pytest.mark.parametrize("page", PAGES, ids=name)
def test_commands(page: Path) -> None:
    faults = [f"{where}: {found}" for where, line in lines(page) if (found := fault(line))]
    assert not faults


@pytest.mark.parametrize(
    "line",
    [
        "mpirun -n 4 hpccoll bench allreduce --no-such-flag",
        "hpccoll plan no_such_collective",
        "make no-such-target",
        "python -m benchmarks.no_such_module",
        "mpirun -n 4 python examples/no_such_file.py",
    ],
)
def test_what_is_wrong_is_found(line: str) -> None:
    assert fault(shlex.split(line))


def test_every_block_has_a_language() -> None:
    """Commands in a block without one would not be looked at."""
    bare = [
        f"{block.where}: {line}"
        for page in pages()
        for block in blocks(page, "")
        for line in block.text.splitlines()
        if re.match(r"(\$ |(make|hpccoll|mpirun|mpiexec|srun|sbatch|python) )", line)
    ]
    assert not bare
