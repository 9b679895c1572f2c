"""`hpccoll selftest`: right machines pass, and a pair that gets wrong bytes is named on rank 0."""

from __future__ import annotations

from typing import Any

import pytest
from mpi4py import MPI

import hpccoll
from hpccoll.cli import main
from hpccoll.cli.selftest import pattern


def selftest(*arguments: str) -> int:
    """The command in this process."""
    return main(["selftest", *arguments])


@pytest.mark.ranks(1, 2, 4)
def test_a_right_machine(world: MPI.Intracomm, capsys: pytest.CaptureFixture[str]) -> None:
    layouts = ("", "2+2", "3+1") if world.size == 4 else ("",)
    for layout in layouts:
        assert selftest("--layout", layout, "-b", "10000") == 0
        assert capsys.readouterr().out.endswith("all right\n") == (world.rank == 0)


@pytest.mark.ranks(2, 4)
def test_wrong_bytes_of_one_pair_are_named(
    world: MPI.Intracomm, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    right = hpccoll.Communicator.Alltoall

    def broken(self: Any, send: Any, receive: Any) -> None:
        right(self, send, receive)
        if self.rank == 1:
            receive[17:20] ^= 1  # of what rank 0 gave

    monkeypatch.setattr(hpccoll.Communicator, "Alltoall", broken)
    assert selftest("-b", "1000") == 1
    printed = capsys.readouterr().out
    if world.rank == 0:
        host = MPI.Get_processor_name()
        assert (
            f"WRONG from rank 0 on {host} to rank 1 on {host}, by direct: 3 bytes, the first at 17" in printed
        )
        assert printed.splitlines()[-1].endswith(" wrong")
    else:
        assert printed == ""


@pytest.mark.ranks(2)
def test_a_wrong_sum_is_told(
    world: MPI.Intracomm, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    right = hpccoll.Communicator.Allreduce

    def broken(self: Any, send: Any, receive: Any) -> None:
        right(self, send, receive)
        receive[5] += self.rank

    monkeypatch.setattr(hpccoll.Communicator, "Allreduce", broken)
    assert selftest("-b", "1000") == 1
    printed = capsys.readouterr().out
    assert ("WRONG on rank 1" in printed) == (world.rank == 0)
    assert "WRONG on rank 0" not in printed


@pytest.mark.ranks(1)
def test_misuse(capsys: pytest.CaptureFixture[str]) -> None:
    assert selftest("-b", "many") == 2
    assert selftest("--layout", "7+7") == 2
    assert capsys.readouterr().err.count("hpccoll selftest: ") == 2


def test_patterns_differ() -> None:
    patterns = {pattern(i, j, 64, salt).tobytes() for i in range(4) for j in range(4) for salt in range(3)}
    assert len(patterns) == 48
