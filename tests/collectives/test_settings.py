"""The same answers without the extension, without small messages, without checks, and in tiny pieces."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from mpi4py import MPI

import hpccoll
from hpccoll import _native
from hpccoll.memory import flags
from tests.collectives.conftest import Make
from tests.support.layouts import layouts, on_layouts
from tests.support.oracle import (
    COLLECTIVES,
    RAGGED,
    Attempt,
    Job,
    Ragged,
    every_place,
    perform,
    perform_all,
)

TINY = {"small_bytes": 0, "segment_bytes": 64, "chunk_bytes": 64, "staging_bytes": 4096}
SETTINGS: dict[str, dict[str, Any]] = {
    "no extension": {"native": False},
    "no small messages": {"small_bytes": 0},
    "large small messages": {"small_bytes": 65536},
    "tiny pieces": TINY,
    "odd pieces": {"small_bytes": 13, "segment_bytes": 71, "chunk_bytes": 67, "staging_bytes": 4099},
    "no checks": {"checks": "off"},
    "checksums": {"checksums": True},
    "checksums, tiny pieces, no extension": {"checksums": True, "native": False, **TINY},
    "no checks, tiny pieces, no extension": {"checks": "off", "native": False, **TINY},
}


@pytest.mark.parametrize("settings", SETTINGS)
@layouts({"": (1, 2, 3), "1+1": (2,), "2+1": (3,)})
def test_every_plan_under_settings(communicator: Make, layout: str, settings: str) -> None:
    comm = communicator(layout=layout, **SETTINGS[settings])
    for k, collective in enumerate(COLLECTIVES):
        in_place = collective != "broadcast" and k % 2 == 0
        perform_all(comm, [Job(collective, 5, root=comm.size - 1), Job(collective, 1031, in_place=in_place)])


@layouts({"": (3,), "2+1": (3,), "3+1": (4,)})
def test_started_persistent_and_ragged_calls_with_checksums(communicator: Make, layout: str) -> None:
    comm = communicator(layout=layout, checksums=True, small_bytes=64, staging_bytes=4096)
    for k, collective in enumerate(COLLECTIVES):
        started = Attempt(comm, Job(collective, 700 + k, root=k % comm.size))
        started.start().Wait()
        started.check()
        persistent = Attempt(comm, Job(collective, 300 + k))
        request = persistent.prepare()
        for salt in range(3):
            persistent.renew(salt)
            request.Start()
            request.Wait()
            persistent.check()
        request.Free()
    for collective in RAGGED:
        blocks = comm.size ** (2 if collective.startswith("alltoall") else 1)
        perform_all(
            comm, [Ragged(collective, tuple(k * scale % 400 for k in range(blocks))) for scale in (1, 97)]
        )


@layouts({"": (2,), "2+1": (3,)})
def test_arrays_that_others_reach_with_checksums(communicator: Make, layout: str) -> None:
    comm = communicator(layout=layout, checksums=True)
    give, take = comm.empty(50_000, np.int64), comm.empty(50_000, np.int64)
    for turn in range(3):
        give[:] = np.arange(give.size) * (comm.rank + turn)
        comm.Allreduce(give, take)
        assert (take == np.arange(give.size) * sum(rank + turn for rank in range(comm.size))).all()


@pytest.mark.ranks(2)
def test_checksums_are_not_promised_where_they_cannot_be(world: MPI.Intracomm) -> None:
    for asked in ({"device_path": "nccl"}, {"internode": "mpi"}):
        with pytest.raises(hpccoll.UsageError, match="what NCCL moves cannot be checked"):
            hpccoll.Communicator(world, checksums=True, **asked)
    comm = hpccoll.Communicator(world, checksums=world.rank == 0)
    with pytest.raises(hpccoll.MismatchError, match="checksums is True on rank 0, False on rank 1"):
        comm.Barrier()


@pytest.mark.parametrize("settings", ["no extension", "tiny pieces", "checksums"])
@on_layouts(4, 5)
def test_some_calls_under_settings(communicator: Make, layout: str, settings: str) -> None:
    comm = communicator(layout=layout, **SETTINGS[settings])
    for k, collective in enumerate(COLLECTIVES):
        for name in comm.algorithms(collective):
            with comm.forced(name):
                perform(comm, Job(collective, 300 + k, root=k % comm.size, in_place=collective == "reduce"))


@pytest.mark.parametrize("dtype", ["i1", "f2", "S3", "c16", "g"])
@layouts({"": (2,), "2+1": (3,)})
def test_elements_of_many_sizes_in_tiny_pieces(communicator: Make, layout: str, dtype: str) -> None:
    comm = communicator(layout=layout, **TINY)
    kind = np.dtype(dtype)
    moved = [Job("broadcast", 999, kind, root=1), Job("allgather", 499, kind, in_place=True)]
    perform_all(comm, moved)
    if kind.kind != "S":
        perform_all(comm, [Job("allreduce", 999, kind), Job("reduce_scatter", 333, kind, in_place=True)])


@layouts({"": (2, 3), "2+1": (3,)})
def test_sizes_at_the_edge_of_what_travels_along(communicator: Make, layout: str) -> None:
    comm = communicator(layout=layout, small_bytes=256)
    for collective in COLLECTIVES:
        for count in (31, 32, 33):
            for job in every_place([Job(collective, count), Job(collective, count // comm.size)]):
                perform(comm, job)


@pytest.mark.skipif(not _native.available(), reason="no extension")
@layouts({"": (2,), "2+1": (3,)})
def test_without_the_extension_no_flags_of_it_are_used(
    world: MPI.Intracomm, layout: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    comm = hpccoll.Communicator(world, layout=layout, native=False)

    def unexpected(*arguments: object) -> None:
        raise AssertionError("the extension was used")

    monkeypatch.setattr(flags, "_native_class", unexpected)
    perform(comm, Job("allreduce", 3))
    perform(comm, Job("allreduce", 9000))
    comm.close()


@layouts({"": (2, 3), "2+1": (3,)})
def test_a_slow_reader_is_not_overtaken_without_checks(world: MPI.Intracomm, layout: str) -> None:
    """The root of a broadcast waits for nobody: its next small call must not reuse what others still read."""
    comm = hpccoll.Communicator(world, layout=layout, checks="off", timeout_s=10)
    total, long = np.empty(4), np.zeros(20_000)
    comm.Allreduce(np.ones(4), total)
    comm.Bcast(long)
    if comm.rank == 1:
        _slow_down(comm, 0.2)
    for turn in range(4):
        comm.Allreduce(np.full(4, 1.0 * turn + comm.rank), total)
        assert (total == comm.size * turn + sum(range(comm.size))).all(), f"rank {comm.rank}, turn {turn}"
        comm.Bcast(long)
    comm.close()


def _slow_down(comm: hpccoll.Communicator, seconds: float) -> None:
    """Make this rank late, once, at the moment when all have arrived and none has read."""
    assert comm._context is not None
    control = comm._context._control

    def late(name: str) -> None:
        plain: Callable[..., Any] = getattr(control, name)

        def slow(*arguments: Any) -> Any:
            delays.extend([time.sleep(seconds)] if not delays else [])
            return plain(*arguments)

        setattr(control, name, slow)

    delays: list[None] = []
    late("deviating")
    late("problem")


@pytest.mark.ranks(2)
@pytest.mark.parametrize(
    ("environment", "keyword", "wanted"),
    [
        ("ring", None, "ring"),
        ("ring", "tree", "tree"),
        ("allreduce:tree", "", "tree"),
        ("", "allreduce:tree", "tree"),
    ],
)
def test_keywords_win_over_the_environment(
    world: MPI.Intracomm, monkeypatch: pytest.MonkeyPatch, environment: str, keyword: str | None, wanted: str
) -> None:
    monkeypatch.setenv("HPCCOLL_ALGORITHM", environment)
    options = {} if not keyword else {"algorithm": keyword}
    with hpccoll.Communicator(world, **options) as comm:
        explanation = comm.explain("allreduce", 1 << 20)
        assert explanation.plan == wanted
        assert "asked for by name" in str(explanation)
        perform(comm, Job("allreduce", 3000))
