"""`hpccoll tune` between hosts: what it finds of the links is what they were given, and it is believed."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

from hpccoll.plans.measured import FLAT_MARGIN, decide
from hpccoll.tuning.table import from_toml
from tests.support.virtual_hosts import VirtualHosts

pytestmark = [pytest.mark.cluster, pytest.mark.timeout(300)]
COMMAND = [sys.executable, "-m", "hpccoll.cli"]
SIZES = ["-b", "4K", "-e", "1M", "-f", "16"]


def test_links_plans_and_the_choice_between_two_hosts(tmp_path: Path) -> None:
    path = tmp_path / "table.toml"
    env = {"HPCCOLL_TUNING": str(path), "HPCCOLL_TIMEOUT_S": "60"}
    with VirtualHosts(2, "400mbit") as hosts:
        flags = ["--collectives", "allreduce", *SIZES, "--rounds", "5"]
        done = hosts.mpiexec([*COMMAND, "tune", *flags], 2, env, timeout_s=200)
        assert done.returncode == 0, done.stderr
        compared = hosts.mpiexec(
            [*COMMAND, "bench", "allreduce", *SIZES, "--compare", "-n", "5"], 2, env, timeout_s=200
        )
    table = from_toml(path.read_text(), str(path))
    assert table.fingerprint.layout == "2+2"
    assert [entry.nbytes for entry in table.entries] == [4096, 65536, 1 << 20]
    # 0.05 GB/s, less what a link bursts at first and headers take.
    assert 0.02 < table.links["network_gbs"] < 0.065
    assert table.links["message_gbs"] > table.links["network_gbs"]
    assert compared.returncode == 0, compared.stderr
    chosen = {}
    for line in compared.stdout.splitlines():
        if line.endswith(" *"):
            chosen[int(line.split()[0])] = line.split()[13].partition("(")[0]
    measured = table.measured(str(path))
    for entry in table.entries:
        times = measured.times("allreduce", entry.nbytes)
        # Whichever the price prefers, this is the plan that comes of it, or it is that one itself.
        assert chosen[entry.nbytes] == decide(chosen[entry.nbytes], times)[0]
        taken = times[chosen[entry.nbytes]]
        assert times["flat"].time_s >= min(taken.low_s, taken.time_s / FLAT_MARGIN)
    assert f"# Plans by measurement: {path}\n" in compared.stdout
    assert "# Choice within 5 %" in compared.stdout
