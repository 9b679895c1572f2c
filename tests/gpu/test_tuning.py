"""`hpccoll tune --memory device`, and the plans that calls on device arrays then take."""

from __future__ import annotations

import os
from dataclasses import replace
from pathlib import Path

import pytest

from hpccoll.plans.measured import DeviceFacts
from hpccoll.tuning.place import write
from hpccoll.tuning.table import Table, from_toml
from tests.support.launch import Result, run_ranks

pytestmark = [
    pytest.mark.timeout(180),
    pytest.mark.skipif(
        "STANDIN_FOLDER" not in os.environ, reason="three ranks on one GPU may wait for each other's kernels"
    ),
]
RANKS, LAYOUT = 3, "2+1"


def run(path: Path, *arguments: str) -> Result:
    env = {"HPCCOLL_LAYOUT": LAYOUT, "HPCCOLL_TUNING": str(path)}
    result = run_ranks(RANKS, ["-m", "hpccoll.cli", *arguments], timeout_s=150, env=env)
    assert result.returncode == 0, result
    return result


def taken(path: Path) -> tuple[str, str]:
    """The plan of a broadcast of 4 KiB on devices, and what was said on standard error."""
    done = run(path, "bench", "broadcast", "-b", "4K", "-e", "4K", "-n", "2", "--device", "cuda")
    (row,) = (line for line in done.stdout.splitlines() if not line.startswith("#"))
    return row.split(maxsplit=13)[13].strip(), done.stderr


def faster(table: Table, name: str) -> Table:
    """The same with one plan in front."""
    entries = tuple(
        replace(
            entry,
            rows=tuple(
                replace(row, time_us=us, low_us=us, high_us=us)
                for row in entry.rows
                for us in (10.0 if row.plan == name else 100.0,)
            ),
        )
        for entry in table.entries
    )
    return replace(table, entries=entries)


def test_what_is_measured_on_devices_decides_there(tmp_path: Path) -> None:
    path = tmp_path / "table.toml"
    flags = ["--memory", "device", "--collectives", "broadcast", "-b", "4K", "-e", "4K", "--rounds", "5"]
    run(path, "tune", *flags)
    table = from_toml(path.read_text(), str(path))
    (entry,) = table.entries
    assert (entry.memory, entry.collective, entry.nbytes) == ("device", "broadcast", 4096)
    assert {row.plan for row in entry.rows} == {"flat", "two_level"}
    assert table.device is not None
    assert table.device.names == (f"{RANKS} x NVIDIA CPU stand-in",)
    write(faster(table, "two_level"), path)
    assert taken(path)[0] == "two_level"
    other = replace(faster(table, "two_level"), device=DeviceFacts(1, ("3 x NVIDIA H100",)))
    write(other, path)
    plan, said = taken(path)
    assert plan == "flat"
    assert said.count("are not used: measured with NCCL 1, 3 x NVIDIA H100, here is NCCL ") == 1
