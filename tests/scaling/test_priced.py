"""`hpccoll scale --machine`: the prices of `hpccoll plan`, over nodes, without MPI."""

from __future__ import annotations

import sys
import time
from pathlib import Path

import pytest

from hpccoll.cli import main
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
        assert one.plan == best.plan
        assert one.time_us == pytest.approx(best.time_s * 1e6, rel=0.1)
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


def test_contention_costs(tmp_path: Path) -> None:
    """Of the same study: under leaf switches, with one card a node, and with a slow node."""
    times = []
    for uneven in (
        (),
        ("--leaf", "2", "--oversubscription", "4"),
        ("--cards", "1"),
        ("--slow-node", "1:0.25"),
    ):
        done = scale(
            "allreduce", "--machine", "dgx-h100", "--nodes", "8", "-b", "1G", "-e", "1G", *uneven,
            "--json", tmp_path / "one.json",
        )  # fmt: skip
        assert done.returncode == 0, done.stderr
        (point,) = read(tmp_path / "one.json").points
        times.append((point.time_us, point.limit))
    (even, first), *others = times
    assert first == "NVLink"  # 370 GB/s, of which a ring has more to carry than the cards of 400
    assert all(slower > 1.5 * even for slower, _ in others)
    assert [limit for _, limit in others] == ["leaf up", "network out", "network out"]


def test_uneven_nodes(tmp_path: Path) -> None:
    done = scale(
        "allreduce", "--machine", "plain", "--nodes", "1..4", "--gpus", "4", "--last", "2", "-b", "1M",
        "-e", "1M", "--json", tmp_path / "one.json",
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    assert [one.layout for one in read(tmp_path / "one.json").points] == ["4", "4+2", "3x4+2"]


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
        (("allreduce", "--machine", "cpu-hdr", "--cards", "2"), "--cards"),
        (("allreduce", "--machine", "dgx-h100", "--cards", "9"), "--cards"),
        (("allreduce", "--machine", "dgx-h100", "--leaf", "0"), "--leaf"),
        (("allreduce", "--machine", "dgx-h100", "--oversubscription", "2"), "--leaf"),
        (("allreduce", "--machine", "dgx-h100", "--oversubscription", "0.5"), "--oversubscription"),
        (("allreduce", "--machine", "dgx-h100", "--slow-node", "1"), "--slow-node"),
        (("allreduce", "--machine", "dgx-h100", "--slow-rank", "1:2"), "--slow-rank"),
        (("allreduce", "--machine", "dgx-h100", "--late", "1:-1"), "--late"),
        (("allreduce", "--machine", "dgx-h100", "--last", "9"), "--last"),
        (("allreduce", "--machine", "dgx-h100", "--weak"), "--weak"),
    ],
)
def test_what_is_refused(arguments: tuple[str, ...], word: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["scale", *arguments, "-b", "1K", "-e", "1K"]) == 2
    assert word in capsys.readouterr().err
