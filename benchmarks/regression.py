"""Is commit B slower than commit A?  Both built, and measured on one node in turn in one run.

    python -m benchmarks.regression A B --ranks 2 --turns 7 --json FILE

Each commit is unpacked from git into a temporary folder and installed from there into a folder of its own;
all else is this environment's. One process cannot load two versions of a package. So processes take turns:
in every turn one mpiexec runs node/measure.py (of this checkout, the same for both) with A's hpccoll and one
with B's, in every second turn B's first. What a process finds for a cell is one observation.

    A, B     median over the turns, in us
    B/A      ratio of the medians: above 1, B is slower
    95 %     interval of the ratio by the bootstrap: turns are drawn again, each with both of its processes,
             since what disturbs a turn disturbs both
    control  the same ratio for MPI's own call in these processes: far from 1, it is the machine that differed

Exit status: 0; 1 where a cell is slower by more than --threshold percent and its interval lies above 1; 2
where a commit cannot be built or measured. By chance alone one cell in forty lies above 1 with its interval:
run again before you believe in a single one that is near the threshold.
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
import tempfile
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from benchmarks.node.launch import LaunchError, run_measure
from tests.support.launch import REPOSITORY, find_mpiexec

WAYS = ("private", "checked", "registered")
CONTROL = "mpi"
SAMPLES = 4000
SEED = 20240229
# A turn's processes differ by their start, so that few rounds in each suffice.
ROUNDS = 3
SIZES = "8,4096,65536,1048576,16777216"


class BuildError(Exception):
    """A commit does not exist or cannot be built."""


@dataclass(frozen=True)
class Build:
    """An installed commit: its full name, the folder for PYTHONPATH."""

    commit: str
    folder: Path


@dataclass(frozen=True)
class Cell:
    """What was found for one call: microseconds in each turn, the ratio B/A, its interval, the control."""

    collective: str
    nbytes: int
    way: str
    a_us: tuple[float, ...]
    b_us: tuple[float, ...]
    ratio: float
    low: float
    high: float
    control: float

    def is_slower(self, threshold_percent: float) -> bool:
        """B is slower by more than the threshold, and not by chance."""
        return self.ratio > 1 + threshold_percent / 100 and self.low > 1


def resolve(name: str) -> str:
    """The full name of a commit of this repository.

    Raises: BuildError.
    """
    return _git("rev-parse", "--verify", "--quiet", f"{name}^{{commit}}").decode().strip()


def build(commit: str, folder: Path) -> Build:
    """A commit installed below `folder`.

    Raises: BuildError.
    """
    source, target = folder / "source", folder / "installed"
    # An archive, not `git worktree`: whatever ends this program, nothing of it is left in the repository.
    source.mkdir(parents=True)
    subprocess.run(["tar", "-x"], cwd=source, input=_git("archive", "--format=tar", commit), check=True)
    pip = [sys.executable, "-m", "pip", "install", "--quiet", "--disable-pip-version-check"]
    command = [*pip, "--no-deps", "--no-build-isolation", "--target", str(target), str(source)]
    done = subprocess.run(command, stdin=subprocess.DEVNULL, capture_output=True, text=True, check=False)
    if done.returncode:
        raise BuildError(f"{commit} cannot be installed:\n{done.stderr}")
    return Build(commit, target)


def _git(*arguments: str) -> bytes:
    done = subprocess.run(["git", *arguments], cwd=REPOSITORY, capture_output=True, check=False)
    if done.returncode:
        said = done.stderr.decode(errors="replace").strip()
        raise BuildError(f"git {' '.join(arguments)}: {said or 'there is no such commit'}")
    return done.stdout


def observe(one: Build, ranks: int, arguments: Sequence[str], timeout_s: float) -> dict[str, Any]:
    """What measure.py finds with this build.

    Raises: LaunchError where it fails, takes longer than `timeout_s`, or another hpccoll was loaded.
    """
    found = run_measure(
        Path(sys.executable).parent,
        ranks,
        one.folder.parent / "found.json",
        arguments,
        timeout_s,
        mpiexec=Path(find_mpiexec().path),
        packages=one.folder,
        quiet=True,
    )
    if Path(found["hpccoll_from"]).parent != one.folder:
        raise LaunchError(f"{found['hpccoll_from']} was measured instead of {one.commit}")
    return found


def alternate(
    builds: tuple[Build, Build], ranks: int, turns: int, arguments: Sequence[str], timeout_s: float
) -> tuple[list[dict[str, Any]], list[dict[str, Any]]]:
    """The findings of both builds, one in each turn.

    Raises: LaunchError.
    """
    found: tuple[list[dict[str, Any]], list[dict[str, Any]]] = [], []
    for turn in range(turns):
        for index in (0, 1) if turn % 2 == 0 else (1, 0):
            found[index].append(observe(builds[index], ranks, arguments, timeout_s))
        print(f"# turn {turn + 1} of {turns}", file=sys.stderr, flush=True)
    return found


def ratio_interval(a: NDArray[np.float64], b: NDArray[np.float64]) -> tuple[float, float, float]:
    """The ratio of b's median to a's, and the 95 % interval by the bootstrap over pairs.

    Source: Efron, Tibshirani, An Introduction to the Bootstrap, 1993, chapter 13 (percentile interval).
    """
    drawn = np.random.default_rng(SEED).integers(0, len(a), (SAMPLES, len(a)))
    ratios = np.median(b[drawn], axis=1) / np.median(a[drawn], axis=1)
    low, high = np.percentile(ratios, (2.5, 97.5))
    return float(np.median(b) / np.median(a)), float(low), float(high)


def cells(of_a: Sequence[dict[str, Any]], of_b: Sequence[dict[str, Any]]) -> list[Cell]:
    """A cell for each collective, size and way."""
    found = []
    for index, row in enumerate(of_a[0]["rows"]):
        times = {
            way: tuple([one["rows"][index]["us"][way] for one in of] for of in (of_a, of_b))
            for way in row["us"]
        }
        control, _, _ = ratio_interval(*map(np.asarray, times[CONTROL]))
        for way in WAYS:
            if way in times:
                a, b = times[way]
                ratio = ratio_interval(np.asarray(a), np.asarray(b))
                found.append(Cell(row["collective"], row["bytes"], way, tuple(a), tuple(b), *ratio, control))
    return found


def table(found: Sequence[Cell], threshold_percent: float) -> str:
    """All cells as Markdown."""
    lines = [
        "| collective | bytes | way | A, us | B, us | B/A | 95 % | control | |",
        "|---|---:|---|---:|---:|---:|---|---:|---|",
    ]
    for cell in found:
        mark = "slower" if cell.is_slower(threshold_percent) else ""
        lines.append(
            f"| {cell.collective} | {cell.nbytes} | {cell.way} | {np.median(cell.a_us):.2f} |"
            f" {np.median(cell.b_us):.2f} | {cell.ratio:.2f} | {cell.low:.2f} to {cell.high:.2f} |"
            f" {cell.control:.2f} | {mark} |"
        )
    return "\n".join(lines)


def compare(options: argparse.Namespace) -> int:
    """Exit status.

    Raises: BuildError, LaunchError.
    """
    arguments = ["--collectives", options.collectives, "--sizes", options.sizes]
    arguments += ["--rounds", str(options.rounds), "--ways", ",".join((CONTROL, *WAYS))]
    with tempfile.TemporaryDirectory(prefix="regression-") as directory:
        commits = resolve(options.a), resolve(options.b)
        folders = Path(directory) / "a", Path(directory) / "b"
        with ThreadPoolExecutor() as both:
            a, b = both.map(build, commits, folders)
        print(f"# A {a.commit}\n# B {b.commit}\n# {options.ranks} ranks, {options.turns} turns", flush=True)
        of_a, of_b = alternate((a, b), options.ranks, options.turns, arguments, options.timeout_s)
    if of_a[0]["extension"] != of_b[0]["extension"]:
        which = "A" if of_a[0]["extension"] else "B"
        print(f"# only {which} has the C extension: the other was built without one")
    found = cells(of_a, of_b)
    print(table(found, options.threshold))
    slower = [cell for cell in found if cell.is_slower(options.threshold)]
    print(f"# {len(slower)} of {len(found)} cells are slower by more than {options.threshold:g} %")
    if options.json:
        contents = {
            "a": a.commit,
            "b": b.commit,
            "extension": {"a": of_a[0]["extension"], "b": of_b[0]["extension"]},
            "turns": options.turns,
            "threshold_percent": options.threshold,
            **{name: of_a[0][name] for name in ("mpi", "ranks", "machine", "python", "numpy")},
            "slower": len(slower),
            "cells": [asdict(cell) for cell in found],
        }
        options.json.write_text(json.dumps(contents, indent=1) + "\n")
    return int(bool(slower))


def parse(argv: Sequence[str] | None = None) -> argparse.Namespace:
    """The command line."""

    def turns(text: str) -> int:
        if int(text) < 2:
            raise ValueError(text)
        return int(text)

    parser = argparse.ArgumentParser(
        prog="python -m benchmarks.regression",
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    add = parser.add_argument
    add("a", metavar="A", help="the commit that is the measure: main, a tag, HEAD~1")
    add("b", metavar="B", help="the commit that may be slower")
    add("--ranks", type=int, default=2)
    add("--turns", type=turns, default=7, help="processes of each commit, at least 2 (7)")
    add("--rounds", type=int, default=ROUNDS, help=f"in each process ({ROUNDS})")
    add("--collectives", default="Allreduce,Reduce,Bcast,Allgather,Reduce_scatter_block")
    add("--sizes", default=SIZES, help=f"bytes ({SIZES})")
    add("--threshold", type=float, default=10.0, help="percent (10)")
    add("--timeout-s", type=float, default=600.0, help="limit of each process (600)")
    add("--json", type=Path, help="write all numbers to this file")
    return parser.parse_args(argv)


def main() -> int:
    """Exit status, with what went wrong on standard error."""
    try:
        return compare(parse())
    except (BuildError, LaunchError) as error:
        print(f"benchmarks.regression: {error}", file=sys.stderr)
        return 2


if __name__ == "__main__":
    sys.exit(main())
