"""pytest plugin: which tests run at how many ranks, ranks kept in step, outcomes recorded.

A test marked `ranks(2, 3)` runs under mpiexec with 2 and with 3 ranks; `mpi` alone means 1 to 5; all others
run once in a process of their own. tests/support/run.py drives all of that; by hand:

    python -m pytest tests/unit
    mpiexec -n 3 python -m pytest -m mpi tests/collectives
"""

from __future__ import annotations

import hashlib
import os
import shutil
import sys
from collections.abc import Generator
from pathlib import Path
from typing import Any

import pytest

from tests.support.lockstep import Lockstep
from tests.support.record import Recorder, record_file, report_event, skip_reason

RANKS_OF_MPI = (1, 2, 3, 4, 5)
# Set for each rank by hydra and Intel MPI, by Open MPI, and by Slurm's PMIx.
RANK_VARIABLES = ("PMI_RANK", "OMPI_COMM_WORLD_RANK", "PMIX_RANK")


# More ranks than that wait for a core most of the time: such tests count as slow.
MOST_RANKS = 4


def pytest_addoption(parser: pytest.Parser) -> None:
    """Options for people, then those that the runner sets."""
    group = parser.getgroup("hpccoll")
    group.addoption("--slow", action="store_true", help="also run tests marked slow or cluster")
    group.addoption("--only-slow", action="store_true", help="run only tests marked slow or cluster")
    group.addoption(
        "--resync-s", type=float, default=45.0, help="how long a rank waits for the others after a test"
    )
    group.addoption("--record", type=Path, help="folder for the outcomes (set by the runner)")
    group.addoption("--only-ids", type=Path, help="file with the node ids to run (set by the runner)")


@pytest.hookimpl(trylast=True)
def pytest_configure(config: pytest.Config) -> None:
    """Find out whether this process is a rank, and of how many."""
    rank, size, lockstep = 0, 0, None
    if any(name in os.environ for name in RANK_VARIABLES):
        from mpi4py import MPI

        rank, size = MPI.COMM_WORLD.rank, MPI.COMM_WORLD.size
        lockstep = Lockstep(MPI.COMM_WORLD)
        config.option.with_mpi = True
    config.pluginmanager.register(RankSession(config, rank, size, lockstep), "hpccoll-ranks")


def pytest_itemcollected(item: pytest.Item) -> None:
    """Let `-m mpi` find every test that needs ranks."""
    if rank_counts(item):
        item.add_marker("mpi")


def rank_counts(item: pytest.Item) -> tuple[int, ...]:
    """The numbers of ranks at which `item` runs; () = in one process, without mpiexec."""
    marker = item.get_closest_marker("ranks")
    if marker is None:
        return RANKS_OF_MPI if item.get_closest_marker("mpi") else ()
    if not marker.args or not all(isinstance(count, int) and count >= 1 for count in marker.args):
        raise pytest.UsageError(f"{item.nodeid}: ranks() takes one or more rank counts, got {marker.args!r}")
    return tuple(sorted(set(marker.args)))


class RankSession:
    """The hooks of one test process: rank `rank` of `size`, or a process without ranks where `size` is 0."""

    def __init__(self, config: pytest.Config, rank: int, size: int, lockstep: Lockstep | None) -> None:
        self.rank = rank
        self.size = size
        self.lockstep = lockstep
        self.resync_s: float = config.getoption("resync_s")
        folder: Path | None = config.getoption("record")
        self.recorder = None if folder is None else Recorder(record_file(folder, rank))
        self.needing_ranks = 0
        self.deselected = 0
        self.failures: list[str] = []
        self.write("begin", rank=rank, size=size, pid=os.getpid())
        if rank > 0 and self.recorder is None:
            # Under a plain mpiexec rank 0 shows progress for all; failures come in `pytest_sessionfinish`.
            config.get_terminal_writer()._file = open(os.devnull, "w")  # noqa: SIM115  lives as long as the process

    def write(self, event: str, **fields: Any) -> None:
        """Record an event, if there is a record."""
        if self.recorder is not None:
            self.recorder.write(event, **fields)

    # Which tests

    @pytest.hookimpl(trylast=True)
    def pytest_collection_modifyitems(self, config: pytest.Config, items: list[pytest.Item]) -> None:
        """Keep what runs here, after -k and -m; the runner learns of those for other rank counts."""
        only = (
            None if config.option.only_ids is None else set(config.option.only_ids.read_text().splitlines())
        )
        kept = [
            item
            for item in items
            if self.in_time_class(config, item) and (only is None or item.nodeid in only)
        ]
        here = [
            item for item in kept if (self.size in rank_counts(item) if self.size else not rank_counts(item))
        ]
        self.needing_ranks = sum(bool(rank_counts(item)) for item in kept)
        config.hook.pytest_deselected(items=[item for item in items if item not in set(here)])
        self.deselected -= len(kept) - len(here)
        self.write(
            "collected",
            tests=[describe(item) for item in (here if self.size else kept)],
            deselected=self.deselected,
        )
        for item in here:
            reason = missing(item)
            if reason:
                item.add_marker(pytest.mark.skip(reason=reason))
        items[:] = here

    @staticmethod
    def in_time_class(config: pytest.Config, item: pytest.Item) -> bool:
        """Whether --slow and --only-slow, or their absence, let the test run."""
        marked = item.get_closest_marker("slow") is not None or item.get_closest_marker("cluster") is not None
        slow = marked or min(rank_counts(item), default=0) > MOST_RANKS
        return slow if config.option.only_slow else not slow or bool(config.option.slow)

    def pytest_deselected(self, items: list[pytest.Item]) -> None:
        """Count them, -k's and -m's too."""
        self.deselected += len(items)

    def pytest_collectreport(self, report: pytest.CollectReport) -> None:
        """Modules that fail at import, or skip themselves."""
        if report.failed:
            self.write("not_collected", id=report.nodeid, outcome="failed", text=report.longreprtext)
        elif report.skipped:
            self.write("not_collected", id=report.nodeid, outcome="skipped", text=skip_reason(report))

    def pytest_collection_finish(self, session: pytest.Session) -> None:
        """End at once when the ranks would run different tests, and wait for each other in vain."""
        if self.lockstep is not None:
            ids = "\n".join(item.nodeid for item in session.items)
            if not self.lockstep.agree(hashlib.sha256(ids.encode()).digest(), self.resync_s):
                self.give_up(f"the ranks did not collect the same tests within {self.resync_s:g} s")

    # Running them

    @pytest.hookimpl(wrapper=True, tryfirst=True)
    def pytest_runtest_protocol(self, item: pytest.Item) -> Generator[None, object, object]:
        """Outermost, so that pytest-timeout's clock does not run while this rank waits for the others."""
        self.write("start", id=item.nodeid)
        result = yield
        if self.lockstep is not None:
            # A test with a longer limit of its own may have ranks that far apart.
            limit_s = max(self.resync_s, own_timeout_s(item) or 0.0)
            if not self.lockstep.meet(limit_s):
                self.give_up(f"ranks out of step after {item.nodeid}: waited {limit_s:g} s for the others")
        self.write("finish", id=item.nodeid)
        return result

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        """Record it; without a record keep failures for the end."""
        event = report_event(report)
        self.write("report", **event)
        if report.failed:
            self.failures.append(f"{report.nodeid} ({report.when})\n{event['text']}")

    def pytest_sessionfinish(self) -> None:
        """One write a rank, so that the texts of different ranks do not mix."""
        self.write("end")
        if self.rank > 0 and self.recorder is None and self.failures:
            text = "\n".join(
                f"\n[rank {self.rank} of {self.size}] FAILED {failure}" for failure in self.failures
            )
            os.write(sys.__stderr__.fileno() if sys.__stderr__ else 2, text.encode() + b"\n")

    def pytest_terminal_summary(self, terminalreporter: pytest.TerminalReporter) -> None:
        """Say how the deselected ones are run."""
        if not self.size and self.needing_ranks:
            terminalreporter.write_line(
                f"{self.needing_ranks} tests here run under MPI only: `make test TESTS=...`, "
                "or `mpiexec -n 3 python -m pytest -m mpi ...`"
            )

    def give_up(self, text: str) -> None:
        """End all ranks; the runner goes on with the tests that are left."""
        self.write("out_of_step", text=text)
        os.write(2, f"[rank {self.rank} of {self.size}] {text}\n".encode())
        assert self.lockstep is not None
        self.lockstep.abort()


def describe(item: pytest.Item) -> dict[str, Any]:
    """What the runner wants to know of a test."""
    return {
        "id": item.nodeid,
        "file": str(item.path),
        "ranks": rank_counts(item),
        "timeout_s": own_timeout_s(item),
    }


def own_timeout_s(item: pytest.Item) -> float | None:
    """The limit in the test's own timeout mark."""
    marker = item.get_closest_marker("timeout")
    if marker is None:
        return None
    return float(marker.args[0] if marker.args else marker.kwargs["timeout"])


def missing(item: pytest.Item) -> str:
    """What the test needs of this machine and does not find; "" if nothing."""
    cluster = item.get_closest_marker("cluster") is not None
    if (cluster or item.get_closest_marker("needs_root")) and os.geteuid() != 0:
        return "needs root"
    if cluster and not (shutil.which("ip") and shutil.which("tc")):
        return "needs ip and tc: apt-get install iproute2"
    return ""
