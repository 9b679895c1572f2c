"""`hpccoll topo`: rank 0 prints, --json, --svg, --root, exit status."""

from __future__ import annotations

import json
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from hpccoll.cli import main
from tests.topology.conftest import Tree

if TYPE_CHECKING:
    from mpi4py import MPI


def topo(*arguments: str) -> int:
    """The command in this process."""
    return main(["topo", *arguments])


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
        again = json.loads(output)
        for document in (found, again):
            del document["hardware"]["hosts"][0]["shm_free_bytes"]  # which changes from moment to moment
        assert again == found


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
    assert topo("--json", str(tmp_path / "missing/machine.json")) == 2
    assert ("No such file or directory" in capsys.readouterr().err) == (world.rank == 0)


@pytest.mark.ranks(1, 4)
def test_the_hosts_are_described_once_and_every_rank_tells_its_own(
    world: MPI.Intracomm, capsys: pytest.CaptureFixture[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from hpccoll.topology.hardware.document import load

    monkeypatch.setenv("NCCL_TEST", str(world.rank % 2))
    path, picture = tmp_path / "all.json", tmp_path / "hosts.svg"
    assert topo("--layout", f"{world.size}x1", "--json", str(path), "--svg", str(picture)) == 0
    printed = capsys.readouterr().out
    if world.rank != 0:
        assert printed == ""
        return
    survey = load(path)
    assert len(survey.hosts) == 1
    assert survey.host_of == (0,) * world.size
    assert [dict(one.environment)["NCCL_TEST"] for one in survey.processes] == [
        str(rank % 2) for rank in range(world.size)
    ]
    assert all(one.mpi_library for one in survey.processes)
    assert "/dev/shm" in printed
    assert ("NCCL_TEST: 0 (ranks 0, 2); 1 (ranks 1, 3)" in printed) == (world.size == 4)
    assert picture.read_text(encoding="utf-8").startswith("<svg")


def test_a_root_instead_of_this_machine(
    tree: Tree, capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    root, saved = str(tree("workstation")), tmp_path / "saved.json"
    assert topo("--root", root, "--json", str(saved)) == 0
    printed = capsys.readouterr().out
    assert printed.startswith("workstation  ASUSTeK COMPUTER INC.")
    assert topo("--root", str(saved)) == 0
    assert capsys.readouterr().out == printed
    assert topo("--root", root, "--json", "-") == 0
    assert json.loads(capsys.readouterr().out) == json.loads(saved.read_text(encoding="utf-8"))


def test_a_directory_of_hosts(tree: Tree, capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    for number, name in enumerate(("amd_cluster", "amd_cluster", "laptop"), start=1):
        (tmp_path / f"host{number}").symlink_to(tree(name))
    (tmp_path / "notes").mkdir()
    assert topo("--root", str(tmp_path), "--svg", str(tmp_path / "hosts.svg")) == 0
    printed = capsys.readouterr().out
    assert "2 hosts are so: node0001, node0001" in printed
    assert "! product: LENOVO 20XW0026GE; most hosts: HPE ProLiant XL225n Gen10 Plus" in printed


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (("--root", "/does/not/exist"), "no such file or directory"),
        (("--root", "{empty}"), "neither it nor a directory in it has sys/ or proc/"),
        (("--root", "{garbage}"), "is not JSON"),
        (("--root", "{empty}", "--layout", "2"), "--root goes without --layout"),
    ],
)
def test_roots_that_are_none(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], arguments: tuple[str, ...], message: str
) -> None:
    (tmp_path / "empty").mkdir()
    (tmp_path / "garbage").write_text("<xml>")
    named = {"empty": str(tmp_path / "empty"), "garbage": str(tmp_path / "garbage")}
    assert topo(*(argument.format(**named) for argument in arguments)) == 2
    assert message in capsys.readouterr().err
