"""`hpccoll topo`: rank 0 prints, --json, exit status."""

from __future__ import annotations

import argparse
import json
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

if TYPE_CHECKING:
    from mpi4py import MPI


def topo(*arguments: str) -> int:
    """The command in this process."""
    from hpccoll.cli import topo as command

    parser = argparse.ArgumentParser()
    command.configure(parser)
    return command.run(parser.parse_args(arguments))


@pytest.mark.ranks(1, 4)
def test_rank_0_prints_the_tree(world: MPI.Intracomm, capsys: pytest.CaptureFixture[str]) -> None:
    assert topo() == 0
    printed = capsys.readouterr().out
    if world.rank == 0:
        assert printed.startswith(f"{world.size} rank{'s' if world.size > 1 else ''}\n└── node 0  ")
        assert "identity and probe" in printed
    else:
        assert printed == ""


@pytest.mark.ranks(4)
def test_a_layout_and_a_line_for_every_rank(world: MPI.Intracomm, capsys: pytest.CaptureFixture[str]) -> None:
    assert topo("--layout", "3+1", "--ranks") == 0
    printed = capsys.readouterr().out
    assert ("4 ranks: 2 nodes (3+1)" in printed) == (world.rank == 0)
    assert ("    └── rank 3  local rank 0, leader" in printed) == (world.rank == 0)


@pytest.mark.ranks(4)
def test_json_to_a_file_and_to_standard_output(
    world: MPI.Intracomm, capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    path = tmp_path / "machine.json"
    assert topo("--layout", "cyclic:2+2", "--json", str(path)) == 0
    printed = capsys.readouterr().out
    assert path.exists() == (world.rank == 0)
    assert topo("--layout", "cyclic:2+2", "--json", "-") == 0
    output = capsys.readouterr().out
    if world.rank == 0:
        assert "2 nodes (cyclic:2+2)" in printed
        found = json.loads(path.read_text(encoding="utf-8"))
        assert found["groups"]["RAIL"] == [[0, 1], [2, 3]]
        assert json.loads(output) == found


@pytest.mark.ranks(1, 4)
def test_misuse_is_exit_status_2_and_one_message(
    world: MPI.Intracomm, capsys: pytest.CaptureFixture[str]
) -> None:
    assert topo("--layout", "two") == 2
    message = capsys.readouterr().err
    if world.rank == 0:
        assert message.startswith('hpccoll topo: layout "two": "two" is not a number of ranks')
    else:
        assert message == ""


@pytest.mark.ranks(1, 4)
def test_a_file_that_cannot_be_written(
    world: MPI.Intracomm, capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    assert topo("--json", str(tmp_path / "missing/machine.json")) == (2 if world.rank == 0 else 0)
    assert ("No such file or directory" in capsys.readouterr().err) == (world.rank == 0)
