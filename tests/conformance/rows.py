"""The rows of the conformance matrix, each a program under mpiexec that ends in bounded time."""

from __future__ import annotations

import json
import os
import tempfile
from collections.abc import Sequence
from dataclasses import dataclass
from importlib.util import find_spec
from pathlib import Path
from typing import Any

from tests.emulation import build
from tests.emulation.cupy import build as cupy_build
from tests.emulation.load import devices, real_driver
from tests.support.launch import Result, run_ranks

ROW_LIMIT_S = 2400.0
# The child shows where its ranks are and ends itself so long before it is ended.
STACKS_S = 15.0


# Ranks outnumber the cores: what waits inside MPICH then lets others run (others do not know these names).
GIVE_WAY = {"MPIR_CVAR_CH4_PROGRESS_THROTTLE": "1", "MPIR_CVAR_CH4_PROGRESS_THROTTLE_NO_PROGRESS_COUNT": "64"}


@dataclass(frozen=True)
class Row:
    """One run of mpi4py's test modules.

    `small_bytes` is HPCCOLL_SMALL_BYTES, None where it is not set.  `cupy`: with CuPy's arrays too, on
    devices or stand-ins for them.
    """

    ranks: int
    layout: str = ""
    small_bytes: int | None = None
    cupy: bool = False

    def __str__(self) -> str:
        layout = f", layout {self.layout}" if self.layout else ""
        small = "" if self.small_bytes is None else f", small_bytes {self.small_bytes}"
        cupy = ", CuPy" if self.cupy else ""
        return f"{self.ranks} rank{'s' if self.ranks > 1 else ''}{layout}{small}{cupy}"

    @property
    def env(self) -> dict[str, str]:
        small = "" if self.small_bytes is None else str(self.small_bytes)
        settings = {"HPCCOLL_LAYOUT": self.layout, "HPCCOLL_SMALL_BYTES": small}
        return {**_with_devices(), **settings} if self.cupy else settings

    @property
    def arguments(self) -> list[str]:
        """What the row asks of the program."""
        return ["--cupy"] if self.cupy else []


PLACES = ((1, ""), (2, ""), (3, ""), (4, ""), (5, ""), (4, "2+2"), (4, "3+1"), (4, "cyclic:2+2"))
MATRIX = tuple(Row(ranks, layout, small) for small in (None, 0) for ranks, layout in PLACES)
PYLOPS_RANKS = (2, 3)


@dataclass(frozen=True)
class Finished:
    """How a child ended, and what it wrote; `numbers` is empty when it did not come to that."""

    result: Result
    numbers: dict[str, Any]

    @property
    def wrong(self) -> list[str]:
        """What the child found wrong, or that it did not end well."""
        if self.numbers:
            return list(self.numbers["wrong"])
        return ["timed out" if self.result.timed_out else f"ended with status {self.result.returncode}"]

    @property
    def seconds(self) -> float:
        return self.result.seconds

    @property
    def output(self) -> str:
        return f"{self.result.stdout}\n{self.result.stderr}"


def run_mpi4py(row: Row, names: Sequence[str] = (), *, limit_s: float = ROW_LIMIT_S) -> Finished:
    """Run test modules of mpi4py (all, when no names are given) as the row says."""
    return _run("tests.conformance.run_mpi4py", [*row.arguments, *names], row.ranks, row.env, limit_s)


def run_pylops(ranks: int, *, plain: bool, limit_s: float = ROW_LIMIT_S) -> Finished:
    """Run pylops-mpi's tests with our communicators, or with MPI's."""
    without_cupy = {"CUPY_PYLOPS": "0", "NCCL_PYLOPS_MPI": "0"}  # which can be imported without a GPU
    return _run("tests.conformance.run_pylops", ["--plain"] if plain else [], ranks, without_cupy, limit_s)


def _run(module: str, arguments: Sequence[str], ranks: int, env: dict[str, str], limit_s: float) -> Finished:
    with tempfile.TemporaryDirectory(prefix="hpccoll-conformance-") as folder:
        file = Path(folder) / "numbers.json"
        command = ["-m", module, "--limit-s", str(limit_s - STACKS_S), "--json", str(file), *arguments]
        result = run_ranks(ranks, command, timeout_s=limit_s, env={**GIVE_WAY, **env})
        return Finished(result, json.loads(file.read_text()) if file.exists() else {})


def no_cupy() -> str:
    """Empty, or why there are no rows with CuPy's arrays here.  CuPy's source may have to be fetched."""
    if not real_driver():
        return build.missing() or cupy_build.missing() or ""
    return "" if find_spec("cupy") is not None else "no CuPy"


def cupy_rows() -> tuple[Row, ...]:
    """On hardware, ranks that share a device may wait for each other's kernels: no more than two."""
    return tuple(Row(ranks, cupy=True) for ranks in ((1, 2) if real_driver() else (1, 2, 3, 4)))


def _with_devices() -> dict[str, str]:
    """The variables that give a child devices."""
    return {name: value for name, value in devices().items() if os.environ.get(name) != value}


def changed_outcomes(plain: Finished, ours: Finished) -> list[str]:
    """Tests of pylops-mpi that end otherwise with our communicators than with MPI's, on any rank."""
    pairs = zip(plain.numbers["outcomes"], ours.numbers["outcomes"], strict=True)
    return [
        f"rank {rank}: {test}: {before.get(test)} with MPI's communicator, {after.get(test)} with ours"
        for rank, (before, after) in enumerate(pairs)
        for test in sorted(before.keys() | after.keys())
        if before.get(test) != after.get(test)
    ]
