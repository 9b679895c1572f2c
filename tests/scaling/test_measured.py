"""`hpccoll scale` under mpiexec: the nodes it takes, what it keeps, and what it refuses."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from hpccoll.scaling.study import read
from tests.support.launch import Result, run_ranks

pytestmark = pytest.mark.timeout(120)


def scale(ranks: int, *arguments: object) -> Result:
    words = [str(one) for one in arguments]
    return run_ranks(ranks, ["-m", "hpccoll.cli", "scale", *words], timeout_s=100.0)


def test_on_more_and_more_nodes(tmp_path: Path) -> None:
    file = tmp_path / "study.json"
    sizes = ("-b", "1K", "-e", "64K", "-f", "8", "-n", "5")
    done = scale(4, "allreduce", "--layout", "2+1+1", *sizes, "--json", file)
    assert done.returncode == 0, done.stderr
    study = read(file)
    assert (study.operation, study.kind, study.wrong) == ("allreduce", "measured", 0)
    assert [(one.nodes, one.ranks, one.layout) for one in study.of_size(1024)] == [
        (1, 2, "2"),
        (2, 3, "2+1"),
        (3, 4, "2+1+1"),
    ]
    assert study.sizes == (1024, 8192, 65536)
    for one in study.points:
        assert one.low_us is not None
        assert one.high_us is not None
        assert one.predicted_us is not None
        assert 0 < one.low_us <= one.time_us <= one.high_us
        factor = 2 * (one.ranks - 1) / one.ranks
        assert one.busbw == pytest.approx(one.nbytes / one.time_us / 1e3 * factor)
    assert len([row for row in done.stdout.splitlines() if not row.startswith("#")]) == 9


def test_equal_blocks_are_of_the_size_asked_for(tmp_path: Path) -> None:
    """1000 bytes are 960 for 3 ranks (blocks of 16 bytes), and one size all the same."""
    file = tmp_path / "study.json"
    rest = ("--layout", "1+1+1", "-b", "1000", "-e", "1000", "-n", "3", "--json", file)
    assert scale(3, "allgather", *rest).returncode == 0
    (size,) = read(file).sizes
    last = read(file).of_size(size)[-1]
    assert (size, last.nodes) == (1000, 3)
    assert last.busbw == pytest.approx(960 / last.time_us / 1e3 * 2 / 3)


def test_a_stopped_study_goes_on(tmp_path: Path) -> None:
    file = tmp_path / "study.json"
    rest = ("--layout", "1+1+1", "-b", "1K", "-e", "1K", "-n", "3", "--json", file)
    assert scale(3, "bcast", "--nodes", "2", *rest).returncode == 0
    first = read(file).points
    done = scale(3, "bcast", *rest)
    assert done.returncode == 0, done.stderr
    assert "(from " in done.stdout
    points = read(file).points
    assert [one.nodes for one in points] == [1, 2, 3]
    assert points[1] == first[0]  # not measured again
    other = scale(3, "reduce", *rest)
    assert other.returncode == 2
    assert "another study" in other.stderr
    assert read(file).points == points
    assert scale(3, "reduce", "--again", *rest).returncode == 0
    assert read(file).operation == "reduce"


@pytest.mark.parametrize(
    ("arguments", "word"),
    [
        (("allreduce", "--nodes", "3"), "--nodes"),
        (("allreduce", "--nodes", "0"), "--nodes"),
        (("allreduce", "--compare"), "--compare"),
        (("allreduce", "-d", "all"), "several types"),
        (("allreduce", "--json", "-"), "--json"),
        (("allreduce", "--json", "/nowhere/x.json"), "cannot write /nowhere"),
        (("allreduce", "--gpus", "2"), "--gpus"),
        (("allreduce", "--with", "none.json", "--report", "somewhere"), "none.json"),
        (("allreduce", "--with", "none.json"), "--with"),
        (("nothing",), "nothing"),
    ],
)
def test_what_is_refused(arguments: tuple[str, ...], word: str) -> None:
    done = scale(2, *arguments, "--layout", "1+1")
    assert done.returncode == 2, done.stderr
    assert word in done.stderr
    assert done.stderr.count("hpccoll scale:") == 1  # by rank 0 alone


def test_a_file_that_is_no_study(tmp_path: Path) -> None:
    file = tmp_path / "study.json"
    file.write_text(json.dumps({"mine": 1}))
    done = scale(2, "allreduce", "--layout", "1+1", "--json", file)
    assert done.returncode == 2
    assert "--again" in done.stderr
    assert json.loads(file.read_text()) == {"mine": 1}
