"""`hpccoll plan --tuning FILE`: predicted and measured times side by side, without MPI."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from hpccoll import cli
from hpccoll.tuning.place import write
from tests.tuning.cases import table


def test_measured_times_and_the_choice_by_them(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = tmp_path / "table.toml"
    asked = ["plan", "allreduce", "--layout", "2+2", "--bytes", "64K"]
    assert cli.main([*asked, "--json", "-"]) == 0
    priced = json.loads(capsys.readouterr().out)
    assert all(one["measured_s"] is None for one in priced["candidates"])
    other = next(one["name"] for one in priced["candidates"][1:] if one["name"] != "flat")
    write(table(**{priced["chosen"]: 500.0, other: 100.0, "flat": 300.0}), path)
    assert cli.main([*asked, "--tuning", str(path), "--json", "-"]) == 0
    found = json.loads(capsys.readouterr().out)
    assert found["chosen"] == other
    assert found["why"].startswith("measured: faster than ")
    times = {one["name"]: one["measured_s"] for one in found["candidates"] if one["measured_s"]}
    assert {name: round(one["time_s"] * 1e6) for name, one in times.items()} == {
        priced["chosen"]: 500,
        other: 100,
        "flat": 300,
    }
    assert cli.main([*asked, "--tuning", str(path)]) == 0
    text = capsys.readouterr().out
    assert "100 us (99 us to 101 us)" in text
    assert f"measured: {path}, on 2 x a processor, network none" in text


def test_a_table_that_does_not_fit_is_refused(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = tmp_path / "table.toml"
    write(table(ring=1.0), path)
    asked = ["plan", "allreduce", "--bytes", "64K", "--tuning"]
    assert cli.main([*asked, str(path), "--layout", "4"]) == cli.MISUSE
    assert f"--tuning: {path} is of layout 2+2, not 4" in capsys.readouterr().err
    path.write_text("form = 3")
    assert cli.main([*asked, str(path), "--layout", "2+2"]) == cli.MISUSE
    assert f"{path}: form is 3" in capsys.readouterr().err
    assert cli.main([*asked, str(tmp_path / "none.toml"), "--layout", "2+2"]) == cli.MISUSE
    assert "--tuning: cannot read" in capsys.readouterr().err
