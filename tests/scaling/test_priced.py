"""`hpccoll scale --machine`: the prices of `hpccoll plan`, over nodes, without MPI."""

from __future__ import annotations

import sys
import time
from pathlib import Path

import pytest

from hpccoll.plans.collective import Collective
from hpccoll.plans.machines import MACHINES, machine_of
from hpccoll.plans.select import Tuning, candidates
from hpccoll.scaling.simulate import simulate
from hpccoll.scaling.study import read
from tests.support.launch import Result, run_program


def scale(*arguments: object) -> Result:
    return run_program(
        [sys.executable, "-m", "hpccoll.cli", "scale", *map(str, arguments)], timeout_s=50.0, env={}
    )


@pytest.mark.parametrize("name", MACHINES)
def test_the_prices_are_those_of_selection(name: str) -> None:
    machine = machine_of(name)
    layouts = [machine.layout(nodes, 2) for nodes in (1, 2, 3)]
    points = list(
        simulate("allreduce", 4, lambda size: 2 * (size - 1) / size, layouts, [4096, 1 << 24], machine.links)
    )
    assert [(one.nodes, one.ranks, one.nbytes) for one in points] == [
        (nodes, 2 * nodes, nbytes) for nodes in (1, 2, 3) for nbytes in (4096, 1 << 24)
    ]
    for one in points:
        collective = Collective("allreduce", one.ranks, one.nbytes // 4)
        best = candidates(collective, layouts[one.nodes - 1], 4, Tuning(links=machine.links))[0]
        assert (one.plan, one.time_us) == (best.plan, best.time_s * 1e6)
        assert one.busbw == pytest.approx(one.nbytes / one.time_us / 1e3 * 2 * (one.ranks - 1) / one.ranks)


def test_a_whole_study(tmp_path: Path) -> None:
    done = scale(
        "allgather", "--machine", "dgx-h100", "--nodes", "1..8,3", "-b", "1M", "-e", "16M", "-f", "16",
        "--json", tmp_path / "one.json",
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    study = read(tmp_path / "one.json")
    assert (study.kind, study.node_counts, study.sizes) == ("simulated", (1, 2, 3, 4, 8), (1 << 20, 1 << 24))
    assert all(one.ranks == 8 * one.nodes and one.time_us > 0 for one in study.points)
    kept = [study.kept(one) for one in study.of_size(1 << 20)]
    assert kept[0] == 1.0
    assert kept == sorted(kept, key=lambda part: -(part or 0.0))  # latency grows with the nodes


def test_many_ranks_are_priced_in_seconds() -> None:
    machine = machine_of("dgx-h100")
    begin = time.process_time()
    (point,) = simulate("allreduce", 4, lambda size: 2.0, [machine.layout(2048)], [1 << 30], machine.links)
    assert (point.ranks, time.process_time() - begin < 10) == (16384, True)


@pytest.mark.parametrize(
    ("arguments", "word"),
    [
        (("allreduce", "--machine", "nothing"), "dgx-h100"),
        (("allreduce", "--machine", "dgx-h100", "--gpus", "9"), "8 GPUs"),
        (("allreduce", "--machine", "dgx-h100", "--gpus", "0"), "--gpus"),
        (("allreduce", "--machine", "dgx-h100", "--nodes", "1..99999999"), "--nodes"),
        (("scan", "--machine", "dgx-h100"), "scan"),
        (("barrier", "--machine", "cpu-hdr"), "barrier"),
        (("alltoallv", "--machine", "cpu-hdr"), "alltoallv"),
        (("allreduce", "--machine", "cpu-hdr", "--json", "/nowhere/x.json"), "/nowhere"),
        (("allreduce", "--machine", "cpu-hdr", "--report", "/dev/null"), "--report"),
    ],
)
def test_what_is_refused(arguments: tuple[str, ...], word: str) -> None:
    done = scale(*arguments, "-b", "1K", "-e", "1K")
    assert done.returncode == 2, done.stdout
    assert word in done.stderr
