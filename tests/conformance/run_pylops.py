"""Run pylops-mpi's own tests with our communicators in place of MPI.COMM_WORLD and MPI.COMM_SELF.

    mpiexec -n 2 python -m tests.conformance.run_pylops [--plain] [test_stack.py ...]

Some of its tests fail with MPI's communicators too, so the status says nothing of them: the file given by
--json has every test's outcome on every rank, for a comparison with a run under --plain.
"""

from __future__ import annotations

import argparse
import faulthandler
import os
import sys
import time
from collections import Counter
from pathlib import Path
from typing import Any

import pytest

from tests.conformance.counting import Census, table, words
from tests.conformance.fetch import pylops_mpi
from tests.conformance.replace import PLAIN, replace
from tests.conformance.report import finish, left_in_shared_memory

TRACEBACK_END = 2500
# While a test runs, pytest catches what goes to sys.stderr.
STDERR = os.fdopen(os.dup(sys.stderr.fileno()), "w")


class Outcomes:
    """A pytest plugin: the outcome of each test (passed, failed, skipped); it shows failures if told to."""

    def __init__(self, show: bool) -> None:
        self.by_test: dict[str, str] = {}
        self.show = show

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        if report.when == "call" or report.outcome != "passed":
            self.by_test[report.nodeid] = report.outcome
        if report.failed and self.show:
            text = report.longreprtext[-TRACEBACK_END:]
            print(f"rank {PLAIN.rank}: {report.nodeid}\n{text}", file=STDERR, flush=True)


def run(tests: Path, names: list[str], plain: bool) -> dict[str, Any]:
    """Run the tests; all that this rank has to say about them."""
    census = Census()
    if not plain:
        census.begin()
    ours = () if plain else replace()
    outcomes = Outcomes(show=not plain)
    arguments = ["-c", "/dev/null", "--rootdir", str(tests), "--noconftest", "--with-mpi", "-W", "ignore"]
    # pytest's faulthandler would take off the limit of the whole run.
    for name in ("faulthandler", "terminal", "cacheprovider", "hypothesispytest"):
        arguments += ["-p", f"no:{name}"]
    status = pytest.main([*arguments, *(str(tests / name) for name in names)], plugins=[outcomes])
    ended = status in (pytest.ExitCode.OK, pytest.ExitCode.TESTS_FAILED)
    on_plans = census.on_plans()
    for comm in ours:
        comm.close()
    return {
        "outcomes": outcomes.by_test,
        "calls": census.calls,
        "on_plans": on_plans,
        "inherited": census.inherited,
        "on_devices": census.on_devices,
        "over_host": census.over_host,
        "wrong": [f"pytest ended with {status}"] * (not ended)
        + census.differences(on_plans)
        + left_in_shared_memory(),
    }


def main() -> None:
    """Run what the command line names."""
    parser = argparse.ArgumentParser(prog="python -m tests.conformance.run_pylops")
    parser.add_argument("names", nargs="*", default=[""], help="test files (default: all)")
    parser.add_argument("--plain", action="store_true", help="with MPI's communicators, for comparison")
    parser.add_argument("--limit-s", type=float, default=600.0, help="then show the stacks and end")
    parser.add_argument("--json", type=Path, help="write outcomes and numbers to this file")
    options = parser.parse_args()
    faulthandler.dump_traceback_later(options.limit_s, exit=True, file=STDERR)
    tests, paths = pylops_mpi()
    sys.path[:0] = map(str, paths)
    begin = time.monotonic()
    report = run(tests, options.names, options.plain)
    outcomes = PLAIN.gather(report["outcomes"])
    if outcomes is not None:
        print(*table(report["calls"], report["on_plans"]), sep="\n")
        print(f"MPI's own: {words(report['inherited']) or 'no calls'}")
        for rank, by_test in enumerate(outcomes):
            print(f"rank {rank}: {words(Counter(by_test.values()))}")
        print(f"{len(outcomes[0])} tests on each of {len(outcomes)} ranks, {time.monotonic() - begin:.1f} s")
    sys.exit(finish(report, {"outcomes": outcomes}, options.json))


if __name__ == "__main__":
    main()
