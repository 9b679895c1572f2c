"""measure.py under an mpiexec, in bounded time."""

from __future__ import annotations

import json
import os
import subprocess
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from tests.support.launch import REPOSITORY, started

MEASURE = REPOSITORY / "benchmarks" / "node" / "measure.py"
# Open MPI asks for a word from root, and for one where there are more ranks than cores.
ALLOWED = {
    "OMPI_ALLOW_RUN_AS_ROOT": "1",
    "OMPI_ALLOW_RUN_AS_ROOT_CONFIRM": "1",
    "PRTE_MCA_rmaps_default_mapping_policy": ":oversubscribe",
}


class LaunchError(Exception):
    """A run failed or took too long."""


def run_measure(
    programs: Path,
    ranks: int,
    into: Path,
    arguments: Sequence[str],
    timeout_s: float,
    *,
    mpiexec: Path | None = None,
    packages: Path | None = None,
    quiet: bool = False,
) -> dict[str, Any]:
    """What measure.py finds with the Python of one environment.

    Args:
        programs: where `python` of the environment is.
        ranks: how many.
        into: the JSON file that it writes.
        arguments: further ones for measure.py.
        timeout_s: after it every process is ended.
        mpiexec: the launcher; unset, that in `programs`.
        packages: a folder whose packages come before those of the environment.
        quiet: do not show the rows.

    Raises:
        LaunchError: it fails, or takes longer.

    """
    words = [str(mpiexec or programs / "mpiexec"), "-n", str(ranks), str(programs / "python"), str(MEASURE)]
    words += ["--json", str(into), *arguments]
    env = {**os.environ, **ALLOWED, "PATH": os.pathsep.join((str(programs), os.environ["PATH"]))}
    # Packages are the environment's own, unless told otherwise.
    env.pop("PYTHONPATH", None)
    if packages is not None:
        env["PYTHONPATH"] = str(packages)
    into.unlink(missing_ok=True)
    with started(words, env=env, stdout=subprocess.DEVNULL if quiet else None, stderr=None) as process:
        try:
            status = process.wait(timeout=timeout_s)
        except subprocess.TimeoutExpired:
            raise LaunchError(f"{' '.join(words)}: not done after {timeout_s:g} s") from None
    if status:
        raise LaunchError(f"{' '.join(words)}: exit status {status}")
    found: dict[str, Any] = json.loads(into.read_text())
    return found
