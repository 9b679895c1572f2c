"""A flipped bit between two ranks: with checksums it is an error on all, which says where, in no time."""

from __future__ import annotations

import json
import sys
import time
import zlib
from collections import Counter
from pathlib import Path
from typing import Any

import pytest
from mpi4py import MPI

import hpccoll
from hpccoll.runtime import context, movement
from hpccoll.transports.sums import Sums
from tests.faults.corrupting import MOST_CALLS, TIMEOUT_S
from tests.support.launch import environment, find_mpiexec, started
from tests.support.layouts import layouts
from tests.support.oracle import COLLECTIVES, Job, perform

pytestmark = pytest.mark.timeout(400)

PROGRAM = Path(__file__).with_name("corrupting.py")
RANKS = 4
LONGEST_S = 120.0
SOON_S = 5.0  # from the flip on; far below TIMEOUT_S, on a busy machine
LAYOUTS = {
    "4": [[0, 1, 2, 3]],
    "2+2": [[0, 1], [2, 3]],
    "3+1": [[0, 1, 2], [3]],
    "1+1+1+1": [[0], [1], [2], [3]],
}
SEGMENT = ("slot", "result", "call", "payload", "verdict")


def cases(layout: str, checked: str, wanted: int, directory: Path) -> list[list[dict[str, Any]]]:
    """What each rank saw of each case; the job is ended once all have said so."""
    command = find_mpiexec().command(
        RANKS, [sys.executable, str(PROGRAM), layout, str(wanted), checked, str(directory)]
    )
    env = environment({"HPCCOLL_LAYOUT": layout, "HPCCOLL_TRACE_DIR": str(directory / "traces")})
    reports = [directory / f"{rank}.json" for rank in range(RANKS)]
    output = directory / "output"
    with output.open("w") as out, started(command, env=env, stdout=out, stderr=out) as job:
        deadline = time.monotonic() + LONGEST_S + wanted
        while not all(report.exists() for report in reports):
            assert time.monotonic() < deadline, output.read_text()
            assert job.poll() is None, output.read_text()
            time.sleep(0.05)
    found = [json.loads(report.read_text()) for report in reports]
    assert [len(one) for one in found] == [wanted] * RANKS
    return [list(case) for case in zip(*found, strict=True)]


@pytest.mark.parametrize("wanted", [10, pytest.param(150, marks=pytest.mark.slow)])
@pytest.mark.parametrize("layout", LAYOUTS)
def test_a_flipped_bit_is_known_to_all(tmp_path: Path, layout: str, wanted: int) -> None:
    ways, levels = Counter(), Counter()
    for case in cases(layout, "checked", wanted, tmp_path):
        struck = max(one["struck"] for one in case)
        finders = {one["finder"] for one in case if "finder" in one}
        for rank, one in enumerate(case):
            assert one["kind"] == "IntegrityError", one
            assert one["wrong"] == "", one
            assert 0 <= one["at"] - struck < SOON_S, one
            assert one["later"] == "AbortedError from IntegrityError", one
            assert one["nodes"] == LAYOUTS[layout]
            check_words(one, rank, layout)
        way = case[0]["way"]
        if way in ("slot", "result", "payload", "call"):
            assert case[0]["culprit"] in finders, case  # who reads finds out
        if way in ("message", "word"):
            assert {one["peer"] for one in case} == {case[0]["culprit"]}, case
        ways[way] += 1
        levels[case[0]["level"]] += 1
    expected = {"4": 6, "2+2": 7, "3+1": 7, "1+1+1+1": 5}
    assert len(ways) >= (4 if wanted < 50 else expected[layout]), ways
    assert set(levels) == ({"node"} if layout == "4" else {"node", "between nodes"}), levels


def check_words(one: dict[str, Any], rank: int, layout: str) -> None:
    """The error says which call it was, who gave the bytes, who got them, on which level, in which chunk."""
    text, peer, finder = one["text"], one["peer"], one["finder"]
    assert one["rank"] == rank
    assert f"{one['collective']} #{one['sequence']}" in text
    assert f"rank {finder} has got from rank {peer}, by " in text
    assert ("gave up" in text) == (finder != rank)
    node_of = {member: node for node, members in enumerate(LAYOUTS[layout]) for member in members}
    assert one["level"] == ("node" if node_of[peer] == node_of[finder] else "between nodes")
    if one["way"] in SEGMENT:
        assert one["level"] == "node"
        assert "the node's shared memory" in text
    if one["chunk"] is not None:
        assert f"chunk {one['chunk'] + 1} of " in text
    assert one["sequence"] <= 2 * MOST_CALLS


def test_without_checksums_it_is_a_wrong_result(tmp_path: Path) -> None:
    """So these flips are real; hpccoll does not see them by itself."""
    found = cases("2+2", "unchecked", 6, tmp_path)
    assert all(one["kind"] == "" for case in found for one in case)
    wrong = [case for case in found if any(one["wrong"] for one in case)]
    assert len(wrong) > len(found) / 2


@layouts({"": (3,), "2+1": (3,)})
def test_mistakes_are_what_they_were(world: MPI.Intracomm, layout: str) -> None:
    """Checksums make no difference to ranks that call different things."""
    with hpccoll.Communicator(world, layout=layout, checksums=True, timeout_s=20) as comm:
        for count in (3, 5000):
            with pytest.raises(hpccoll.MismatchError, match=r"count: .*on rank 1"):
                perform(comm, Job("allreduce", count + (comm.rank == 1)))
            with pytest.raises(hpccoll.MismatchError, match="collective: broadcast on rank 0"):
                perform(comm, Job("allgather" if comm.rank else "broadcast", count))
            with pytest.raises(hpccoll.UsageError, match="rank 1: "):
                perform(comm, Job("broadcast", count, root=7 if comm.rank == 1 else 0))
            perform(comm, Job("allreduce", count))


@pytest.mark.parametrize("native", [True, False], ids=["engine", "no extension"])
@layouts({"": (2,), "2+1": (3,)})
def test_without_the_setting_nothing_is_computed(
    world: MPI.Intracomm, layout: str, native: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    def unexpected(*_: object) -> None:
        raise AssertionError("a checksum")

    for name in ("tell", "tell_of", "check", "check_in"):
        monkeypatch.setattr(Sums, name, unexpected)
    monkeypatch.setattr(zlib, "crc32", unexpected)
    for module in (context, movement):
        monkeypatch.setattr(module, "checksum_function", unexpected)
    with hpccoll.Communicator(world, layout=layout, native=native) as comm:
        for count in (3, 3, 20_000, 20_000):
            for collective in COLLECTIVES:
                perform(comm, Job(collective, count))


assert TIMEOUT_S > 2 * SOON_S
