"""Ranks on other hosts that die, and links that are cut: every rank learns it in time, on both sides."""

from __future__ import annotations

import json
import sys
import tempfile
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from hpccoll.observe.reading import read_directory
from tests.faults import corrupting, faulty
from tests.support.launch import find_mpiexec, until
from tests.support.virtual_hosts import VirtualHosts, remote_options

pytestmark = [pytest.mark.cluster, pytest.mark.timeout(180)]

START_S = 60.0
DEAD_S = 5.0
LAYOUTS = ((2, 2), (3, 1))  # ranks on each host
RANKS = 4


@contextmanager
def running(
    fault: str, culprit: int, layout: Sequence[int], timeout_s: float = faulty.TIMEOUT_S
) -> Iterator[tuple[VirtualHosts, Path]]:
    """The program of the fault tests on some hosts, behind shells that stay; where its ranks report."""
    launcher = find_mpiexec()
    with tempfile.TemporaryDirectory(prefix="hpccoll-lost-") as name, VirtualHosts(len(layout)) as hosts:
        directory = Path(name)
        options = remote_options(launcher.flavour, hosts.hosts, layout)
        program = f"{sys.executable} {faulty.__file__} {fault} {culprit} {directory}; sleep {START_S}"
        env = {"HPCCOLL_TRACE_DIR": str(directory / "traces"), "FAULTY_TIMEOUT_S": str(timeout_s)}
        job = hosts.start("node0", [launcher.path, *options, "sh", "-c", program], env=env)
        try:
            yield hosts, directory
        finally:
            hosts.kill()
            job.communicate(timeout=30)


def reports(directory: Path, ranks: list[int], since: float) -> dict[int, dict[str, Any]]:
    """How these ranks ended, and how long after a moment."""
    files = {rank: directory / f"{rank}.json" for rank in ranks}
    until(lambda: all(file.exists() for file in files.values()), START_S)
    found = {rank: json.loads(file.read_text()) for rank, file in files.items()}
    return {rank: {**one, "after": one["at"] - since} for rank, one in found.items()}


@pytest.mark.parametrize(("layout", "culprit"), [((2, 2), 0), ((2, 2), 2), ((3, 1), 1), ((3, 1), 3)])
def test_a_rank_of_another_host_dies(layout: tuple[int, ...], culprit: int) -> None:
    with running("during-SIGKILL", culprit, layout) as (_, directory):
        struck = directory / "struck"
        until(struck.exists, START_S)
        ranks = [rank for rank in range(RANKS) if rank != culprit]
        found = reports(directory, ranks, float(struck.read_text()))
    for rank, one in found.items():
        assert (rank, one["kind"], one["suspects"]) == (rank, "PeerLostError", [culprit]), one["text"]
        assert one["after"] < DEAD_S


@pytest.mark.parametrize(("layout", "culprit"), [((2, 2), 1), ((3, 1), 3), ((3, 1), 1)])
def test_a_rank_of_another_host_is_stopped(layout: tuple[int, ...], culprit: int) -> None:
    with running("stop", culprit, layout) as (_, directory):
        struck = directory / "struck"
        until(struck.exists, START_S)
        ranks = [rank for rank in range(RANKS) if rank != culprit]
        found = reports(directory, ranks, float(struck.read_text()))
    for rank, one in found.items():
        assert (rank, one["kind"], one["suspects"]) == (rank, "CollectiveTimeoutError", [culprit]), one[
            "text"
        ]
        assert faulty.TIMEOUT_S * 0.95 < one["after"] < faulty.TIMEOUT_S + 1


@pytest.mark.parametrize(("layout", "culprit"), [((2, 2), 2), ((3, 1), 3), ((3, 1), 0)])
def test_a_rank_of_another_host_calls_another_thing(layout: tuple[int, ...], culprit: int) -> None:
    with running("differs", culprit, layout) as (_, directory):
        struck = directory / "struck"
        until(struck.exists, START_S)
        found = reports(directory, list(range(RANKS)), float(struck.read_text()))
    for rank, one in found.items():
        assert (rank, one["kind"], one["suspects"]) == (rank, "MismatchError", [culprit]), one["text"]
        assert "collective: " in one["text"]
        assert 0 <= one["after"] < 1


@pytest.mark.parametrize("layout", LAYOUTS)
def test_a_bit_is_flipped_on_the_way_to_another_host(layout: tuple[int, ...]) -> None:
    launcher, wanted = find_mpiexec(), 20
    with tempfile.TemporaryDirectory(prefix="hpccoll-bits-") as name, VirtualHosts(len(layout)) as hosts:
        options = remote_options(launcher.flavour, hosts.hosts, layout)
        program = [sys.executable, corrupting.__file__, "hosts", str(wanted), "checked", name]
        job = hosts.start(
            "node0", [launcher.path, *options, *program], env={"HPCCOLL_TRACE_DIR": f"{name}/traces"}
        )
        files = [Path(name) / f"{rank}.json" for rank in range(RANKS)]
        try:
            until(lambda: all(file.exists() for file in files), START_S + 2 * wanted)
        finally:
            hosts.kill()
            job.communicate(timeout=30)
        found = [one for file in files for one in json.loads(file.read_text())]
    assert len(found) == wanted * RANKS
    for one in found:
        assert (one["kind"], one["wrong"], len(one["nodes"])) == ("IntegrityError", "", len(layout)), one
    assert {one["level"] for one in found} == {"node", "between nodes"}


@pytest.mark.parametrize("way", ["both ways", "from it", "to it"])
@pytest.mark.parametrize("layout", [*LAYOUTS, (2, 1, 1)])
def test_a_link_is_cut(layout: tuple[int, ...], way: str) -> None:
    """Nobody dies, no connection ends: the deadline tells, on all hosts at once, whole links or not."""
    with running("during-SIGKILL", -1, layout) as (hosts, directory):
        until(lambda: len(list(directory.glob("traces/*"))) == RANKS, START_S)
        time.sleep(1.0)
        if way == "both ways":
            hosts.link("node1", up=False)
        else:
            for host in hosts.hosts if way == "to it" else ("node1",):
                hosts.mute(host, to=None if way == "from it" else "node1")
        found = reports(directory, list(range(RANKS)), faulty.now())
    for rank, one in found.items():
        # Others may say of a rank that it does not answer; it hears that where messages still pass.
        blamed = rank in one["suspects"] and one["kind"] == "AbortedError"
        assert blamed or one["kind"] == "CollectiveTimeoutError", one["text"]
        assert faulty.TIMEOUT_S * 0.8 < one["after"] < faulty.TIMEOUT_S + 1
        assert "node " in one["text"]


def test_a_link_that_comes_back_in_time() -> None:
    """TCP repeats what was lost, after a second or two."""
    with running("during-SIGKILL", -1, (2, 2), timeout_s=25) as (hosts, directory):
        traces = directory / "traces"
        until(lambda: len(list(traces.glob("*"))) == RANKS and least_calls(traces) > 10, START_S)
        for _ in range(3):
            hosts.link("node1", up=False)
            time.sleep(0.3)
            hosts.link("node1", up=True)
            time.sleep(0.7)
        calls = least_calls(traces)
        until(lambda: least_calls(traces) > calls + 10, 25)
        assert [file.read_text() for file in directory.glob("*.json")] == []


def least_calls(traces: Path) -> int:
    """The number of the last call of the rank that has made fewest."""
    return min(max(one.calls, default=-1) for one in read_directory(str(traces))[0])
