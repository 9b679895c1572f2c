"""Measured figures in README and docs/performance.md are those of the files in benchmarks/results."""

from __future__ import annotations

import json
import re
from typing import Any

import pytest

from hpccoll import cli
from hpccoll.cli.sizes import parse_bytes
from tests.support.launch import REPOSITORY

README, PAGE = ((REPOSITORY / name).read_text() for name in ("README.md", "docs/performance.md"))
RESULTS = REPOSITORY / "benchmarks/results"
MPIS = {"MPICH": "mpich", "Open MPI": "openmpi", "Intel MPI": "intel"}
BETWEEN = {"MPICH's Allreduce": "mpi", "ours, `wire_dtype=bfloat16`": "auto wire_dtype=bfloat16"}


def table(text: str, head: str) -> list[list[str]]:
    """The rows of the table whose head begins so, and the head as the first."""
    lines = text[text.index(f"\n| {head}") :].strip().splitlines()
    end = next((number for number, line in enumerate(lines) if not line.startswith("|")), len(lines))
    rows = [[cell.strip() for cell in line.strip("|").split("|")] for line in lines[:end]]
    return [rows[0], *rows[2:]]


def nbytes(text: str) -> int:
    """Of "16 MiB"."""
    return parse_bytes(text.replace(" ", "").replace("iB", "").removesuffix("B"))


def between_hosts() -> dict[tuple[int, int, str], dict[str, Any]]:
    found = re.search(r"benchmarks/results/(cluster-[\w-]+)\.md", PAGE)
    assert found is not None
    document = json.loads((RESULTS / f"{found[1]}.json").read_text())
    return {
        (run["hosts"], row["bytes"], row["algorithm"]): row for run in document["runs"] for row in run["rows"]
    }


def inside_a_node(mpi: str, ranks: int = 2) -> dict[tuple[str, int], dict[str, float]]:
    newest = sorted(RESULTS.glob(f"node-{mpi}-{ranks}-ranks-*.json"))[-1]
    return {(row["collective"], row["bytes"]): row["us"] for row in json.loads(newest.read_text())["rows"]}


def test_between_hosts() -> None:
    results = between_hosts()
    rows = table(PAGE, "hosts | size | who")[1:]
    assert len(rows) == 18
    for hosts, size, who, *figures in rows:
        row = results[int(hosts), nbytes(size), BETWEEN.get(who, "auto")]
        expected = (row["median_s"] * 1e3, row["mpi_over_this"], row["wire_fraction"], row["sent_percent"])
        for figure, value in zip(figures, expected, strict=True):
            digits = len(figure.removesuffix(" %").partition(".")[2])
            assert float(figure.removesuffix(" %")) == pytest.approx(value, abs=0.51 * 10**-digits)


def test_between_hosts_in_the_readme() -> None:
    results = between_hosts()
    for hosts, ratios, parts, sent in table(README, "hosts | MPICH's time / ours")[1:]:
        mpi, ours, short = (
            results[int(hosts), 16 << 20, name] for name in ("mpi", "auto", "auto wire_dtype=bfloat16")
        )
        numbers = [float(number) for number in re.findall(r"[\d.]+\d", f"{ratios} {parts} {sent}")]
        assert numbers == [
            pytest.approx(value, abs=0.0051)
            for value in (
                ours["mpi_over_this"],
                short["mpi_over_this"],
                ours["wire_fraction"],
                mpi["wire_fraction"],
            )
        ] + [pytest.approx(value["sent_percent"], abs=0.051) for value in (ours, short)]


def test_inside_a_node() -> None:
    results = {mpi: inside_a_node(name) for mpi, name in MPIS.items()}
    results |= {f"4 ranks, {mpi}": inside_a_node(MPIS[mpi], 4) for mpi in ("MPICH", "Open MPI")}
    head, *rows = table(PAGE, "collective | size | MPICH")
    assert len(rows) == 45
    for collective, size, *figures in rows:
        for mpi, figure in zip(head[2:], figures, strict=True):
            us = results[mpi][collective, nbytes(size)]
            plain, *shared = map(float, re.findall(r"[\d.]+", figure))
            assert plain == pytest.approx(us["mpi"] / us["private"], abs=0.0051)
            if not mpi.startswith("4 ranks"):
                assert shared == [pytest.approx(us["mpi"] / us["registered"], abs=0.0051)]


def test_inside_a_node_in_the_readme() -> None:
    head, *rows = table(README, "all-reduce of")
    for name, *figures in rows:
        mpi = next(mpi for mpi in MPIS if name.startswith(mpi))
        for size, figure in zip(head[1:], figures, strict=True):
            us = inside_a_node(MPIS[mpi])["Allreduce", nbytes(size)]
            assert float(figure) == pytest.approx(us["mpi"] / us["private"], abs=0.051)


def test_bytes_that_the_readme_tells_of(capsys: pytest.CaptureFixture[str]) -> None:
    said = re.search(
        r"`hpccoll (plan [^`]*)` prints both: (\d+) MiB of 16 by `ring`, (\d+) by `scatter_rail_g", README
    )
    assert said is not None
    assert cli.main([*said[1].split(), "--json", "-"]) == 0
    found = {one["name"]: one for one in json.loads(capsys.readouterr().out)["candidates"]}
    for name, mebibytes in (("ring", said[2]), ("scatter_rail_gather", said[3])):
        assert found[name]["bytes_between_nodes"] == int(mebibytes) << 20
