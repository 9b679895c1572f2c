"""What is counted of the calls that a program makes: exactly those, once, with their bytes and true times."""

from __future__ import annotations

import json
import logging
import os
import stat
import time
from collections import Counter
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from mpi4py import MPI

import hpccoll
from hpccoll.errors import MismatchError, UsageError
from hpccoll.observe.metrics import class_of
from hpccoll.observe.snapshot import Snapshot
from tests.collectives.conftest import Make
from tests.support.launch import run_ranks
from tests.support.layouts import layouts
from tests.support.oracle import BLOCKED, COLLECTIVES, Attempt, Job, perform
from tests.support.oracle.ragged import Ragged

LAYOUTS = layouts({"": (1, 2, 3), "2+2": (4,), "3+1": (4,)})
COUNTS = (1, 3000)  # by one slot, by a program
NAP_S = 0.2
MUCH_S = 0.25 * NAP_S  # a loaded machine may take a part of it away
Numbers = Counter[tuple[str, str, int]]


def numbers(found: Snapshot, of: str) -> Numbers:
    """By collective, form and size class, over all plans."""
    summed: Numbers = Counter()
    for row in found.rows:
        summed[row.collective, row.form, row.most_bytes] += getattr(row, of)
    return summed


def size_of(job: Job, size: int) -> int:
    return job.count * job.dtype.itemsize * (size if job.collective in BLOCKED else 1)


def both_ways(attempt: Attempt) -> None:
    """Five blocking calls, three started ones, and a persistent one three times."""
    for salt in range(5):
        attempt.renew(salt)
        attempt.call()
    for salt in range(3):
        attempt.renew(salt)
        attempt.start().Wait()
    request = attempt.prepare()
    for salt in range(3):
        attempt.renew(salt)
        request.Start()
        request.Wait()
    request.Free()
    attempt.check()


@LAYOUTS
@pytest.mark.parametrize("native", [True, False])
def test_every_call_is_counted_once(communicator: Make, layout: str, native: bool) -> None:
    comm = communicator(layout=layout, native=native, metrics="count")
    comm.Barrier()
    comm.metrics(reset=True)
    before = comm.tally()
    calls: Numbers = Counter()
    nbytes: Numbers = Counter()
    for k, collective in enumerate(COLLECTIVES):
        for count in COUNTS:
            job = Job(collective, count, root=k % comm.size)
            both_ways(Attempt(comm, job))
            each = size_of(job, comm.size)
            for form, times in (("blocking", 5), ("started", 6)):
                calls[collective, form, class_of(each)] += times
                nbytes[collective, form, class_of(each)] += times * each
    found = comm.metrics()
    assert numbers(found, "calls") == calls
    assert numbers(found, "nbytes") == nbytes
    assert found.calls() == sum((comm.tally() - before).values())
    for row in found.rows:
        assert row.memory == "host"
        assert sum(row.times.values()) == row.calls
        assert row.shortest_s <= row.mean_s <= row.longest_s
        assert 0 <= row.agreeing_s <= row.seconds
        assert (row.waited_s is None) == (row.form == "blocking")


@LAYOUTS
@pytest.mark.parametrize("native", [True, False])
def test_blocks_of_different_lengths(communicator: Make, layout: str, native: bool) -> None:
    comm = communicator(layout=layout, native=native, metrics="count")
    comm.Barrier()
    comm.metrics(reset=True)
    size = comm.size
    counts = tuple(100 * rank + 7 for rank in range(size))
    pairs = tuple(10 * i + j for i in range(size) for j in range(size))
    wanted: Numbers = Counter()
    for collective in ("gather", "scatter", "allgather", "reduce_scatter", "alltoall"):
        of_all = pairs if collective == "alltoall" else counts
        perform(comm, Ragged(collective, of_all, root=size - 1))
        each = sum(of_all) * 8 // (size if collective == "alltoall" else 1)
        wanted[collective + "v", "blocking", class_of(each)] += each
    assert numbers(comm.metrics(), "nbytes") == wanted
    known = {row.collective for row in comm.metrics().rows if row.levels}
    assert not known & {"gatherv", "scatterv", "alltoallv"}  # of which no rank knows all lengths


@layouts({"": (2, 3), "1+1": (2,), "2+2": (4,), "3+1": (4,)})
def test_the_bytes_on_each_level_are_those_of_the_plan(communicator: Make, layout: str) -> None:
    comm = communicator(layout=layout, metrics="count", metrics_rates="node:20,network:2")
    count, times = 5000, 4
    for name in comm.algorithms("allreduce"):
        with comm.forced(name):
            (taken, *_) = comm.explain("allreduce", 8 * count, dtype="int64").candidates
            comm.Barrier()
            comm.metrics(reset=True)
            for _ in range(times):
                perform(comm, Job("allreduce", count))
            (row,) = comm.metrics().rows
        assert row.plan == taken.plan
        moved = {level.name: level.nbytes for level in row.levels}
        cost = taken.cost
        wanted = {"node": cost.bytes_inside_node, "network": cost.bytes_between_nodes}
        assert moved == {level: times * nbytes for level, nbytes in wanted.items() if nbytes}
        rates = {"node": 20.0, "network": 2.0}
        for level in row.levels:
            assert level.gbs == pytest.approx(level.nbytes / 1e9 / (row.seconds - row.agreeing_s))
            assert level.of_measured == pytest.approx(level.gbs / rates[level.name])
            assert level.of_nominal is None  # of a host's memory, and of a network that is none
        nearest = max(row.levels, key=lambda level: level.of_measured or 0.0)
        assert row.bound == nearest.name
        assert row.algbw == pytest.approx(8 * count * times / 1e9 / row.seconds)
        assert row.busbw == pytest.approx(row.algbw * 2 * (comm.size - 1) / comm.size)


@layouts({"": (2,), "1+1": (2,)})
@pytest.mark.parametrize("native", [True, False])
@pytest.mark.parametrize("count", COUNTS)
def test_times_are_true(communicator: Make, layout: str, native: bool, count: int) -> None:
    """A rank that waits for a late one takes as long; all together no longer than the clock says."""
    comm = communicator(layout=layout, native=native, metrics="count")
    attempt = Attempt(comm, Job("allreduce", count))
    for _ in range(3):
        attempt.call()
    comm.Barrier()
    comm.metrics(reset=True)
    began = time.monotonic()
    for _ in range(20):
        attempt.call()
    if comm.rank == 1:
        time.sleep(NAP_S)
    attempt.call()
    wall = time.monotonic() - began
    (row,) = comm.metrics().rows
    assert row.calls == 21
    assert row.seconds <= wall
    if comm.rank == 0:
        assert row.longest_s > MUCH_S
        if count > 1:  # elements move once all have come
            assert row.agreeing_s > MUCH_S


@layouts({"": (2,), "1+1": (2,)})
@pytest.mark.parametrize("native", [True, False])
@pytest.mark.parametrize("count", COUNTS)
def test_what_is_hidden_and_what_is_waited_for(
    communicator: Make, layout: str, native: bool, count: int
) -> None:
    comm = communicator(layout=layout, native=native, metrics="count")
    attempt = Attempt(comm, Job("allreduce", count))
    for _ in range(3):
        attempt.start().Wait()
    comm.Barrier()
    comm.metrics(reset=True)
    if comm.rank == 1:
        time.sleep(2 * NAP_S)
    request = attempt.start()
    if comm.rank == 0:
        time.sleep(NAP_S)
    request.Wait()
    (row,) = comm.metrics().rows
    assert row.calls == 1
    assert row.waited_s is not None
    assert row.seconds is not None
    if comm.rank == 0:
        assert row.waited_s > MUCH_S
        assert row.hidden_s is not None
        assert row.hidden_s > MUCH_S
        assert row.seconds == pytest.approx(row.waited_s + row.hidden_s)
        assert row.seconds > NAP_S
    comm.Barrier()


@layouts({"": (2,), "2+2": (4,)})
def test_what_fails_is_not_counted(communicator: Make, layout: str) -> None:
    comm = communicator(layout=layout, metrics="count")
    comm.Barrier()
    comm.metrics(reset=True)
    with pytest.raises(UsageError):
        comm.Allreduce(np.zeros(3), np.zeros(2))
    with pytest.raises(MismatchError):
        comm.Bcast(np.zeros(3 + comm.rank % 2))
    assert comm.metrics().rows == ()
    perform(comm, Job("allreduce", 3))
    assert comm.metrics().calls() == 1


@layouts({"": (2,), "2+2": (4,)})
def test_each_communicator_counts_for_itself(layout: str) -> None:
    with hpccoll.Communicator(MPI.COMM_WORLD, layout=layout, metrics="count") as comm:
        for _ in range(3):
            comm.Barrier()
        twin, half = comm.Dup(), comm.Split(comm.rank % 2)
        for k, other in enumerate((twin, half)):
            for _ in range(k + 1):
                perform(other, Job("allreduce", 10))
        assert [one.metrics().calls() for one in (comm, twin, half)] == [3, 1, 2]
        assert [one.metrics().ranks for one in (comm, twin, half)] == [comm.size, comm.size, comm.size // 2]
        for other in (twin, half):
            other.Free()


@pytest.mark.ranks(2)
def test_where_nothing_is_counted() -> None:
    with hpccoll.Communicator(MPI.COMM_WORLD, metrics="0") as comm:
        comm.Barrier()
        with pytest.raises(UsageError, match="set metrics to"):
            comm.metrics()
    with hpccoll.Communicator(MPI.COMM_WORLD, metrics=True) as comm:
        assert comm.config.metrics == "1"
        with pytest.raises(UsageError, match="from the first use on"):
            comm.metrics()


def shared_directory(tmp_path: Path) -> Path:
    return Path(MPI.COMM_WORLD.bcast(str(tmp_path)))


def read(path: Path) -> list[dict[str, Any]]:
    assert stat.S_IMODE(os.stat(path).st_mode) == 0o600
    return [json.loads(line) for line in path.read_text().splitlines()]


@layouts({"": (2,), "2+2": (4,), "3+1": (4,)})
@pytest.mark.parametrize("native", [True, False])
def test_the_summary_is_of_all_ranks(tmp_path: Path, layout: str, native: bool) -> None:
    file = shared_directory(tmp_path) / "metrics.jsonl"
    options = {"layout": layout, "native": native, "metrics": str(file), "metrics_rates": "network:3"}
    size = MPI.COMM_WORLD.size
    for turn in range(2):
        with hpccoll.Communicator(MPI.COMM_WORLD, **options) as comm:
            comm.Barrier()
            if comm.rank == 1:
                time.sleep(NAP_S)
            perform(comm, Job("allreduce", 5000))
            for _ in range(4):
                perform(comm, Job("allreduce", 5000))
            perform(comm, Job("gather", 2, root=1))
        MPI.COMM_WORLD.Barrier()
        lines = read(file)
        heads = [line for line in lines if line["kind"] == "communicator"]
        assert len(heads) == turn + 1  # the second is appended
        assert heads[-1]["told"] == list(range(size))
        assert heads[-1]["measured"] == {"network": {"gbs": 3.0, "source": "metrics_rates"}}
        assert MUCH_S / size < heads[-1]["waiting_s"] < heads[-1]["seconds"]
        rows = lines[lines.index(heads[-1]) + 1 :]
        assert [(row["collective"], row["calls"], row["nbytes"]) for row in rows] == [
            ("allreduce", 5, 5 * 5000 * 8),
            ("barrier", 1, 0),
            ("gather", 1, 2 * 8 * size),
        ]
        (row,) = rows[:1]
        assert row["last"] == 1  # it came last, and waited for nobody
        assert row["skew_s"] > MUCH_S / 5
        assert row["shortest_s"] <= row["seconds"] / 5 <= row["longest_s"]
        MPI.COMM_WORLD.Barrier()


@pytest.mark.ranks(2)
def test_a_file_for_each_communicator_in_a_directory(tmp_path: Path) -> None:
    directory = shared_directory(tmp_path) / "all"
    with hpccoll.Communicator(MPI.COMM_WORLD, metrics=f"{directory}/") as comm:
        comm.Barrier()
        half = comm.Split(comm.rank)
        half.Barrier()
        half.Free()
    MPI.COMM_WORLD.Barrier()
    assert stat.S_IMODE(os.stat(directory).st_mode) == 0o700
    assert sorted(read(path)[0]["ranks"] for path in directory.iterdir()) == [1, 1, 2]


@pytest.mark.ranks(2)
def test_what_cannot_be_written_goes_to_stderr(
    tmp_path: Path, capfd: pytest.CaptureFixture[str], caplog: pytest.LogCaptureFixture
) -> None:
    file = shared_directory(tmp_path) / "not there" / "metrics.jsonl"
    with hpccoll.Communicator(MPI.COMM_WORLD, metrics=str(file)) as comm:
        comm.Barrier()
        said = "cannot be written" in caplog.text
        assert said == (comm.rank == 0)  # at once, not after hours
        rank = comm.rank
    assert ("hpccoll metrics: MPI_COMM_WORLD, 2 ranks" in capfd.readouterr().err) == (rank == 0)


@pytest.mark.ranks(2)
def test_a_summary_that_not_all_come_to(caplog: pytest.LogCaptureFixture) -> None:
    """A rank that calls something else learns it at once, as without metrics."""
    comm = hpccoll.Communicator(MPI.COMM_WORLD, metrics="1")
    comm.Barrier()
    began = time.monotonic()
    with caplog.at_level(logging.WARNING, "hpccoll"):
        if comm.rank == 0:
            comm.close()
            assert "no metrics are shown" in caplog.text
        else:
            with pytest.raises(MismatchError, match="barrier of close on rank 0"):
                comm.Allreduce(np.zeros(1000), np.zeros(1000))
            comm._let_go()
    assert time.monotonic() - began < 30
    MPI.COMM_WORLD.Barrier()


@pytest.mark.ranks(2)
def test_no_summary_after_an_error(capfd: pytest.CaptureFixture[str]) -> None:
    def fail() -> None:
        with hpccoll.Communicator(MPI.COMM_WORLD, metrics="1") as comm:
            comm.Barrier()
            raise KeyError

    with pytest.raises(KeyError):
        fail()
    assert "hpccoll metrics" not in capfd.readouterr().err


PROGRAM = """
import hpccoll
from mpi4py import MPI
comm = hpccoll.Communicator(MPI.COMM_WORLD)
for _ in range(7):
    comm.Barrier()
"""


def test_a_program_that_does_not_close(tmp_path: Path) -> None:
    program = tmp_path / "program.py"
    program.write_text(PROGRAM)
    result = run_ranks(2, [str(program)], timeout_s=60, env={"HPCCOLL_METRICS": "1"})
    assert result.returncode == 0, result
    assert result.stderr.count("hpccoll metrics: MPI_COMM_WORLD, 2 ranks") == 1
    assert "as rank 0 alone saw them" in result.stderr
    (row,) = [line.split() for line in result.stderr.splitlines() if line.startswith("barrier")]
    assert row[4] == "7"
